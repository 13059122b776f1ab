"""Time from `make serve MODEL=demo` to the Ready line, once installed, and CPU usage of the idle server.

python -m benchmarks.start       # 5 starts
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from benchmarks.results import save, spread

ROOT = Path(__file__).parent.parent
SETTLE, IDLE = 3.0, 20.0  # seconds to wait, then seconds to observe the idle server


def start() -> dict[str, float]:
    """Start a server and return the seconds until it is ready, and the cores that it uses when idle."""
    began = time.perf_counter()
    command = ["make", "serve", "MODEL=demo", "ARGS=--port 0"]
    server = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        return watch(server, began)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        server.communicate()


def watch(server: subprocess.Popen[str], began: float) -> dict[str, float]:
    """Return the figures of `start` for a server that was started at `began`."""
    assert server.stderr is not None
    for line in server.stderr:
        if line.startswith("Ready"):
            break
    else:
        raise RuntimeError("The server ended before it was ready; run `make serve MODEL=demo` to see the reason.")
    ready = time.perf_counter() - began
    first = psutil.Process(server.pid)
    family = [first, *first.children(recursive=True)]

    def used() -> float:
        return float(sum(sum(process.cpu_times()[:2]) for process in family))

    time.sleep(SETTLE)
    before, watched = used(), time.perf_counter()
    time.sleep(IDLE)
    return {"ready_s": ready, "idle_cores": (used() - before) / (time.perf_counter() - watched)}


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that SIGTERM stops the server too
    rows: list[dict[str, Any]] = [{"run": run, **start()} for run in range(options.runs)]
    summary = {key: spread([row[key] for row in rows]) for key in ("ready_s", "idle_cores")}
    print(summary)
    print("Saved to", save("start", {"model": "models/demo"}, rows, summary))


if __name__ == "__main__":
    main()
