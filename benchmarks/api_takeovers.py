"""Effect on clients of killing one of several API processes (kill -9) of `carousel serve --api-processes`.

32 clients follow chats, completions, messages and responses, plain, with formats and with tools, and resume as those of
`benchmarks.api_deaths` do. Once per round one of the API processes is killed at a random point. A client then reaches
any process, which continues its answer from the engine. Each answer is compared with the answer to the same request
without a kill.

    python -m benchmarks.api_takeovers
    python -m benchmarks.api_takeovers --kills 5
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from functools import partial
from typing import Any

import psutil  # type: ignore[import-untyped]

from benchmarks.api_deaths import row_of
from benchmarks.api_deaths_clients import KINDS, TOKENS, kind_of, play, play_undisturbed
from benchmarks.results import save, spread
from benchmarks.serving import Serving, child_processes

STREAMS, SLOTS, PROCESSES = 32, 16, 2
OPTIONS = ("--api-processes", str(PROCESSES), "--max-num-seqs", str(SLOTS), "--max-model-len", "512")
START_SECONDS = 60.0  # for a killed process to be started again
# Without a store, sessions of the realtime protocol end with their process.
NUMBERS = [number for number in range(2 * STREAMS) if not kind_of(number).startswith("realtime")]


def api_processes(server: Serving) -> list[psutil.Process]:
    """Return the API processes of a service."""
    return list(child_processes(server.process.pid, "app.cli.supervised_api"))


async def kill_one(server: Serving, chance: random.Random) -> None:
    """Kill one of the API processes."""
    chance.choice(api_processes(server)).kill()


async def all_started(server: Serving) -> None:
    """Wait until a killed process has been started again."""
    ends_at = time.monotonic() + START_SECONDS
    while len(api_processes(server)) < PROCESSES:
        if time.monotonic() > ends_at:
            raise RuntimeError("A killed process was not started again.")
        await asyncio.sleep(0.05)


async def measure(server: Serving, kills: int, streams: int = STREAMS) -> list[dict[str, Any]]:
    """Return a row for each kill."""
    numbers = NUMBERS[:streams]
    undisturbed = await play_undisturbed(server.url, numbers)
    expected = [each.text for each in undisturbed]
    total = sum(len(each.moments) for each in undisturbed)
    chance, rows = random.Random(1), []
    for kill in range(kills):
        share = 0.95 * chance.random()
        answers = await play(server.url, numbers, partial(kill_one, server, chance), share * total)
        await all_started(server)
        row = {"killed_after": share, **row_of(answers, expected)}
        rows.append(row)
        print(f"kill {kill}: {json.dumps(row)}", flush=True)
    return rows


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    options = parser.parse_args()
    with Serving(*OPTIONS, "--served-model-name", "demo") as server:
        rows = asyncio.run(measure(server, options.kills))
    summary: dict[str, Any] = {"answers": STREAMS * len(rows)}
    summary |= {name: sum(row[name] for row in rows) for name in ("failed", "changed", "out_of_order", "ran_twice")}
    summary["silence_seconds"] = spread([row["silence"] for row in rows])
    print(json.dumps(summary, indent=1))
    kinds = [kind for kind in KINDS if not kind.startswith("realtime")]
    settings = {"processes": PROCESSES, "streams": STREAMS, "slots": SLOTS, "tokens": TOKENS, "kinds": kinds}
    print("Saved to", save("api_takeovers", settings, rows, summary))


if __name__ == "__main__":
    main()
