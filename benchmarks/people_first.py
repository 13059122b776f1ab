"""Interactive latency while bulk work occupies every slot and every page.

A server has 8 slots and a page pool that 8 bulk requests fill. Measures the time to first token of interactive requests
over HTTP and SSE on the idle server and, interleaved, while 48 bulk requests (`service_tier: flex`) saturate it. Every
bulk text is compared with its text alone, and all of them must finish.

    python -m benchmarks.people_first
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import time
from typing import Any

from benchmarks.results import save, spread
from benchmarks.serving import Serving
from benchmarks.sse_client import stream, text

SLOTS, BULK, BULK_TOKENS, INTERACTIVE_REQUESTS, ANSWER = 8, 48, 400, 12, 8
PROMPT = 40


def request_body(kind: str, number: int, tokens: int) -> dict[str, Any]:
    """Return the body of a request with a unique prompt, different from the first token on."""
    digest = hashlib.blake2b(f"{kind}{number}".encode(), digest_size=PROMPT).digest()
    prompt = [300 + 7 * byte for byte in digest]
    return {
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0.8,
        "seed": number,
        "ignore_eos": True,
        "min_tokens": tokens,  # special tokens have no text and so send no event
        "stream": True,
        "service_tier": "flex" if kind == "bulk" else "priority",
    }


async def time_to_first_token(host: str, port: int, number: int) -> float:
    """Send one interactive request and return the seconds to its first token."""
    began = time.perf_counter()
    moments = await stream(host, port, "/v1/completions", request_body("person", number, ANSWER))
    return moments[0] - began


async def measure(host: str, port: int, alone: list[str], run: int) -> dict[str, Any]:
    """Measure interactive requests on the idle server, then under load."""
    first = 1000 * (run + 1)
    idle = [await time_to_first_token(host, port, first + i) for i in range(INTERACTIVE_REQUESTS)]
    bulk = [
        asyncio.create_task(text(host, port, "/v1/completions", request_body("bulk", i, BULK_TOKENS)))
        for i in range(BULK)
    ]
    await asyncio.sleep(0.5)
    loaded = []
    for i in range(INTERACTIVE_REQUESTS):
        saturated = sum(not task.done() for task in bulk) > SLOTS
        seconds = await time_to_first_token(host, port, first + 500 + i)
        if saturated and sum(not task.done() for task in bulk) >= SLOTS:
            loaded.append(seconds)
        await asyncio.sleep(0.05)
    texts = await asyncio.gather(*bulk)
    changed = sum(a != b for a, b in zip(texts, alone, strict=True))
    return {"run": run, "idle": idle, "loaded": loaded, "bulk_texts_changed": changed, "bulk_finished": len(texts)}


async def run(host: str, port: int, runs: int) -> list[dict[str, Any]]:
    """Generate the bulk texts alone, warm up, and return the rows of the runs."""
    alone = [await text(host, port, "/v1/completions", request_body("bulk", i, BULK_TOKENS)) for i in range(BULK)]
    rows = []
    for run in range(-1, runs):
        row = await measure(host, port, alone, run)
        if run >= 0:
            rows.append(row)
            idle, loaded = spread(row["idle"])["median"], spread(row["loaded"])["median"]
            print(
                f"run {run}: first token idle {1000 * idle:.1f} ms, loaded {1000 * loaded:.1f} ms "
                f"({len(row['loaded'])} of {INTERACTIVE_REQUESTS} under saturation), ratio {loaded / idle:.2f}, "
                f"{row['bulk_texts_changed']} of {BULK} bulk texts changed",
                flush=True,
            )
    return rows


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    pages = SLOTS * (-(-(PROMPT + BULK_TOKENS) // 16))
    sizes = ["--max-num-seqs", str(SLOTS), "--num-pages", str(pages), "--page-size", "16", "--max-model-len", "512"]
    with Serving(*sizes) as server:
        rows = asyncio.run(run(server.host, server.port, options.runs))
    idle = [seconds for row in rows for seconds in row["idle"]]
    loaded = [seconds for row in rows for seconds in row["loaded"]]
    summary = {
        "idle_seconds": spread(idle),
        "loaded_seconds": spread(loaded),
        "ratio_of_medians": spread([spread(row["loaded"])["median"] / spread(row["idle"])["median"] for row in rows]),
        "bulk_texts_changed": sum(row["bulk_texts_changed"] for row in rows),
    }
    settings = {
        "slots": SLOTS,
        "pages": pages,
        "bulk": BULK,
        "bulk_tokens": BULK_TOKENS,
        "people": INTERACTIVE_REQUESTS,
    }
    print(json.dumps(summary, indent=1))
    print("Saved to", save("people_first", settings, rows, summary))


if __name__ == "__main__":
    main()
