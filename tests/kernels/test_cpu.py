"""Compiled CPU kernels: exact bfloat16 weights, shared threads, and a clear error if they cannot be compiled."""

from __future__ import annotations

import ctypes
import shlex
import shutil
import subprocess
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from kernels.cpu import slot_record, structs
from kernels.cpu.backend import CpuKernels
from kernels.cpu.cache import SOURCE
from kernels.cpu.compiler import COMPILERS
from kernels.cpu.linear import CpuLinear, layouts
from kernels.cpu.structs import Layout
from kernels.paging import PagedKV
from kernels.plans import RopeInputs
from tests.kernels.conftest import attention_rounds, cpu_kernels
from tests.kernels.paged import make_paged
from tests.kernels.test_norm_and_gate import naive_norm
from tests.subprocess_pytest import run_pytest

ROOT = Path(__file__).resolve().parents[2]
SHAPES = [(64, 80), (96, 64), (256, 1376), (576, 960), (1536, 576), (100, 61), (1, 1), (2048, 512), (33, 33)]


@pytest.fixture(autouse=True)
def compiled() -> None:
    """Skip this file if kernels cannot be compiled."""
    cpu_kernels()


class Kind(NamedTuple):
    """One implementation of a layer."""

    layout: Layout
    allow_bf16_activations: bool = False

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of its weights."""
        return torch.float32 if self.layout == Layout.FLOAT_PANELS else torch.bfloat16

    def tolerance(self, rounded: float) -> float:
        """Return the tolerance to float64, with and without rounded rows."""
        return rounded if self.allow_bf16_activations else 1e-5

    def make(self, weight: torch.Tensor, bias: torch.Tensor | None) -> CpuLinear:
        """Return a layer of this kind."""
        return CpuLinear(weight.to(self.dtype), bias, self.layout, self.allow_bf16_activations)


KINDS = {
    "floats": Kind(Layout.FLOAT_PANELS),
    "bfloat16": Kind(Layout.BFLOAT16_PANELS),
    "tiles": Kind(Layout.BFLOAT16_TILES),
    "tiles, rounded": Kind(Layout.BFLOAT16_TILES, allow_bf16_activations=True),
    "pairs, rounded": Kind(Layout.BFLOAT16_PAIRS, allow_bf16_activations=True),
}


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Return each kind that this processor supports."""
    kind: Kind = request.param
    if kind.layout not in layouts(kind.dtype, kind.allow_bf16_activations):
        pytest.skip(f"this processor has no {kind.layout.name.lower()}")
    return kind


@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_a_row_has_the_same_bits_in_every_batch(inputs: int, outputs: int, kind: Kind):
    """A row's result is correct, and does not depend on the number of rows or its position."""
    weight = (torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(0)) / inputs**0.5).to(kind.dtype)
    bias = torch.randn(outputs, generator=torch.Generator().manual_seed(2))
    layer = kind.make(weight, bias)
    x = torch.randn(80, inputs, generator=torch.Generator().manual_seed(1))
    all_rows = layer(x)
    tolerance = kind.tolerance(rounded=0.02)
    torch.testing.assert_close(all_rows.double(), x.double() @ weight.double().T + bias, atol=tolerance, rtol=tolerance)
    for rows in (1, 2, 3, 4, 5, 7, 8, 13, 14, 15, 16, 17, 28, 29, 31, 33, 43, 48, 64, 65):
        for first in (0, 3, 80 - rows):
            assert torch.equal(layer(x[first : first + rows]), all_rows[first : first + rows]), (rows, first)


