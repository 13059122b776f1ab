"""Questions that the files of a model answer, in terms of the documents of a folder in Hugging Face layout.

Tensors need torch: `engine.execution.models.checkpoint` reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from engine.model_files.gguf_types import PLAIN_TYPES
from engine.model_files.gguf_vocabulary import GGUFVocabulary


@dataclass(frozen=True)
class Document:
    """JSON object of a model. file: named in errors. content: empty if the model has no such document."""

    file: Path
    content: Mapping[str, Any]
    exists: bool = True


@dataclass(frozen=True)
class TokenizerSource:
    """Serialised tokenizer. file: named in errors. content: tokenizer.json; None if one must be made, of `vocabulary`
    or by transformers.

    names_more_tokens: files beside the configuration name tokens that the content may lack.
    """

    file: Path
    content: bytes | None
    names_more_tokens: bool = False
    vocabulary: GGUFVocabulary | None = None


@dataclass(frozen=True)
class Description:
    """Properties of a model's files, for logs and clients.

    format: gguf or safetensors. family: the architecture as the files name it, such as llama; empty if they name none.
    storage: type of most weights as llama.cpp names it, such as Q4_K_M, or quant_method of config.json, such as awq;
    empty if the dtype of the weights says it.
    """

    format: str
    family: str
    file_bytes: int
    storage: str = ""

    def quantization(self, at_load: str) -> str:
        """Return the quantisation of most weights in the form of `storage`.

        at_load: none, or the quantisation of weights that are not quantised in the file.
        """
        is_quantized = self.storage not in ("", *PLAIN_TYPES)
        return self.storage if is_quantized or at_load == "none" else at_load


class ModelFiles(Protocol):
    """Files of one model. Methods read them anew and raise `ModelFileError`, with the file, for a damaged one."""

    @property
    def path(self) -> Path:
        """Return the path by which another process opens the same files."""

    @property
    def name(self) -> str:
        """Return the display name."""

    def description(self) -> Description:
        """Return the format, family, size and quantisation."""

    def config(self) -> Document:
        """Return the architecture and sizes: config.json."""

    def generation_config(self) -> Document:
        """Return the recommended sampling parameters, and end tokens: generation_config.json."""

    def tokenizer_config(self) -> Document:
        """Return the named special tokens, and properties of added tokens: tokenizer_config.json."""

    def tokenizer(self) -> TokenizerSource:
        """Return the tokenizer. Raises `ModelFileError` if there are no files to make one from."""

    def chat_template(self) -> str | None:
        """Return the chat template; of several named ones the default."""

    def fingerprint_parts(self) -> Iterator[bytes]:
        """Yield parts of the files that differ between models: sizes, headers, and samples of the weights."""
