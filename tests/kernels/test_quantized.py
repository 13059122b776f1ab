"""Quantised layers of the compiled CPU kernels: exact codes, rows rounded to 8 or 15 bits, the same bits everywhere."""

from __future__ import annotations

import ctypes
import shlex
import subprocess
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from kernels.cpu import compiler, linear, quantized
from kernels.cpu.backend import CpuKernels
from kernels.cpu.cache import SOURCE
from kernels.cpu.library import INT_SIGNATURES, SIGNATURES, load
from kernels.cpu.linear import CpuLinear
from kernels.cpu.quantize import Bits, quantize
from kernels.cpu.structs import Layout
from kernels.quantization import QuantScheme, StackedWeight, StoredMatrix
from kernels.reference.backend import ReferenceKernels
from tests.kernels.conftest import cpu_kernels
from tests.kernels.quantized_matrices import BYTES_OF_256_WEIGHTS, SCHEMES, make_matrix, rounded_rows
from tests.kernels.test_norm_and_gate import naive_norm

SHAPES = [(64, 256), (33, 576), (70, 2560), (96, 80), (1, 48)]  # outputs, inputs
ROUNDED = {"8 bits of a row": True, "15 bits of a row": False}


@pytest.fixture(autouse=True)
def compiled() -> None:
    """Skip this file if kernels cannot be compiled."""
    cpu_kernels()


@pytest.fixture(params=SCHEMES.values(), ids=SCHEMES)
def scheme(request: pytest.FixtureRequest) -> QuantScheme:
    scheme: QuantScheme = request.param
    return scheme


def make_layer(matrix: StoredMatrix, *, rounded: bool = True, bias: torch.Tensor | None = None) -> CpuLinear:
    return CpuLinear([matrix], bias, allow_bf16_activations=rounded)


