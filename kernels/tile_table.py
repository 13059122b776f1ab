"""Tiles of matrices of few rows (`kernels.few_rows.Tile`), by outputs, inputs and whether they are gated:
then outputs are those of the gate. `python -m benchmarks.gpu_matrices --write` writes them here; it has not run on a
GPU yet.
"""

FOUND: dict[tuple[int, int, bool], tuple[int, int, int, int]] = {}
