"""Matrix products with fused norm, gate and residual agree with float64 in all back ends, for few and many rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernels.interface import Kernels
from kernels.paging import PagedKV
from kernels.plans import RopeInputs
from kernels.triton import pdl, skinny_gemm
from kernels.triton.backend import TritonKernels
from kernels.triton.skinny_gemm import DenseLinear, Tile
from tests.kernels.conftest import half_precision

EPS = 1e-5
HALF = half_precision()
TOLERANCE = {torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 6e-2}
# Inputs and outputs smaller than a block, of one block, and of several with a remainder; gated outputs are halved.
SHAPES = [(24, 40), (256, 64), (576, 130)]
ROWS = (1, 3, 8, 9, 20)


def make_layer(inputs: int, outputs: int, rows: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, ...]:
    """Return x (with strided rows), a norm, a weight and a bias."""
    torch.manual_seed(0)
    x = torch.randn(rows, 2 * inputs, device=device).to(dtype)[:, :inputs]
    norm = torch.rand(inputs, device=device).to(dtype) + 0.5
    weight = (torch.randn(outputs, inputs, device=device) / inputs**0.5).to(dtype)
    return x, norm, weight, torch.randn(outputs, device=device).to(dtype)


def normed(x: Tensor, norm: Tensor) -> Tensor:
    wide = x.double()
    return wide / (wide.square().mean(dim=-1, keepdim=True) + EPS).sqrt() * norm.double()


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.double() @ weight.double().T + (0 if bias is None else bias.double())


def gate(both: Tensor) -> Tensor:
    first, second = both.chunk(2, dim=-1)
    return first / (1 + (-first).exp()) * second


def close(got: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_fused_operations_equal_separate_ones(
    kernels: Kernels, device: torch.device, inputs: int, outputs: int, rows: int, has_bias: bool
):
    """The norm comes before the product, the gate after it, and the sum adds to a residual."""
    x, norm, weight, bias = make_layer(inputs, outputs, rows, torch.float32, device)
    x, given = x.contiguous(), bias if has_bias else None
    layer = kernels.pack_linear(weight.clone(), given)
    close(layer(x), product(x, weight, given), torch.float32)
    expected = product(normed(x, norm), weight, given)
    close(kernels.norm_linear(x, norm, EPS, layer), expected, torch.float32)
    close(kernels.norm_gated_linear(x, norm, EPS, layer), gate(expected), torch.float32)
    residual = torch.randn(rows, outputs, device=device)
    for multiplier in (1.0, 0.22):
        total = residual.clone()
        kernels.add_linear(x, layer, total, multiplier)
        close(total, residual.double() + multiplier * product(x, weight, given), torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@pytest.mark.parametrize("rows", [1, 5, 8, 13])
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_products_of_few_rows_agree_with_float64(
    device: torch.device, inputs: int, outputs: int, rows: int, dtype: torch.dtype
):
    """The kernel is correct in half precision too, with strided rows."""
    x, norm, weight, bias = make_layer(inputs, outputs, rows, dtype, device)
    layer = DenseLinear(weight, bias)
    expected = product(normed(x, norm), weight, bias)
    close(layer.multiply_skinny(x), product(x, weight, bias), dtype)
    close(layer.multiply_skinny(x, norm, EPS), expected, dtype)
    close(layer.multiply_skinny(x, norm, EPS, gated=True), gate(expected), dtype)


def test_a_row_has_the_same_bits_among_few(device: torch.device):
    """Bits do not depend on the number of rows up to the kernel's maximum, or on the position among them."""
    x, norm, weight, bias = make_layer(576, 130, skinny_gemm.MAX_ALWAYS_ROWS, HALF, device)
    layer = DenseLinear(weight, bias)
    together = layer.multiply_skinny(x, norm, EPS, gated=True)
    for rows in range(1, skinny_gemm.MAX_ALWAYS_ROWS):
        assert torch.equal(layer.multiply_skinny(x[:rows], norm, EPS, gated=True), together[:rows])
        assert torch.equal(layer.multiply_skinny(x[rows:], norm, EPS, gated=True), together[rows:])


@pytest.mark.parametrize("tile", [Tile(16, 64, 2, 2), Tile(32, 128, 4, 3), Tile(64, 256, 8, 3)])
def test_every_tile_gives_the_same_numbers(device: torch.device, tile: Tile, monkeypatch: pytest.MonkeyPatch):
    """TILES may contain any of them."""
    x, norm, weight, bias = make_layer(576, 130, 4, torch.float32, device)
    expected = product(normed(x, norm), weight, bias)
    monkeypatch.setattr(skinny_gemm, "TILES", {(130, 576, False, 8): tile, (65, 576, True, 8): tile})
    layer = DenseLinear(weight, bias)
    close(layer.multiply_skinny(x, norm, EPS), expected, torch.float32)
    close(layer.multiply_skinny(x, norm, EPS, gated=True), gate(expected), torch.float32)


