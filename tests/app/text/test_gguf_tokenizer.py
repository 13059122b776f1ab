"""Tokenizers of GGUF files split texts as the models' own tokenizers do."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, pre_tokenizers

from app.text.gguf_pre_tokenizers import BY_NAME
from app.text.gguf_tokenizer import SPACE, GGUFTokenizer
from engine.model_files.errors import ModelFileError
from engine.model_files.gguf_vocabulary import GGUFVocabulary, Kind

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
LETTERS = "ab cd\n12 .ä日🦊"


def byte_level(**fields: Any) -> dict[str, Any]:
    """Return the metadata of a byte-level vocabulary with a few merges; keys without a prefix are of the tokenizer."""
    tokens = [*ALPHABET, "ab", "Ġa", "abc", "<s>", "<|im_end|>", "<user>"]
    kinds = [Kind.NORMAL] * (len(tokens) - 3) + [Kind.CONTROL, Kind.CONTROL, Kind.USER_DEFINED]
    own = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": [int(kind) for kind in kinds],
        "merges": ["a b", "Ġ a", "ab c"],
        "bos_token_id": tokens.index("<s>"),
        "eos_token_id": tokens.index("<|im_end|>"),
        **fields,
    }
    return {f"tokenizer.ggml.{name}": value for name, value in own.items() if value is not None}


def sentence_piece(**fields: Any) -> dict[str, Any]:
    """Return the metadata of a SentencePiece vocabulary."""
    pieces = ["a", "b", "c", SPACE, f"{SPACE}a", "ab", f"{SPACE}ab", "bc", "abc", "d", "cd", SPACE * 2]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    kinds = [Kind.UNKNOWN, Kind.CONTROL, Kind.CONTROL, *[Kind.BYTE] * 256, *[Kind.NORMAL] * len(pieces)]
    own = {
        "model": "llama",
        "tokens": tokens,
        "token_type": [int(kind) for kind in kinds],
        "scores": [0.0] * 259 + [-float(number) for number in random.Random(2).sample(range(99), len(pieces))],
        **fields,
    }
    return {f"tokenizer.ggml.{name}": value for name, value in own.items() if value is not None}


def vocabulary(metadata: dict[str, Any]) -> GGUFVocabulary:
    """Return the vocabulary of a file with these metadata."""
    return GGUFVocabulary(Path("a.gguf"), metadata)


def made(metadata: dict[str, Any]) -> Tokenizer:
    """Return the tokenizer of a file with these metadata."""
    return GGUFTokenizer(vocabulary(metadata)).make()


def texts(count: int) -> list[str]:
    """Return random texts of a few letters."""
    chance = random.Random(1)
    return ["".join(chance.choices(LETTERS, k=chance.randrange(1, 30))) for _ in range(count)]


def tokens_of(tokenizer: Tokenizer, text: str, **options: bool) -> list[str]:
    """Return the tokens of a text, by default without begin and end tokens."""
    return tokenizer.encode(text, **{"add_special_tokens": False} | options).tokens


def merged_by_score(text: str, metadata: dict[str, Any]) -> list[str]:
    """Return the tokens of a text as SentencePiece merges them: the adjacent pair of the highest score, the left one of
    equal ones.
    """
    tokens, scores = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"]
    score_of = dict(zip(tokens[259:], scores[259:], strict=True))
    parts = list(SPACE + text.replace(" ", SPACE))
    while pairs := [(score_of[a + b], -at) for at, (a, b) in enumerate(pairwise(parts)) if a + b in score_of]:
        at = -max(pairs)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return [token for part in parts for token in ([part] if part in score_of else spelled(part))]


def spelled(letters: str) -> list[str]:
    """Return the tokens of the bytes of letters that have no token."""
    return [f"<0x{byte:02X}>" for byte in letters.encode()]


def test_byte_level_merges_stay_inside_of_words():
    """Merges apply in their order, and control tokens are found before."""
    tokenizer = made(byte_level())
    assert tokens_of(tokenizer, "abc ac<|im_end|>a b") == ["abc", "Ġa", "c", "<|im_end|>", "a", "Ġ", "b"]


@pytest.mark.parametrize("pre", BY_NAME)
def test_no_text_is_lost(pre: str):
    """Whatever splits it, a text is that of its tokens."""
    tokenizer = made(byte_level(pre=pre))
    for text in texts(200):
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids) == text


@pytest.mark.parametrize(
    ("pre", "text", "parts"),
    [
        ("smollm", "a12 b", ["a", "1", "2", " b"]),
        ("llama-bpe", "x1234's  y", ["x", "123", "4", "'s", " ", " y"]),
        ("qwen2", "x12 y\n\nz", ["x", "1", "2", " y", "\n\n", "z"]),
        ("qwen35", "े1", ["े", "1"]),
        ("gpt-4o", "fooBarBAZ's/\n", ["foo", "Bar", "BAZ's", "/\n"]),
        ("tekken", "fooBar12", ["foo", "Bar", "1", "2"]),
        ("gpt-2", "ab12 'S", ["ab", "12", " '", "S"]),
        ("default", "a+=12345", ["a", "+=", "123", "45"]),
    ],
)
def test_each_kind_splits_texts_in_its_own_way(pre: str, text: str, parts: list[str]):
    """The parts are those in which the model was trained."""
    splits = BY_NAME[pre].pre_tokenizer()
    ends = [end for _, (_, end) in splits.pre_tokenize_str(text)]
    assert [text[start:end] for start, end in zip([0, *ends], ends, strict=False)] == parts


def test_pieces_merge_by_score():
    """The tokens are those of SentencePiece's algorithm; letters without a token are bytes."""
    metadata = sentence_piece()
    tokenizer = made(metadata)
    for text in [*texts(500), "  abc  ab"]:
        assert tokens_of(tokenizer, text) == merged_by_score(text, metadata), text
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_the_space_before_a_text_is_left_out_if_the_file_says_so():
    """Most files have it."""
    without = made(sentence_piece(add_space_prefix=False))
    assert tokens_of(without, "ab") == ["ab"] and tokens_of(made(sentence_piece()), "ab") == [f"{SPACE}ab"]


