"""Skinny matrix products on a device: fused kernels against torch's product with separate kernels, and tile tuning.

The best tiles of each matrix are stored in `kernels/triton/tile_table.py`. Their kernels are compiled first, by several
processes, because that takes longer than to measure them.

    python -m benchmarks.gpu_matrices                        # every tile for every matrix: results/gpu_matrices.json
    python -m benchmarks.gpu_matrices --write                # also write the best ones to kernels/triton/tile_table.py
    python -m benchmarks.gpu_matrices --also-in some/folder  # copy the results there
    python -m benchmarks.gpu_matrices --device cpu           # run the code on a tiny shape; nothing is saved
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import astuple
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.device import Call, Device
from benchmarks.results import microseconds, save
from benchmarks.sections import Sections
from benchmarks.shapes import LLAMA_1B, LLAMA_8B, QWEN_06B, TINY, Matrix, Shape
from kernels.triton import skinny_gemm, tile_table
from kernels.triton.rms_norm import rms_norm
from kernels.triton.silu_mul import silu_mul
from kernels.triton.skinny_gemm import DenseLinear, Tile

MAX_LAYERS = 20  # layers with separate weights, so that no weights are cached when they are read
MIN_CALLS = 10  # calls per recording
MAX_LAYER_BYTES = 200e6  # total weights of the layers, unless a single one is larger
EPS = 1e-5
TOLERANCE = 0.02  # relative to the largest output; larger than the error of rounding to bfloat16 twice

OUTPUTS, INPUTS, WARPS, STAGES = (16, 32), (256, 512), (4, 8), (3, 4, 6)
SHARED = 96 << 10  # bytes of all blocks in flight: what a program may use on each GPU of `kernels.triton.device_limits`
ROWS = (1, skinny_gemm.MAX_ROWS)  # row counts to tune for: a single stream, and the kernel's maximum

Found = dict[tuple[int, int, bool, int], Tile]  # by outputs, inputs, gated, and columns

MODULE = '''"""Tuned tiles of skinny products (`kernels.triton.skinny_gemm.Tile`), keyed by (outputs, inputs, gated,
rows).

For gated layers, outputs are those of the gate. rows is 8 or 16, the upper bound; without a tile for 16, products of 9
to 16 rows use torch. Written by `python -m benchmarks.gpu_matrices --write`: the fastest tiles for 1 and 16 rows on
{device}.
"""

FOUND: dict[tuple[int, int, bool, int], tuple[int, int, int, int]] = {{
{rows}}}
'''


class Layer:
    """Matrix with random weights, and random rows to multiply."""

    def __init__(self, matrix: Matrix, rows: int, device: torch.device) -> None:
        def random(*shape: int) -> Tensor:
            # The Triton interpreter does not support bfloat16 products.
            return torch.randn(shape, device=device).to(torch.bfloat16 if device.type == "cuda" else torch.float32)

        self._matrix = matrix
        self._x, self._norm = random(rows, matrix.inputs), random(matrix.inputs)
        self._layer = DenseLinear(random(matrix.rows, matrix.inputs), None)
        self._residual = random(rows, matrix.outputs) if matrix.added else None

    def fused(self) -> Tensor:
        """Compute the product and its surroundings with the fused kernel."""
        if self._residual is not None:
            self._layer.add_skinny(self._x, self._residual)
            return self._residual
        norm = self._norm if self._matrix.normed else None
        return self._layer.multiply_skinny(self._x, norm, EPS, self._matrix.gated)

    def unfused(self) -> Tensor:
        """Compute the product with torch, which also fuses the addition, and its surroundings with separate kernels."""
        weight = self._layer.weight
        if self._residual is not None:
            return torch.addmm(self._residual, self._x, weight.T, out=self._residual)
        x = rms_norm(self._x, self._norm, EPS) if self._matrix.normed else self._x
        y = F.linear(x, weight)
        return silu_mul(y) if self._matrix.gated else y

    def error(self) -> float:
        """Return the largest difference between both results, relative to the largest output.

        Uses fresh rows: a kernel that skips some outputs could otherwise leave correct results of the previous call.
        """
        self._x.normal_()
        residual = None if self._residual is None else self._residual.clone()
        fused = self.fused().float()
        if residual is not None:
            self._residual = residual
        expected = self.unfused().float()
        return float((fused - expected).abs().max() / expected.abs().max())


class MatrixMarks:
    """Measurements of matrices; adds a row for each."""

    def __init__(self, device: Device, add: Callable[..., None]) -> None:
        """add: called with the kind of a row and its columns."""
        self._on = device
        self._add = add

    def against_library(self, shape: Shape, rows: int) -> None:
        """Compare the fused kernel with torch for all matrices of a shape. The bound is reading the weight once."""
        for matrix in shape.matrices:
            layers = self._layers(matrix, rows)
            fused = self._times([layer.fused for layer in layers])
            torch_times = self._times([layer.unfused for layer in layers])
            self._add(
                "matrix", shape=shape.name, matrix=matrix.name, rows=rows, us=microseconds(fused),
                by_the_library_us=microseconds(torch_times), of_copy_rate=self._of_copy_rate(matrix, fused),
            )  # fmt: skip

    def tiles(self, matrix: Matrix, rows: int) -> Tile | None:
        """Measure every tile for `rows` rows and return the fastest tile with correct results.

        A tile that fails or differs from torch gets a row of its own and is skipped. None: torch is faster, with more
        than MAX_ALWAYS_ROWS rows. Raises RuntimeError if no tile computes the matrix.
        """
        layers, columns = self._layers(matrix, rows), skinny_gemm.columns_for(rows)
        key = matrix.outputs, matrix.inputs, matrix.gated, columns
        sizes = dict(zip(("outputs", "inputs", "gated", "columns"), key, strict=True)) | {"rows": rows}
        found: list[tuple[float, Tile]] = []
        for tile in candidates(matrix.gated, columns):
            try:
                with patch.dict(skinny_gemm.TILES, {key: tile}):
                    error = layers[0].error()
                    times = self._times([layer.fused for layer in layers])
            except Exception as failure:
                self._add("tile that fails", **sizes, tile=list(vars(tile).values()), error=str(failure))
                continue
            if not error <= TOLERANCE:  # also true for NaN
                self._add("tile that differs", **sizes, tile=list(vars(tile).values()), error=error)
                continue
            found.append((median(times), tile))
            rate = self._of_copy_rate(matrix, times)
            self._add("tile", **sizes, tile=list(vars(tile).values()), us=microseconds(times), of_copy_rate=rate)
        if not found:
            raise RuntimeError(f"No tile computes {matrix} correctly.")
        seconds, best = min(found, key=lambda one: one[0])
        if rows <= skinny_gemm.MAX_ALWAYS_ROWS:
            return best
        times = self._times([layer.unfused for layer in layers])
        rate = self._of_copy_rate(matrix, times)
        self._add("library", **sizes, us=microseconds(times), of_copy_rate=rate)
        return best if seconds < median(times) else None

    def _times(self, calls: list[Call]) -> list[float]:
        """Return the time per call of calls recorded together, which share the launch overhead.

        A few calls are repeated several times, because together their weights still exceed the cache.
        """
        return self._on.times(*(calls * -(-MIN_CALLS // len(calls))), share=True)

    def _layers(self, matrix: Matrix, rows: int) -> list[Layer]:
        count = max(1, min(MAX_LAYERS, int(MAX_LAYER_BYTES / self._bytes(matrix))))
        return [Layer(matrix, rows, self._on.device) for _ in range(count)]

    def _of_copy_rate(self, matrix: Matrix, times: list[float]) -> float:
        return self._bytes(matrix) / median(times) / self._on.ceilings.bytes_per_second

    def _bytes(self, matrix: Matrix) -> int:
        return 2 * matrix.rows * matrix.inputs


def candidates(gated: bool, columns: int) -> Iterator[Tile]:
    """Yield the tiles to try that fit in shared memory."""
    for outputs, inputs, warps, stages in product(OUTPUTS, INPUTS, WARPS, STAGES):
        block = 2 * inputs * (columns + (2 if gated else 1) * outputs)
        if block * (stages - 1) <= SHARED:
            yield Tile(outputs, inputs, warps, stages)


def compile_tiles(shapes: tuple[Shape, ...], device: torch.device) -> None:
    """Compile the kernels of all tiles into Triton's disk cache; those that fail are left to the measurement."""
    jobs = [(matrix, rows, device) for shape, rows in product(shapes, ROWS) for matrix in shape.matrices]
    with ProcessPoolExecutor(min(len(jobs), os.cpu_count() or 1), get_context("spawn")) as pool:
        list(pool.map(_compile, jobs))


