"""Latency of refusals on an overloaded server."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from typing import Any

from benchmarks.results import save, spread
from benchmarks.scheduling.load import BULK, CONTEXT, SLOTS, Clients, body, model
from benchmarks.serving import Serving
from benchmarks.tally import percentile


async def _request(host: str, port: int, request: dict[str, Any]) -> tuple[int, float, bool]:
    """Send a request and return its status, the seconds until the status, and whether it has a Retry-After header."""
    payload = json.dumps(request).encode()
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection(host, port)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(payload)}\r\nConnection: close\r\n\r\n".encode() + payload)
    headers = await reader.readuntil(b"\r\n\r\n")
    seconds = time.perf_counter() - began
    while await reader.read(1 << 16):
        pass
    writer.close()
    return int(headers.split(b" ", 2)[1]), seconds, b"retry-after:" in headers.lower()


async def _overloaded(server: Serving, options: argparse.Namespace, rate: float, seed: int) -> dict[str, Any]:
    dice, tasks, number = random.Random(seed), [], seed * 1_000_000
    end = time.perf_counter() + options.seconds
    due = time.perf_counter()
    while due < end:
        number += 1
        request = body("bulk", number, BULK["prompt"], BULK["answer"], options.vocabulary) | {"service_tier": "default"}
        tasks.append(asyncio.create_task(_request(server.host, server.port, request)))
        due += dice.expovariate(rate)
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
    answers = await asyncio.gather(*tasks)
    refused = [seconds for status, seconds, _ in answers if status in (429, 503)]
    return {
        "rate": rate,
        "asked": len(answers),
        "served": sum(status == 200 for status, _, _ in answers),
        "refused": len(refused),
        "refused_without_retry_after": sum(s in (429, 503) and not has_retry for s, _, has_retry in answers),
        "other": sum(status not in (200, 429, 503) for status, _, _ in answers),
        "refusal_ms": {
            "p50": 1000 * percentile(refused, 0.5),
            "p99": 1000 * percentile(refused, 0.99),
            "max": 1000 * max(refused),
        },
    }


def overload(options: argparse.Namespace) -> None:
    """Measure the capacity first, then send ten times as many requests."""
    rows = []
    serve = [
        *options.serve,
        "--max-num-seqs",
        str(SLOTS),
        "--max-model-len",
        str(CONTEXT),
        "--max-queue",
        "32",
    ]
    for run in range(options.runs):
        with Serving(*serve, model=options.model or model()) as server:
            client = Clients(server, options.vocabulary)
            alone = asyncio.run(client.window(5.0, people=False, bulk=2 * SLOTS, seed=run))
            capacity = alone.bulk / BULK["answer"]
            rows.append(
                {"run": run, "capacity": capacity} | asyncio.run(_overloaded(server, options, 10 * capacity, run))
            )
        print(rows[-1], flush=True)
    summary = {key: spread([r["refusal_ms"][key] for r in rows]) for key in ("p50", "p99", "max")}
    summary["served over capacity"] = spread([r["served"] / r["capacity"] / options.seconds for r in rows])
    save("scheduling_overload", vars(options), rows, summary)
