"""Minimal greedy engine for tests with explicit page tables and arbitrary chunks."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain

import torch
from torch import Tensor

from engine.execution.cache import KVCache
from engine.execution.inputs import ModelInputs
from engine.execution.models import Model
from kernels.interface import Kernels


@dataclass
class Row:
    """One sequence: its tokens, its pages, and the number of tokens in the cache."""

    tokens: list[int]
    pages: list[int] = field(default_factory=list)
    computed: int = 0


class Driver:
    """Runner of rows through a model. Pages are allocated in a scattered order, so that no code relies on consecutive
    ones."""

    def __init__(
        self,
        model: Model,
        kernels: Kernels,
        num_pages: int = 64,
        page_size: int = 16,
        table_width: int = 0,
        cache_dtype: torch.dtype | None = None,
    ) -> None:
        self.model = model
        self.kernels = kernels
        self.table_width = table_width
        spec, dtype = model.cache_spec(), cache_dtype or model.dtype
        self.cache = KVCache.allocate(num_pages, page_size, spec, dtype, model.device)
        self.free = torch.randperm(num_pages, generator=torch.Generator().manual_seed(1)).tolist()

    def step(self, decodes: list[Row], chunks: list[tuple[Row, int]]) -> Tensor:
        """Run one forward pass with one token of each decode row and `n` tokens of each chunk's row. Return the logits
        of each last token, [R, V]."""
        work = [(row, 1) for row in decodes] + chunks
        for row, count in work:
            while len(row.pages) * self.cache.page_size < row.computed + count:
                row.pages.append(self.free.pop())
        logits = self.model.compute_logits(self._forward(decodes, chunks, work))
        for row, count in work:
            row.computed += count
        return logits

    def _forward(self, decodes: list[Row], chunks: list[tuple[Row, int]], work: list[tuple[Row, int]]) -> Tensor:
        size = self.cache.page_size
        positions = [list(range(row.computed, row.computed + count)) for row, count in work]
        ends = torch.tensor([len(p) for p in positions]).cumsum(0)
        starts = [0]
        for _, count in chunks:
            starts.append(starts[-1] + count)
        slots = [
            [row.pages[p // size] * size + p % size for p in where]
            for (row, _), where in zip(work, positions, strict=True)
        ]
        tokens = [[row.tokens[p] for p in where] for (row, _), where in zip(work, positions, strict=True)]
        inputs = ModelInputs(
            token_ids=torch.tensor(list(chain.from_iterable(tokens))),
            positions=torch.tensor(list(chain.from_iterable(positions))),
            slot_mapping=torch.tensor(list(chain.from_iterable(slots))),
            num_decodes=len(decodes),
            decode_page_table=self._table(decodes),
            decode_context_lens=torch.tensor([row.computed + 1 for row in decodes], dtype=torch.int32),
            prefill_page_table=self._table([row for row, _ in chunks]),
            prefill_query_starts=tuple(starts),
            prefill_context_lens=tuple(row.computed + count for row, count in chunks),
            logit_rows=ends - 1,
        )
        hidden = self.model.forward(inputs, self.cache, self.kernels)
        return hidden[ends - 1]

    def _table(self, rows: list[Row]) -> Tensor:
        width = max([self.table_width, *(len(row.pages) for row in rows)])
        # Padding is -1: reading it would be an error.
        return torch.tensor([row.pages + [-1] * (width - len(row.pages)) for row in rows], dtype=torch.int32).view(
            len(rows), width
        )

    def prefill(self, row: Row, chunk: int) -> Tensor:
        """Compute all remaining tokens of `row`, `chunk` at a time. Return the logits of the last one, [V]."""
        logits = torch.empty(0)
        while row.computed < len(row.tokens):
            logits = self.step([], [(row, min(chunk, len(row.tokens) - row.computed))])[0]
        return logits

    def generate(self, prompt: list[int], count: int, chunk: int = 1000) -> list[int]:
        """Return a greedy continuation of one prompt: `count` token IDs."""
        row = Row(list(prompt))
        logits = self.prefill(row, chunk)
        for _ in range(count):
            row.tokens.append(int(logits.argmax()))
            logits = self.step([row], [])[0]
        return row.tokens[len(prompt) :]
