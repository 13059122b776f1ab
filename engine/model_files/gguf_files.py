"""GGUF file of a model, with its shards, which answers as a folder in Hugging Face layout does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from engine.model_files.errors import ModelFileError
from engine.model_files.folder import GENERATION_CONFIG_FILE, read_document, sample_file
from engine.model_files.gguf import GGUFModel, open_gguf, shard_files
from engine.model_files.gguf_config import gguf_config
from engine.model_files.gguf_names import model_files
from engine.model_files.gguf_types import FILE_TYPES, GUESSED_TYPE
from engine.model_files.gguf_vocabulary import GGUFVocabulary
from engine.model_files.interface import Description, Document, TokenizerSource


@dataclass(frozen=True)
class GGUFFiles:
    """Implementation of `engine.model_files.interface.ModelFiles` for a GGUF file. Its header is read once.

    with_vocabulary: False for a process that needs neither the tokenizer nor end tokens, and must not ask for them. The
    strings of a vocabulary take 0.1 s and 10 MB and more.
    """

    path: Path
    with_vocabulary: bool = True

    @property
    def name(self) -> str:
        return self.path.stem

    def description(self) -> Description:
        """Return the architecture that the file names, and its file type, or that of most of its bytes."""
        metadata, tensors = self.model.metadata, self.model.tensors.values()
        bytes_by_type: Counter[str] = Counter()
        for info in tensors:
            bytes_by_type[info.type.name] += info.size
        given = metadata.get("general.file_type")
        named = FILE_TYPES.get(given & ~GUESSED_TYPE, "") if isinstance(given, int) else ""
        return Description(
            format="gguf",
            family=str(metadata.get("general.architecture", "")),
            file_bytes=sum(bytes_by_type.values()),
            storage=named or max(bytes_by_type, key=bytes_by_type.__getitem__, default=""),
        )

    def config(self) -> Document:
        return Document(self.path, gguf_config(self.model))

    def generation_config(self) -> Document:
        """Return the end tokens of the file, under the entries of a generation_config.json beside it."""
        own = {"eos_token_id": list(self.vocabulary.end_ids)}
        beside = read_document(self.path.parent / GENERATION_CONFIG_FILE)
        if not beside.exists or not self._is_alone():
            return Document(self.path, own)
        return Document(beside.file, {**own, **beside.content})

    def tokenizer_config(self) -> Document:
        return Document(self.path, self.vocabulary.special)

    def tokenizer(self) -> TokenizerSource:
        return TokenizerSource(self.path, None, vocabulary=self.vocabulary)

    def chat_template(self) -> str | None:
        return self.vocabulary.templates.get("default")

    def fingerprint_parts(self) -> Iterator[bytes]:
        for file in shard_files(self.path):
            yield from sample_file(file)

    def _is_alone(self) -> bool:
        """Return whether files beside this one are about no other GGUF model."""
        folder = self.path.parent
        try:
            names = [file.name for file in folder.iterdir()]
        except OSError as error:
            raise ModelFileError(folder, f"cannot be listed: {error.strerror or error}") from error
        return model_files(names) == [shard_files(self.path)[0].name]

    @cached_property
    def model(self) -> GGUFModel:
        """Return the header."""
        return open_gguf(self.path, with_vocabulary=self.with_vocabulary)

    @cached_property
    def vocabulary(self) -> GGUFVocabulary:
        """Return the vocabulary."""
        assert self.with_vocabulary
        return GGUFVocabulary(self.path, self.model.metadata)
