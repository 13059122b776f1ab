"""A real server as a child process, for benchmarks that go through HTTP."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType


class Serving:
    """`with Serving("--max-num-seqs", "8") as server:` starts `carousel serve` on a free port and waits until it is
    ready; `server.host` and `server.port` say where. What this process has loaded until then is put out of its garbage
    collector's sight: a walk through all of torch stops the client that measures for 100 ms and more.

    cores: those that the server may run on (Linux); None: those of this process. log: file that gets the server's log.
    """

    def __init__(self, *options: str, cores: set[int] | None = None, log: Path | None = None) -> None:
        self.options = options
        self.cores = cores
        self._log = log or Path(os.devnull)

    def __enter__(self) -> Serving:
        command = [sys.executable, "-m", "app", "serve", *self.options, "--port", "0"]
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
                self._listener.start()  # a pipe that is full would stop the server
                return self
        raise RuntimeError("the server did not start")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.terminate()
        self.process.wait()
        self._listener.join()
        assert self.process.stderr is not None
        self.process.stderr.close()

    def _copy_log(self) -> None:
        assert self.process.stderr is not None
        with self._log.open("w", buffering=1) as log:
            for line in self.process.stderr:
                log.write(line)
