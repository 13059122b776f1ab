"""Time of sampling tokens from logits on a CPU: the compiled sampler against torch's, which also sorts.

Rows roughly resemble those of a language model: a few likely tokens, and a long tail.

    python -m benchmarks.sampling       # 5 interleaved runs
"""

from __future__ import annotations

import argparse
import os
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.results import save, spread
from benchmarks.timing import milliseconds
from kernels.cpu.backend import CpuKernels
from kernels.reference.backend import ReferenceKernels
from kernels.slots import SamplingTensors, SlotRecord, as_bytes

ROWS, VOCABULARIES = (1, 8, 32), (16_000, 151_936)
SECONDS = 0.1  # per measurement
KINDS: dict[str, dict[str, float]] = {
    "greedy": {"temperature": 0.0},
    "temperature 1": {},
    "temperature 0.7, top_p 0.9": {"temperature": 0.7, "top_p": 0.9},
    "temperature 0.7, top_k 40": {"temperature": 0.7, "top_k": 40},
}


def parameters(rows: int, given: dict[str, float]) -> SamplingTensors:
    """Return the sampling parameters of `rows` rows with different seeds."""
    records = np.zeros(rows, SlotRecord)
    for name, value in ({"temperature": 1.0, "top_p": 1.0} | given).items():
        records[name] = value
    records["seed"] = np.arange(rows)
    return SamplingTensors(torch.from_numpy(as_bytes(records)), torch.zeros(rows, dtype=torch.int64))


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    compiled, plain = CpuKernels(), ReferenceKernels()
    compiled.set_threads(os.cpu_count() or 1)  # torch gets one thread, as in the server
    rows: list[dict[str, Any]] = []
    with torch.inference_mode():
        for run in range(options.runs):
            for vocabulary in VOCABULARIES:
                generator = torch.Generator().manual_seed(run)
                for count in ROWS:
                    logits = 3 * torch.randn(count, vocabulary, generator=generator)
                    logits[:, :20] += 8
                    for kind, given in KINDS.items():
                        each = {
                            name: milliseconds(partial(kernels.sample, logits, parameters(count, given)), SECONDS)
                            for name, kernels in (("compiled", compiled), ("torch", plain))
                        }
                        rows.append({"run": run, "vocabulary": vocabulary, "rows": count, "kind": kind, **each})
    summary: dict[str, Any] = {}
    for vocabulary in VOCABULARIES:
        for count in ROWS:
            for kind in KINDS:
                same = [
                    row for row in rows if (row["vocabulary"], row["rows"], row["kind"]) == (vocabulary, count, kind)
                ]
                name = f"{vocabulary} tokens, {count} rows, {kind}"
                summary[name] = {
                    "compiled_ms": spread([row["compiled"] for row in same]),
                    "torch_ms": spread([row["torch"] for row in same]),
                    "torch_over_compiled": spread([row["torch"] / row["compiled"] for row in same]),
                }
                figures = [summary[name][key]["median"] for key in ("compiled_ms", "torch_ms", "torch_over_compiled")]
                print("{}: {:.3f} ms, torch {:.3f} ms, {:.1f} times".format(name, *figures))
    print("Saved to", save("sampling", vars(options), rows, summary))


if __name__ == "__main__":
    main()
