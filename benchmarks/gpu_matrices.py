"""Matrices of few rows on a device: one kernel with what stands around them, beside the library's product between
kernels of their own; and which tiles are best for each, which is what `kernels/tile_table.py` holds.

    python -m benchmarks.gpu_matrices                        # every tile for every matrix: results/gpu_matrices.json
    python -m benchmarks.gpu_matrices --write                # and the best ones into kernels/tile_table.py
    python -m benchmarks.gpu_matrices --also-in some/folder  # a copy of the results
    python -m benchmarks.gpu_matrices --device cpu           # the same code on a tiny shape; nothing is kept
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable, Iterator
from dataclasses import astuple
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.device import Call, Device
from benchmarks.results import microseconds, save
from benchmarks.sections import Sections
from benchmarks.shapes import LLAMA_1B, QWEN_06B, TINY, Matrix, Shape
from kernels import few_rows, tile_table
from kernels.few_rows import DenseLinear, Tile
from kernels.rms_norm import rms_norm
from kernels.silu_mul import silu_mul

MOST_LAYERS = 20  # whose weights are apart in memory, so that none is in a cache when it is read
LEAST_CALLS = 10  # that one recording is made of
MOST_BYTES = 200e6  # of all of them together, but for one
EPS = 1e-5
TOLERANCE = 0.02  # of the largest output: what is rounded to bfloat16 twice is nearer

OUTPUTS, INPUTS, WARPS, STAGES = (16, 32, 64), (256, 512), (4, 8), (3, 4, 6, 8)
SHARED = 220 << 10  # bytes of all blocks under way: what a multiprocessor has
ROWS = (1, few_rows.MAX_ROWS)  # that tiles are chosen for: one stream alone, and the most that the kernel takes

Found = dict[tuple[int, int, bool, int], Tile]  # by outputs, inputs, whether it is gated, and columns

MODULE = '''"""Tiles of matrices of few rows (`kernels.few_rows.Tile`), by outputs, inputs, whether they are gated (then
outputs are those of the gate), and rows: up to 8, or up to 16, which are the library's where there is no tile for them.
`python -m benchmarks.gpu_matrices --write` wrote them: the fastest ones for 1 row and for 16 rows on
{device}.
"""

FOUND: dict[tuple[int, int, bool, int], tuple[int, int, int, int]] = {{
{rows}}}
'''


class Layer:
    """A matrix with random weights, and rows for it."""

    def __init__(self, matrix: Matrix, rows: int, device: torch.device) -> None:
        def random(*shape: int) -> Tensor:
            # The interpreter multiplies no bfloat16.
            return torch.randn(shape, device=device).to(torch.bfloat16 if device.type == "cuda" else torch.float32)

        self._matrix = matrix
        self._x, self._norm = random(rows, matrix.inputs), random(matrix.inputs)
        self._layer = DenseLinear(random(matrix.rows, matrix.inputs), None)
        self._residual = random(rows, matrix.outputs) if matrix.added else None

    def by_one_kernel(self) -> Tensor:
        """Our own."""
        if self._residual is not None:
            self._layer.add_few(self._x, self._residual)
            return self._residual
        norm = self._norm if self._matrix.normed else None
        return self._layer.multiply_few(self._x, norm, EPS, self._matrix.gated)

    def by_the_library(self) -> Tensor:
        """What stands around the product by kernels of their own, but for the addition, which the library has too."""
        weight = self._layer.weight
        if self._residual is not None:
            return torch.addmm(self._residual, self._x, weight.T, out=self._residual)
        x = rms_norm(self._x, self._norm, EPS) if self._matrix.normed else self._x
        y = F.linear(x, weight)
        return silu_mul(y) if self._matrix.gated else y

    def error(self) -> float:
        """The largest difference between the two, in parts of the largest output; of fresh rows, as those of the last
        time may lie where a kernel leaves something out."""
        self._x.normal_()
        before = None if self._residual is None else self._residual.clone()
        ours = self.by_one_kernel().float()
        if before is not None:
            self._residual = before
        theirs = self.by_the_library().float()
        return float((ours - theirs).abs().max() / theirs.abs().max())


class MatrixMarks:
    """Adds a row for each matrix."""

    def __init__(self, device: Device, add: Callable[..., None]) -> None:
        """add: takes what the row is of, and its columns."""
        self._on = device
        self._add = add

    def beside_the_library(self, shape: Shape, rows: int) -> None:
        """The bound is reading the weight once."""
        for matrix in shape.matrices:
            layers = self._layers(matrix, rows)
            ours = self._times([layer.by_one_kernel for layer in layers])
            theirs = self._times([layer.by_the_library for layer in layers])
            self._add(
                "matrix", shape=shape.name, matrix=matrix.name, rows=rows, us=microseconds(ours),
                by_the_library_us=microseconds(theirs), of_copy_rate=self._of_copy_rate(matrix, ours),
            )  # fmt: skip

    def tiles(self, matrix: Matrix, rows: int) -> Tile | None:
        """Measure every tile for so many rows; return the fastest one of those that compute what the library does. One
        that fails or differs costs its own row and no other. None: of more rows than FEW the library is faster. Raises
        RuntimeError where no tile computes the matrix."""
        layers, columns = self._layers(matrix, rows), few_rows.columns_for(rows)
        key = matrix.outputs, matrix.inputs, matrix.gated, columns
        sizes = dict(zip(("outputs", "inputs", "gated", "columns"), key, strict=True)) | {"rows": rows}
        found: list[tuple[float, Tile]] = []
        for tile in candidates(matrix.gated, columns):
            try:
                with patch.dict(few_rows.TILES, {key: tile}):
                    error = layers[0].error()
                    times = self._times([layer.by_one_kernel for layer in layers])
            except Exception as failure:
                self._add("tile that fails", **sizes, tile=list(vars(tile).values()), error=str(failure))
                continue
            if not error <= TOLERANCE:  # nor is NaN
                self._add("tile that differs", **sizes, tile=list(vars(tile).values()), error=error)
                continue
            found.append((median(times), tile))
            rate = self._of_copy_rate(matrix, times)
            self._add("tile", **sizes, tile=list(vars(tile).values()), us=microseconds(times), of_copy_rate=rate)
        if not found:
            raise RuntimeError(f"no tile computes {matrix}")
        seconds, best = min(found, key=lambda one: one[0])
        if rows <= few_rows.FEW:
            return best
        times = self._times([layer.by_the_library for layer in layers])
        rate = self._of_copy_rate(matrix, times)
        self._add("library", **sizes, us=microseconds(times), of_copy_rate=rate)
        return best if seconds < median(times) else None

    def _times(self, calls: list[Call]) -> list[float]:
        """Of one of the calls, which share the start of what they are recorded in: a few go round several times, as
        together they are still more than a cache holds."""
        return self._on.times(*(calls * -(-LEAST_CALLS // len(calls))), share=True)

    def _layers(self, matrix: Matrix, rows: int) -> list[Layer]:
        count = max(1, min(MOST_LAYERS, int(MOST_BYTES / self._bytes(matrix))))
        return [Layer(matrix, rows, self._on.device) for _ in range(count)]

    def _of_copy_rate(self, matrix: Matrix, times: list[float]) -> float:
        return self._bytes(matrix) / median(times) / self._on.ceilings.bytes_per_second

    def _bytes(self, matrix: Matrix) -> int:
        return 2 * matrix.rows * matrix.inputs


def candidates(gated: bool, columns: int) -> Iterator[Tile]:
    """What is worth trying, and fits."""
    for outputs, inputs, warps, stages in product(OUTPUTS, INPUTS, WARPS, STAGES):
        block = 2 * inputs * (columns + (2 if gated else 1) * outputs)
        if block * (stages - 1) <= SHARED:
            yield Tile(outputs, inputs, warps, stages)


def as_module(device: str, found: Found) -> str:
    """What kernels/tile_table.py is to be: what was found, and what it has of other matrices."""
    table = tile_table.FOUND | {matrix: astuple(tile) for matrix, tile in found.items()}
    return MODULE.format(device=device, rows="".join(f"    {matrix}: {tile},\n" for matrix, tile in table.items()))


def main() -> None:
    """Measure all tiles, print the best, keep the rows."""
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
            best[matrix.outputs, matrix.inputs, matrix.gated, few_rows.columns_for(rows)] = tile

    for shape, rows in product((LLAMA_1B, QWEN_06B) if device.on_gpu else (TINY,), ROWS):
        for matrix in shape.matrices:
            sections.run(f"{shape.name} {matrix.name} {rows}", partial(choose, matrix, rows))
    for size, tile in best.items():
        print(f"{size}: {tile}")


if __name__ == "__main__":
    main()
