"""What a tenant with few requests gets of one and of two engines that another tenant floods.

The flood keeps three times as many requests in progress as there are slots. Once its rate alone is known, the calm
tenant sends a share of that rate, at even times. It should get all that it asks for, since that is less than its half.

    python -m benchmarks.calm_tenant                 # phases of 20 s, three runs
    python -m benchmarks.calm_tenant --share 0.3 --runs 1
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.results import save, spread
from benchmarks.serving import Serving
from benchmarks.sse_client import Part, receive, run
from benchmarks.tally import percentile

SLOTS, TOKENS, FLOOD = 8, 40, 24  # slots of all engines, tokens of an answer, requests of the flood in progress
KEYS = '[tenants.calm]\nkey = "key-calm"\n\n[tenants.flood]\nkey = "key-flood"\n'
COMPLETIONS = "/v1/completions"
MIN_SERVED = 0.95  # of what the calm tenant asks for


class Tenants:
    """Clients of two tenants, and when their answers ended."""

    def __init__(self, server: Serving) -> None:
        self.ended: dict[str, list[float]] = defaultdict(list)
        self.firsts: list[float] = []  # seconds to the first token, of the calm tenant
        self._server = server
        self._number = 0

    async def ask(self, tenant: str) -> None:
        """Get one answer to a prompt of its own."""
        self._number += 1
        prompt = f"{tenant} {self._number}"
        body = {"prompt": prompt, "max_tokens": TOKENS, "ignore_eos": True, "stream": True, "temperature": 0}
        arrived: list[float] = []

        def take(part: Part) -> None:
            if not arrived and b"data: " in part[1]:
                arrived.append(part[0])

        sent = time.perf_counter()
        await receive(self._server.host, self._server.port, COMPLETIONS, body, take, key=f"key-{tenant}")
        self.ended[tenant].append(time.perf_counter())
        if tenant == "calm":
            self.firsts.append(arrived[0] - sent)

    async def flood(self) -> None:
        """Ask again and again."""
        while True:
            await self.ask("flood")

    async def rate(self, tenant: str, seconds: float) -> float:
        """Return the answers per second of a tenant in the next seconds."""
        before = len(self.ended[tenant])
        await asyncio.sleep(seconds)
        return (len(self.ended[tenant]) - before) / seconds

    async def calm(self, interval: float) -> None:
        """Send a request at even times."""
        async with asyncio.TaskGroup() as requests:
            at = time.perf_counter()
            while True:
                requests.create_task(self.ask("calm"))
                at += interval
                await asyncio.sleep(max(0.0, at - time.perf_counter()))


async def _measure(server: Serving, share: float, seconds: float) -> dict[str, Any]:
    tenants = Tenants(server)
    floods = [asyncio.create_task(tenants.flood()) for _ in range(FLOOD)]
    await asyncio.sleep(seconds / 4)
    capacity = await tenants.rate("flood", seconds)
    calm = asyncio.create_task(tenants.calm(1 / (share * capacity)))
    await asyncio.sleep(seconds / 4)
    served, flooded = await asyncio.gather(tenants.rate("calm", seconds), tenants.rate("flood", seconds))
    for task in (calm, *floods):
        task.cancel()
    await asyncio.gather(calm, *floods, return_exceptions=True)
    return {
        "answers_per_second_of_the_flood_alone": capacity,
        "served_of_asked": served / (share * capacity),
        "share_of_answers": served / (served + flooded),
        "first_token_ms": {"p50": 1e3 * percentile(tenants.firsts, 0.5), "p99": 1e3 * percentile(tenants.firsts, 0.99)},
    }


def main() -> None:
    """Measure one and two engines in turn, and save the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=0.4, help="of the flood's rate alone, which the other asks for")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys.toml"
        keys.touch(0o600)
        keys.write_text(KEYS)
        for _ in range(options.runs):
            for engines in (1, 2):
                slots = ("--replicas", str(engines), "--max-num-seqs", str(SLOTS // engines))
                with Serving(*slots, "--kernels", "torch", "--device", "cpu", "--keys-file", str(keys)) as server:
                    rows.append({"engines": engines} | run(_measure(server, options.share, options.seconds)))
                print(rows[-1], flush=True)
    summary = {
        f"{name}_{engines}": spread([row[name] for row in rows if row["engines"] == engines])
        for engines in (1, 2)
        for name in ("served_of_asked", "share_of_answers")
    }
    is_met = summary["served_of_asked_2"]["median"] >= MIN_SERVED
    print(f"served of what was asked, two engines: {summary['served_of_asked_2']} ({'met' if is_met else 'MISSED'})")
    save("calm_tenant", vars(options), rows, summary)


if __name__ == "__main__":
    main()