def _compile(job: tuple[Matrix, int, torch.device]) -> None:
    matrix, rows, device = job
    layer, columns = Layer(matrix, rows, device), skinny_gemm.columns_for(rows)
    key = matrix.outputs, matrix.inputs, matrix.gated, columns
    for tile in candidates(matrix.gated, columns):
        with patch.dict(skinny_gemm.TILES, {key: tile}), suppress(Exception):
            layer.fused()


def as_module(device: str, found: Found) -> str:
    """Return the new content of kernels/triton/tile_table.py: found tiles, and current tiles of other matrices."""
    table = tile_table.FOUND | {matrix: astuple(tile) for matrix, tile in found.items()}
    return MODULE.format(device=device, rows="".join(f"    {matrix}: {tile},\n" for matrix, tile in table.items()))


def main() -> None:
    """Measure all tiles, print the best and save the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=500.0)
    parser.add_argument("--also-in", type=Path)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    device = Device(torch.device(options.device))
    best: Found = {}

    def keep(sections: Sections) -> None:
        if not device.on_gpu:
            return
        name = torch.cuda.get_device_name(device.device)
        shown = {str(matrix): str(tile) for matrix, tile in best.items()}
        summary = {"tiles": shown, "failed": sections.failed, "left_out": sections.left_out}
        kept = [save("gpu_matrices", {"device": name}, sections.rows, summary)]
        if options.write:
            kept.append(Path(tile_table.__file__))
            kept[-1].write_text(as_module(name, best))
        if options.also_in:
            options.also_in.mkdir(parents=True, exist_ok=True)
            for path in kept:
                shutil.copy(path, options.also_in)

    sections = Sections(keep, options.seconds, works=device.works)
    marks = MatrixMarks(device, sections.add)

    def choose(matrix: Matrix, rows: int) -> None:
        tile = marks.tiles(matrix, rows)
        if tile is not None:
            best[matrix.outputs, matrix.inputs, matrix.gated, skinny_gemm.columns_for(rows)] = tile

    shapes = (LLAMA_1B, QWEN_06B, LLAMA_8B) if device.on_gpu else (TINY,)
    if device.on_gpu:
        compile_tiles(shapes, device.device)
    for shape, rows in product(shapes, ROWS):
        for matrix in shape.matrices:
            sections.run(f"{shape.name} {matrix.name} {rows}", partial(choose, matrix, rows))
    for size, tile in best.items():
        print(f"{size}: {tile}")


if __name__ == "__main__":
    main()
