"""Tuned tiles of skinny products (`kernels.triton.skinny_gemm.Tile`), keyed by (outputs, inputs, gated,
rows).

For gated layers, outputs are those of the gate. rows is 8 or 16, the upper bound; without a tile for 16, products of 9
to 16 rows use torch. Written by `python -m benchmarks.gpu_matrices --write`: the fastest tiles for 1 and 16 rows on
NVIDIA H200.
"""

FOUND: dict[tuple[int, int, bool, int], tuple[int, int, int, int]] = {
    (3072, 2048, False, 8): (16, 512, 4, 3),
    (2048, 2048, False, 8): (16, 256, 4, 6),
    (8192, 2048, True, 8): (16, 512, 4, 3),
    (2048, 8192, False, 8): (16, 512, 4, 4),
    (128256, 2048, False, 8): (32, 512, 4, 3),
    (3072, 2048, False, 16): (16, 512, 4, 3),
    (2048, 2048, False, 16): (16, 512, 4, 4),
    (8192, 2048, True, 16): (32, 256, 4, 3),
    (2048, 8192, False, 16): (16, 512, 4, 4),
    (128256, 2048, False, 16): (32, 512, 4, 3),
    (4096, 1024, False, 8): (32, 512, 4, 3),
    (1024, 2048, False, 8): (16, 256, 4, 6),
    (3072, 1024, True, 8): (16, 256, 4, 4),
    (1024, 3072, False, 8): (16, 256, 4, 6),
    (151936, 1024, False, 8): (16, 512, 4, 3),
    (4096, 1024, False, 16): (16, 512, 4, 4),
    (1024, 2048, False, 16): (16, 512, 4, 3),
    (3072, 1024, True, 16): (16, 256, 4, 3),
    (1024, 3072, False, 16): (16, 512, 4, 4),
    (6144, 4096, False, 8): (16, 512, 4, 3),
    (4096, 4096, False, 8): (32, 512, 4, 3),
    (14336, 4096, True, 8): (16, 512, 4, 3),
    (4096, 14336, False, 8): (32, 512, 4, 3),
    (128256, 4096, False, 8): (32, 256, 4, 4),
    (4096, 4096, False, 16): (16, 512, 4, 4),
    (4096, 14336, False, 16): (16, 512, 4, 4),
    (128256, 4096, False, 16): (32, 512, 4, 3),
}
