"""Real server as a child process, for benchmarks over HTTP."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import psutil  # type: ignore[import-untyped]


def child_processes(server: int, module: str) -> Iterator[psutil.Process]:
    """Yield the processes that run a module, of those that the process with an ID has started and that live."""
    for child in psutil.Process(server).children():
        with contextlib.suppress(psutil.Error):
            if child.status() != psutil.STATUS_ZOMBIE and module in child.cmdline():
                yield child


def engine_processes(server: int) -> Iterator[psutil.Process]:
    """Yield the engine processes of the server with a process ID."""
    yield from child_processes(server, "engine.worker")


class Serving:
    """Context manager that runs `carousel serve` on a free port, for example `Serving("--max-num-seqs", "8")`.

    Entering waits until the server is ready at `host` and `port`. It also freezes the objects that this process has
    loaded for the garbage collector: walking all of torch would pause the measuring client for 100 ms and more.

    model: the bundled one, or as on the command line. cores: cores of the server (Linux); None: those of this process.
    log: file for the server's log. port: 0 for a free one.
    """

    def __init__(
        self,
        *options: str,
        model: str = "demo",
        cores: set[int] | None = None,
        log: Path | None = None,
        port: int = 0,
    ) -> None:
        self.model = model
        self.options = options
        self.cores = cores
        self.port = port
        self._log = log or Path(os.devnull)

    def __enter__(self) -> Serving:
        command = [sys.executable, "-m", "app", "serve", self.model, "--port", str(self.port)]
        command += ["--store", "none", *self.options]  # an option may name one
        ours = os.sched_getaffinity(0)
        os.sched_setaffinity(0, self.cores or ours)  # inherited
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        os.sched_setaffinity(0, ours)
        assert self.process.stderr is not None
        for line in self.process.stderr:
            found = re.match(r"Ready: http://([^:]+):(\d+)", line)
            if found:
                self.host, self.port = found.group(1), int(found.group(2))
                gc.collect()
                gc.freeze()
                self._listener = threading.Thread(target=self._copy_log, daemon=True)
                self._listener.start()  # a full pipe would block the server
                return self
        raise RuntimeError("The server ended before it was ready.")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.terminate()
        self.process.wait()
        self._listener.join()
        assert self.process.stderr is not None
        self.process.stderr.close()

    @property
    def engine(self) -> psutil.Process:
        """Return the engine process."""
        (engine,) = engine_processes(self.process.pid)
        return engine

    @property
    def url(self) -> str:
        """Return the server's address, without a path."""
        return f"http://{self.host}:{self.port}"

    def _copy_log(self) -> None:
        assert self.process.stderr is not None
        with self._log.open("w", buffering=1) as log:
            for line in self.process.stderr:
                log.write(line)
