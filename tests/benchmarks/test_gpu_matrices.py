"""Selection of tiles for matrices of few rows, as far as it can be tested without a GPU."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from benchmarks import gpu_matrices
from benchmarks.device import Device
from benchmarks.gpu_matrices import MatrixMarks
from benchmarks.shapes import TINY, Matrix
from kernels.triton import skinny_gemm, tile_table
from kernels.triton.skinny_gemm import DenseLinear, Tile
from tests.benchmarks.conftest import CPU


def test_a_tile_that_fails_loses_only_its_row_and_the_fastest_one_is_chosen(
    device: Device, monkeypatch: pytest.MonkeyPatch
):
    """The table is restored afterwards."""
    impossible, slow, fast = Tile(3, 256, 4, 3), Tile(16, 64, 1, 3), Tile(32, 64, 1, 3)
    monkeypatch.setattr(gpu_matrices, "candidates", lambda gated, columns: iter((slow, impossible, fast)))
    seconds = iter((0.3, 0.1))

    def times(*calls: Callable[[], object], share: bool) -> list[float]:
        calls[0]()
        return [next(seconds)]

    monkeypatch.setattr(device, "times", times)
    rows: list[str] = []
    marks, before = MatrixMarks(device, lambda what, **row: rows.append(what)), dict(skinny_gemm.TILES)
    assert marks.tiles(Matrix("down", 40, 64), 1) == fast
    assert rows == ["tile", "tile that fails", "tile"]
    assert before == skinny_gemm.TILES


@pytest.mark.parametrize("wrong_by", [1000.0, float("nan")])
def test_an_incorrect_tile_is_not_chosen(device: Device, monkeypatch: pytest.MonkeyPatch, wrong_by: float):
    """Speed does not matter for an incorrect tile."""
    right, wrong = Tile(16, 64, 1, 3), Tile(32, 64, 1, 3)
    multiply = DenseLinear.multiply_skinny

    def multiplied(layer: DenseLinear, *given: Any) -> torch.Tensor:
        y = multiply(layer, *given)
        if skinny_gemm.TILES[40, 64, False, 8] == wrong:
            y[-1, -1] += wrong_by
        return y

    monkeypatch.setattr(gpu_matrices, "candidates", lambda gated, columns: iter((wrong, right)))
    monkeypatch.setattr(DenseLinear, "multiply_skinny", multiplied)
    monkeypatch.setattr(
        device, "times", lambda *calls, share: [0.1 if skinny_gemm.TILES[40, 64, False, 8] == wrong else 0.3]
    )
    rows: list[str] = []
    assert MatrixMarks(device, lambda what, **row: rows.append(what)).tiles(Matrix("qkv", 40, 64), 1) == right
    assert rows == ["tile that differs", "tile"]


@pytest.mark.parametrize("library_seconds", [0.2, 0.05])
def test_more_rows_have_a_tile_where_it_is_faster_than_the_library(
    device: Device, monkeypatch: pytest.MonkeyPatch, library_seconds: float
):
    """Otherwise cuBLAS is used."""
    tile = Tile(16, 64, 1, 3)
    monkeypatch.setattr(gpu_matrices, "candidates", lambda gated, columns: iter((tile,)))
    seconds = iter((0.1, library_seconds))
    monkeypatch.setattr(device, "times", lambda *calls, share: [next(seconds)])
    rows: list[str] = []
    chosen = MatrixMarks(device, lambda what, **row: rows.append(what)).tiles(
        Matrix("qkv", 40, 64), skinny_gemm.MAX_ROWS
    )
    assert chosen == (tile if library_seconds > 0.1 else None)
    assert rows == ["tile", "library"]


@pytest.mark.parametrize("matrix", TINY.matrices, ids=lambda matrix: matrix.name)
def test_one_kernel_agrees_with_the_library(device: Device, matrix: Matrix):
    """This holds for any fused operation, and again with other rows and residual."""
    layer = gpu_matrices.Layer(matrix, 3, CPU)
    assert max(layer.error() for _ in range(2)) < 1e-4


def test_the_best_tiles_become_the_table_that_kernels_read(monkeypatch: pytest.MonkeyPatch):
    """It is formatted like a handwritten file, names the measured device, and keeps entries of other matrices."""
    monkeypatch.setattr(tile_table, "FOUND", {(40, 64, False, 8): (16, 64, 1, 3), (8, 8, True, 16): (16, 256, 4, 3)})
    best = {(40, 64, False, 8): Tile(32, 64, 1, 3), (128256, 2048, False, 8): Tile(32, 256, 4, 8)}
    module = gpu_matrices.as_module("NVIDIA H100 80GB HBM3", best)
    read: dict[str, Any] = {}
    exec(module, read)
    assert "NVIDIA H100 80GB HBM3" in read["__doc__"]
    found = {matrix: Tile(*tile) for matrix, tile in read["FOUND"].items()}
    assert found == best | {(8, 8, True, 16): Tile(16, 256, 4, 3)}
    command = [sys.executable, "-m", "ruff", "format", "--check", "--stdin-filename", "tile_table.py", "-"]
    assert subprocess.run(command, input=module, text=True, check=False).returncode == 0


@pytest.mark.parametrize("gated", [False, True])
def test_tiles_that_are_tried_fit_into_the_shared_memory_of_every_gpu(gated: bool):
    """Gated tiles need twice the memory."""
    tiles = list(gpu_matrices.candidates(gated, 8))
    assert 6 < len(tiles) <= 24 and len(set(tiles)) == len(tiles)
    assert Tile(32, 512, 4, 6) not in tiles
    assert (Tile(16, 512, 4, 4) in tiles) is not gated
