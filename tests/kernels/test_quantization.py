"""Quantised matrices have the values that their files describe."""

from __future__ import annotations

import pytest
import torch

from kernels.quantization import QuantScheme, StackedMatrix, StackedWeight, StoredMatrix, dense_weight, row_ranges
from tests.kernels.quantized_matrices import SCHEMES, make_matrix


def test_a_weight_is_the_scaled_code_less_its_offset():
    """Each group of inputs has its own scale."""
    codes = torch.tensor([[0, 8, 15, 9]], dtype=torch.uint8)
    scales = torch.tensor([[0.5, 2.0]], dtype=torch.float16)
    matrix = StoredMatrix(QuantScheme("Q4_0", 4, group=2, offset=8), codes, scales)
    assert matrix.dequantize().tolist() == [[-4.0, 0.0, 14.0, 2.0]]


def test_integer_scales_multiply_the_scale_that_groups_share():
    """Scales and minimums of groups are exact products."""
    matrix = StoredMatrix(
        QuantScheme("Q4_K", 4, group=2, shared=4, has_minimums=True),
        torch.tensor([[1, 2, 3, 4]], dtype=torch.uint8),
        torch.tensor([[0.5]], dtype=torch.float16),
        minimums=torch.tensor([[0.25]], dtype=torch.float16),
        group_scales=torch.tensor([[1, -3]], dtype=torch.int8),
        group_minimums=torch.tensor([[2, 4]], dtype=torch.uint8),
    )
    assert matrix.dequantize().tolist() == [[0.0, 0.5, -5.5, -7.0]]


def test_codes_stand_for_the_values_of_a_table():
    """A group may be a whole row, and its codes have their own offset."""
    scheme = QuantScheme("table", 4, group=0, table=(-7, -1, 0, 5), scale_dtype=torch.float32, has_zeros=True)
    codes = torch.tensor([[3, 0, 1, 2]], dtype=torch.uint8)
    zeros = torch.tensor([[1]], dtype=torch.uint8)
    matrix = StoredMatrix(scheme, codes, torch.tensor([[2.0]]), zeros=zeros)
    assert matrix.dequantize().tolist() == [[8.0, -16.0, -4.0, -2.0]]


@pytest.mark.parametrize(
    "wrong", [{"minimums": torch.ones(1, 1)}, {"zeros": torch.ones(1, 1)}, {"scales": torch.ones(1)}]
)
def test_planes_that_the_scheme_does_not_have_are_refused(wrong: dict[str, torch.Tensor]):
    """Kernels trust the scheme alone."""
    planes = {"codes": torch.ones(1, 32, dtype=torch.uint8), "scales": torch.ones(1, 1).half()} | wrong
    with pytest.raises(ValueError, match="does not belong to scheme"):
        StoredMatrix(QuantScheme("Q4_0", 4, group=32, offset=8), **planes)


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
def test_stacked_matrices_have_the_rows_of_all_parts(scheme: QuantScheme):
    """A range of rows may begin and end in any part."""
    parts = [make_matrix(scheme, outputs, 256, seed) for seed, outputs in enumerate((5, 1, 9))]
    stacked, expected = StackedMatrix(parts), dense_weight(StackedWeight(parts))
    assert stacked.shape == expected.shape
    for first, last in ((0, 15), (0, 5), (4, 6), (5, 6), (3, 15), (7, 8)):
        assert torch.equal(stacked.rows(first, last).dequantize(), expected[first:last])


def test_ranges_of_rows_cover_a_matrix_once(monkeypatch: pytest.MonkeyPatch):
    """All but the last are multiples of the number that a kernel needs."""
    monkeypatch.setattr("kernels.quantization.PIECE_WEIGHTS", 1000)
    matrix = make_matrix(SCHEMES["8 bits"], 21, 96)
    assert list(row_ranges(matrix.shape, 8)) == [(0, 8), (8, 16), (16, 21)]
    assert list(row_ranges(matrix.shape)) == [(0, 10), (10, 20), (20, 21)]
