"""Layers of weights in float8: exact weights, products in floats, the same bits in every batch."""

from __future__ import annotations

import pytest
import torch

from kernels.cpu.backend import CpuKernels
from kernels.cpu.linear import CpuLinear
from kernels.quantization import QuantScheme, StackedWeight, StoredMatrix
from tests.kernels.conftest import cpu_kernels

SHAPES = [(64, 256, 128), (33, 576, 128), (70, 200, 0), (96, 81, 32), (1, 48, 16)]  # outputs, inputs, inputs of a group
CODES = torch.tensor([code for code in range(256) if code & 0x7F != 0x7F], dtype=torch.uint8)  # all but NaN


@pytest.fixture(autouse=True)
def compiled() -> None:
    """Skip this file if kernels cannot be compiled."""
    cpu_kernels()


def make_matrix(outputs: int, inputs: int, group: int, seed: int = 0) -> StoredMatrix:
    """Return a random matrix that uses all codes, with scales of many magnitudes."""
    generator = torch.Generator().manual_seed(seed)
    scheme = QuantScheme("FP8", 8, group, scale_dtype=torch.float32, is_float8=True)
    codes = CODES[torch.randint(len(CODES), (outputs, inputs), generator=generator)]
    exponents = torch.randint(-12, 4, (outputs, -(-inputs // (group or inputs))), generator=generator)
    return StoredMatrix(scheme, codes, torch.rand(exponents.shape, generator=generator).exp2() * exponents.exp2())


def random_rows(rows: int, inputs: int) -> torch.Tensor:
    return torch.randn(rows, inputs, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("outputs", "inputs", "group"), SHAPES)
def test_a_layer_equals_the_product_of_its_weights(outputs: int, inputs: int, group: int):
    """Neither weights nor rows are rounded."""
    matrix, x = make_matrix(outputs, inputs, group), random_rows(9, inputs)
    bias = torch.randn(outputs, generator=torch.Generator().manual_seed(2))
    expected = x.double() @ matrix.dequantize().double().T + bias
    found = CpuLinear([matrix], bias)(x).double()
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize(("outputs", "inputs", "group"), SHAPES)
def test_a_row_has_the_same_bits_in_every_batch(outputs: int, inputs: int, group: int):
    """Neither the number of rows nor the position among them changes a bit."""
    layer, x = CpuLinear([make_matrix(outputs, inputs, group)], None), random_rows(70, inputs)
    all_rows = layer(x)
    for rows in (1, 2, 3, 4, 5, 6, 7, 13, 14, 15, 29, 65):
        for first in (0, 3, 70 - rows):
            assert torch.equal(layer(x[first : first + rows]), all_rows[first : first + rows]), (rows, first)


@pytest.mark.parametrize(("outputs", "inputs", "group"), SHAPES)
def test_the_weights_of_an_output_are_those_that_were_packed(outputs: int, inputs: int, group: int):
    """All codes are widened exactly, the denormal ones too."""
    matrix = make_matrix(outputs, inputs, group)
    assert torch.equal(CpuLinear([matrix], None).weights_of(torch.arange(outputs)), matrix.dequantize())


def test_every_code_is_multiplied_exactly():
    """A single input of one in each column gives the weights."""
    codes = CODES.repeat(3)[: 254 * 3].view(3, 254).T.contiguous()
    scheme = QuantScheme("FP8", 8, 0, scale_dtype=torch.float32, is_float8=True)
    matrix = StoredMatrix(scheme, codes, torch.full((254, 1), 0.75))
    assert torch.equal(CpuLinear([matrix], None)(torch.eye(3)), matrix.dequantize().T)


def test_parts_of_a_layer_are_packed_together():
    """The gated product of two stacked matrices equals the separate operations."""
    parts = [make_matrix(64, 256, 128, seed) for seed in range(2)]
    kernels, x = CpuKernels(), random_rows(7, 256) * 1e-3
    layer = kernels.pack_linear(StackedWeight(parts), None)
    assert isinstance(layer, CpuLinear) and layer.packed_bytes <= 1.04 * 128 * 256
    separate = torch.cat([CpuLinear([part], None)(x) for part in parts], dim=1)
    assert torch.equal(layer(x), separate)


def test_parts_of_several_kinds_are_dequantised():
    """A layer has one layout."""
    matrix = make_matrix(32, 64, 32)
    layer = CpuKernels().pack_linear(StackedWeight([matrix, torch.ones(32, 64)]), None)
    found = layer(torch.eye(64))
    torch.testing.assert_close(found[:, :32], matrix.dequantize().T)
    assert torch.equal(found[:, 32:], torch.ones(64, 32))
