"""Choice of the reader for a model by the form of its path."""

from __future__ import annotations

from pathlib import Path

from engine.model_files.folder import FolderFiles
from engine.model_files.gguf_files import GGUFFiles
from engine.model_files.gguf_header import starts_as_gguf
from engine.model_files.gguf_names import has_gguf_name
from engine.model_files.interface import ModelFiles


def open_model(path: Path, *, with_vocabulary: bool = True) -> ModelFiles:
    """Return the files of the model at `path`: a GGUF file, or a folder in Hugging Face layout. Nothing is read yet.

    with_vocabulary: as of `GGUFFiles`; the tokenizer of a folder is in files of its own.
    """
    return GGUFFiles(path, with_vocabulary) if is_gguf(path) else FolderFiles(path)


def is_gguf(path: Path) -> bool:
    """Return whether a file is a GGUF file: by its name, or by its first bytes, as Ollama's files have no such name."""
    return has_gguf_name(path.name) or (path.is_file() and starts_as_gguf(path))
