"""Quantised matrices have the values that their files describe."""

from __future__ import annotations

import torch

from kernels.quantization import QuantScheme, StoredMatrix


def test_a_weight_is_the_scaled_code_less_its_offset():
    """Each group of inputs has its own scale."""
    codes = torch.tensor([[0, 8, 15, 9]], dtype=torch.uint8)
    scales = torch.tensor([[0.5, 2.0]], dtype=torch.float16)
    matrix = StoredMatrix(QuantScheme("Q4_0", 4, group=2, offset=8), codes, scales)
    assert matrix.dequantize().tolist() == [[-4.0, 0.0, 14.0, 2.0]]


def test_integer_scales_multiply_the_scale_that_groups_share():
    """Scales and minimums of groups are exact products."""
    matrix = StoredMatrix(
        QuantScheme("Q4_K", 4, group=2, shared=4),
        torch.tensor([[1, 2, 3, 4]], dtype=torch.uint8),
        torch.tensor([[0.5]], dtype=torch.float16),
        minimums=torch.tensor([[0.25]], dtype=torch.float16),
        group_scales=torch.tensor([[1, -3]], dtype=torch.int8),
        group_minimums=torch.tensor([[2, 4]], dtype=torch.uint8),
    )
    assert matrix.dequantize().tolist() == [[0.0, 0.5, -5.5, -7.0]]


def test_codes_stand_for_the_values_of_a_table():
    """A group may be a whole row, and its codes have their own offset."""
    scheme = QuantScheme("table", 4, group=0, table=(-7, -1, 0, 5))
    codes = torch.tensor([[3, 0, 1, 2]], dtype=torch.uint8)
    zeros = torch.tensor([[1]], dtype=torch.uint8)
    matrix = StoredMatrix(scheme, codes, torch.tensor([[2.0]]), zeros=zeros)
    assert matrix.dequantize().tolist() == [[8.0, -16.0, -4.0, -2.0]]
