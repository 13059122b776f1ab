"""Continuous against static batching: same engine, same slots, same kernels, same requests.

Output lengths are exponential with mean 128, capped at 1536 (and at least 1), from a fixed seed: a few long answers
among many short ones, as in chat traffic. Static batching fills all slots, runs until the last has finished, and only
then admits the next requests; finished slots are not computed (padding would make it even slower).

    python -m benchmarks.batching            # 8 and 32 slots, 5 interleaved runs each
"""

from __future__ import annotations

import argparse
import random
import time
from typing import Any

from app.resources import demo_model
from benchmarks.results import save, spread
from engine.build import build_engine
from engine.config import EngineConfig
from engine.engine import Engine
from engine.types import Request, SamplingParams

MEAN, CAP, PROMPT, THREADS = 128, 1536, 16, 2


def lengths(count: int, seed: int) -> list[int]:
    """Return capped exponential output lengths."""
    draw = random.Random(seed)
    return [max(1, min(CAP, round(draw.expovariate(1 / MEAN)))) for _ in range(count)]


def drain(engine: Engine, lengths: list[int], seed: int) -> dict[str, Any]:
    """Submit all requests at once, step until all are done, and return the figures."""
    draw = random.Random(seed)
    engine.scheduler.kv_manager.pool.forget_cached()
    before = engine.load().counters
    began = time.perf_counter()
    for i, length in enumerate(lengths):
        prompt = tuple(draw.randrange(300, 4000) for _ in range(PROMPT))
        engine.submit(Request(id=f"{seed}-{i}", prompt=prompt, sampling=SamplingParams(max_tokens=length, seed=i)))
    while engine.has_work:
        engine.step()
    seconds = time.perf_counter() - began
    counters = engine.load().counters
    steps = counters.steps - before.steps
    return {
        "seconds": seconds,
        "steps": steps,
        "tokens": sum(lengths),
        "tokens_per_second": sum(lengths) / seconds,
        "rows_per_step": sum(lengths) / steps,
        "ms_per_step": 1000 * seconds / steps,
    }


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--per-slot", type=int, default=16, help="requests per slot")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    summary: dict[str, Any] = {}
    for slots in options.slots:
        engines = {
            batching: build_engine(
                EngineConfig(
                    model=str(demo_model()),
                    batching=batching,
                    max_num_seqs=slots,
                    max_num_batched_tokens=slots + 256,
                    enable_prefix_caching=False,
                    threads=THREADS,
                )
            )
            for batching in ("continuous", "static")
        }
        ratios = []
        for run in range(options.runs):
            output_lengths = lengths(options.per_slot * slots, seed=run)
            measured = {batching: drain(engine, output_lengths, run) for batching, engine in engines.items()}
            for batching, row in measured.items():
                rows.append({"slots": slots, "run": run, "batching": batching, **row})
            ratio = measured["continuous"]["tokens_per_second"] / measured["static"]["tokens_per_second"]
            in_steps = measured["static"]["steps"] / measured["continuous"]["steps"]
            ratios.append((ratio, in_steps))
            print(
                f"{slots:3} slots, run {run}: continuous {measured['continuous']['tokens_per_second']:7.0f} tokens/s, "
                f"static {measured['static']['tokens_per_second']:7.0f}, ratio {ratio:.2f} (in steps {in_steps:.2f})",
                flush=True,
            )
        summary[f"{slots} slots"] = {
            "continuous over static, tokens/s": spread([ratio for ratio, _ in ratios]),
            "static over continuous, steps": spread([steps for _, steps in ratios]),
        }
    settings = {
        "mean": MEAN,
        "cap": CAP,
        "prompt": PROMPT,
        "threads": THREADS,
        **vars(options),
        "model": "models/demo, float32",
    }
    print(summary)
    print("Saved to", save("batching", settings, rows, summary))


if __name__ == "__main__":
    main()
