"""Cost of the store: tokens per second with and without one, and bytes for 100 tokens.

Two servers run at once, one with `--store` and one without, and answer in turn, so that both see the same machine. 32
clients ask for whole answers with an idempotency key, which are journaled as streams are and cost the client nothing
while they are generated. Bytes are those of the rows of tokens, and the growth of the file for all rows of the answers.

    python -m benchmarks.journal_cost
    python -m benchmarks.journal_cost --model smollm2-135m-instruct
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import sqlite3
import statistics
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx

from benchmarks.results import save, spread
from benchmarks.serving import Serving

STREAMS, TOKENS, RUNS = 32, 400, 9
COMMIT_SECONDS = 1.0  # after which all tokens of ended answers are written
ROWS = "SELECT coalesce(sum(length(id) + 8 + length(ids) + length(choices)), 0), count(*) FROM tokens"


async def run(server: Serving, tokens: int) -> float:
    """Return the tokens per second of one round."""

    async def ask(http: httpx.AsyncClient, number: int) -> int:
        body = {"prompt": f"Story {number}", "max_tokens": tokens, "ignore_eos": True, "seed": number}
        answer = await http.post("/v1/completions", json=body, headers={"Idempotency-Key": secrets.token_hex(8)})
        answer.raise_for_status()
        return int(answer.json()["usage"]["completion_tokens"])

    async with httpx.AsyncClient(base_url=server.url, timeout=600.0) as http:
        began = time.perf_counter()
        written = await asyncio.gather(*(ask(http, number) for number in range(STREAMS)))
        return sum(written) / (time.perf_counter() - began)


def bytes_of(store: Path) -> tuple[int, int, int]:
    """Return the bytes of the rows of tokens, their number, and the size of the file with all that was written."""
    with closing(sqlite3.connect(store)) as connection:
        size, count = connection.execute(ROWS).fetchone()
        pages, page = (connection.execute(f"PRAGMA page_{name}").fetchone()[0] for name in ("count", "size"))
    return size, count, pages * page


def measure(model: str, tokens: int, runs: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return a row for each pair of rounds, and the summary."""
    rows: list[dict[str, Any]] = []
    options = ("--max-num-seqs", str(STREAMS), "--max-model-len", "1024")
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store.db"
        with (
            Serving(*options, "--store", "none", model=model) as without,
            Serving(*options, "--store", str(store), model=model) as stored,
        ):
            for server in (without, stored):
                asyncio.run(run(server, tokens))
            time.sleep(COMMIT_SECONDS)
            before = bytes_of(store)
            for number in range(runs):
                pair = {"without": without, "with": stored}
                order = list(pair) if number % 2 else list(pair)[::-1]
                row: dict[str, Any] = {name: asyncio.run(run(pair[name], tokens)) for name in order}
                rows.append(row)
                print(json.dumps(row), flush=True)
            time.sleep(COMMIT_SECONDS)
            after = bytes_of(store)
    hundreds = runs * STREAMS * tokens / 100
    return rows, {
        "ratio": spread([row["with"] / row["without"] for row in rows]),
        "tokens_per_second": statistics.median(row["with"] for row in rows),
        "row_bytes_per_100_tokens": (after[0] - before[0]) / hundreds,
        "rows_per_100_tokens": (after[1] - before[1]) / hundreds,
        "file_bytes_per_100_tokens": (after[2] - before[2]) / hundreds,
    }


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--runs", type=int, default=RUNS)
    options = parser.parse_args()
    rows, summary = measure(options.model, options.tokens, options.runs)
    print(json.dumps(summary, indent=1))
    settings = {"model": options.model, "streams": STREAMS, "tokens": options.tokens}
    print("Saved to", save("journal_cost", settings, rows, summary))


if __name__ == "__main__":
    main()
