"""Quantised layers for GPUs: bit for bit the products of the dequantised matrices, in about the memory of the file."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.cpu.quantize import HEAD_BITS, Bits, quantize
from kernels.load import QuantizationError, load
from kernels.quantization import QuantScheme, StackedWeight, StoredMatrix
from kernels.triton import dequantize, skinny_gemm
from kernels.triton.backend import TritonKernels
from kernels.triton.dequantize import Scratch, dequantize_rows
from kernels.triton.invariant import InvariantKernels, InvariantLinear
from kernels.triton.packed_matrix import can_pack, pack
from kernels.triton.quantized_linear import PackedEmbedding, QuantizedLinear
from kernels.triton.skinny_gemm import DenseLinear
from tests.kernels.conftest import half_precision
from tests.kernels.quantized_matrices import BYTES_OF_256_WEIGHTS, IQ4_VALUES, SCHEMES, make_matrix

EPS = 1e-5
HALF = half_precision()
MXFP4_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
ALL = {scheme.name: scheme for scheme in SCHEMES.values()} | {
    scheme.name: scheme
    for scheme in (
        QuantScheme("Q5_1", 5, group=32, has_minimums=True),
        QuantScheme("IQ4_XS", 4, group=32, shared=256, table=IQ4_VALUES),
        QuantScheme("MXFP4", 4, group=32, table=MXFP4_VALUES, scale_dtype=torch.float32),
        QuantScheme("zeros beside float32", 4, group=32, scale_dtype=torch.float32, has_zeros=True),
        QuantScheme("zeros of a row", 8, group=0, has_zeros=True),
        QuantScheme("FP8 in blocks", 8, group=128, scale_dtype=torch.float32, is_float8=True),
        QuantScheme("FP8 by channel", 8, group=0, scale_dtype=torch.float32, is_float8=True),
    )
}
schemes = pytest.mark.parametrize("scheme", ALL.values(), ids=ALL)
# Outputs and inputs: parts of tiles, of groups and of bytes.
SHAPES = [(24, 45), (70, 1300)]
REFUSED = {
    "groups that divide no tile": QuantScheme("odd", 4, group=48),
    "small groups": QuantScheme("small", 4, group=8),
    "minimums under products that are rounded": QuantScheme("wide", 8, group=32, shared=256, has_minimums=True),
    "minimums in float32": QuantScheme("wide", 4, group=32, has_minimums=True, scale_dtype=torch.float32),
    "an offset beside minimums": QuantScheme("both", 4, group=32, offset=8, has_minimums=True),
    "a table of wide values": QuantScheme("wide", 4, group=32, table=(-500, 500)),
    "scales in bfloat16": QuantScheme("bf16", 4, group=32, scale_dtype=torch.bfloat16),
    "codes of 3 bits": QuantScheme("Q3_K", 3, group=16, shared=256, offset=4),
}


@pytest.fixture(autouse=True)
def same_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sum dense products in the order of quantised ones."""
    monkeypatch.setattr(skinny_gemm, "tile_for", lambda *matrix: skinny_gemm.QUANTIZED_TILES[matrix[-1]])


def make_linear(
    parts: list[StoredMatrix], bias: Tensor | None, dtype: torch.dtype, device: torch.device
) -> tuple[QuantizedLinear, Tensor]:
    """Return a quantised layer, and its weights rounded to `dtype`."""
    layer = QuantizedLinear([pack(part, device) for part in parts], bias, Scratch(dtype, device))
    return layer, torch.cat([part.dequantize() for part in parts]).to(dtype).to(device)