def test_the_table_chooses_the_kernel_for_up_to_sixteen_rows(device: torch.device, monkeypatch: pytest.MonkeyPatch):
    """It applies to matrices with a tile in the table, and for gated ones to the outputs of the gate."""
    monkeypatch.setattr(
        skinny_gemm, "TILES", {(32, 16, False, 16): Tile(16, 64, 1, 3), (8, 16, True, 16): Tile(16, 64, 1, 3)}
    )
    x, more = torch.ones(skinny_gemm.MAX_ROWS, 16), torch.ones(skinny_gemm.MAX_ROWS + 1, 16)
    plain, gated = (DenseLinear(torch.ones(rows, 16, device=device), None) for rows in (32, 16))
    assert (plain.supports(x), plain.supports(x, gated=True), plain.supports(more)) == (True, False, False)
    assert (gated.supports(x), gated.supports(x, gated=True), gated.supports(more, gated=True)) == (
        False,
        True,
        False,
    )


def test_the_kernel_takes_few_rows_and_not_float16(device: torch.device):
    """In float16 a row before its division by the root mean square may overflow."""
    layer = DenseLinear(torch.ones(32, 16, device=device), None)
    assert layer.supports(torch.ones(skinny_gemm.MAX_ALWAYS_ROWS, 16)) and layer.supports(
        torch.ones(1, 16, dtype=torch.bfloat16)
    )
    assert not layer.supports(torch.ones(skinny_gemm.MAX_ALWAYS_ROWS + 1, 16))
    assert not layer.supports(torch.ones(1, 16, dtype=torch.float16))


@pytest.mark.device
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("rows", [1, 8, 64])
def test_early_launched_kernels_read_nothing_too_early(rows: int, monkeypatch: pytest.MonkeyPatch):
    """Layers over one residual, recorded and replayed, are bitwise equal to kernels that run one after another."""
    device = torch.device("cuda")
    run_layers, residual = layers_of_a_step(device, rows)
    start = residual.clone()
    with monkeypatch.context() as patched:
        patched.setattr(pdl, "supports_pdl", lambda device: False)
        run_layers()
    expected = residual.clone()
    residual.copy_(start)
    run_layers()
    assert torch.equal(residual, expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run_layers()
    for _ in range(200):
        residual.copy_(start)
        graph.replay()
        assert torch.equal(residual, expected)


def layers_of_a_step(device: torch.device, rows: int) -> tuple[Callable[[], None], Tensor]:
    """Return eight layers of a decode step with Llama-3.2-1B's shapes, and their residual. With many rows cuBLAS
    multiplies between our kernels."""
    kernels = TritonKernels()
    heads, kv_heads, dim, inner, context, page = 32, 8, 64, 8192, 100, 32
    hidden, keys = heads * dim, kv_heads * dim
    torch.manual_seed(0)

    def layer(outputs: int, inputs: int) -> DenseLinear:
        return DenseLinear((torch.randn(outputs, inputs, device=device) / inputs**0.5).bfloat16(), None)

    norm = torch.ones(hidden, device=device, dtype=torch.bfloat16)
    layers = [
        (layer(hidden + 2 * keys, hidden), layer(hidden, hidden), layer(2 * inner, hidden), layer(hidden, inner))
        for _ in range(8)
    ]
    residual = torch.randn(rows, hidden, device=device).bfloat16()
    pages = -(-context // page)
    table = torch.arange(rows * pages, dtype=torch.int32, device=device).view(rows, pages)
    cache = torch.randn(2, rows * pages, kv_heads, page, dim, device=device).bfloat16()
    lens = torch.full((rows,), context, dtype=torch.int32, device=device)
    positions = torch.full((rows,), context - 1, dtype=torch.int64, device=device)
    slots = table[:, -1].long() * page + (context - 1) % page
    angles = torch.rand(context, dim // 2, device=device)
    rope = RopeInputs(torch.cat((angles.cos(), angles.sin()), dim=1), positions, slots, None, None, EPS)
    kv = PagedKV(*cache)

    def run_layers() -> None:
        for qkv, out, gate_up, down in layers:
            heads_of = kernels.norm_linear(residual, norm, EPS, qkv).view(rows, heads + 2 * kv_heads, dim)
            q, k, v = heads_of.split((heads, kv_heads, kv_heads), dim=1)
            q = kernels.rope_and_cache(q, k, v, kv, rope)
            attended = kernels.decode_attention(q, kv, table, lens, dim**-0.5, 0)
            kernels.add_linear(attended.view(rows, hidden), out, residual)
            kernels.add_linear(kernels.norm_gated_linear(residual, norm, EPS, gate_up), down, residual)

    return run_layers, residual
