"""Tokenizer of a model's files, equal to the one that transformers' AutoTokenizer creates from it.

A self-contained tokenizer.json is loaded with the `tokenizers` package. Other folders are converted by transformers in
a child process, once, at start: those without a tokenizer.json, those whose other files name further tokens, and those
whose tokenizer class builds parts of the tokenizer itself.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from app.child_environment import child_environment
from app.text import convert_tokenizer
from app.text.errors import TokenizerError
from app.text.gguf_tokenizer import GGUFTokenizer
from engine.model_files.interface import Document, ModelFiles, TokenizerSource
from engine.parent_death import bound_command

SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
# Classes for which transformers uses tokenizer.json unchanged, and model types for which it accepts them.
GENERIC_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")
GENERIC_MODEL_TYPES = ("llama", "qwen3")
CONVERSION_SECONDS = 600  # time limit of a conversion; the largest vocabularies take about a minute


@dataclass(frozen=True)
class TokenizerFiles:
    """Parts of a model's files that describe its tokenizer."""

    source: TokenizerSource
    model: Mapping[str, Any]
    document: Document

    @classmethod
    def read(cls, files: ModelFiles) -> TokenizerFiles:
        """Read the parts. Raises `ModelFileError` for a damaged file, `TokenizerError` for an invalid entry."""
        read = cls(files.tokenizer(), files.config().content, files.tokenizer_config())
        read._check()
        return read

    @property
    def config(self) -> Mapping[str, Any]:
        """Return the content of tokenizer_config.json."""
        return self.document.content

    @property
    def special(self) -> dict[str, str]:
        """Return the named special tokens of tokenizer_config.json."""
        named = {name: self.config.get(name) for name in SPECIAL_NAMES}
        return {name: self._content(name, token) for name, token in named.items() if token}

    @property
    def is_generic(self) -> bool:
        """Return whether transformers would use the stored tokenizer unchanged."""
        declared = self.config.get("tokenizer_class") or self.model.get("tokenizer_class")
        model_type = self.model.get("model_type")
        if self.config.get("auto_map"):
            return True  # the checkpoint's own code is not run, so only its tokenizer.json is left
        if not declared:
            return not model_type
        return declared in GENERIC_CLASSES and (not model_type or model_type in GENERIC_MODEL_TYPES)

    def adds_to(self, tokenizer: Tokenizer) -> bool:
        """Return whether these files name tokens, or properties of tokens, that `tokenizer` does not have."""
        added = tokenizer.get_added_tokens_decoder()
        if "added_tokens_decoder" in self.config:
            listed = self.config["added_tokens_decoder"].items()
            if any(repr(added.get(int(index))) != repr(AddedToken(**token)) for index, token in listed):
                return True
        elif self.source.names_more_tokens:
            return True
        contents = {token.content for token in added.values()}
        return any(content not in contents for content in self._named_tokens())

    def _named_tokens(self) -> Iterator[str]:
        """Yield every token that tokenizer_config.json names outside of added_tokens_decoder."""
        for key in ("additional_special_tokens", "extra_special_tokens"):
            listed = self.config.get(key) or ()
            for token in listed.values() if isinstance(listed, dict) else listed:
                yield self._content(key, token)
        for name, token in self.config.items():
            # Other keys with such a suffix may be numbers or flags.
            if token and (name in SPECIAL_NAMES or (name.endswith("_token") and isinstance(token, str | dict))):
                yield self._content(name, token)

    def _check(self) -> None:
        """Raise `TokenizerError` for a list of tokens that cannot be read."""
        listed = self.config.get("added_tokens_decoder", {})
        try:
            for index, token in listed.items():
                int(index)
                AddedToken(**token)
        except (AttributeError, TypeError, ValueError) as error:
            raise self._unreadable("added_tokens_decoder", "an object of token ids and tokens", listed) from error
        for key in ("additional_special_tokens", "extra_special_tokens"):
            if not isinstance(self.config.get(key), list | dict | None):
                raise self._unreadable(key, "a list of tokens", self.config[key])
        for _ in self._named_tokens():
            pass  # raises for the first invalid token

    def _content(self, name: str, token: Any) -> str:
        text = token.get("content") if isinstance(token, dict) else token
        if not isinstance(text, str):
            raise self._unreadable(name, "a text or an object with its content", token)
        return text

    def _unreadable(self, name: str, expected: str, given: Any) -> TokenizerError:
        return TokenizerError(f"{self.document.file}: {name} must be {expected}, got {given!r:.80}")


def load_tokenizer(files: ModelFiles) -> tuple[Tokenizer, dict[str, str]]:
    """Return the tokenizer and its named special tokens. Raises `TokenizerError` and `ModelFileError`."""
    parts = TokenizerFiles.read(files)
    if parts.source.vocabulary is not None:
        return GGUFTokenizer(parts.source.vocabulary).make(), parts.special
    tokenizer = _deserialise(parts.source)
    special = parts.special
    if tokenizer is None or not parts.is_generic or parts.adds_to(tokenizer):
        tokenizer, special = _convert(files.path)
    # Truncation and padding are left over from training; a prompt is encoded in full.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = parts.config.get("split_special_tokens") is True
    return tokenizer, special


def _deserialise(source: TokenizerSource) -> Tokenizer | None:
    if source.content is None:
        return None
    try:
        return Tokenizer.from_buffer(source.content)
    except Exception as error:  # the library raises plain Exception
        raise TokenizerError(f"{source.file} cannot be read: {error}") from error


def _convert(path: Path) -> tuple[Tokenizer, dict[str, str]]:
    result = run_conversion(path)
    if "error" in result:
        reason = result["error"]
        if "trust_remote_code" in reason:
            reason = "it needs code of its own, which is not run here; use a folder with a tokenizer.json whose "
            reason += "tokenizer_config.json names no such code (auto_map)"
        raise TokenizerError(f"{path}: transformers cannot create a tokenizer from this folder: {reason}")
    return Tokenizer.from_str(result["tokenizer"]), result["special"]


def run_conversion(path: Path) -> dict[str, Any]:
    """Return the output of `app.text.convert_tokenizer` for `path`."""
    command = bound_command([sys.executable, "-P", convert_tokenizer.__file__, str(path)])
    environment = child_environment() | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1"}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, timeout=CONVERSION_SECONDS, check=False)
        result: dict[str, Any] = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return {"error": f"no result after {CONVERSION_SECONDS} s"}
    except ValueError:
        return {"error": done.stderr.decode(errors="replace").strip().rpartition("\n")[2] or "no result"}
    return result
