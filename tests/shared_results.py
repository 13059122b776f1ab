"""Results that are computed once in a run of the suite, although several test processes need them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock


def once_per_run(base: Path, name: str, compute: Callable[[], str]) -> str:
    """Return the result of `compute`. The first process that needs it computes it; others wait, and read its file.

    base: pytest's folder of this process, `tmp_path_factory.getbasetemp()`. A failure is not kept.
    """
    folder = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    file = folder / name
    with FileLock(f"{file}.lock"):
        if not file.exists():
            file.write_text(compute())
        return file.read_text()
