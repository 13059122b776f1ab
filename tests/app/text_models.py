"""Byte-level and sentencepiece tokenizers for tests."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from app.text.text_model import TextModel


def byte_level() -> TextModel:
    """Return a byte-level model with one token for each byte and a few merges, so that tokens cut characters."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merged = ["he", "ll", "hell", "Ġw", "ð", "ðŁ"]
    vocab = {token: i for i, token in enumerate(dict.fromkeys([*alphabet, *merged]))}
    tokenizer = Tokenizer(models.BPE(vocab, [("h", "e"), ("l", "l"), ("he", "ll"), ("Ġ", "w"), ("ð", "Ł")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return TextModel(tokenizer, "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}", {}, frozenset())


def sentence_piece() -> TextModel:
    """Return a model like Llama 2's.

    Words include the space before them, the first space of a text is dropped, and bytes have tokens.
    """
    tokens = ["<unk>", "<s>", "▁the", "▁engine", "s", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocab = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.add_special_tokens(["<s>"])
    space = decoders.Replace("▁", " ")
    tokenizer.decoder = decoders.Sequence([space, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return TextModel(tokenizer, None, {}, frozenset())


MODEL = byte_level()
PIECES = sentence_piece()
