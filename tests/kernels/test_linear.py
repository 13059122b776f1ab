"""Packed linear layers are correct, batch-invariant, and stored once."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from kernels.linear import can_pack, pack_linear

SHAPES = [(64, 80), (96, 64), (256, 1376), (576, 960), (1536, 576), (100, 61), (1, 1), (2048, 512)]


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_a_packed_layer_computes_x_times_w_plus_b(inputs: int, outputs: int, with_bias: bool, device: torch.device):
    """Every row count, including one, agrees with float64."""
    torch.manual_seed(0)
    weight = torch.randn(outputs, inputs, device=device) / inputs**0.5
    bias = torch.randn(outputs, device=device) if with_bias else None
    layer = pack_linear(weight.clone(), bias)
    for rows in (1, 2, 17):
        x = torch.randn(rows, inputs, device=device)
        expected = x.double() @ weight.double().T + (0 if bias is None else bias.double())
        torch.testing.assert_close(layer(x).double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_a_row_has_the_same_bits_in_every_batch(inputs: int, outputs: int):
    """In float32 on a CPU a row's result does not depend on the number of rows or its position."""
    weight = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(0))
    if not can_pack(weight):
        pytest.skip("packing is not supported on this processor")
    layer = pack_linear(weight, None)
    x = torch.randn(80, inputs, generator=torch.Generator().manual_seed(1))
    all_rows = layer(x)
    for rows in (1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 33, 48, 64, 65):
        for first in (0, 3, 80 - rows):
            assert torch.equal(layer(x[first : first + rows]), all_rows[first : first + rows]), (rows, first)


@pytest.mark.parametrize("rows", [1, 16, 80])
def test_bfloat16_is_packed_where_the_processor_supports_it(rows: int):
    """A layer in bfloat16 is as exact as its dtype."""
    weight = torch.randn(96, 576, generator=torch.Generator().manual_seed(0)).bfloat16()
    if not can_pack(weight):
        pytest.skip("packing of bfloat16 is not supported on this processor")
    x = torch.randn(rows, 576, generator=torch.Generator().manual_seed(1)).bfloat16()
    expected = x.double() @ weight.double().T
    torch.testing.assert_close(pack_linear(weight, None)(x).double(), expected, atol=1e-2, rtol=1e-2)


def test_the_weight_is_not_stored_twice():
    """A packed layer keeps no reference to the original tensor."""
    weight = torch.randn(32, 48)
    if not can_pack(weight):
        pytest.skip("packing is not supported on this processor")
    gone = weakref.ref(weight.untyped_storage())
    layer = pack_linear(weight, None)
    del weight
    gc.collect()
    assert gone() is None
    assert layer(torch.ones(1, 48)).shape == (1, 32)
