"""Times of decode steps with quantised matrices, as ratios to bfloat16 matrices of the same shapes, in one run.

Each variant is a whole model in this process, and the variants take turns. The folder is quantised at load; a GGUF file
of the same shapes adds the schemes that people download.

    python -m benchmarks.quantized_steps FOLDER [--gguf FILE.gguf]
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from benchmarks.results import save, spread
from benchmarks.timing import milliseconds
from engine.execution.cache import KVCache
from engine.execution.models import load_model
from engine.execution.runner import ModelRunner
from engine.host import num_cores
from engine.model_files.open_model import open_model
from engine.scheduling.batch import Batch, Join
from engine.types import SamplingParams
from kernels.load import load

ROWS = (1, 2, 4, 8, 16, 32)
CONTEXT, LIMIT, PAGE = 64, 1024, 16  # tokens: of a prompt, of a sequence, and of a page
BASELINE = "bfloat16"
BITS: dict[str, Literal[4, 8] | None] = {BASELINE: None, "int8": 8, "int4": 4}


def decoder(model: Path, bits: Literal[4, 8] | None) -> Callable[[int], float]:
    """Load a model, and return a function that measures steps of some rows in milliseconds."""
    cpu, dtype = torch.device("cpu"), torch.bfloat16
    kernels = load(cpu, dtype, allow_bf16_activations=True, weight_bits=bits)
    kernels.set_threads(num_cores())
    files = open_model(model, with_vocabulary=False)
    weights = load_model(files, dtype=dtype, device=cpu, progress=lambda done, total: None, kernels=kernels)
    cache = KVCache.allocate(LIMIT // PAGE, PAGE, weights.cache_spec(), dtype, cpu, host_pages=0)
    runner = ModelRunner(weights, cache, kernels, max(ROWS), LIMIT, None)
    tokens, pages = tuple(i % 7 for i in range(CONTEXT)), tuple(range(LIMIT // PAGE))
    join = Join(0, tokens, CONTEXT, 0, SamplingParams(max_tokens=LIMIT), pages)  # all rows write the same values

    def measure(rows: int) -> float:
        runner.launch(Batch(step=0, joins=tuple(replace(join, slot=slot) for slot in range(rows))))()
        decode = Batch(step=0, decodes=tuple(range(rows)))

        def step() -> None:
            runner.launch(decode)()

        return milliseconds(step, 0.5)

    return measure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="model in bfloat16")
    parser.add_argument("--gguf", type=Path, help="quantised model of the same shapes")
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    measures = {name: decoder(arguments.folder, bits) for name, bits in BITS.items()}
    if arguments.gguf is not None:
        measures[arguments.gguf.stem] = decoder(arguments.gguf, None)
    names = list(measures)
    rows = []
    for run in range(arguments.runs):
        for count in ROWS:
            for shift in range(len(names)):
                name = names[(run + shift) % len(names)]
                rows.append({"run": run, "rows": count, "variant": name, "milliseconds": measures[name](count)})
        print(f"run {run + 1} of {arguments.runs}", flush=True)
    times = {(row["run"], row["rows"], row["variant"]): row["milliseconds"] for row in rows}
    summary = {
        name: {
            str(count): spread([times[run, count, BASELINE] / times[run, count, name] for run in range(arguments.runs)])
            for count in ROWS
        }
        for name in names
    }
    for name in names:
        medians = (statistics.median(times[run, count, name] for run in range(arguments.runs)) for count in ROWS)
        ratios = (summary[name][str(count)]["median"] for count in ROWS)
        cells = (f"{ms:8.1f} ms {ratio:5.2f}x" for ms, ratio in zip(medians, ratios, strict=True))
        print(f"{name:>24}", *cells)
    settings = {"model": arguments.folder.name, "gguf": arguments.gguf and arguments.gguf.name, "context": CONTEXT}
    print(save(f"quantized_steps_{arguments.folder.name}", settings, rows, summary))


if __name__ == "__main__":
    main()
