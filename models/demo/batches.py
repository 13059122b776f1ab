"""Batches: conversations of similar length side by side, so that little is padding and no text sees another.

Owns the order of the training data, which is a function of the seed alone: pool k is written by a Writer of its own.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from models.demo.corpus.conversations import conversation
from models.demo.corpus.writer import Writer
from models.demo.tokens import encode
from tokenizers import Tokenizer
from torch import Tensor

POOL_SEED_STRIDE = 1_000_003
LONGEST = 1024  # a longer conversation is cut here


@dataclass(frozen=True)
class Batch:
    """ids int64 [B, T], padded on the right; places and targets int64 [N] as Network.loss takes them."""

    ids: Tensor
    places: Tensor
    targets: Tensor


Document = tuple[list[int], list[bool]]


def pool(
    tokenizer: Tokenizer, seed: int, index: int, tokens: int, batch_tokens: int, echo_share: float = 0.0
) -> list[Batch]:
    """Pool number index: about `tokens` tokens of conversations, sorted by length, cut into batches of at most
    batch_tokens padded positions, and shuffled."""
    w = Writer(seed * POOL_SEED_STRIDE + index)
    documents: list[Document] = []
    count = 0
    while count < tokens:
        ids, learned = encode(tokenizer, conversation(w, echo_share))
        documents.append((ids[:LONGEST], learned[:LONGEST]))
        count += len(documents[-1][0])
    documents.sort(key=lambda document: len(document[0]))
    batches = [collate(group) for group in groups(documents, batch_tokens)]
    w.shuffle(batches)
    return batches


def groups(documents: list[Document], batch_tokens: int) -> Iterator[list[Document]]:
    group: list[Document] = []
    for document in documents:  # sorted, so the newcomer is the longest
        if group and (len(group) + 1) * len(document[0]) > batch_tokens:
            yield group
            group = []
        group.append(document)
    if len(group) > 1:
        yield group


def collate(group: list[Document]) -> Batch:
    length = max(len(ids) for ids, _ in group)
    ids = torch.zeros(len(group), length, dtype=torch.int64)
    learned = torch.zeros(len(group), length, dtype=torch.bool)
    for row, (tokens, mask) in enumerate(group):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        learned[row, : len(mask)] = torch.tensor(mask)
    targets = ids[:, 1:][learned[:, 1:]]
    before = torch.zeros_like(learned)
    before[:, :-1] = learned[:, 1:]
    return Batch(ids, before.flatten().nonzero().squeeze(1), targets)
