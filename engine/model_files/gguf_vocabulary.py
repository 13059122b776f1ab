"""Vocabulary of a GGUF file: its tokens, their kinds, the special ones, and those that end a text.

They are found as llama.cpp finds them (llama-vocab.cpp), since files are made for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from engine.model_files.errors import ModelFileError

BYTE_LEVEL, SENTENCE_PIECE = "gpt2", "llama"  # values of tokenizer.ggml.model
SPECIAL_NAMES = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "sep_token": "seperator",  # as the format spells it
    "pad_token": "padding",
    "mask_token": "mask",
}
SENTENCE_PIECE_IDS = {"bos": 1, "eos": 2, "unknown": 0}  # if the file names none
# Tokens that end a text in every file that has them, whatever it says of them.
END_TOKENS = frozenset(
    (
        *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>"),
        *("<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<eos>"),
        *("<end_of_utterance>", "<turn|>", "<|tool_response>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "[e~["),
        *("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]", "<|fim_repo|>", "<|repo_name|>", "<fim-repo>"),
        *("<REPO>", "<reponame>", "<|file_sep|>"),
    )
)
# A format in which <|end|> ends a message, not the answer, has all of one of these groups.
MESSAGE_ENDS = ({"<|return|>", "<|call|>"}, {"<|calls|>", "<|flush|>"}, {"<|call|>", "<|flush|>"})

Value = TypeVar("Value")


class Kind(IntEnum):
    """Kinds of tokens (`tokenizer.ggml.token_type`)."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class GGUFVocabulary:
    """Vocabulary that the metadata of `file` describe. Its properties raise `ModelFileError` with the key."""

    file: Path
    metadata: Mapping[str, Any]

    @cached_property
    def tokens(self) -> list[str]:
        """Return the tokens by id. Raises `ModelFileError` for a token that is there twice."""
        tokens = [token or f"[EMPTY_{number}]" for number, token in enumerate(self.list_of("tokens", str))]
        if len(set(tokens)) != len(tokens):
            raise self.error(f"tokenizer.ggml.tokens has {_repeated(tokens)!r:.80} twice")
        return tokens

    @property
    def merges(self) -> list[tuple[str, str]]:
        """Return the pairs of tokens that byte-level BPE merges, in order. A space in the file separates them; it is
        not the first letter.
        """
        merges = self.list_of("merges", str)
        if wrong := next((merge for merge in merges if merge.find(" ", 1) < 0), None):
            raise self.error(f"tokenizer.ggml.merges has {wrong!r:.80}, which is no pair of tokens")
        return [(merge[: (at := merge.find(" ", 1))], merge[at + 1 :]) for merge in merges]

    @property
    def special(self) -> dict[str, str]:
        """Return the named special tokens, such as `bos_token`."""
        ids = {name: self.token_id(key) for name, key in SPECIAL_NAMES.items()}
        tokens = self.tokens
        return {name: tokens[number] for name, number in ids.items() if number is not None}

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Return the tokens that end a text: those that the file names, the one named eos first, and known ones."""
        named = [number for key in ("eos", "eot", "eom") if (number := self.token_id(key)) is not None]
        tokens = self.tokens
        known = {token: number for number, token in enumerate(tokens) if token in END_TOKENS}
        if any(group <= known.keys() for group in MESSAGE_ENDS):
            known.pop("<|end|>", None)
        if "<|tool_response>" in known:
            known.pop("</s>", None)
        return tuple(dict.fromkeys([*named, *known.values()]))

    @property
    def templates(self) -> dict[str, str]:
        """Return the chat templates by name; the one that is used without a name is `default`."""
        prefix = "tokenizer.chat_template"
        found = {"default": self.metadata.get(prefix)}
        found |= {
            name: self.metadata.get(f"{prefix}.{name}") for name in self.metadata.get("tokenizer.chat_templates", ())
        }
        return {name: text for name, text in found.items() if isinstance(text, str)}

    @property
    def kinds(self) -> Sequence[int]:
        """Return the kinds of tokens by id."""
        size = len(self.list_of("tokens", str))
        kinds: Sequence[int] = self.metadata.get("tokenizer.ggml.token_type") or [Kind.NORMAL] * size
        if len(kinds) < size:
            raise self.error(f"tokenizer.ggml.token_type has {len(kinds)} entries for {size} tokens")
        return kinds[:size]

    def token_id(self, key: str) -> int | None:
        """Return the id of a named token; None if there is none in the vocabulary."""
        default = SENTENCE_PIECE_IDS.get(key) if self.metadata.get("tokenizer.ggml.model") == SENTENCE_PIECE else None
        number = self.metadata.get(f"tokenizer.ggml.{key}_token_id", default)
        is_valid = isinstance(number, int) and 0 <= number < len(self.list_of("tokens", str))
        return number if is_valid else None

    def list_of(self, name: str, kind: type[Value]) -> list[Value]:
        """Return a list of the tokenizer's keys. Raises `ModelFileError` if it is missing or of another type."""
        values = self.metadata.get(f"tokenizer.ggml.{name}")
        if not isinstance(values, list) or not all(isinstance(value, kind) for value in values[:1]):
            raise self.error(f"tokenizer.ggml.{name} is missing or no list of {kind.__name__}")
        return values

    def error(self, reason: str) -> ModelFileError:
        """Return an error of this file."""
        return ModelFileError(self.file, reason)


def _repeated(tokens: Sequence[str]) -> str:
    seen: set[str] = set()
    return next(token for token in tokens if token in seen or seen.add(token))  # type: ignore[func-returns-value]