def random(*shape: int, dtype: torch.dtype, device: torch.device, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(device)


@schemes
@pytest.mark.parametrize("dtype", [torch.float32, HALF])
def test_weights_have_the_bits_of_the_reference(scheme: QuantScheme, dtype: torch.dtype, device: torch.device):
    """Each is rounded once, to the dtype of the activations."""
    for shape in SHAPES:
        matrix = make_matrix(scheme, *shape)
        if scheme.is_float8:
            matrix.codes[matrix.codes & 0x7F == 0x7F] = 0
        found = torch.empty(shape, dtype=dtype, device=device)
        dequantize_rows(pack(matrix, device), 0, found)
        assert torch.equal(found.cpu(), matrix.dequantize().to(dtype))


@schemes
@pytest.mark.parametrize("dtype", [torch.float32, HALF])
def test_a_product_of_few_rows_has_the_bits_of_the_dense_one(
    scheme: QuantScheme, dtype: torch.dtype, device: torch.device
):
    """With a norm, a gate, a bias or a residual; weights and the order of sums are the same."""
    outputs, inputs = 70, 1300
    matrix, bias = make_matrix(scheme, outputs, inputs), random(outputs, dtype=dtype, device=device)
    matrix.codes[matrix.codes & 0x7F == 0x7F] = 0
    layer, weight = make_linear([matrix], bias, dtype, device)
    dense, norm = DenseLinear(weight, bias), random(inputs, dtype=dtype, device=device, seed=2) / 1000
    x = random(3, inputs, dtype=dtype, device=device, seed=3) / 1000
    assert torch.equal(layer.multiply_skinny(x), dense.multiply_skinny(x))
    for gated in (False, True):
        assert torch.equal(layer.multiply_skinny(x, norm, EPS, gated), dense.multiply_skinny(x, norm, EPS, gated))
    residual = random(3, outputs, dtype=dtype, device=device, seed=4)
    expected = residual.clone()
    layer.add_skinny(x, residual)
    dense.add_skinny(x, expected)
    assert torch.equal(residual, expected)


@pytest.mark.parametrize("rows", [5, 12, 40])
@pytest.mark.parametrize("has_bias", [False, True])
def test_parts_of_several_schemes_are_one_layer(
    rows: int, has_bias: bool, device: torch.device, monkeypatch: pytest.MonkeyPatch
):
    """Each part writes its outputs; many rows are multiplied with dense pieces of each."""
    monkeypatch.setattr(dequantize, "MAX_SCRATCH_WEIGHTS", 20 * 300)
    parts = [make_matrix(ALL[name], outputs, 300) for name, outputs in (("Q4_K", 40), ("Q6_K", 24))]
    bias = random(64, dtype=torch.float32, device=device) if has_bias else None
    layer, weight = make_linear(parts, bias, torch.float32, device)
    x, residual = (random(rows, width, dtype=torch.float32, device=device) for width in (300, 64))
    expected = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    tolerance = 1e-5 * float(expected.abs().max())
    torch.testing.assert_close(layer(x).double(), expected, atol=tolerance, rtol=0)
    total = residual.clone()
    layer.add_to(x, total)
    torch.testing.assert_close(total.double(), residual.double() + expected, atol=tolerance, rtol=0)
    assert not layer.supports(x, gated=True)


@pytest.mark.parametrize("name", BYTES_OF_256_WEIGHTS)
def test_a_packed_matrix_is_hardly_larger_than_in_its_file(name: str, device: torch.device):
    """Memory is at most 1.08 times that of the file."""
    packed = pack(make_matrix(ALL[name], 96, 1024), device)
    assert packed.nbytes <= 1.08 * BYTES_OF_256_WEIGHTS[name] * 96 * 4


def test_a_packed_embedding_is_its_output_projection(device: torch.device):
    """Looked-up rows have the dtype of the activations; there is one copy."""
    matrix = make_matrix(ALL["Q6_K"], 50, 256)
    weight = StackedWeight([matrix], HALF, device)
    embedding, head = TritonKernels().pack_tied_embedding(weight)
    assert isinstance(embedding, PackedEmbedding) and isinstance(head, QuantizedLinear)
    assert head.matrices[0] is embedding.matrix and embedding.shape == (50, 256)
    ids = torch.tensor([49, 0, 7, 7])
    assert torch.equal(embedding.lookup(ids.to(device)).cpu(), matrix.dequantize()[ids].to(HALF))
    assert embedding.lookup(ids[:0].to(device)).shape == (0, 256)


@pytest.mark.parametrize("scheme", REFUSED.values(), ids=REFUSED)
def test_a_scheme_without_a_layout_is_refused(scheme: QuantScheme):
    """Its layers are dequantised."""
    assert not can_pack(scheme)


def test_a_layer_with_a_dense_part_is_dequantised(device: torch.device):
    """It is rounded to the dtype of the activations."""
    parts = [make_matrix(ALL["Q4_0"], 8, 64), torch.ones(8, 64, device=device)]
    layer = TritonKernels().pack_linear(StackedWeight(parts, torch.bfloat16, device), None)
    assert isinstance(layer, DenseLinear) and layer.weight.dtype == torch.bfloat16


def test_layers_share_one_scratch_buffer_of_the_largest_matrix(device: torch.device):
    """Its address is fixed when all layers are packed, so recorded steps stay valid."""
    scratch = Scratch(torch.float32, device)
    for outputs in (32, 64, 16):
        QuantizedLinear([pack(make_matrix(ALL["Q4_0"], outputs, 64), device)], None, scratch)
    assert scratch.nbytes == 64 * 64 * 4


@pytest.mark.usefixtures("separate_rows")
@pytest.mark.parametrize("names", [("Q4_K",), ("Q4_K", "Q6_K")])
def test_an_invariant_layer_has_the_bits_of_the_dense_one_in_every_batch(names: tuple[str, ...], device: torch.device):
    """Weights and the order of sums are those of the dense matrix."""
    parts = [make_matrix(ALL[name], 32, 1300) for name in names]
    weight = torch.cat([part.dequantize() for part in parts]).to(device)
    layer = InvariantKernels().pack_linear(StackedWeight(parts, torch.float32, device), None)
    x = random(65, 1300, dtype=torch.float32, device=device)
    together = layer(x)
    assert torch.equal(together, InvariantLinear(weight, None)(x))
    for rows in (1, 17, 64):
        assert torch.equal(layer(x[:rows]), together[:rows])


@pytest.mark.parametrize("bits", [4, 8])
def test_a_dense_weight_is_quantised_at_load(bits: Bits, device: torch.device):
    """A layer takes the bits that are asked for, an output projection and its embedding take 8."""
    weight = random(64, 96, dtype=torch.float32, device=device)
    kernels, x = TritonKernels(bits), random(3, 96, dtype=torch.float32, device=device, seed=2)
    embedding, head = kernels.pack_tied_embedding(weight)
    for layer, used in ((kernels.pack_linear(weight, None), bits), (head, HEAD_BITS)):
        expected = quantize(weight.cpu(), used).dequantize().double() @ x.cpu().double().T
        torch.testing.assert_close(layer(x).double().T.cpu(), expected, atol=1e-4, rtol=1e-4)
    ids = torch.tensor([3, 40], device=device)
    assert torch.equal(embedding.lookup(ids).cpu(), quantize(weight.cpu(), HEAD_BITS).dequantize()[ids.cpu()])


def test_weights_are_quantised_at_load_for_a_gpu_but_not_by_torch():
    """Kernels that would compute with dense weights refuse it."""
    gpu = torch.device("cuda")
    assert isinstance(load(gpu, torch.bfloat16, weight_bits=4), TritonKernels)
    assert isinstance(load(gpu, torch.bfloat16, weight_bits=4, batch_invariant=True), InvariantKernels)
    with pytest.raises(QuantizationError, match="only Triton and compiled CPU kernels"):
        load(gpu, torch.bfloat16, "torch", weight_bits=4)
