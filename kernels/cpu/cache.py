"""Cache of the compiled library of `source`, which is compiled once for each source, flags and processor.

A manifest beside the library states what it was made from, by which compiler and for which processor, and its checksum.
A machine without a compiler uses a library whose manifest fits; with another compiler it is compiled again. A library
for another source or processor is never loaded. One process compiles at a time: servers with one home compile once.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from kernels.cpu import compiler, slot_record
from kernels.cpu.compiler import POLL_SECONDS, CompileError, Compiler, Progress

log = logging.getLogger(__name__)

SOURCE = Path(__file__).parent / "source"
MANIFEST_SUFFIX = ".json"
LOCK_FILE = "compile.lock"  # in a folder in which libraries are compiled
IN_USE_FILE = "in-use.lock"  # in a temporary folder, locked while its process lives
SCRATCH_PREFIX = "scratch-"  # of the folders below it, which belong to the process that has the lock
TEMPORARY_PREFIX = "carousel-kernels-"  # of folders for a library that cannot be cached
# A younger temporary folder without a lock may be one whose process is about to take it.
MIN_STALE_SECONDS = 60.0


@dataclass(frozen=True)
class Target:
    """Library as it is wanted here. source: digest of sources, generated header and flags."""

    source: str
    processor: str

    @classmethod
    def current(cls) -> Target:
        """Return the target of the installed source, the flags and this processor."""
        digest = hashlib.sha256()
        for part in (*compiler.flags(), slot_record.header()):
            digest.update(part.encode() + b"\0")
        for file in sorted(SOURCE.iterdir()):
            digest.update(file.read_bytes() + b"\0")
        return cls(digest.hexdigest(), compiler.processor())

    @property
    def file_name(self) -> str:
        """Return the name of the library."""
        return f"cpu-{hashlib.sha256(f'{self.source} {self.processor}'.encode()).hexdigest()[:24]}.so"


@dataclass(frozen=True)
class Manifest:
    """Content of the file beside a library. compiler: command and version. library: its SHA-256 digest."""

    source: str
    processor: str
    compiler: str
    library: str

    @classmethod
    def read(cls, library: Path) -> Manifest | None:
        """Return the manifest of a library; None if it is missing or damaged."""
        try:
            return cls(**json.loads(library.with_suffix(MANIFEST_SUFFIX).read_bytes()))
        except (OSError, ValueError, TypeError):
            return None

    def fits(self, target: Target, library: Path) -> bool:
        """Return whether `library` is the complete library of `target`. A truncated one would crash the process."""
        with contextlib.suppress(OSError):
            return (self.source, self.processor, self.library) == (target.source, target.processor, _digest(library))
        return False


def cache_folder() -> Path:
    """Return the folder of the user's compiled libraries."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "carousel" / "kernels"


def provide(folder: Path, progress: Progress, *, unless: str = "") -> Path:
    """Return the library in `folder`, which is compiled if there is none.

    unless: SHA-256 digest of a library that is not to be used. Only compiling needs a writable folder. Raises `OSError`
    if it is not writable, and `CompileError`.
    """
    target = Target.current()
    library = folder / target.file_name
    if _is_usable(library, target, unless):
        return library
    installed = compiler.find_compiler()
    folder.mkdir(parents=True, exist_ok=True)
    with _lock(folder, progress):
        if not _is_usable(library, target, unless):  # another process may have compiled it meanwhile
            _compile(installed, target, library, progress)
    return library


def _is_usable(library: Path, target: Target, unless: str) -> bool:
    """Return whether the library is there and complete, and was compiled by the compiler of this machine, if any.

    Another compiler may be a better one. A folder that was filled elsewhere and cannot be written is used as it is.
    """
    manifest = Manifest.read(library)
    if manifest is None or manifest.library == unless or not manifest.fits(target, library):
        return False
    try:
        installed = compiler.find_compiler()
    except CompileError:
        return True
    return manifest.compiler == installed.description or not os.access(library.parent, os.W_OK)


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a folder for a library of this process only, and remove those that killed processes have left."""
    parent = Path(tempfile.gettempdir())
    for folder in parent.glob(f"{TEMPORARY_PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.stat().st_uid == os.getuid() and time.time() - folder.stat().st_mtime > MIN_STALE_SECONDS:
                _remove_stale(folder)
    with tempfile.TemporaryDirectory(prefix=TEMPORARY_PREFIX, dir=parent) as made, FileLock(Path(made, IN_USE_FILE)):
        yield Path(made)


def digest_of(library: Path) -> str:
    """Return the digest in a library's manifest; empty without one."""
    manifest = Manifest.read(library)
    return manifest.library if manifest is not None else ""


@contextlib.contextmanager
def _lock(folder: Path, progress: Progress) -> Iterator[None]:
    """Hold the lock for compiling in `folder`; wait for another process that holds it."""
    lock = FileLock(folder / LOCK_FILE)
    try:
        _acquire(lock, lambda: progress(0, 1))
    except NotImplementedError as error:  # a file system without locks
        raise OSError(f"{folder}: {error}") from error
    try:
        yield
    finally:
        lock.release()


def _acquire(lock: FileLock, wait: Callable[[], None]) -> None:
    with contextlib.suppress(Timeout):
        lock.acquire(timeout=0)
        return
    log.info("Waiting for another process that compiles the CPU kernels")
    while True:
        wait()
        with contextlib.suppress(Timeout):
            lock.acquire(timeout=POLL_SECONDS)
            return


def _remove_stale(folder: Path) -> None:
    """Remove a temporary folder unless its process lives."""
    lock = FileLock(folder / IN_USE_FILE)
    with contextlib.suppress(Timeout), lock.acquire(timeout=0):
        shutil.rmtree(folder)


def _compile(installed: Compiler, target: Target, library: Path, progress: Progress) -> None:
    """Compile the library. The caller holds the lock, so that scratch folders of others have no process any more."""
    for stale in library.parent.glob(f"{SCRATCH_PREFIX}*"):
        shutil.rmtree(stale, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=library.parent, prefix=SCRATCH_PREFIX) as folder:
        scratch = Path(folder)
        sources = sorted(SOURCE.glob("*.cpp"))
        log.info("Compiling the CPU kernels for this processor (%d files, only once)", len(sources))
        (scratch / slot_record.FILE_NAME).write_text(slot_record.header())
        built = compiler.compile_library(installed, sources, scratch, progress)
        manifest = Manifest(target.source, target.processor, installed.description, _digest(built))
        listed = scratch / "manifest"
        listed.write_text(json.dumps(asdict(manifest), indent=2) + "\n")
        # Each is atomic; a library without its own manifest is compiled again.
        built.replace(library)
        listed.replace(library.with_suffix(MANIFEST_SUFFIX))


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
