"""Time and accuracy of a model's linear layers, for each method that this processor supports.

Computes all matrices of the 115M-parameter model of `peers` in sequence, with the methods in turn: bfloat16 weights on
the matrix unit with exact and with rounded rows, in vector registers with pairs of rounded products, and with float32
vectors; and oneDNN in bfloat16 and float32. Errors are relative root mean square errors against float64.

    python -m benchmarks.linear_layers       # 5 interleaved runs
"""

from __future__ import annotations

import argparse
import functools
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.peers.bound import Layer, matrices, milliseconds, onednn
from benchmarks.peers.model import SHAPES
from benchmarks.results import save, spread
from kernels.cpu.backend import CpuKernels
from kernels.cpu.linear import CpuLinear, layouts
from kernels.cpu.structs import Layout

ROWS = (1, 4, 8, 16, 32, 64, 128, 512)
ERROR_ROWS = 64  # rows used to measure errors
NARROW, WIDE = torch.bfloat16, torch.float32

Variant = tuple[torch.dtype, torch.dtype, Callable[[Tensor], Layer]]  # dtypes of weights and activations, layer factory


def variants() -> dict[str, Variant]:
    """Return the supported methods by name; the first one is the baseline of comparisons."""
    ours = {
        "matrix unit": (Layout.BFLOAT16_TILES, False),
        "matrix unit, rounded": (Layout.BFLOAT16_TILES, True),
        "pairs, rounded": (Layout.BFLOAT16_PAIRS, True),
        "vectors": (Layout.BFLOAT16_PANELS, False),
    }
    here: dict[str, Variant] = {
        name: (NARROW, WIDE, functools.partial(CpuLinear, bias=None, layout=layout, allow_bf16_activations=allow_bf16))
        for name, (layout, allow_bf16) in ours.items()
        if layout in layouts(NARROW, allow_bf16)
    }
    return here | {"oneDNN bfloat16": (NARROW, NARROW, onednn), "oneDNN float32": (WIDE, WIDE, onednn)}


def error(weight: Tensor, variant: Variant) -> float:
    """Return the error of a layer with weight[N, K] bfloat16; every hundredth input is fifty times as large."""
    dtype, activations, make = variant
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(ERROR_ROWS, weight.shape[1], generator=generator)
    x[:, ::100] *= 50
    right = x.double() @ weight.double().T
    got = make(weight.to(dtype))(x.to(activations)).double()
    return float((got - right).norm() / right.norm())


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--model", choices=SHAPES, default="llama-115m")
    options = parser.parse_args()
    threads = os.cpu_count() or 1
    CpuKernels().set_threads(threads)
    torch.set_num_threads(threads)
    shapes = matrices(SHAPES[options.model])
    here = variants()
    names = list(here)
    rows: list[dict[str, Any]] = []
    with torch.inference_mode():
        generator = torch.Generator().manual_seed(0)
        weights = [(torch.randn(n, k, generator=generator) / k**0.5).to(NARROW) for n, k in shapes]
        errors = {name: max(error(weight, variant) for weight in weights[:4]) for name, variant in here.items()}
        built = {
            name: [(weight.shape[1], make(weight.to(dtype))) for weight in weights]
            for name, (dtype, _, make) in here.items()
        }
        for run in range(options.runs):
            for count in ROWS:
                took = {name: milliseconds(built[name], count, here[name][1]) for name in names}
                rows.append({"run": run, "rows": count, "milliseconds": took})
    summary: dict[str, Any] = {"error": errors}
    print("error: " + ", ".join(f"{name} {value:.1e}" for name, value in errors.items()))
    for count in ROWS:
        same = [row["milliseconds"] for row in rows if row["rows"] == count]
        figures = {name: spread([took[name] for took in same]) for name in names}
        ratios = {name: spread([took[name] / took[names[0]] for took in same]) for name in names[1:]}
        summary[str(count)] = {"milliseconds": figures, f"over {names[0]}": ratios}
        cells = [f"{name} {figures[name]['median']:.1f} ms" for name in names]
        cells += [f"{name} {ratios[name]['median']:.2f} times" for name in ratios]
        print(f"{count} rows: " + ", ".join(cells))
    print("Saved to", save("linear_layers", vars(options), rows, summary))


if __name__ == "__main__":
    main()
