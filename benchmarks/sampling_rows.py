"""Cost of one row that needs more than filters, to a batch of 16 streams on a CPU.

One request with log-probabilities, a penalty or a bias runs beside 15 plain ones. The figure is the tokens per second
of all streams relative to 16 plain ones, in the same round. The engine runs alone, on a random-weight model of 108M
parameters.

    python -m benchmarks.sampling_rows       # 7 interleaved rounds

The figure of an earlier commit is that of this script in its tree:

    git worktree add ../before COMMIT && cp benchmarks/sampling_rows.py ../before/benchmarks
    (cd ../before && python -m benchmarks.sampling_rows)
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.http_overhead import make_model
from benchmarks.results import save, spread
from engine.build import build_engine
from engine.config import EngineConfig
from engine.engine import Engine
from engine.types import Request, SamplingParams

STREAMS, PROMPT, OUTPUT = 16, 16, 128
PLAIN = "16 plain rows"
KINDS: dict[str, dict[str, Any]] = {
    PLAIN: {},
    "log-probabilities": {"logprobs": 5},
    "penalty": {"repetition_penalty": 1.1},
    "bias": {"logit_bias": {7: 1.0}},
}


def tokens_per_second(engine: Engine, first: dict[str, Any], number: int) -> float:
    """Run all streams to their end; `first`: additional parameters of the first one."""
    for i in range(STREAMS):
        more = first if i == 0 else {}
        sampling = SamplingParams(max_tokens=OUTPUT, temperature=0.8, seed=i, **more)
        prompt = tuple(300 + (7 * i + 13 * j) % 3000 for j in range(PROMPT))
        engine.submit(Request(id=f"{number}-{i}", prompt=prompt, sampling=sampling))
    began = time.perf_counter()
    while engine.has_work:
        engine.step()
    return STREAMS * OUTPUT / (time.perf_counter() - began)


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder))
        config = EngineConfig(
            model=folder, load_format="dummy", max_num_seqs=STREAMS, enable_prefix_caching=False, device="cpu"
        )
        engine = build_engine(config)
    rows: list[dict[str, Any]] = []
    for run in range(-1, options.runs):  # the first is a warm-up
        rates = {kind: tokens_per_second(engine, more, run) for kind, more in KINDS.items()}
        rows += [
            {"run": run, "kind": kind, "tokens_per_second": rate, "of_plain": rate / rates[PLAIN]}
            for kind, rate in rates.items()
            if run >= 0
        ]
    summary = {}
    for kind in KINDS:
        matching = [row for row in rows if row["kind"] == kind]
        summary[kind] = {key: spread([row[key] for row in matching]) for key in ("tokens_per_second", "of_plain")}
        rate, ratio = summary[kind].values()
        print(
            f"{kind:18} {rate['median']:.0f} tokens/s, {ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f})"
        )
    settings = {"streams": STREAMS, "prompt": PROMPT, "output": OUTPUT, "model": "108M, random", **vars(options)}
    print("Saved to", save("sampling_rows", settings, rows, summary))


if __name__ == "__main__":
    main()
