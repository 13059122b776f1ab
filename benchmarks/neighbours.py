"""Cost of a noisy neighbour: throughput of the server on a quiet machine, and next to a process that occupies one core.

One server per choice, all running, measured in turn: output tokens per second of the demo model through HTTP and SSE at
1 and at 16 streams. Torch's threads wait for each other at the end of every operation; those of kernels/cpu take tasks,
so a core that is busy elsewhere costs only its share.

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

# Server options of each choice.
CHOICES: dict[str, tuple[str, ...]] = {
    "one thread": ("--threads", "1"),
    "two threads": ("--threads", "2"),
    "torch, one thread": ("--kernels", "torch", "--threads", "1"),
    "torch, two threads": ("--kernels", "torch", "--threads", "2"),
}
STREAMS, PROMPT, OUTPUT = (1, 16), 32, 48


@contextmanager
def neighbour(busy: bool) -> Iterator[None]:
    """Run a process that occupies one core, if `busy`."""
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
    """Return output tokens per second of `streams` concurrent requests."""
    bodies: list[dict[str, Any]] = [
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
    await asyncio.gather(*(stream(server.host, server.port, "/v1/completions", body) for body in bodies))
    return streams * OUTPUT / (time.perf_counter() - began)


def main() -> None:
    """Measure, print and save."""
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
            asyncio.run(rate(server, max(STREAMS)))  # warm-up
        for run in range(options.runs):
            for busy in (False, True):
                for streams in STREAMS:
                    with neighbour(busy):
                        measured = {choice: asyncio.run(rate(server, streams)) for choice, server in servers.items()}
                    rows.append({"run": run, "busy_neighbour": busy, "streams": streams, **measured})
                    shown = ", ".join(f"{choice} {value:.0f}" for choice, value in measured.items())
                    beside = "next to a busy process" if busy else "quiet"
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
    print("Saved to", save("neighbours", settings, rows, summary))


if __name__ == "__main__":
    main()
