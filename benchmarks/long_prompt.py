"""Time between tokens of running answers while a prompt of 6,000 tokens is read, on processors of several speeds.

The default model (`carousel fetch`) runs with all cores, on one core, and with the reference kernels of torch, which
are several times slower. For each, streams run alone for a while, then the prompt arrives; the window ends with the
prompt or after a minute. The target is that of standard answers (--target-itl-standard). Where a step without it takes
longer, the target cannot be kept, and the step may take 1.2 times as long.

    python -m benchmarks.long_prompt
    python -m benchmarks.long_prompt --only one-core --seconds 20
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from typing import Any

from app.text.packaged_model import DEFAULT_MODEL
from benchmarks.results import save
from benchmarks.tally import percentile
from engine.build import build_engine
from engine.config import DEFAULT_TARGET_ITL_SECONDS, EngineConfig
from engine.engine import Engine
from engine.types import Request, SamplingParams, TokenEvent

VARIANTS: dict[str, dict[str, Any]] = {
    "all-cores": {},
    "one-core": {"threads": 1},
    "reference-kernels": {"kernels": "torch"},
}
PROMPT_TOKENS = 6000
STREAMS = (1, 8)
ALONE_TOKENS = 60  # of each stream, before the prompt arrives
MAX_TOKENS = 2000
TARGET_SECONDS = DEFAULT_TARGET_ITL_SECONDS["target_itl_standard"]
MAX_RATIO = 1.2  # of the median to the target, or to the median of the streams alone, to pass


class Gaps:
    """Times between the tokens of each stream, in seconds."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self.values: list[float] = []

    def step(self, engine: Engine) -> None:
        """Run one step and add the gaps that it ends."""
        events = engine.step()
        now = time.perf_counter()
        for event in events:
            if isinstance(event, TokenEvent) and event.request_id != "long":
                if event.request_id in self._last:
                    self.values.append(now - self._last[event.request_id])
                self._last[event.request_id] = now

    def take(self) -> list[float]:
        """Return the gaps since the last call."""
        values, self.values = self.values, []
        return values


def request(name: str, tokens: int, rng: random.Random) -> Request:
    prompt = tuple(rng.randrange(1000, 40_000) for _ in range(tokens))
    sampling = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.8, seed=1)
    return Request(id=name, prompt=prompt, sampling=sampling)


def measure(variant: str, streams: int, seconds: float) -> dict[str, Any]:
    """Return the figures of one variant with that many streams."""
    options = {"max_num_seqs": 16, "enable_prefix_caching": False, **VARIANTS[variant]}
    engine = build_engine(EngineConfig(model=str(DEFAULT_MODEL.file), device="cpu", **options))
    rng, gaps = random.Random(streams), Gaps()
    for number in range(streams):
        engine.submit(request(f"s{number}", 20, rng))
    while len(gaps.values) < streams * ALONE_TOKENS:
        gaps.step(engine)
    alone = gaps.take()[streams * ALONE_TOKENS // 2 :]
    engine.submit(request("long", PROMPT_TOKENS, rng))
    (long,) = engine.scheduler.requests["long"]
    began = time.perf_counter()
    while long.num_generated == 0 and time.perf_counter() - began < seconds:
        gaps.step(engine)
    beside = gaps.take()
    p50, p50_alone = statistics.median(beside), statistics.median(alone)
    return {
        "variant": variant,
        "streams": streams,
        "alone_p50_ms": 1000 * p50_alone,
        "beside_p50_ms": 1000 * p50,
        "beside_p99_ms": 1000 * percentile(beside, 0.99),
        "of_target": p50 / TARGET_SECONDS,
        "of_alone": p50 / p50_alone,
        "prompt_tokens_read": long.num_computed,
        "seconds": time.perf_counter() - began,
    }


def passes(row: dict[str, Any]) -> bool:
    """Return whether the target is kept, or, where it is out of reach, the time of the streams alone."""
    return bool(min(row["of_target"], row["of_alone"]) <= MAX_RATIO)


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="longest window beside the prompt; default: 60")
    parser.add_argument("--only", choices=VARIANTS, action="append", help="a variant; default: all")
    options = parser.parse_args()
    print("| variant | streams | between tokens p50 alone, ms | beside the prompt | p99 | p50 of the target | read |")
    print("|--|--|--|--|--|--|--|")
    rows = []
    for variant in options.only or VARIANTS:
        for streams in STREAMS:
            row = measure(variant, streams, options.seconds)
            rows.append(row)
            print(
                f"| {variant} | {streams} | {row['alone_p50_ms']:.0f} | {row['beside_p50_ms']:.0f} | "
                f"{row['beside_p99_ms']:.0f} | {row['of_target']:.2f} | {row['prompt_tokens_read']:,} tokens in "
                f"{row['seconds']:.0f} s |",
                flush=True,
            )
    settings = {"prompt_tokens": PROMPT_TOKENS, "target_s": TARGET_SECONDS, "seconds": options.seconds}
    summary = {f"{row['variant']}, {row['streams']} streams": passes(row) for row in rows}
    print("Saved to", save("long_prompt", settings, rows, summary))


if __name__ == "__main__":
    main()
