"""Isolation of two tenants in one class, one of which floods the server."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import time
from contextlib import ExitStack
from typing import Any

from benchmarks.results import save
from benchmarks.scheduling.load import (
    BULK,
    CONTEXT,
    INTERACTIVE,
    INTERACTIVE_PER_SECOND,
    POLICIES,
    SLOTS,
    body,
    latencies,
    model,
)
from benchmarks.serving import Serving
from benchmarks.sse_client import stream
from benchmarks.windows import (
    AlternatingWindows,
    Window,
    bootstrap_ratios,
    figures,
    latency_ratios,
    stolen,
    stolen_since,
)

CALM, FLOOD = "calm", "flood"
HALF, BESIDE, FCFS = "on its half, the other half flooded", "beside a flood", "beside a flood, fcfs"


async def _tenant_window(calm: Serving, flooded: Serving | None, options: argparse.Namespace, seed: int) -> Window:
    """Send the calm tenant's requests to one server as a Poisson process, while 32 callers flood `flooded`."""
    dice, stopping, number = random.Random(seed), False, seed * 1_000_000

    async def ask(server: Serving, key: str, shape: dict[str, int]) -> list[float]:
        nonlocal number
        number += 1
        request = body("person", number, shape["prompt"], shape["answer"], options.vocabulary) | {
            "service_tier": "default"
        }
        began = time.perf_counter()
        moments = await stream(server.host, server.port, "/v1/completions", request, key=key)
        return [began, *moments[: shape["answer"]]]

    async def flooding(server: Serving) -> None:
        while not stopping:
            await ask(server, FLOOD, BULK)

    callers = [asyncio.create_task(flooding(flooded)) for _ in range(4 * SLOTS)] if flooded else []
    await asyncio.gather(*(ask(calm, CALM, INTERACTIVE) for _ in range(4)))  # warm-up
    await asyncio.sleep(2.0)
    tasks, end, had = [], time.perf_counter() + options.seconds, stolen()
    while time.perf_counter() < end:
        tasks.append(asyncio.create_task(ask(calm, CALM, INTERACTIVE)))
        await asyncio.sleep(dice.expovariate(INTERACTIVE_PER_SECOND))
    answers = await asyncio.gather(*tasks)
    lost = stolen_since(had)
    stopping = True
    await asyncio.gather(*callers)
    return latencies(answers, lost)


def tenants(options: argparse.Namespace) -> None:
    """Measure the calm tenant's latencies next to the flood, relative to its fair share.

    The fair share is a server of its own with half of the slots and cores. The flood gets the other half, so that the
    machine is equally busy in both cases; the share is also measured with the other half idle.
    """
    cores = sorted(os.sched_getaffinity(0))
    half = max(1, len(cores) // 2)
    serve = [*options.serve, "--max-model-len", str(CONTEXT), "--api-key", f"{CALM},{FLOOD}"]
    with ExitStack() as stack:

        def serving(slots: int, on: list[int], *more: str) -> Serving:
            flags = (*serve, "--max-num-seqs", str(slots), *more)
            return stack.enter_context(Serving(*flags, model=options.model or model(), cores=set(on)))

        own, other = serving(SLOTS // 2, cores[:half]), serving(SLOTS // 2, cores[-half:])
        whole, first_come = serving(SLOTS, cores), serving(SLOTS, cores, *POLICIES["fcfs"])
        parts = {
            "on its half, the other half idle": (own, None),
            HALF: (own, other),
            BESIDE: (whole, whole),
            FCFS: (first_come, first_come),
        }
        turns = AlternatingWindows(list(parts))
        asyncio.run(turns.take(lambda part, seed: _tenant_window(*parts[part], options, seed), options.runs))
    summary: dict[str, Any] = {}
    for kind, windows in turns.kinds():
        summary[kind] = {part: figures(of) for part, of in windows.items()}
        for name in (BESIDE, FCFS):
            summary[kind][f"{name}, over {HALF}"] = bootstrap_ratios(latency_ratios, windows[name], windows[HALF])
    print(json.dumps(summary, indent=1))
    save("scheduling_tenants", vars(options), turns.rows, summary)
