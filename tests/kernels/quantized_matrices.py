"""Random quantised matrices of the schemes that files use."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.quantization import QuantScheme, StoredMatrix

IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
SCHEMES = {
    "4 bits and an offset": QuantScheme("Q4_0", 4, group=32, offset=8),
    "4 bits and a minimum": QuantScheme("Q4_1", 4, group=32, has_minimums=True),
    "4 bits with integer scales and minimums": QuantScheme("Q4_K", 4, group=32, shared=256, has_minimums=True),
    "4 bits in long groups with zero points": QuantScheme("GPTQ", 4, group=128, has_zeros=True),
    "4 bits that index a table": QuantScheme("IQ4_NL", 4, group=32, table=IQ4_VALUES),
    "5 bits and an offset": QuantScheme("Q5_0", 5, group=32, offset=16),
    "5 bits with integer scales and minimums": QuantScheme("Q5_K", 5, group=32, shared=256, has_minimums=True),
    "5 bits and another offset": QuantScheme("offset 3", 5, group=32, offset=3),
    "6 bits with zero points": QuantScheme("zero points of 6 bits", 6, group=64, has_zeros=True),
    "6 bits in groups of 16": QuantScheme("Q6_K", 6, group=16, shared=256, offset=32),
    "8 bits": QuantScheme("Q8_0", 8, group=32, offset=128),
    "8 bits and a minimum": QuantScheme("Q8_1", 8, group=64, has_minimums=True),
    "8 bits and a scale of a row": QuantScheme("int8", 8, group=0, offset=128, scale_dtype=torch.float32),
}
BYTES_OF_256_WEIGHTS = {"Q4_0": 144, "Q4_1": 160, "Q4_K": 144, "Q5_0": 176, "Q5_K": 176, "Q6_K": 210, "Q8_0": 272}


def make_matrix(scheme: QuantScheme, outputs: int, inputs: int, seed: int = 0) -> StoredMatrix:
    """Return a random matrix that uses all codes."""
    generator = torch.Generator().manual_seed(seed)

    def integers(columns: int, low: int, high: int, dtype: torch.dtype) -> Tensor:
        return torch.randint(low, high, (outputs, columns), generator=generator).to(dtype)

    def floats(columns: int) -> Tensor:
        some = torch.rand(outputs, columns, generator=generator) * 0.02 + 0.01
        return some.to(scheme.scale_dtype)

    groups = -(-inputs // (scheme.group or inputs))
    floats_in_row = -(-inputs // (scheme.shared or scheme.group or inputs))
    return StoredMatrix(
        scheme,
        integers(inputs, 0, 1 << scheme.bits, torch.uint8),
        floats(floats_in_row),
        minimums=floats(floats_in_row) * 8 if scheme.has_minimums else None,
        group_scales=integers(groups, -128, 128, torch.int8) if scheme.shared else None,
        group_minimums=integers(groups, 0, 64, torch.uint8) if scheme.shared and scheme.has_minimums else None,
        zeros=integers(groups, 0, 16, torch.uint8) if scheme.has_zeros else None,
    )


def rounded_rows(x: Tensor, parts: int) -> Tensor:
    """Return x[T, K] as the kernels round it: in blocks of 32 to `parts` codes of 8 bits, float64."""
    rows, inputs = x.shape
    rest = torch.nn.functional.pad(x, (0, -inputs % 32)).view(rows, -1, 32)
    sizes = rest.abs().amax(-1, keepdim=True)
    scales, inverses = sizes / 127, torch.full_like(sizes, 127) / sizes
    total = torch.zeros_like(rest, dtype=torch.float64)
    for _ in range(parts):
        step = (rest.double() * inverses.double()).round() * scales.double()
        total += step
        rest = (rest.double() - step).float()
        scales, inverses = scales / 254, inverses * 254
    return total.view(rows, -1)[:, :inputs]
