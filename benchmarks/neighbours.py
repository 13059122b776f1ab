"""What a busy neighbour costs: the whole server on a quiet machine, and beside a process that keeps one core busy.

One server per choice, all alive, asked in turn: output tokens per second of the demo model through HTTP and SSE at 1
and at 16 streams. Torch's threads wait for each other at the end of every operation; those of kernels/cpu take tasks,
so a core that is busy elsewhere costs its share.

    python -m benchmarks.neighbours         # 5 interleaved runs
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from benchmarks.results import save, spread
from benchmarks.serving import Serving
from benchmarks.sse_client import stream

# options of the server
CHOICES: dict[str, tuple[str, ...]] = {
    "one thread": ("--threads", "1"),
    "two threads": ("--threads", "2"),
    "torch, one thread": ("--kernels", "torch", "--threads", "1"),
    "torch, two threads": ("--kernels", "torch", "--threads", "2"),
}
STREAMS, PROMPT, OUTPUT = (1, 16), 32, 48


@contextmanager
def neighbour(busy: bool) -> Iterator[None]:
    """Another process that wants a core of its own, if `busy`."""
    if not busy:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


async def rate(server: Serving, streams: int) -> float:
    """Output tokens per second of `streams` requests at once."""
    asks: list[dict[str, Any]] = [
        {
            "prompt": [300 + (7 * i + 13 * j) % 3000 for j in range(PROMPT)],
            "max_tokens": OUTPUT,
            "temperature": 0,
            "stream": True,
            "ignore_eos": True,
        }
        for i in range(streams)
    ]
    began = time.perf_counter()
    await asyncio.gather(*(stream(server.host, server.port, "/v1/completions", ask) for ask in asks))
    return streams * OUTPUT / (time.perf_counter() - began)


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        servers = {
            choice: stack.enter_context(Serving("--no-enable-prefix-caching", *flags))
            for choice, flags in CHOICES.items()
        }
        for server in servers.values():
            asyncio.run(rate(server, max(STREAMS)))  # the warm-up
        for run in range(options.runs):
            for busy in (False, True):
                for streams in STREAMS:
                    with neighbour(busy):
                        measured = {choice: asyncio.run(rate(server, streams)) for choice, server in servers.items()}
                    rows.append({"run": run, "busy_neighbour": busy, "streams": streams, **measured})
                    shown = ", ".join(f"{choice} {value:.0f}" for choice, value in measured.items())
                    beside = "beside a busy process" if busy else "quiet"
                    print(f"run {run}, {streams:2} streams, {beside}, tokens/s: {shown}", flush=True)
    summary = {
        f"{streams} streams, {'busy neighbour' if busy else 'quiet'}": {
            choice: spread([r[choice] for r in rows if (r["streams"], r["busy_neighbour"]) == (streams, busy)])
            for choice in CHOICES
        }
        for busy in (False, True)
        for streams in STREAMS
    }
    settings = {"choices": CHOICES, "prompt": PROMPT, "output": OUTPUT, "model": "models/demo, float32"}
    print(summary)
    print("kept in", save("neighbours", settings, rows, summary))


if __name__ == "__main__":
    main()