def random_rows(rows: int, inputs: int) -> torch.Tensor:
    return torch.randn(rows, inputs, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("rounded", ROUNDED.values(), ids=ROUNDED)
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_a_layer_equals_the_product_of_rounded_rows(outputs: int, inputs: int, rounded: bool, scheme: QuantScheme):
    """No weight is rounded, and sums are nearly exact."""
    matrix, x = make_matrix(scheme, outputs, inputs), random_rows(9, inputs)
    bias = torch.randn(outputs, generator=torch.Generator().manual_seed(2))
    expected = rounded_rows(x, 1 if rounded else 2) @ matrix.dequantize().double().T + bias
    found = make_layer(matrix, rounded=rounded, bias=bias)(x).double()
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize(("rounded", "tolerance"), [(True, 1e-2), (False, 5e-5)], ids=ROUNDED)
def test_rounding_the_rows_costs_little(rounded: bool, tolerance: float, scheme: QuantScheme):
    """Outputs differ from those of exact rows by little."""
    matrix, x = make_matrix(scheme, 64, 1024), random_rows(9, 1024)
    expected = x.double() @ matrix.dequantize().double().T
    assert (make_layer(matrix, rounded=rounded)(x) - expected).norm() <= tolerance * expected.norm()


@pytest.mark.parametrize("rounded", ROUNDED.values(), ids=ROUNDED)
@pytest.mark.parametrize(("outputs", "inputs"), [(70, 2560), (33, 80)])
def test_a_row_has_the_same_bits_in_every_batch(outputs: int, inputs: int, rounded: bool, scheme: QuantScheme):
    """Neither the number of rows nor the position among them changes a bit."""
    layer, x = make_layer(make_matrix(scheme, outputs, inputs), rounded=rounded), random_rows(70, inputs)
    all_rows = layer(x)
    for rows in (1, 2, 3, 4, 5, 6, 7, 8, 9, 31, 32, 33, 65):
        for first in (0, 3, 70 - rows):
            assert torch.equal(layer(x[first : first + rows]), all_rows[first : first + rows]), (rows, first)


def test_a_normed_row_has_the_same_bits_in_every_batch(scheme: QuantScheme):
    """A fused norm quantises rows of all magnitudes where it stores them."""
    generator = torch.Generator().manual_seed(0)
    matrix, norm = make_matrix(scheme, 64, 160), torch.rand(160, generator=generator) + 0.5
    x = torch.randn(40, 160, generator=generator) * torch.logspace(-6, 6, 40)[:, None]
    layer = make_layer(matrix, rounded=False)
    all_rows = layer.multiply_normed(x, norm, 1e-5)
    expected = naive_norm(x, norm, 1e-5) @ matrix.dequantize().double().T
    assert (all_rows - expected).norm() <= 1e-4 * expected.norm()
    for first, last in ((0, 1), (3, 5), (7, 40)):
        assert torch.equal(layer.multiply_normed(x[first:last], norm, 1e-5), all_rows[first:last])


def test_segments_of_several_schemes_are_one_layer():
    """Panels of each matrix use its own scheme, and all threads compute them."""
    matrices = [make_matrix(scheme, 64, 512, seed) for seed, scheme in enumerate(SCHEMES.values())]
    x = random_rows(37, 512)
    expected = torch.cat([make_layer(matrix)(x) for matrix in matrices], dim=1)
    load().carousel_set_threads(3)
    try:
        assert torch.equal(CpuLinear(matrices, None, allow_bf16_activations=True)(x), expected)
    finally:
        load().carousel_set_threads(1)


@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_the_weights_of_an_output_are_dequantised(outputs: int, inputs: int, scheme: QuantScheme):
    """A packed output projection is an embedding too. A minimum is subtracted before rounding, not after it."""
    matrix = make_matrix(scheme, outputs, inputs)
    chosen = torch.tensor([outputs - 1, 0, outputs // 2])
    found, expected = make_layer(matrix).weights_of(chosen), matrix.dequantize()[chosen]
    if scheme.has_minimums:
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6 * float(expected.abs().max()))
    else:
        assert torch.equal(found, expected)


def test_the_weights_of_an_output_are_found_in_any_segment():
    """Tokens of one embedding may be in matrices of several schemes."""
    matrices = [make_matrix(scheme, 64, 512, seed) for seed, scheme in enumerate(SCHEMES.values())]
    found = CpuLinear(matrices, None).weights_of(torch.arange(64 * len(matrices)))
    torch.testing.assert_close(found, torch.cat([matrix.dequantize() for matrix in matrices]), rtol=0, atol=1e-4)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_not_finite_yields_nan_and_no_other_does(value: float):
    """A broken row is found after the last layer, so that its request fails."""
    layer, x = make_layer(make_matrix(SCHEMES["8 bits"], 40, 96)), random_rows(4, 96)
    x[2, 50] = value
    is_nan = layer(x).isnan()
    assert is_nan[2].all() and not is_nan[[0, 1, 3]].any()


def test_rows_of_zeros_and_of_tiny_numbers_yield_zeros():
    """No scale or inverse of one overflows."""
    layer = make_layer(make_matrix(SCHEMES["6 bits in groups of 16"], 40, 96), rounded=False)
    assert not layer(torch.stack((torch.zeros(96), torch.full((96,), 1e-40)))).any()


def test_the_largest_codes_do_not_overflow(scheme: QuantScheme):
    """Sums of pairs of products fit for the largest codes and rows."""
    matrix = make_matrix(scheme, 8, 256)
    matrix.codes[:4], matrix.codes[4:] = (1 << scheme.bits) - 1, 0
    x = torch.full((2, 256), 3.0)
    x[1] = -3.0
    expected = x.double() @ matrix.dequantize().double().T
    torch.testing.assert_close(make_layer(matrix)(x).double(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", BYTES_OF_256_WEIGHTS)
def test_a_packed_matrix_is_hardly_larger_than_in_its_file(name: str):
    """Memory is at most 1.08 times that of the file."""
    scheme = next(scheme for scheme in SCHEMES.values() if scheme.name == name)
    packed = make_layer(make_matrix(scheme, 96, 1024)).packed_bytes
    assert packed <= 1.08 * BYTES_OF_256_WEIGHTS[name] * 96 * 4


def test_matrices_that_have_no_layout_are_refused():
    """Groups that are not whole halves of blocks, and combinations that no file has."""
    group = make_matrix(QuantScheme("odd", 4, group=24), 32, 96)
    both = make_matrix(QuantScheme("Q4_1", 4, group=32, offset=8, has_minimums=True), 32, 96)
    wide = make_matrix(QuantScheme("wide", 4, group=32, table=(-500, 500)), 32, 96)
    scaled = make_matrix(QuantScheme("long", 4, group=64, shared=256, offset=8), 32, 256)
    assert not any(map(quantized.can_pack, (group, both, wide, scaled)))
    assert quantized.can_pack(make_matrix(SCHEMES["8 bits"], 32, 96))


PLAIN_API = """
#include "operand.h"
#include "quantized.h"
extern "C" {
int64_t carousel_quantized_bytes(const QuantSegment* s, int64_t n, int64_t k) { return quantized_bytes(*s, n, k); }
void carousel_pack_quantized(const QuantSegment* s, const Planes* p, int64_t n, int64_t k, void* to) {
    pack_quantized(*s, *p, n, k, to);
}
void carousel_unpack_rows(const Linear* layer, const int64_t* outputs, int64_t count, float* to) {
    for (int64_t i = 0; i < count; i++) unpack_quantized(*layer, outputs[i], to + i * layer->inputs);
}
void carousel_linear(const Linear* layer, const float* x, int64_t rows, float* y) {
    quantized_linear(*layer, Operand::put(*layer, x, rows), rows, Result{y});
}
}
"""


@pytest.fixture(scope="module")
def plain_library(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """Return the functions of quantised layers, compiled without instructions for integer products."""
    folder = tmp_path_factory.mktemp("plain")
    (folder / "plain.cpp").write_text(PLAIN_API)
    sources = [*(str(SOURCE / f"{name}.cpp") for name in ("quantized", "block", "operand", "pool")), "plain.cpp"]
    command = [*compiler.find_compiler().command, *compiler.flags(), "-DPLAIN_DOT", f"-I{SOURCE}", "-shared"]
    built = folder / "plain.so"
    run = subprocess.run(
        [*command, *sources, "-o", str(built)], cwd=folder, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, f"{shlex.join(command)}\n{run.stderr}"
    library = ctypes.CDLL(str(built))
    functions = SimpleNamespace(carousel_norm_linear=None)
    for name, result in (
        ("quantized_bytes", ctypes.c_int64),
        ("pack_quantized", None),
        ("linear", None),
        ("unpack_rows", None),
    ):
        function = getattr(library, f"carousel_{name}")
        function.argtypes, function.restype = (SIGNATURES | INT_SIGNATURES)[name], result
        setattr(functions, f"carousel_{name}", function)
    return functions


@pytest.mark.parametrize("rounded", ROUNDED.values(), ids=ROUNDED)
def test_plain_code_has_the_same_bits(
    rounded: bool, scheme: QuantScheme, plain_library: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
):
    """Results do not depend on the instructions of the processor."""
    matrix, x, chosen = make_matrix(scheme, 70, 2560), random_rows(7, 2560), torch.arange(0, 70, 9)
    layer = make_layer(matrix, rounded=rounded)
    expected = layer(x), layer.weights_of(chosen)
    for module in (linear, quantized):
        monkeypatch.setattr(module, "load", lambda: plain_library)
    plain = make_layer(matrix, rounded=rounded)
    assert torch.equal(plain(x), expected[0]) and torch.equal(plain.weights_of(chosen), expected[1])


def test_parts_of_several_schemes_are_packed_as_one_layer():
    """Parts of one scheme are joined, so that they need no whole panels."""
    parts = [make_matrix(SCHEMES[name], outputs, 256) for name, outputs in (("8 bits", 40), ("8 bits", 24))]
    parts.append(make_matrix(SCHEMES["4 bits and an offset"], 33, 256))
    x, kernels = random_rows(5, 256), CpuKernels(allow_bf16_activations=True)
    layer = kernels.pack_linear(StackedWeight(parts), None)
    expected = torch.cat([kernels.pack_linear(StackedWeight([part]), None)(x) for part in parts], dim=1)
    assert isinstance(layer, CpuLinear) and layer.struct.layout == Layout.QUANTIZED
    assert torch.equal(layer(x), expected)


@pytest.mark.parametrize("outputs", [33, 64])
@pytest.mark.parametrize("make_kernels", [CpuKernels, ReferenceKernels])
def test_parts_without_a_common_layout_are_multiplied_in_float32(
    make_kernels: Callable[[], CpuKernels | ReferenceKernels], outputs: int
):
    """A part with half a panel before another scheme, or a matrix that is not quantised."""
    parts = [make_matrix(SCHEMES["8 bits"], outputs, 256), make_matrix(SCHEMES["5 bits and an offset"], 32, 256)]
    x, last = random_rows(5, 256), torch.randn(32, 256).bfloat16()
    expected = x.double() @ torch.cat((*(part.dequantize() for part in parts), last.float())).double().T
    found = make_kernels().pack_linear(StackedWeight([*parts, last]), None)(x)
    torch.testing.assert_close(found.double(), expected, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize(("bits", "tolerance"), [(8, 0.0055), (4, 0.075)])
@pytest.mark.parametrize("inputs", [576, 100])
def test_a_matrix_quantised_at_load_stays_close(bits: Bits, tolerance: float, inputs: int):
    """The search for scales in 4 bits is better than the range of each group."""
    matrix = torch.randn(300, inputs, generator=torch.Generator().manual_seed(0))
    error = (quantize(matrix, bits).dequantize() - matrix).norm() / matrix.norm()
    assert error < tolerance


def test_constant_and_tiny_groups_are_quantised_without_overflow():
    """A group without a range has a scale of zero."""
    matrix = torch.stack((torch.zeros(64), torch.full((64,), 0.5), torch.full((64,), 1e-30)))
    for bits in (4, 8):
        torch.testing.assert_close(quantize(matrix, bits).dequantize(), matrix, atol=1e-6, rtol=0.001)


def test_codes_of_8_bits_have_the_nearest_float16_scale():
    """Scales are rounded as torch rounds, for numbers of all magnitudes, also denormal and infinite ones."""
    matrix = torch.randn(64, 32) * torch.logspace(-9, 7, 64)[:, None]
    found = quantize(matrix, 8)
    assert torch.equal(found.scales, (matrix.abs().amax(1, keepdim=True) / 127).half())
