"""How the engine's OpenMP threads should wait for each other, measured with the whole server running.

One server per choice, all alive, asked in turn: output tokens per second of the demo model through HTTP and SSE at 1
and at 16 streams, on a quiet machine and beside a process that keeps one core busy. A thread that sleeps at once has to
be woken for every operation; one that spins holds a core that the thread it waits for may need.
`engine/build.py` and `app/client.py` hold the choices that were kept.

    python -m benchmarks.thread_spin         # 5 interleaved runs
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

TWO = ("--threads", "2")

# options of the server, environment of its engine; 300000 is what libgomp does by itself
CHOICES: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "one thread": (("--threads", "1"), {}),
    "no spinning": (TWO, {"GOMP_SPINCOUNT": "0"}),
    "1000 spins": (TWO, {"GOMP_SPINCOUNT": "1000"}),
    "5000 spins": (TWO, {"GOMP_SPINCOUNT": "5000"}),
    "50000 spins": (TWO, {"GOMP_SPINCOUNT": "50000"}),
    "300000 spins": (TWO, {"GOMP_SPINCOUNT": "300000"}),
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
            choice: stack.enter_context(Serving("--no-enable-prefix-caching", *flags, environment=environment))
            for choice, (flags, environment) in CHOICES.items()
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
    print("kept in", save("thread_spin", settings, rows, summary))


if __name__ == "__main__":
    main()
