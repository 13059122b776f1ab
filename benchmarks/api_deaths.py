"""Effect on clients of killing the API process (kill -9) of a server with `--store`.

32 clients follow chats, also as the page requests them, completions, messages and responses, plain, with formats and
with tools, and sessions of the realtime protocol. Over HTTP they resume as a careful client does: with the cursor of
the last event, or, if no answer had begun, with the same idempotency key; over WebSockets they take their session up.
Once per round the API process is killed at a random point, with which the engine ends, or both processes at once, and
another server is started with the same store and port. Each answer is compared with the answer to the same request
without a kill.

    python -m benchmarks.api_deaths
    python -m benchmarks.api_deaths --kills 10
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import tempfile
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.api_deaths_clients import KINDS, TOKENS, Answer, kind_of, play, play_undisturbed
from benchmarks.results import save, spread
from benchmarks.serving import Serving

STREAMS, SLOTS = 32, 16
BOTH_EVERY = 10  # kills, of which one is of the engine too


class Servers:
    """Servers with one store and port, one after another. A context manager."""

    def __init__(self, store: Path) -> None:
        with closing(socket.socket()) as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        options = ("--store", str(store), "--max-num-seqs", str(SLOTS), "--max-model-len", "512")
        self._make = lambda: Serving(*options, "--served-model-name", "demo", port=port)
        self.current = self._make()

    def __enter__(self) -> Servers:
        self.current.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.current.__exit__(None, None, None)

    def kill(self, *, is_both: bool) -> None:
        """Kill the API process, and before it the engine if both are to be killed."""
        if is_both:
            self.current.engine.kill()
        self.current.process.kill()
        self.current.__exit__(None, None, None)

    async def replace(self, *, is_both: bool) -> None:
        """Kill the API process, and possibly the engine, and start another server."""
        self.kill(is_both=is_both)
        self.current = self._make()
        await asyncio.to_thread(self.current.__enter__)


def row_of(answers: list[Answer], expected: list[str]) -> dict[str, Any]:
    """Return the figures of a round."""
    return {
        "failed": sum(not each.is_whole for each in answers),
        "changed": sum(a.is_whole and a.text != text for a, text in zip(answers, expected, strict=True)),
        "out_of_order": sum(each.cursors != sorted(set(each.cursors)) for each in answers),
        "ran_twice": sum(len(each.streams) > 1 for each in answers),
        "silence": max(each.longest_silence for each in answers),
        "failures": [f"{kind_of(each.number)}: {each.failure}" for each in answers if each.failure][:3],
    }


async def measure(servers: Servers, kills: int, streams: int = STREAMS) -> list[dict[str, Any]]:
    """Return a row for each kill."""
    url = servers.current.url
    undisturbed = await play_undisturbed(url, range(streams))
    expected = [each.text for each in undisturbed]
    total = sum(len(each.moments) for each in undisturbed)
    chance, rows = random.Random(1), []
    for kill in range(kills):
        share = 0.95 * chance.random()
        is_both = kill % BOTH_EVERY == BOTH_EVERY - 1
        answers = await play(url, range(streams), partial(servers.replace, is_both=is_both), share * total)
        row = {"killed_after": share, "with_engine": is_both, **row_of(answers, expected)}
        rows.append(row)
        print(f"kill {kill}: {json.dumps(row)}", flush=True)
    return rows


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Servers(Path(folder) / "store.db") as servers:
        rows = asyncio.run(measure(servers, options.kills))
    summary: dict[str, Any] = {"answers": STREAMS * len(rows)}
    summary |= {name: sum(row[name] for row in rows) for name in ("failed", "changed", "out_of_order", "ran_twice")}
    summary["silence_seconds"] = spread([row["silence"] for row in rows])
    print(json.dumps(summary, indent=1))
    settings = {"streams": STREAMS, "slots": SLOTS, "tokens": TOKENS, "kinds": KINDS}
    print("Saved to", save("api_deaths", settings, rows, summary))


if __name__ == "__main__":
    main()
