"""Tensors of one folder of safetensors files, each of which is read once, with the progress of reading."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from engine.execution.models.errors import WeightsError
from engine.execution.models.safetensors_files import TensorEntry, check_magnitude, list_tensors

Progress = Callable[[int, int], None]  # bytes done, bytes in total


class TensorTable:
    """Unread tensors by name. Values are checked as they are read."""

    def __init__(self, folder: Path, progress: Progress, max_magnitude: float) -> None:
        """max_magnitude: larger values are refused."""
        self.folder = folder
        self.max_magnitude = max_magnitude
        self._entries = list_tensors(folder)
        self._progress = progress
        self._done = 0
        self._total = sum(entry.size for entry in self._entries.values())

    def find(self, name: str) -> TensorEntry | None:
        """Return the location of an unread tensor; None if it is missing or was read."""
        return self._entries.get(name)

    def require(self, name: str, cause: str = "config.json requires it") -> TensorEntry:
        """Return the location of an unread tensor. Raises WeightsError, with the cause, if it is missing."""
        entry = self._entries.get(name)
        if entry is None:
            raise WeightsError(f"{self.folder}: tensor {name} is missing, but {cause}")
        return entry

    def take(self, name: str) -> TensorEntry:
        """Return the location of a tensor that the caller reads, and counts with `count`."""
        return self._entries.pop(name)

    def read_into(self, name: str, out: Tensor) -> None:
        """Fill `out`, of the same shape, with a tensor."""
        entry = self.take(name)
        check_magnitude(entry.file, name, entry.read_into(out), self.max_magnitude)
        self.count(entry.size)

    def peek(self, name: str) -> Tensor:
        """Return a tensor as it is stored, which stays unread."""
        entry = self._entries[name]
        out = torch.empty(entry.shape, dtype=entry.dtype)
        entry.read_into(out)
        return out

    def read(self, name: str) -> Tensor:
        """Return a tensor as it is stored."""
        entry = self._entries[name]
        out = torch.empty(entry.shape, dtype=entry.dtype)
        self.read_into(name, out)
        return out

    def count(self, size: int) -> None:
        """Report that `size` bytes more are read."""
        self._done += size
        self._progress(self._done, self._total)

    def finish(self, ignored: Callable[[str], bool]) -> None:
        """Raise WeightsError if tensors were not read, except those accepted by `ignored`."""
        unread = [name for name in self._entries if not ignored(name)]
        if unread:
            some = ", ".join(unread[:5])
            raise WeightsError(
                f"{self._entries[unread[0]].file}: {len(unread)} tensors are not part of this model: {some}"
            )
        self._progress(self._total, self._total)
