"""Goodput and waits of a server that gets three times the requests that it can answer.

A closed loop of clients first measures the capacity. Then requests arrive at three times that rate, of class
interactive. A refused client returns once, after its Retry-After. The server should answer as much as in the closed
loop, and accepted requests should start within `--max-queue-wait-interactive`.

    python -m benchmarks.overload                    # phases of 60 and 180 s
    python -m benchmarks.overload --seconds 30 --max-wait 5
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import time
from dataclasses import dataclass, field
from typing import Any

from benchmarks.hostile_clients import CHAT
from benchmarks.results import save
from benchmarks.serving import Serving
from benchmarks.sse_client import Part, receive, run
from benchmarks.tally import percentile

SLOTS, TOKENS, FACTOR = 16, 64, 3.0
RETRY_AFTER = re.compile(r"(?i)\r\nretry-after: (\d+)")
MIN_GOODPUT = 0.95  # of the closed loop


@dataclass
class Phase:
    """Outcomes of the requests of one phase."""

    began: float = field(default_factory=time.perf_counter)
    answered: list[float] = field(default_factory=list)  # times at which answers ended
    waits: list[float] = field(default_factory=list)  # seconds to the first token of accepted requests
    refused: int = 0
    returned: list[bool] = field(default_factory=list)  # whether a client that returned was accepted
    failures: list[str] = field(default_factory=list)

    def goodput(self, begin: float, end: float) -> float:
        """Return the answers per second between two times."""
        return sum(begin <= each < end for each in self.answered) / (end - begin)


def body(number: int) -> dict[str, Any]:
    """Return a request with an answer of a fixed length."""
    messages = [{"role": "user", "content": f"Tell me story number {number}."}]
    fields = {"max_tokens": TOKENS, "ignore_eos": True, "stream": True, "service_tier": "priority"}
    return {"messages": messages, **fields}


async def ask(server: Serving, number: int, phase: Phase) -> float | None:
    """Send a request. Return None if it was answered, else its Retry-After."""
    sent, first = time.perf_counter(), 0.0

    def take(part: Part) -> None:
        nonlocal first
        if not first and b"data: " in part[1]:
            first = part[0]

    try:
        await receive(server.host, server.port, CHAT, body(number), take)
    except (OSError, RuntimeError) as error:
        if found := RETRY_AFTER.search(str(error)):
            return float(found[1])
        phase.failures.append(f"{type(error).__name__}: {error}"[:200])
        return None
    phase.answered.append(time.perf_counter())
    phase.waits.append(first - sent)
    return None


async def closed_loop(server: Serving, seconds: float) -> Phase:
    """Keep twice as many requests in progress as there are slots."""
    phase, end = Phase(), time.perf_counter() + seconds

    async def client(number: int) -> None:
        while time.perf_counter() < end:
            await ask(server, number, phase)

    await asyncio.gather(*(client(number) for number in range(2 * SLOTS)))
    return phase


async def open_loop(server: Serving, rate: float, seconds: float) -> Phase:
    """Send requests at times of a Poisson process; refused clients return once."""
    phase, chance, tasks = Phase(), random.Random(1), set()
    end = phase.began + seconds

    async def client(number: int) -> None:
        if (retry_after := await ask(server, number, phase)) is None:
            return
        phase.refused += 1
        if time.perf_counter() + retry_after < end:
            await asyncio.sleep(retry_after)
            phase.returned.append(await ask(server, number, phase) is None)

    at, number = phase.began, 0
    while (at := at + chance.expovariate(rate)) < end:
        await asyncio.sleep(max(0.0, at - time.perf_counter()))
        number += 1
        tasks.add(asyncio.create_task(client(number)))
    await asyncio.gather(*tasks)
    return phase


def figures(server: Serving, seconds: float, max_wait: float) -> dict[str, Any]:
    """Return the figures of both phases."""

    async def measure() -> dict[str, Any]:
        await closed_loop(server, seconds / 12)  # warm up
        closed = await closed_loop(server, seconds / 3)
        capacity = closed.goodput(closed.began, closed.began + seconds / 3)
        opened = await open_loop(server, FACTOR * capacity, seconds)
        waits = sorted(opened.waits)
        return {
            "closed_loop_per_s": capacity,
            "overload_per_s": opened.goodput(opened.began + 0.1 * seconds, opened.began + seconds),
            "accepted": len(waits),
            "refused": opened.refused,
            "first_token_p50_s": percentile(waits, 0.5),
            "first_token_p99_s": percentile(waits, 0.99),
            "max_wait_s": max_wait,
            "returned": len(opened.returned),
            "returned_accepted_share": sum(opened.returned) / max(1, len(opened.returned)),
            "failures": opened.failures[:5],
        }

    return run(measure())


def misses(row: dict[str, Any]) -> list[str]:
    """Return the limits that the figures exceed, as sentences."""
    found = [f"a request failed: {failure}" for failure in row["failures"]]
    if row["overload_per_s"] < MIN_GOODPUT * row["closed_loop_per_s"]:
        found.append(f"the goodput is less than {MIN_GOODPUT:.0%} of that of a closed loop")
    if row["first_token_p99_s"] > row["max_wait_s"]:
        found.append("the p99 of accepted requests started later than allowed")
    return found


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=180.0, help="length of the overload; default: 180")
    parser.add_argument("--max-wait", type=float, default=20.0, help="maximum wait; default: 20")
    options = parser.parse_args()
    limit = ("--max-queue-wait-interactive", str(options.max_wait))
    with Serving("--max-num-seqs", str(SLOTS), *limit) as server:
        row = figures(server, options.seconds, options.max_wait)
    for name, value in row.items():
        print(f"{name}: {value:.2f}" if isinstance(value, float) else f"{name}: {value}")
    for miss in misses(row):
        print(miss)
    settings = {"seconds": options.seconds, "slots": SLOTS, "tokens": TOKENS, "factor": FACTOR, "model": "models/demo"}
    print("Saved to", save("overload", settings, [row], {"misses": misses(row)}))


if __name__ == "__main__":
    main()
