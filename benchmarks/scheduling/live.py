"""Interactive requests next to a backlog of bulk work, for each policy."""

from __future__ import annotations

import argparse
import asyncio
from contextlib import ExitStack
from typing import Any

from benchmarks.results import save
from benchmarks.scheduling.load import BULK, CONTEXT, INTERACTIVE, POLICIES, SLOTS, Clients, model
from benchmarks.serving import Serving
from benchmarks.windows import AlternatingWindows, Window, bootstrap_ratios, figures, latency_ratios

LOADS = {"people": (True, 0), "bulk": (False, 3 * SLOTS), "both": (True, 3 * SLOTS)}  # interactive requests, callers


def live(options: argparse.Namespace) -> None:
    """Measure interactive requests alone, bulk work alone, and both, for each policy."""
    serve = [*options.serve, "--max-num-seqs", str(SLOTS), "--max-model-len", str(CONTEXT)]
    names = options.policies
    turns = AlternatingWindows([f"{name}, {part}" for name in names for part in LOADS])
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(Serving(*serve, *POLICIES[name], model=options.model or model()))
            for name in names
        }
        clients = {name: Clients(server, options.vocabulary) for name, server in servers.items()}

        async def measure(part: str, seed: int) -> Window:
            name, load = part.split(", ")
            people, bulk = LOADS[load]
            return await clients[name].window(options.seconds, people=people, bulk=bulk, seed=seed)

        async def measured() -> None:
            for client in clients.values():  # warm-up
                await client.window(2.0, people=True, bulk=SLOTS, seed=0)
            await turns.take(measure, options.runs)

        asyncio.run(measured())
    summary: dict[str, Any] = {}
    for kind, windows in turns.kinds():
        summary[kind] = {part: figures(of) for part, of in windows.items()}
        for name in names:
            ratios = bootstrap_ratios(_ratios, *(windows[f"{name}, {load}"] for load in LOADS))
            summary[kind][f"{name}, both over alone"] = ratios
            shown = (f"{key} {r['ratio']:.2f} ({r['from']:.2f} to {r['to']:.2f})" for key, r in ratios.items())
            print(f"{kind}, {name}: {', '.join(shown)}")
    save("scheduling_live", {**vars(options), "slots": SLOTS, "person": INTERACTIVE, "bulk": BULK}, turns.rows, summary)


def _ratios(people: list[Window], bulk: list[Window], both: list[Window]) -> dict[str, float]:
    """Return ratios of mixed to separate loads.

    Latencies of interactive requests with bulk work over those without; and throughput of bulk work next to interactive
    requests, over its throughput alone in the time that they leave.
    """
    left = figures(bulk)["bulk"] * (1 - figures(people)["busy"])
    return latency_ratios(both, people) | {"bulk": figures(both)["bulk"] / left}
