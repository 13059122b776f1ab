"""Trial of the threads and processes that a server needs, before anything is loaded.

Each library reports a failed start of a thread in its own way, some by a crash in the middle of a request. So as many
threads as all of them need together are started once. Processes count as threads in the limits of the system.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from app.settings import SettingsError
from app.text.text_model import TextModel
from engine.control_groups import ROOT, own_groups, read_number
from engine.host import num_cores

# Threads of the API process, the engine and the checker of grammars, and for each core those of the tokenizer, of torch
# or the compiled kernels, of numpy, and a compiler's.
MIN_THREADS, MIN_THREADS_PER_CORE = 12, 4


def check_threads() -> None:
    """Start as many threads as a server needs, and end them. Raises `SettingsError` that names the limits."""
    needed = MIN_THREADS + MIN_THREADS_PER_CORE * num_cores()
    release = threading.Event()
    started: list[threading.Thread] = []
    try:
        for _ in range(needed):
            thread = threading.Thread(target=release.wait, daemon=True)
            thread.start()
            started.append(thread)
    except (RuntimeError, MemoryError):  # by Python's and by the allocator's failure
        raise SettingsError(
            _message(f"only {len(started)} of the {needed} threads of a server can be started")
        ) from None
    finally:
        release.set()
        for thread in started:
            thread.join()


def start_tokenizer_threads(text: TextModel) -> None:
    """Encode a batch, so that the tokenizer's threads exist before the first request. Raises `SettingsError`."""
    try:
        text.tokenizer.encode_batch_fast(["a", "b"])
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # has no name that can be imported
            raise
        raise SettingsError(_message("the tokenizer cannot start its threads")) from None


def _message(problem: str) -> str:
    limits = thread_limits() or ["no limit of this process or its control groups is known, so it is the system's"]
    return f"{problem}; raise the limit: {', '.join(limits)}"


def thread_limits(root: Path = ROOT) -> list[str]:
    """Return the limits of threads and processes that apply to this process, as text with their values."""
    limits = [
        f"pids.max of the control group {group.name} is {limit}"
        for group in own_groups("pids", root)
        if (limit := read_number(group.folder / "pids.max")) is not None
    ]
    if sys.platform != "win32":
        import resource

        names = {"ulimit -v": resource.RLIMIT_AS}
        if os.geteuid():  # root has no limit of processes of its own
            names["ulimit -u"] = resource.RLIMIT_NPROC
        soft = {text: resource.getrlimit(kind)[0] for text, kind in names.items()}
        limits += [f"`{text}` is {value}" for text, value in soft.items() if value != resource.RLIM_INFINITY]
    return limits
