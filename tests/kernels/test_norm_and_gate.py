"""RMSNorm and SwiGLU of all back ends agree with their formulas in float64."""

from __future__ import annotations

import pytest
import torch

from kernels.interface import Kernels

SHAPES = [(1, 1), (1, 576), (3, 100), (7, 1025)]
TOLERANCE = {torch.float32: {"atol": 2e-6, "rtol": 2e-6}, torch.float16: {"atol": 2e-3, "rtol": 2e-3}}


def naive_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    x, weight = x.double(), weight.double()
    return x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt() * weight


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("T", "H"), SHAPES)
def test_rms_norm_equals_its_formula(
    kernels: Kernels, device: torch.device, T: int, H: int, dtype: torch.dtype
) -> None:
    """Each row is divided by its root mean square and scaled by the weight."""
    torch.manual_seed(0)
    x, weight = (torch.randn(shape, device=device).to(dtype) for shape in ((T, H), (H,)))
    out = kernels.rms_norm(x, weight, 1e-5)
    torch.testing.assert_close(out.double(), naive_norm(x, weight, 1e-5), **TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("T", "width"), SHAPES)
def test_silu_mul_equals_its_formula(
    kernels: Kernels, device: torch.device, T: int, width: int, dtype: torch.dtype
) -> None:
    """The result is x * sigmoid(x) of the first half times the second half."""
    torch.manual_seed(0)
    gate_up = (torch.randn(T, 2 * width, device=device) * 4).to(dtype)
    gate, up = gate_up.double().chunk(2, dim=-1)
    expected = gate / (1 + (-gate).exp()) * up
    torch.testing.assert_close(kernels.silu_mul(gate_up).double(), expected, **TOLERANCE[dtype])
