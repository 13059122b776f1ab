"""Tokenizer of a GGUF file, made of its metadata: byte-level BPE and SentencePiece.

Special tokens, end tokens and flags are found as llama.cpp finds them (llama-vocab.cpp), since files are made for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any, TypeVar

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

from app.text.checkpoint_files import TokenizerError
from app.text.gguf_pre_tokenizers import BY_NAME, PreTokenization

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
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # a space in SentencePiece's vocabularies
KEEPS_SPACES_AFTER = frozenset({"<unk>", "<s>", "<|endoftext|>"})  # special tokens of Phi-3; its others take the spaces

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
class GgufTokenizer:
    """Tokenizer that the metadata of a file describe. Raises `TokenizerError` for one that is not supported."""

    metadata: Mapping[str, Any]

    @cached_property
    def tokens(self) -> list[str]:
        """Return the tokens by id. Raises `TokenizerError` for a token that is there twice."""
        tokens = [token or f"[EMPTY_{number}]" for number, token in enumerate(self._list("tokens", str))]
        if len(set(tokens)) != len(tokens):
            raise TokenizerError(f"tokenizer.ggml.tokens has {_repeated(tokens)!r:.80} twice")
        return tokens

    @property
    def special(self) -> dict[str, str]:
        """Return the named special tokens, such as `bos_token`."""
        ids = {name: self._id(key) for name, key in SPECIAL_NAMES.items()}
        tokens = self.tokens
        return {name: tokens[number] for name, number in ids.items() if number is not None}

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Return the tokens that end a text: those that the file names, the one named eos first, and known ones."""
        named = [number for key in ("eos", "eot", "eom") if (number := self._id(key)) is not None]
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

    def make(self) -> Tokenizer:
        """Return the tokenizer."""
        match model := self.metadata.get("tokenizer.ggml.model"):
            case "gpt2":
                tokenizer, adds_bos = self._byte_level()
            case "llama":
                tokenizer, adds_bos = self._sentence_piece(), True
            case _:
                raise TokenizerError(
                    f"tokenizer.ggml.model is {model!r:.80}, and {BYTE_LEVEL} (byte-level BPE) and {SENTENCE_PIECE} "
                    "(SentencePiece) are supported"
                )
        self._add_special_tokens(tokenizer)
        self._add_ends(tokenizer, adds_bos)
        return tokenizer

    def _byte_level(self) -> tuple[Tokenizer, bool]:
        """Return a tokenizer, and whether it begins texts with the begin token."""
        splitting = self._pre_tokenization()
        merges = [_pair(merge) for merge in self._list("merges", str)]
        vocabulary = {token: number for number, token in enumerate(self.tokens)}
        try:
            bpe = models.BPE(vocab=vocabulary, merges=merges, ignore_merges=splitting.ignores_merges)
        except Exception as error:  # the library raises plain Exception
            raise TokenizerError(f"tokenizer.ggml.merges: {error}") from None
        tokenizer = Tokenizer(bpe)
        tokenizer.pre_tokenizer = splitting.pre_tokenizer()
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer, splitting.adds_bos

    def _pre_tokenization(self) -> PreTokenization:
        name = self.metadata.get("tokenizer.ggml.pre")
        found = BY_NAME.get(name) if isinstance(name, str) else None
        if found is None:
            raise TokenizerError(
                f"tokenizer.ggml.pre is {name!r:.80}, and {', '.join(BY_NAME)} are supported; a folder with the "
                "model's tokenizer.json is read whatever it is"
            )
        return found

    def _sentence_piece(self) -> Tokenizer:
        if self.metadata.get("tokenizer.ggml.remove_extra_whitespaces"):
            raise TokenizerError("tokenizer.ggml.remove_extra_whitespaces is true, and only false is supported")
        tokens, scores, kinds = self.tokens, self._list("scores", float), self._kinds()
        if len(scores) < len(tokens):
            raise TokenizerError(f"tokenizer.ggml.scores has {len(scores)} entries for {len(tokens)} tokens")
        vocabulary = {token: number for number, token in enumerate(tokens)}
        # Control tokens are found before, and bytes only where there is no other token.
        mergeable = {
            token: number for token, number in vocabulary.items() if kinds[number] in (Kind.NORMAL, Kind.UNUSED)
        }
        unknown = self._id("unknown")
        tokenizer = Tokenizer(
            models.BPE(
                vocab=vocabulary,
                merges=_merges(mergeable, scores),
                unk_token=None if unknown is None else tokens[unknown],
                fuse_unk=True,
                byte_fallback=True,
            )
        )
        adds_prefix = self.metadata.get("tokenizer.ggml.add_space_prefix", True)
        prefix = [normalizers.Prepend(SPACE)] if adds_prefix else []
        tokenizer.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", SPACE)])
        strip = [decoders.Strip(" ", 1, 0)] if adds_prefix else []
        steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
        tokenizer.decoder = decoders.Sequence(steps)
        return tokenizer

    def _add_special_tokens(self, tokenizer: Tokenizer) -> None:
        """Add the tokens that are found in a text before it is split: control tokens, and those that users defined."""
        tokens, ends = self.tokens, set(self.end_ids)
        name = str(self.metadata.get("general.name", "")).lower()
        strips = "phi-3" in name or "phi3" in name
        for number, kind in enumerate(self._kinds()):
            token, is_control = tokens[number], kind in (Kind.CONTROL, Kind.UNKNOWN) or number in ends
            if is_control or kind == Kind.USER_DEFINED:
                added = AddedToken(
                    token,
                    normalized=False,
                    special=is_control,
                    rstrip=strips and token not in KEEPS_SPACES_AFTER,
                )
                (tokenizer.add_special_tokens if is_control else tokenizer.add_tokens)([added])

    def _add_ends(self, tokenizer: Tokenizer, adds_bos: bool) -> None:
        """Make the tokenizer add the begin and the end token to a text, if the file asks for it."""
        pieces, tokens = ["$A"], self.tokens
        special: list[tuple[str | int, int | str]] = []
        for key, default in (("bos", adds_bos), ("eos", False)):
            if not self.metadata.get(f"tokenizer.ggml.add_{key}_token", default):
                continue
            if (number := self._id(key)) is None:
                raise TokenizerError(f"tokenizer.ggml.add_{key}_token is true, but {key}_token_id is missing")
            pieces = [tokens[number], *pieces] if key == "bos" else [*pieces, tokens[number]]
            special.append((tokens[number], number))
        if special:
            tokenizer.post_processor = processors.TemplateProcessing(single=pieces, special_tokens=special)

    def _kinds(self) -> Sequence[int]:
        size = len(self._list("tokens", str))
        kinds: Sequence[int] = self.metadata.get("tokenizer.ggml.token_type") or [Kind.NORMAL] * size
        if len(kinds) < size:
            raise TokenizerError(f"tokenizer.ggml.token_type has {len(kinds)} entries for {size} tokens")
        return kinds[:size]

    def _id(self, key: str) -> int | None:
        """Return the id of a named token; None if there is none in the vocabulary."""
        default = SENTENCE_PIECE_IDS.get(key) if self.metadata.get("tokenizer.ggml.model") == SENTENCE_PIECE else None
        number = self.metadata.get(f"tokenizer.ggml.{key}_token_id", default)
        is_valid = isinstance(number, int) and 0 <= number < len(self._list("tokens", str))
        return number if is_valid else None

    def _list(self, name: str, kind: type[Value]) -> list[Value]:
        values = self.metadata.get(f"tokenizer.ggml.{name}")
        if not isinstance(values, list) or not all(isinstance(value, kind) for value in values[:1]):
            raise TokenizerError(f"tokenizer.ggml.{name} is missing or no list of {kind.__name__}")
        return values


def _pair(merge: str) -> tuple[str, str]:
    """Return the two tokens of a merge, which a space separates that is not the first letter."""
    at = merge.find(" ", 1)
    if at < 0:
        raise TokenizerError(f"tokenizer.ggml.merges has {merge!r:.80}, which is no pair of tokens")
    return merge[:at], merge[at + 1 :]


def _merges(vocabulary: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Return the merges of SentencePiece's BPE, which has none: each pair of tokens that are a token together, the one
    of the highest score first.
    """

    def pairs() -> Iterator[tuple[float, int, int, str, str]]:
        for token, number in vocabulary.items():
            for at in range(1, len(token)):
                first, second = token[:at], token[at:]
                if first in vocabulary and second in vocabulary:
                    yield -scores[number], vocabulary[first], vocabulary[second], first, second

    return [(first, second) for *_, first, second in sorted(pairs())]


def _repeated(tokens: Sequence[str]) -> str:
    seen: set[str] = set()
    return next(token for token in tokens if token in seen or seen.add(token))  # type: ignore[func-returns-value]