@pytest.mark.parametrize(
    ("metadata", "tokens"),
    [
        (byte_level(), ["b"]),
        (byte_level(pre="llama-bpe"), ["<s>", "b"]),
        (byte_level(pre="llama-bpe", add_bos_token=False), ["b"]),
        (byte_level(add_bos_token=True, add_eos_token=True), ["<s>", "b", "<|im_end|>"]),
        (sentence_piece(), ["<s>", SPACE, "b"]),
    ],
)
def test_a_text_begins_and_ends_as_the_file_says(metadata: dict[str, Any], tokens: list[str]):
    """Without a word in the file the kind of tokenizer decides."""
    assert tokens_of(made(metadata), "b", add_special_tokens=True) == tokens


def test_end_tokens_are_those_named_and_those_known():
    """The one named eos is the first; <|end|> ends a message if other tokens end the answer."""
    tokens = [*ALPHABET, "<a>", "<|eot_id|>", "<|end|>", "<|return|>", "<|call|>", "<b>"]
    fields = {"tokens": tokens, "token_type": None, "merges": [], "eos_token_id": 256, "eom_token_id": 261}
    found = vocabulary(byte_level(**fields)).end_ids
    assert [tokens[number] for number in found] == ["<a>", "<b>", "<|eot_id|>", "<|return|>", "<|call|>"]
    fewer = vocabulary(byte_level(**fields | {"tokens": [*tokens[:-2], "cc", "<b>"]})).end_ids
    assert tokens.index("<|end|>") in fewer


def test_special_tokens_and_templates_are_named():
    """Templates have names, and the first is the default."""
    metadata = byte_level(padding_token_id=0) | {
        "tokenizer.chat_template": "one",
        "tokenizer.chat_templates": ["tool_use", "missing"],
        "tokenizer.chat_template.tool_use": "two",
    }
    tokenizer = vocabulary(metadata)
    assert tokenizer.special == {"bos_token": "<s>", "eos_token": "<|im_end|>", "pad_token": ALPHABET[0]}
    assert tokenizer.templates == {"default": "one", "tool_use": "two"}


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        (byte_level(model="bert"), "tokenizer.ggml.model is 'bert'"),
        (byte_level(pre="unheard-of"), "tokenizer.ggml.pre is 'unheard-of'"),
        (byte_level(pre=None), "tokenizer.ggml.pre is None"),
        (byte_level(tokens=None), "tokenizer.ggml.tokens is missing"),
        (byte_level(tokens=[1, 2]), "tokenizer.ggml.tokens is missing or no list of str"),
        (byte_level(tokens=["a", "a"]), "tokenizer.ggml.tokens has 'a' twice"),
        (byte_level(merges=["ab"]), "no pair of tokens"),
        (byte_level(merges=["a zz"]), "tokenizer.ggml.merges: "),
        (byte_level(token_type=[1]), "tokenizer.ggml.token_type has 1 entries"),
        (byte_level(add_eos_token=True, eos_token_id=10**9), "eos_token_id is missing"),
        (sentence_piece(scores=[1.0]), "tokenizer.ggml.scores has 1 entries"),
        (sentence_piece(remove_extra_whitespaces=True), "remove_extra_whitespaces"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(metadata: dict[str, Any], reason: str):
    """The message has the key and its value."""
    with pytest.raises(ModelFileError, match=reason.replace("[", r"\[")):
        made(metadata)
