"""Folder of a model in Hugging Face layout. Knows which file has which part, and nothing about their meaning."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from engine.model_files.errors import ModelFileError
from engine.model_files.interface import Description, Document, TokenizerSource

CONFIG_FILE = "config.json"
GENERATION_CONFIG_FILE = "generation_config.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
TOKENIZER_FILE = "tokenizer.json"
TEMPLATE_FILE = "chat_template.jinja"
SUMS_FILE = "SHA256SUMS"  # digests of weight files, in the form of sha256sum
# Files from which transformers creates a tokenizer; for a folder without any of them it creates an empty one.
VOCABULARY_FILES = (
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tekken.json",
    "vocab.json",
    "vocab.txt",
    "*.tiktoken",
)
# Files that name tokens if tokenizer_config.json has no added_tokens_decoder.
LEGACY_FILES = ("added_tokens.json", "special_tokens_map.json")
# Entries of config.json, and files of early versions of AutoGPTQ and AutoAWQ, that describe quantised weights; with the
# method, which these files do not name.
QUANTIZATION_KEYS = ("quantization_config", "compression_config")
QUANTIZATION_FILES = {"quantize_config.json": "gptq", "quant_config.json": "awq"}
SAMPLES, SAMPLE_BYTES = 64, 4096  # of each file, evenly spread: reading all of it would take seconds


@dataclass(frozen=True)
class FolderFiles:
    """Implementation of `engine.model_files.interface.ModelFiles` for a folder."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def has_config(self) -> bool:
        """Return whether the folder is that of a model."""
        return (self.path / CONFIG_FILE).exists()

    def description(self) -> Description:
        """Return the model type and quantisation in config.json, and the size of the safetensors files."""
        content = self.config().content
        quantization = next((value for key in QUANTIZATION_KEYS if (value := content.get(key))), None)
        method = quantization.get("quant_method") if isinstance(quantization, dict) else None
        family, storage = (text if isinstance(text, str) else "" for text in (content.get("model_type"), method))
        size = sum(file.stat().st_size for file in self.path.glob("*.safetensors"))
        return Description("safetensors", family, size, storage)

    def config(self) -> Document:
        """Return config.json, with the description of quantised weights that early tools wrote beside it."""
        document = read_document(self.path / CONFIG_FILE)
        if any(document.content.get(key) for key in QUANTIZATION_KEYS):
            return document
        for name, method in QUANTIZATION_FILES.items():
            description = read_document(self.path / name)
            if description.exists:
                content = {QUANTIZATION_KEYS[0]: {"quant_method": method, **description.content}}
                return replace(document, content={**document.content, **content})
        return document

    def generation_config(self) -> Document:
        return read_document(self.path / GENERATION_CONFIG_FILE)

    def tokenizer_config(self) -> Document:
        return read_document(self.path / TOKENIZER_CONFIG_FILE)

    def tokenizer(self) -> TokenizerSource:
        file = self.path / TOKENIZER_FILE
        legacy = [read_document(self.path / name) for name in LEGACY_FILES]
        if not file.exists() and not any(found for pattern in VOCABULARY_FILES for found in self.path.glob(pattern)):
            names = ", ".join(VOCABULARY_FILES)
            raise ModelFileError(self.path, f"has no {TOKENIZER_FILE}, and no {names} to make one from")
        return TokenizerSource(file, _read(file), any(document.exists for document in legacy))

    def chat_template(self) -> str | None:
        file = self.path / TEMPLATE_FILE
        content = _read(file)
        if content is None:
            return _default_template(self.tokenizer_config())
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ModelFileError(file, str(error)) from None

    def fingerprint_parts(self) -> Iterator[bytes]:
        names = (CONFIG_FILE, *QUANTIZATION_FILES, "*.safetensors")
        for file in sorted({file for name in names for file in self.path.glob(name)}):
            yield from sample_file(file)


def read_document(file: Path) -> Document:
    """Return the JSON object in a file; an empty one if there is no file. Raises `ModelFileError`."""
    data = _read(file)
    if data is None:
        return Document(file, {}, exists=False)
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(file, f"not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ModelFileError(file, "not a JSON object")
    return Document(file, content)


def sample_file(file: Path) -> Iterator[bytes]:
    """Yield the name and size of a file, then samples of its content."""
    size = file.stat().st_size
    yield f"{file.name} {size}".encode()
    with file.open("rb") as stream:
        for offset in sorted({size * sample // SAMPLES for sample in range(SAMPLES)}):
            stream.seek(offset)
            yield stream.read(SAMPLE_BYTES)


def _read(file: Path) -> bytes | None:
    """Return the content of a file; None if there is no file."""
    try:
        return file.read_bytes() if file.exists() else None
    except OSError as error:
        raise ModelFileError(file, f"cannot be read: {error}") from error


def _default_template(document: Document) -> str | None:
    given = template = document.content.get("chat_template")
    try:
        if isinstance(template, list):  # several named templates
            template = {entry["name"]: entry["template"] for entry in template}
        if isinstance(template, dict):
            template = template.get("default")
    except (KeyError, TypeError):
        template = given
    if template is not None and not isinstance(template, str):
        raise ModelFileError(document.file, f"chat_template must be a text or a list of named ones, not {given!r:.80}")
    return template
