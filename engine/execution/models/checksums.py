"""Comparison of weight files with the SHA-256 digests that are stored beside them, in threads while the weights load.

Digests are found where tools leave them: in a file SHA256SUMS (sha256sum), in the metadata of a folder that
huggingface_hub has downloaded to, and in the names of the files of its cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from types import TracebackType
from typing import Self

from engine.execution.models.errors import WeightsError
from engine.execution.models.safetensors_files import MAX_MAGNITUDE
from engine.host import num_cores
from engine.model_files.folder import SUMS_FILE

HUB_METADATA = Path(".cache/huggingface/download")  # in a downloaded folder; one file NAME.metadata for each
HUB_BLOBS = "blobs"  # folder in huggingface_hub's cache, to whose files the names of a model are links
SHA256 = re.compile(r"[0-9a-f]{64}")  # an etag of the hub for large files; those of small files are shorter
CLOCK_TOLERANCE_SECONDS = 1.0  # between a file's time and its metadata, as in huggingface_hub
READ_BYTES = 4 << 20
POLL_SECONDS = 0.2


def known_digest(file: Path) -> str | None:
    """Return the SHA-256 digest that a file should have; None if none is stored."""
    for line in _lines(file.with_name(SUMS_FILE)):
        digest, _, name = line.partition(" ")
        if name.lstrip(" *") == file.name and SHA256.fullmatch(digest.lower()):
            return digest.lower()
    metadata = _lines(file.parent / HUB_METADATA / f"{file.name}.metadata")  # commit, etag, time of the download
    if len(metadata) >= 3 and SHA256.fullmatch(metadata[1]):
        with contextlib.suppress(OSError, ValueError):
            if file.stat().st_mtime - CLOCK_TOLERANCE_SECONDS <= float(metadata[2]):  # not replaced since
                return metadata[1]
    blob = file.resolve()
    return blob.name if blob.parent.name == HUB_BLOBS and SHA256.fullmatch(blob.name) else None


class ChecksumCheck:
    """Comparison of files with their digests, which begins with a `with` statement."""

    def __init__(self, files: Iterable[Path]) -> None:
        digests = {file: known_digest(file) for file in files}
        self._digests = {file: digest for file, digest in digests.items() if digest is not None}
        self._is_complete = len(self._digests) == len(digests)
        self._total = sum(file.stat().st_size for file in self._digests)
        self._done = 0
        self._changed = threading.Lock()
        self._has_ended = threading.Event()
        self._threads = ThreadPoolExecutor(max(1, min(len(self._digests), num_cores())), "checksums")
        self._checks: list[Future[None]] = []

    @property
    def max_magnitude(self) -> float:
        """Return the largest magnitude that values may have: any finite one, where all files have digests."""
        return math.inf if self._is_complete else MAX_MAGNITUDE

    @property
    def summary(self) -> str:
        """Return one sentence about the checks that the weights have passed."""
        if self._is_complete:
            return "The weights match their SHA-256 digests, and all values are finite"
        return (
            f"No SHA-256 digests are stored beside all weights ({SUMS_FILE}, or metadata of huggingface_hub), so only "
            f"their values were checked: all are finite, and of a magnitude of at most {MAX_MAGNITUDE:g}"
        )

    def __enter__(self) -> Self:
        self._checks = [self._threads.submit(self._check, *each) for each in self._digests.items()]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._has_ended.set()
        self._threads.shutdown(cancel_futures=True)

    def finish(self, progress: Callable[[int, int], None]) -> None:
        """Wait for all files. Raises `WeightsError` for one with another digest."""
        left = set(self._checks)
        while left:
            ended, left = wait(left, POLL_SECONDS)
            for check in ended:
                check.result()
            progress(self._done, self._total)

    def _check(self, file: Path, expected: str) -> None:
        digest = hashlib.sha256()
        try:
            with file.open("rb", buffering=0) as content:
                while not self._has_ended.is_set() and (piece := content.read(READ_BYTES)):
                    digest.update(piece)
                    with self._changed:
                        self._done += len(piece)
        except OSError as error:
            raise WeightsError(f"{file}: cannot be read: {error}") from error
        if not self._has_ended.is_set() and digest.hexdigest() != expected:
            raise WeightsError(
                f"{file}: the file is damaged: its SHA-256 digest is {digest.hexdigest()}, and the stored one is "
                f"{expected}; fetch it again"
            )


def _lines(file: Path) -> list[str]:
    """Return the lines of a small file; none if it cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        return file.read_text(encoding="utf-8").splitlines()
    return []
