"""Tuned tiles of skinny products (`kernels.triton.skinny_gemm.Tile`), keyed by (outputs, inputs, gated, rows).

For gated layers, outputs are those of the gate. rows is 8 or 16, the upper bound; without a tile for 16, products of 9
to 16 rows use torch. Written by `python -m benchmarks.gpu_matrices --write`, which has not run on a GPU yet.
"""

FOUND: dict[tuple[int, int, bool, int], tuple[int, int, int, int]] = {}
