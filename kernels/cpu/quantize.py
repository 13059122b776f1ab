"""Quantisation of matrices at load, for checkpoints that are not quantised; see source/quantize.h."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from kernels.cpu.library import load
from kernels.cpu.structs import address
from kernels.quantization import QuantScheme, StoredMatrix

Bits = Literal[4, 8]

HEAD_BITS: Bits = 8  # of output projections and embeddings, which lose most by rounding
GROUP = 32  # inputs that share a scale
SCHEMES: dict[Bits, QuantScheme] = {
    4: QuantScheme("int4", 4, group=GROUP, has_minimums=True),
    8: QuantScheme("int8", 8, group=GROUP, offset=128),
}
MAX_WEIGHTS_AT_ONCE = 1 << 24  # bounds the float32 copy


def quantize(matrix: Tensor, bits: Bits) -> StoredMatrix:
    """Return matrix[N, K], any float, as codes of `bits` bits for groups of 32 inputs.

    8 bits: each group has a float16 scale. 4 bits: a float16 scale and a float16 minimum.
    """
    outputs, inputs = matrix.shape
    codes = torch.empty((outputs, inputs), dtype=torch.uint8)
    scales, minimums = torch.empty((2, outputs, -(-inputs // GROUP)), dtype=torch.float16)
    rows = max(1, MAX_WEIGHTS_AT_ONCE // inputs)
    for first in range(0, outputs, rows):
        some = matrix[first : first + rows].float().contiguous()
        planes = (address(plane[first:]) for plane in (codes, scales, minimums))
        load().carousel_quantize(address(some), len(some), inputs, bits, *planes)
    return StoredMatrix(SCHEMES[bits], codes, scales, minimums if bits == 4 else None)
