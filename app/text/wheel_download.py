"""Download of a wheel by pip, from the package index that pip is configured to use, with a progress bar."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from tqdm import tqdm

from app.child_environment import child_environment
from engine.parent_death import bound_command

POLL_SECONDS = 0.1
# Attempts to reach an index after the first. With pip's default of 5 a server without a network would start late.
RETRIES = 1
UNREACHABLE = re.compile(r"connection broken by (?:.*?\[Errno -?\d+\] ([^'\")]+))?")


class DownloadError(Exception):
    """A wheel cannot be downloaded; the message gives the reason."""


def download_wheel(requirement: str, wheel: str, size: int, folder: Path) -> Path:
    """Download `requirement` as the file `wheel` of `size` bytes into the existing `folder`, and return its path.

    The file appears once it is complete. On a terminal a bar shows the progress. Raises `DownloadError`, `OSError`.
    """
    if find_spec("pip") is None:
        raise DownloadError("pip is not installed in this environment")
    with tempfile.TemporaryDirectory(dir=folder) as temporary, tempfile.TemporaryFile() as errors:
        target = Path(temporary, "wheel")
        options = ["--quiet", "--no-input", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"]
        options += [f"--retries={RETRIES}", "--dest", str(target)]
        command = bound_command([sys.executable, "-P", "-m", "pip", "download", *options, requirement])
        environment = child_environment() | {"TMPDIR": temporary}  # so that a growing file can be measured
        pip = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)
        try:
            status = _wait(pip, Path(temporary), size)
        finally:
            pip.kill()
            pip.wait()
        errors.seek(0)
        if status:
            raise DownloadError(failure_reason(errors.read().decode(errors="replace"), status))
        if not (target / wheel).is_file():
            raise DownloadError(f"the package index has no file {wheel}")
        return (target / wheel).rename(folder / wheel)


def _wait(process: subprocess.Popen[bytes], folder: Path, size: int) -> int:
    """Return the exit status of `process`. Meanwhile a bar shows which part of `size` bytes is in `folder`."""
    with tqdm(total=size, unit="B", unit_scale=True, leave=False, disable=None, file=sys.stderr) as bar:
        while True:
            try:
                return process.wait(POLL_SECONDS)
            except subprocess.TimeoutExpired:
                bar.update(min(size, bytes_in(folder)) - bar.n)


def bytes_in(folder: Path) -> int:
    """Return the bytes of all files in `folder`, from which files and folders may vanish meanwhile."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += Path(parent, name).stat().st_size
    return total


def failure_reason(output: str, status: int) -> str:
    """Return the reason for which pip failed, from its output and exit status."""
    if unreachable := UNREACHABLE.search(output):
        return f"the package index cannot be reached: {(unreachable[1] or 'no answer').strip()}"
    lines = output.strip().splitlines()
    return f"pip: {lines[-1].removeprefix('ERROR: ')}" if lines else f"pip ended with status {status}"
