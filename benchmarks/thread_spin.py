"""How long idle OpenMP threads of the engine should spin before they sleep, measured with the whole server running.

One server per choice, all alive, asked in turn: output tokens per second of the demo model through HTTP and SSE at 1
and at 16 streams. `default` is what the OpenMP runtime does by itself; `app/client.py` sets the choice that was kept.

    python -m benchmarks.thread_spin         # 5 interleaved runs
"""

from __future__ import annotations

import argparse
import asyncio
import time
from contextlib import ExitStack
from typing import Any

from benchmarks.results import save, spread
from benchmarks.serving import Serving
from benchmarks.sse_client import stream

CHOICES: dict[str, dict[str, str]] = {
    "asleep at once": {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"},
    "5000": {"GOMP_SPINCOUNT": "5000"},
    "50000": {"GOMP_SPINCOUNT": "50000"},
    "default": {"GOMP_SPINCOUNT": "300000"},  # libgomp's own, where threads do not outnumber the cores
    "for ever": {"OMP_WAIT_POLICY": "ACTIVE", "GOMP_SPINCOUNT": "INFINITY"},
}
STREAMS, PROMPT, OUTPUT = (1, 16), 32, 192


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
            choice: stack.enter_context(Serving("--no-enable-prefix-caching", environment=environment))
            for choice, environment in CHOICES.items()
        }
        for run in range(-1, options.runs):  # the first is the warm-up
            for streams in STREAMS:
                measured = {choice: asyncio.run(rate(server, streams)) for choice, server in servers.items()}
                if run >= 0:
                    rows.append({"run": run, "streams": streams, **measured})
                    shown = ", ".join(f"{choice} {value:.0f}" for choice, value in measured.items())
                    print(f"run {run}, {streams:2} streams, tokens/s: {shown}", flush=True)
    summary = {
        f"{streams} streams": {
            choice: spread([row[choice] for row in rows if row["streams"] == streams]) for choice in CHOICES
        }
        for streams in STREAMS
    }
    settings = {"choices": CHOICES, "prompt": PROMPT, "output": OUTPUT, "model": "models/demo, float32"}
    print(summary)
    print("kept in", save("thread_spin", settings, rows, summary))


if __name__ == "__main__":
    main()
