"""The batch-invariant back end for GPUs is correct, and bitwise independent of the batch."""

from __future__ import annotations

import pytest
import torch

from kernels.load import load
from kernels.paging import PagedKV
from kernels.triton import invariant
from kernels.triton.invariant import InvariantKernels, InvariantLinear
from tests.kernels.conftest import half_precision
from tests.kernels.paged import make_paged
from tests.profiles import NIGHTLY, PROFILE, nightly

# Inputs smaller than a block, of one split, and of several with a remainder; outputs likewise.
SHAPES = [(24, 40), (576, 130), pytest.param(1024, 64, marks=nightly), (2304, 96)]
HALF = half_precision()
ROWS = (1, 2, 3, 17, 63, 64, 65, 100) if PROFILE == NIGHTLY else (1, 17, 64, 65)


pytestmark = pytest.mark.usefixtures("separate_rows")


def make_layer(
    inputs: int, outputs: int, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a weight and a bias."""
    torch.manual_seed(0)
    weight = torch.randn(outputs, inputs, device=device) / inputs**0.5
    return weight.to(dtype), torch.randn(outputs, device=device).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_an_invariant_layer_computes_x_times_w_plus_b(
    inputs: int, outputs: int, dtype: torch.dtype, device: torch.device
):
    """Every row count, including one, agrees with float64."""
    weight, bias = make_layer(inputs, outputs, dtype, device)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    for rows in (1, 70):
        x = torch.randn(rows, 2 * inputs, device=device).to(dtype)[:, :inputs]  # rows are strided
        for bias_or_none in (None, bias):
            expected = x.double() @ weight.double().T + (0 if bias_or_none is None else bias_or_none.double())
            got = InvariantLinear(weight, bias_or_none)(x)
            torch.testing.assert_close(got.double(), expected, atol=tolerance, rtol=tolerance)
            assert got.dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_a_row_has_the_same_bits_in_every_batch(
    inputs: int, outputs: int, dtype: torch.dtype, device: torch.device, monkeypatch: pytest.MonkeyPatch
):
    """Bits are equal alone, among other rows, and with splits summed by separate programs or by one."""
    weight, bias = make_layer(inputs, outputs, dtype, device)
    layer = InvariantLinear(weight, bias)
    x = torch.randn(max(ROWS), inputs, device=device).to(dtype)
    monkeypatch.setattr(invariant, "MIN_BUSY_PROGRAMS", 0)
    together = layer(x)
    for filled in (0, 1 << 30):
        monkeypatch.setattr(invariant, "MIN_BUSY_PROGRAMS", filled)
        for rows in ROWS:
            assert torch.equal(layer(x[:rows]), together[:rows]), (filled, rows)
        assert torch.equal(layer(x[50:51]), together[50:51])


@pytest.mark.parametrize("window", [0, 40])
def test_a_token_has_the_same_attention_as_a_decode_row_and_in_any_chunk(window: int, device: torch.device):
    """A sequence that is recomputed after preemption continues with the same output."""
    kernels, context = InvariantKernels(), 150
    paged = make_paged((context, 70), 2, 16, 16, torch.float32)
    kv, table = PagedKV(paged.kv.k.to(device), paged.kv.v.to(device)), paged.page_table.to(device)
    q = torch.randn(context, 6, 16, generator=torch.Generator().manual_seed(3)).to(device)

    def chunk(first: int, last: int) -> torch.Tensor:
        bias_or_none = (table[:1], (0, last - first), (last,), 0.2, window)
        return kernels.prefill_attention(q[first:last].contiguous(), kv, *bias_or_none)

    whole = chunk(0, context)
    for first, last in ((0, 64), (64, 150), (0, 1), (99, 150), (70, 71)):
        assert torch.equal(chunk(first, last), whole[first:last]), (first, last)
    for position in (0, 15, 16, 63, 64, 149):
        lengths = torch.tensor([position + 1, 70], dtype=torch.int32, device=device)
        two = torch.stack((q[position], q[3]))
        alone = kernels.decode_attention(two[:1], kv, table[:1], lengths[:1], 0.2, window)
        beside = kernels.decode_attention(two, kv, table, lengths, 0.2, window)
        assert torch.equal(alone[0], whole[position])
        assert torch.equal(beside[0], whole[position])


def test_kernels_without_batch_invariance_are_refused():
    """On a CPU compiled kernels are always batch-invariant, torch's only in float32."""
    cpu = torch.device("cpu")
    for choice in ("auto", "torch"):
        assert type(load(cpu, torch.float32, choice, batch_invariant=True)) is type(load(cpu, torch.float32, choice))
    with pytest.raises(ValueError, match="float32"):
        load(cpu, torch.bfloat16, "torch", batch_invariant=True)
    with pytest.raises(ValueError, match="GPU"):
        load(torch.device("cuda"), torch.bfloat16, "torch", batch_invariant=True)
