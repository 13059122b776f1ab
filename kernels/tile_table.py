"""Tiles of matrices of few rows (`kernels.few_rows.Tile`), by outputs, inputs, whether they are gated (then
outputs are those of the gate), and rows: up to 8, or up to 16, which are the library's where there is no tile for them.
`python -m benchmarks.gpu_matrices --write` writes them here; it has not run on a GPU yet.
"""

FOUND: dict[tuple[int, int, bool, int], tuple[int, int, int, int]] = {}
