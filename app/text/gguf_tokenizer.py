"""Tokenizer of a GGUF file, made of its vocabulary: byte-level BPE and SentencePiece."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

from app.text.gguf_pre_tokenizers import BY_NAME, PreTokenization
from engine.model_files.gguf_vocabulary import BYTE_LEVEL, SENTENCE_PIECE, GGUFVocabulary, Kind

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # a space in SentencePiece's vocabularies
KEEPS_SPACES_AFTER = frozenset({"<unk>", "<s>", "<|endoftext|>"})  # special tokens of Phi-3; its others take the spaces


@dataclass(frozen=True)
class GGUFTokenizer:
    """Maker of the tokenizer of a vocabulary. Raises `ModelFileError` for one that is not supported."""

    vocabulary: GGUFVocabulary

    def make(self) -> Tokenizer:
        """Return the tokenizer."""
        model = self.vocabulary.metadata.get("tokenizer.ggml.model")
        if model == BYTE_LEVEL:
            tokenizer, adds_bos = self._byte_level()
        elif model == SENTENCE_PIECE:
            tokenizer, adds_bos = self._sentence_piece(), True
        else:
            raise self.vocabulary.error(
                f"tokenizer.ggml.model is {model!r:.80}, and {BYTE_LEVEL} (byte-level BPE) and {SENTENCE_PIECE} "
                "(SentencePiece) are supported"
            )
        self._add_special_tokens(tokenizer)
        self._add_ends(tokenizer, adds_bos)
        return tokenizer

    def _byte_level(self) -> tuple[Tokenizer, bool]:
        """Return a tokenizer, and whether it begins texts with the begin token."""
        splitting = self._pre_tokenization()
        vocabulary = {token: number for number, token in enumerate(self.vocabulary.tokens)}
        try:
            bpe = models.BPE(vocab=vocabulary, merges=self.vocabulary.merges, ignore_merges=splitting.ignores_merges)
        except Exception as error:  # the library raises plain Exception
            raise self.vocabulary.error(f"tokenizer.ggml.merges: {error}") from None
        tokenizer = Tokenizer(bpe)
        tokenizer.pre_tokenizer = splitting.pre_tokenizer()
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer, splitting.adds_bos

    def _pre_tokenization(self) -> PreTokenization:
        name = self.vocabulary.metadata.get("tokenizer.ggml.pre")
        found = BY_NAME.get(name) if isinstance(name, str) else None
        if found is None:
            raise self.vocabulary.error(
                f"tokenizer.ggml.pre is {name!r:.80}, and {', '.join(BY_NAME)} are supported; a folder with the "
                "model's tokenizer.json is read whatever it is"
            )
        return found

    def _sentence_piece(self) -> Tokenizer:
        if self.vocabulary.metadata.get("tokenizer.ggml.remove_extra_whitespaces"):
            raise self.vocabulary.error("tokenizer.ggml.remove_extra_whitespaces is true, and only false is supported")
        tokens, scores, kinds = self.vocabulary.tokens, self.vocabulary.list_of("scores", float), self.vocabulary.kinds
        if len(scores) < len(tokens):
            raise self.vocabulary.error(f"tokenizer.ggml.scores has {len(scores)} entries for {len(tokens)} tokens")
        vocabulary = {token: number for number, token in enumerate(tokens)}
        # Control tokens are found before, and bytes only where there is no other token.
        mergeable = {
            token: number for token, number in vocabulary.items() if kinds[number] in (Kind.NORMAL, Kind.UNUSED)
        }
        unknown = self.vocabulary.token_id("unknown")
        tokenizer = Tokenizer(
            models.BPE(
                vocab=vocabulary,
                merges=_merges(mergeable, scores),
                unk_token=None if unknown is None else tokens[unknown],
                fuse_unk=True,
                byte_fallback=True,
            )
        )
        adds_prefix = self.vocabulary.metadata.get("tokenizer.ggml.add_space_prefix", True)
        prefix = [normalizers.Prepend(SPACE)] if adds_prefix else []
        tokenizer.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", SPACE)])
        strip = [decoders.Strip(" ", 1, 0)] if adds_prefix else []
        steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
        tokenizer.decoder = decoders.Sequence(steps)
        return tokenizer

    def _add_special_tokens(self, tokenizer: Tokenizer) -> None:
        """Add the tokens that are found in a text before it is split: control tokens, and those that users defined."""
        ends, name = set(self.vocabulary.end_ids), str(self.vocabulary.metadata.get("general.name", "")).lower()
        strips = "phi-3" in name or "phi3" in name
        control: list[AddedToken] = []
        defined: list[AddedToken] = []
        for number, (token, kind) in enumerate(zip(self.vocabulary.tokens, self.vocabulary.kinds, strict=True)):
            is_control = kind in (Kind.CONTROL, Kind.UNKNOWN) or number in ends
            if is_control or kind == Kind.USER_DEFINED:
                rstrip = strips and token not in KEEPS_SPACES_AFTER
                added = AddedToken(token, normalized=False, special=is_control, rstrip=rstrip)
                (control if is_control else defined).append(added)
        tokenizer.add_special_tokens(control)
        tokenizer.add_tokens(defined)

    def _add_ends(self, tokenizer: Tokenizer, adds_bos: bool) -> None:
        """Make the tokenizer add the begin and the end token to a text, if the file asks for it."""
        pieces, tokens = ["$A"], self.vocabulary.tokens
        special: list[tuple[str | int, int | str]] = []
        for key, default in (("bos", adds_bos), ("eos", False)):
            if not self.vocabulary.metadata.get(f"tokenizer.ggml.add_{key}_token", default):
                continue
            if (number := self.vocabulary.token_id(key)) is None:
                raise self.vocabulary.error(f"tokenizer.ggml.add_{key}_token is true, but {key}_token_id is missing")
            pieces = [tokens[number], *pieces] if key == "bos" else [*pieces, tokens[number]]
            special.append((tokens[number], number))
        if special:
            tokenizer.post_processor = processors.TemplateProcessing(single=pieces, special_tokens=special)


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
