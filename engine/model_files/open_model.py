"""Choice of the reader for a model by the form of its path."""

from __future__ import annotations

from pathlib import Path

from engine.model_files.folder import FolderFiles
from engine.model_files.interface import ModelFiles


def open_model(path: Path) -> ModelFiles:
    """Return the files of the model at `path`, a folder in Hugging Face layout. Nothing is read yet."""
    return FolderFiles(path)