@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_the_weights_of_an_output_are_those_that_were_packed(inputs: int, outputs: int, kind: Kind):
    """A packed output projection is an embedding too."""
    weight = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(0)).to(kind.dtype)
    chosen = torch.tensor([outputs - 1, 0, outputs // 2, outputs - 1])
    assert torch.equal(kind.make(weight, None).weights_of(chosen), weight[chosen].float())


@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_a_normed_row_has_the_same_bits_in_every_batch(inputs: int, outputs: int, kind: Kind):
    """With a fused norm before the layer, rows of all magnitudes are correct and independent."""
    generator = torch.Generator().manual_seed(0)
    weight = (torch.randn(outputs, inputs, generator=generator) / inputs**0.5).to(kind.dtype)
    bias, norm = torch.randn(outputs, generator=generator), torch.rand(inputs, generator=generator) + 0.5
    layer = kind.make(weight, bias)
    x = torch.randn(80, inputs, generator=generator) * torch.logspace(-6, 6, 80)[:, None]
    all_rows = layer.multiply_normed(x, norm, 1e-5)
    expected = naive_norm(x, norm, 1e-5) @ weight.double().T + bias
    tolerance = kind.tolerance(rounded=0.04)
    torch.testing.assert_close(all_rows.double(), expected, atol=tolerance, rtol=tolerance)
    for rows in (1, 2, 3, 8, 15, 16, 17, 31, 33, 65):
        for first in (0, 3, 80 - rows):
            assert torch.equal(
                layer.multiply_normed(x[first : first + rows], norm, 1e-5), all_rows[first : first + rows]
            )


def test_more_rows_than_fit_beside_a_panel_equal_few_rows(kind: Kind):
    """A prompt in one chunk equals its rows one by one."""
    weight = torch.randn(70, 4000, generator=torch.Generator().manual_seed(0)) / 63
    layer = kind.make(weight, None)
    x = torch.randn(200, 4000, generator=torch.Generator().manual_seed(1))
    all_rows = layer(x)
    for row in (0, 31, 32, 63, 64, 100, 199):
        assert torch.equal(layer(x[row : row + 1])[0], all_rows[row])


def test_panels_of_bfloat16_equal_float32_copies_of_them():
    """Storing a weight in half the memory changes no bit of any result."""
    weight = torch.randn(200, 300).bfloat16()
    narrow, wide = CpuLinear(weight, None, Layout.BFLOAT16_PANELS), CpuLinear(weight.float(), None)
    for rows in (1, 5, 40):
        x = torch.randn(rows, 300)
        assert torch.equal(narrow(x), wide(x))


@pytest.mark.parametrize("inputs", [33, 576, 1536, 4096])
def test_weights_in_bfloat16_are_computed_in_float32(inputs: int):
    """The fastest layout is as exact as one chain of float32 multiplications and additions, even if a few inputs are
    much larger than others."""
    generator = torch.Generator().manual_seed(0)
    weight = (torch.randn(96, inputs, generator=generator) / inputs**0.5).bfloat16()
    x = torch.randn(64, inputs, generator=generator)
    x[:, ::97] *= 100
    expected = x.double() @ weight.double().T

    def error(layer: CpuLinear) -> float:
        return float((layer(x).double() - expected).norm() / expected.norm())

    assert error(CpuLinear(weight, None)) <= 1.1 * error(CpuLinear(weight.float(), None)) < 2e-6
    assert error(CpuLinear(weight, None, allow_bf16_activations=True)) < 2e-3


def test_rounded_rows_are_rounded_to_the_nearest():
    """Where rounding is faster a row is rounded as torch rounds, and nothing else is; elsewhere it is not rounded."""
    weight = torch.randn(70, 200, generator=torch.Generator().manual_seed(0)).bfloat16()
    x = torch.randn(20, 200, generator=torch.Generator().manual_seed(1))
    rounded, exact = CpuLinear(weight, None, allow_bf16_activations=True), CpuLinear(weight, None)
    if layouts(torch.bfloat16, allow_bf16_activations=True)[0] != Layout.BFLOAT16_PANELS:
        torch.testing.assert_close(rounded(x), exact(x.bfloat16().float()), atol=1e-5, rtol=1e-5)
    else:
        assert torch.equal(rounded(x), exact(x))


# Other processors by name: whether their code can be tested here, compiler flags, and selected tests.
OTHER_PROCESSORS = {
    "no AVX-512": (
        torch.cpu._is_avx512_supported(),
        "-mno-avx512f",
        "a_row_has or in_float32 or (cpu and (test_attention or test_norm_and_gate))",
    ),
    # With an emulated matrix unit.
    "a matrix unit": (
        torch.cpu._is_avx512_bf16_supported() and not torch.cpu._is_amx_tile_supported(),
        f"-include {shlex.quote(str(Path(__file__).with_name('matrix_unit.h')))}",
        "row_has or more_rows or in_float32 or rounded or in_bfloat16 or (cpu and test_attention)",
    ),
}


def compile_and_test(flags: str, tests: str) -> str:
    """Run some kernel tests with the C++ code compiled with more flags."""
    compiler = next(name for name in COMPILERS if shutil.which(name))
    files = [f"tests/kernels/test_{name}.py" for name in ("cpu", "attention", "norm_and_gate")]
    with TemporaryDirectory() as cache:
        return run_pytest([*files, "-k", tests], XDG_CACHE_HOME=cache, CXX=f"{compiler} {flags}")


@pytest.mark.parametrize("name", OTHER_PROCESSORS)
def test_code_for_other_processors_is_correct(name: str):
    """Code for other processors passes the same tests."""
    is_tested, flags, tests = OTHER_PROCESSORS[name]
    if not is_tested:
        pytest.skip("this processor is of that kind, or cannot run its code")
    output = compile_and_test(flags, tests)
    assert " passed" in output
    if name == "a matrix unit":
        assert "no bfloat16_tiles" not in output


def test_every_field_has_the_offset_of_the_compiler(tmp_path: Path):
    """Offsets of all structures shared by Python and C++ are equal."""
    kinds = [kind for kind in vars(structs).values() if isinstance(kind, type) and issubclass(kind, ctypes.Structure)]
    kinds = [kind for kind in kinds if kind.__module__ == structs.__name__]
    assert len(kinds) > 8
    checked_fields = [(kind, name) for kind in kinds for name, _ in kind._fields_]
    lines = [f"offsetof({kind.__name__}, {name})," for kind, name in checked_fields]
    lines += [f"sizeof({kind.__name__})," for kind in kinds]
    headers = ("attention", "decoder", "elementwise", "linear", "mask", "penalties", "quantized", "sample", "step")
    text = "".join(f'#include "{name}.h"\n' for name in headers)
    text += "#include <cstddef>\n#include <cstdio>\nint main() { for (size_t at : {" + "".join(lines)
    (tmp_path / "layout.cpp").write_text(text + '}) std::printf("%zu ", at); }')
    (tmp_path / slot_record.FILE_NAME).write_text(slot_record.header())
    compiler = next(name for name in COMPILERS if shutil.which(name))
    built = tmp_path / "layout"
    command = [compiler, "-std=c++17", "-w", f"-I{SOURCE}", f"-I{tmp_path}", str(tmp_path / "layout.cpp")]
    subprocess.run([*command, "-o", str(built)], check=True)
    output = subprocess.run([str(built)], capture_output=True, text=True, check=True).stdout.split()
    offsets = [getattr(kind, name).offset for kind, name in checked_fields]
    assert list(map(int, output)) == [*offsets, *map(ctypes.sizeof, kinds)]


def test_a_layer_returns_the_dtype_of_its_input():
    """Rows in bfloat16 are computed in float32 and rounded at the end; so is a bias."""
    weight, bias = torch.randn(40, 64).bfloat16(), torch.randn(40).bfloat16()
    x = torch.randn(3, 64).bfloat16()
    out = CpuLinear(weight, bias)(x)
    expected = x.double() @ weight.double().T + bias.double()
    torch.testing.assert_close(out, expected.bfloat16(), atol=0.1, rtol=0.02)


@pytest.mark.parametrize("page_size", [5, 32])
@pytest.mark.parametrize("dim", [16, 32, 64, 80, 128, 192, 256])
def test_a_cache_in_bfloat16_equals_a_float32_copy_of_it(dim: int, page_size: int):
    """Keys and values in half the memory change only the order of summation, on either side of the position from which
    a matrix unit is used."""
    kernels, paged = CpuKernels(), make_paged((300, 7, 256, 257), 2, dim, page_size, torch.bfloat16)
    narrow, wide = paged.kv, PagedKV(paged.kv.k.float(), paged.kv.v.float())
    generator = torch.Generator().manual_seed(0)
    prompt, decodes = (torch.randn(rows, 6, dim, generator=generator) for rows in (60, 4))
    for window in (0, 40, 290):
        chunk = (paged.page_table[:1], (0, 60), (300,), dim**-0.5, window)
        expected = kernels.prefill_attention(prompt, wide, *chunk)
        torch.testing.assert_close(kernels.prefill_attention(prompt, narrow, *chunk), expected, atol=8e-7, rtol=0)
        rest = (paged.page_table, paged.lengths, dim**-0.5, window)
        expected = kernels.decode_attention(decodes, wide, *rest)
        torch.testing.assert_close(kernels.decode_attention(decodes, narrow, *rest), expected, atol=8e-7, rtol=0)


@pytest.mark.parametrize(("group", "dim"), [(1, 32), (3, 64), (7, 128), (2, 96), (4, 256)])
def test_rounded_attention_is_more_exact_than_torch_s_in_bfloat16(group: int, dim: int):
    """Nothing is rounded near the beginning of a context."""
    if not attention_rounds():
        pytest.skip("attention rounds nothing here")
    context = 600
    paged = make_paged((context,), 1, dim, 32, torch.bfloat16)
    q = torch.randn(context, group, dim, generator=torch.Generator().manual_seed(0))
    given = (q, paged.kv, paged.page_table, (0, context), (context,), dim**-0.5, 0)
    rounded, exact = (CpuKernels(allow_bf16).prefill_attention(*given) for allow_bf16 in (True, False))
    keys, values = (cache[paged.page_table[0].long(), 0].flatten(0, 1) for cache in (paged.kv.k, paged.kv.v))
    heads = [part.expand(group, -1, -1)[:, :context] for part in (keys, values)]

    def torch_attention(dtype: torch.dtype) -> Tensor:
        of_heads = (part.to(dtype) for part in (q.transpose(0, 1), *heads))
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(*of_heads, is_causal=True, scale=dim**-0.5).transpose(0, 1).double()

    expected = torch_attention(torch.float64)
    assert (rounded - expected)[256:].norm() < (torch_attention(torch.bfloat16) - expected)[256:].norm()
    assert (rounded != exact)[256:].any() and torch.equal(rounded[:256], exact[:256])


@pytest.mark.parametrize(("heads", "dim"), [(3, 64), (2, 80), (1, 24)])
def test_writes_to_a_bfloat16_cache_are_rounded_as_torch_rounds(heads: int, dim: int):
    """Numbers are rounded to the nearest, ties to even, and NaN and infinity are preserved."""
    kernels = CpuKernels()
    k, v = (torch.randn(40, heads, dim, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    v[0, 0, :8] = torch.tensor([1.00390625, 1.01171875, torch.nan, torch.inf, -torch.inf, 3.4e38, -0.0, 1e-40])
    k[1, 0, 0] = torch.tensor(0x7F800001, dtype=torch.int32).view(torch.float32)  # NaN only by its last bits
    angles, positions = torch.randn(50, dim), torch.arange(40)
    slots = torch.randperm(48)[:40]
    slots[5] = -1
    narrow, wide = (
        PagedKV(*torch.zeros(2, 3, heads, 16, dim, dtype=dtype)) for dtype in (torch.bfloat16, torch.float32)
    )
    for write in (
        lambda kv: kernels.write_cache(k, v, slots, kv),
        lambda kv: kernels.rope_and_cache(k, k, v, kv, RopeInputs(angles, positions, slots, None, None, 1e-6)),
    ):
        write(narrow)
        write(wide)
        for one, all_bits in ((narrow.k, wide.k), (narrow.v, wide.v)):
            torch.testing.assert_close(one, all_bits.bfloat16(), rtol=0, atol=0, equal_nan=True)


def test_the_gate_of_extreme_numbers_is_its_limit():
    """The result is 0 for large negative numbers, the number itself for large ones, infinity for infinity, and NaN for
    NaN."""
    extreme = [-3e38, -1e4, -100.0, -87.5, -86.5, -1e-30, 0.0, 87.5, 88.5, 100.0, 3e38, torch.inf, torch.nan]
    gate = torch.tensor([extreme])
    out = CpuKernels().silu_mul(torch.cat((gate, torch.ones_like(gate)), dim=-1))
    torch.testing.assert_close(out.double(), gate.double() * gate.double().sigmoid(), equal_nan=True)


def test_the_weight_is_not_stored_twice():
    """A packed layer keeps no reference to the original tensor."""
    import gc
    import weakref

    weight = torch.randn(32, 48)
    gone = weakref.ref(weight.untyped_storage())
    layer = CpuLinear(weight, None)
    del weight
    gc.collect()
    assert gone() is None
    assert layer(torch.ones(1, 48)).shape == (1, 32)


def test_callers_on_several_threads_do_not_mix_up_their_work():
    """Engines in one process share the helper threads; a caller that finds them busy computes alone, and each gets its
    own results."""
    kernels = CpuKernels()
    kernels.set_threads(3)
    layers = [CpuLinear(torch.randn(600, 200), None) for _ in range(4)]
    inputs = [torch.randn(5, 200) for _ in layers]
    expected = [layer(x) for layer, x in zip(layers, inputs, strict=True)]
    wrong: list[int] = []

    def work(index: int) -> None:
        for _ in range(300):
            if not torch.equal(layers[index](inputs[index]), expected[index]):
                wrong.append(index)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(layers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kernels.set_threads(1)
    assert wrong == []


def test_the_number_of_threads_may_change_while_others_compute():
    """A helper that starts when it is no longer needed does no harm, and its work is counted."""
    kernels = CpuKernels()
    layer, x = CpuLinear(torch.randn(600, 50), None), torch.randn(5, 50)
    expected = layer(x)
    done = threading.Event()

    def change() -> None:
        while not done.is_set():
            for threads in (4, 1, 3, 2):
                kernels.set_threads(threads)

    changing = threading.Thread(target=change)
    changing.start()
    same = [torch.equal(layer(x), expected) for _ in range(3000)]
    done.set()
    changing.join()
    kernels.set_threads(1)
    assert all(same)
