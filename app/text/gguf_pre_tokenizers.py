"""Pre-tokenizers of byte-level BPE by the names that GGUF files give them (`tokenizer.ggml.pre`).

The patterns are those of the models' own tokenizer.json files. A name that is not listed is refused: a tokenizer that
splits texts in another way gives a model other tokens than those that it was trained on.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers
from tokenizers.pre_tokenizers import PreTokenizer

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
MARKED_WORDS = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"
SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*%s"
PATHS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"

LLAMA3 = rf"{CONTRACTIONS}|{WORDS}|\p{{N}}{{1,3}}|{SYMBOLS}|{SPACES}"
QWEN2 = rf"{CONTRACTIONS}|{WORDS}|\p{{N}}|{SYMBOLS}|{SPACES}"
QWEN35 = rf"{CONTRACTIONS}|{MARKED_WORDS}|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{SPACES}"
GPT4O = rf"{CASED % (f'{CONTRACTIONS}?', f'{CONTRACTIONS}?')}|\p{{N}}{{1,3}}|{PATHS}|{SPACES}"
TEKKEN = rf"{CASED % ('', '')}|\p{{N}}|{PATHS}|{SPACES}"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
DIGITS = r"\p{N}"
PUNCTUATION = r"[\p{P}$+<=>^~|]+"


@dataclass(frozen=True, slots=True)
class PreTokenization:
    """How a text is split before its parts are merged.

    patterns: each splits the parts of the one before. ignores_merges: a part that is a token is not merged from smaller
    ones. adds_bos: a text begins with the begin token, unless the file says otherwise.
    """

    patterns: tuple[str, ...]
    ignores_merges: bool = False
    adds_bos: bool = False

    def pre_tokenizer(self) -> PreTokenizer:
        """Return the pre-tokenizer, which also maps bytes to the letters of the vocabulary."""
        splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self.patterns]
        return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


_LLAMA3 = PreTokenization((LLAMA3,), ignores_merges=True, adds_bos=True)
_DIGITS = PreTokenization((DIGITS, GPT2))
BY_NAME = {
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3"), _LLAMA3),
    **dict.fromkeys(("smaug-bpe", "dbrx"), PreTokenization((LLAMA3,))),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), PreTokenization((QWEN2,))),
    "qwen35": PreTokenization((QWEN35,)),
    **dict.fromkeys(("gpt-4o", "llama4"), PreTokenization((GPT4O,))),
    "tekken": PreTokenization((TEKKEN,), ignores_merges=True, adds_bos=True),
    **dict.fromkeys(("gpt-2", "phi-2", "olmo", "exaone4"), PreTokenization((GPT2,))),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r"), _DIGITS),
    "default": PreTokenization((PUNCTUATION, GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
}
