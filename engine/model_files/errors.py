"""Error of a model file, and the form in which its messages show names that the file contains."""

from __future__ import annotations

from pathlib import Path

from engine.errors import EngineError

MAX_SHOWN_CHARACTERS = 80


class ModelFileError(EngineError):
    """A model file is damaged, incomplete or not supported. The message is one line that names the file."""

    def __init__(self, file: Path, reason: str) -> None:
        """reason: names the tensor or key, if one is the cause, and states how to proceed."""
        super().__init__(f"{file}: {reason}")
        self.file = file


def shown(name: object) -> str:
    """Return a name or value from a file in quotes, without line breaks, and shortened."""
    text = repr(name)
    return text if len(text) <= MAX_SHOWN_CHARACTERS else f"{text[:MAX_SHOWN_CHARACTERS]}..."
