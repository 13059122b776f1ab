"""What the compiled CPU kernels promise beyond the other back ends: exact bfloat16 weights, threads that share, and a
clear word where they cannot be compiled.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from kernels.cpu import library, structs
from kernels.cpu.backend import CpuKernels
from kernels.cpu.library import CannotCompile
from kernels.cpu.linear import CpuLinear, layouts
from kernels.cpu.structs import Layout
from tests.kernels.conftest import attention_rounds, cpu_kernels
from tests.kernels.paged import make_paged
from tests.kernels.test_norm_and_gate import naive_norm
from tests.other_pytest import run_pytest

ROOT = Path(__file__).resolve().parents[2]
SHAPES = [(64, 80), (96, 64), (256, 1376), (576, 960), (1536, 576), (100, 61), (1, 1), (2048, 512), (33, 33)]


@pytest.fixture(autouse=True)
def compiled() -> None:
    """All of this is about compiled kernels."""
    cpu_kernels()


@pytest.fixture
def compiling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An empty cache, and sources that are soon compiled: whatever is loaded is compiled first."""
    source = tmp_path / "source"
    source.mkdir()
    for number in range(3):
        (source / f"part{number}.cpp").write_text(f'extern "C" int part{number}() {{ return {number}; }}\n')
    monkeypatch.setattr(library, "SOURCE", source)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return monkeypatch


class Kind(NamedTuple):
    """One way to compute a layer."""

    layout: Layout
    may_round: bool = False

    @property
    def dtype(self) -> torch.dtype:
        """What its weights are in."""
        return torch.float32 if self.layout == Layout.FLOAT_PANELS else torch.bfloat16

    def off(self, rounded: float) -> float:
        """How far from float64 a result may be, where rows are rounded and where they are not."""
        return rounded if self.may_round else 1e-5

    def make(self, weight: torch.Tensor, bias: torch.Tensor | None) -> CpuLinear:
        """A layer of this kind."""
        return CpuLinear(weight.to(self.dtype), bias, self.layout, self.may_round)


KINDS = {
    "floats": Kind(Layout.FLOAT_PANELS),
    "bfloat16": Kind(Layout.BFLOAT16_PANELS),
    "tiles": Kind(Layout.BFLOAT16_TILES),
    "tiles, rounded": Kind(Layout.BFLOAT16_TILES, may_round=True),
    "pairs, rounded": Kind(Layout.BFLOAT16_PAIRS, may_round=True),
}


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    """All that this processor has."""
    kind: Kind = request.param
    if kind.layout not in layouts(kind.dtype, kind.may_round):
        pytest.skip(f"this processor has no {kind.layout.name.lower()}")
    return kind


@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_a_row_has_the_same_bits_in_every_batch(inputs: int, outputs: int, kind: Kind):
    """A row's result is right, and does not depend on how many rows are computed with it nor on its place."""
    weight = (torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(0)) / inputs**0.5).to(kind.dtype)
    bias = torch.randn(outputs, generator=torch.Generator().manual_seed(2))
    layer = kind.make(weight, bias)
    x = torch.randn(80, inputs, generator=torch.Generator().manual_seed(1))
    everything = layer(x)
    off = kind.off(rounded=0.02)
    torch.testing.assert_close(everything.double(), x.double() @ weight.double().T + bias, atol=off, rtol=off)
    for rows in (1, 2, 3, 4, 5, 7, 8, 13, 14, 15, 16, 17, 28, 29, 31, 33, 43, 48, 64, 65):
        for first in (0, 3, 80 - rows):
            assert torch.equal(layer(x[first : first + rows]), everything[first : first + rows]), (rows, first)


@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_a_normed_row_has_the_same_bits_in_every_batch(inputs: int, outputs: int, kind: Kind):
    """With a norm before the layer, whose factors are the products', rows of all sizes are right and by themselves."""
    generator = torch.Generator().manual_seed(0)
    weight = (torch.randn(outputs, inputs, generator=generator) / inputs**0.5).to(kind.dtype)
    bias, norm = torch.randn(outputs, generator=generator), torch.rand(inputs, generator=generator) + 0.5
    layer = kind.make(weight, bias)
    x = torch.randn(80, inputs, generator=generator) * torch.logspace(-6, 6, 80)[:, None]
    everything = layer.normed(x, norm, 1e-5)
    right = naive_norm(x, norm, 1e-5) @ weight.double().T + bias
    off = kind.off(rounded=0.04)
    torch.testing.assert_close(everything.double(), right, atol=off, rtol=off)
    for rows in (1, 2, 3, 8, 15, 16, 17, 31, 33, 65):
        for first in (0, 3, 80 - rows):
            assert torch.equal(layer.normed(x[first : first + rows], norm, 1e-5), everything[first : first + rows])


def test_more_rows_than_fit_beside_a_panel_are_computed_as_few_are(kind: Kind):
    """A prompt in one piece is the same as row by row."""
    weight = torch.randn(70, 4000, generator=torch.Generator().manual_seed(0)) / 63
    layer = kind.make(weight, None)
    x = torch.randn(200, 4000, generator=torch.Generator().manual_seed(1))
    everything = layer(x)
    for row in (0, 31, 32, 63, 64, 100, 199):
        assert torch.equal(layer(x[row : row + 1])[0], everything[row])


def test_panels_of_bfloat16_compute_what_float32_copies_of_them_compute():
    """Keeping a weight in half the memory changes no bit of any result."""
    weight = torch.randn(200, 300).bfloat16()
    narrow, wide = CpuLinear(weight, None, Layout.BFLOAT16_PANELS), CpuLinear(weight.float(), None)
    for rows in (1, 5, 40):
        x = torch.randn(rows, 300)
        assert torch.equal(narrow(x), wide(x))


@pytest.mark.parametrize("inputs", [33, 576, 1536, 4096])
def test_weights_in_bfloat16_are_computed_in_float32(inputs: int):
    """The fastest layout is as exact as one chain of float32 multiplications and sums, also where a few inputs are much
    larger than the others."""
    generator = torch.Generator().manual_seed(0)
    weight = (torch.randn(96, inputs, generator=generator) / inputs**0.5).bfloat16()
    x = torch.randn(64, inputs, generator=generator)
    x[:, ::97] *= 100
    right = x.double() @ weight.double().T

    def error(layer: CpuLinear) -> float:
        return float((layer(x).double() - right).norm() / right.norm())

    assert error(CpuLinear(weight, None)) <= 1.1 * error(CpuLinear(weight.float(), None)) < 2e-6
    assert error(CpuLinear(weight, None, may_round=True)) < 2e-3


def test_what_is_rounded_is_rounded_to_the_nearest():
    """Where rounding is faster a row is rounded as torch rounds, and nothing else is; elsewhere it is not rounded."""
    weight = torch.randn(70, 200, generator=torch.Generator().manual_seed(0)).bfloat16()
    x = torch.randn(20, 200, generator=torch.Generator().manual_seed(1))
    rounded, exact = CpuLinear(weight, None, may_round=True), CpuLinear(weight, None)
    if layouts(torch.bfloat16, may_round=True)[0] != Layout.BFLOAT16_PANELS:
        torch.testing.assert_close(rounded(x), exact(x.bfloat16().float()), atol=1e-5, rtol=1e-5)
    else:
        assert torch.equal(rounded(x), exact(x))


# Other processors by name: whether their code is tested here, compiled with which flags, and which tests.
OTHERS = {
    "no AVX-512": (
        torch.cpu._is_avx512_supported(),
        "-mno-avx512f",
        "a_row_has or in_float32 or (cpu and (test_attention or test_norm_and_gate))",
    ),
    # In an emulation of it.
    "a matrix unit": (
        torch.cpu._is_avx512_bf16_supported() and not torch.cpu._is_amx_tile_supported(),
        f"-include {shlex.quote(str(Path(__file__).with_name('matrix_unit.h')))}",
        "row_has or more_rows or in_float32 or rounded or in_bfloat16 or (cpu and test_attention)",
    ),
}


def compile_and_test(flags: str, tests: str) -> str:
    """Some of the tests of kernels, with the C++ compiled with more flags."""
    compiler = next(name for name in library.COMPILERS if shutil.which(name))
    files = [f"tests/kernels/test_{name}.py" for name in ("cpu", "attention", "norm_and_gate")]
    with TemporaryDirectory() as cache:
        return run_pytest([*files, "-k", tests], XDG_CACHE_HOME=cache, CXX=f"{compiler} {flags}")


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_compiled_for_other_processors_computes_what_it_should(name: str):
    """It passes the same tests."""
    is_tested, flags, tests = OTHERS[name]
    if not is_tested:
        pytest.skip("this processor is such a one, or cannot run its code")
    told = compile_and_test(flags, tests)
    assert " passed" in told
    if name == "a matrix unit":
        assert "no bfloat16_tiles" not in told


def test_every_field_lies_where_the_compiler_has_it(tmp_path: Path):
    """Of what Python and C++ hand to each other."""
    kinds = [kind for kind in vars(structs).values() if isinstance(kind, type) and issubclass(kind, ctypes.Structure)]
    kinds = [kind for kind in kinds if kind.__module__ == structs.__name__]
    assert len(kinds) > 8
    asked = [(kind, name) for kind in kinds for name, _ in kind._fields_]
    lines = [f"offsetof({kind.__name__}, {name})," for kind, name in asked]
    lines += [f"sizeof({kind.__name__})," for kind in kinds]
    headers = ("attention", "decoder", "elementwise", "linear", "sample", "step")
    text = "".join(f'#include "{name}.h"\n' for name in headers)
    text += "#include <cstddef>\n#include <cstdio>\nint main() { for (size_t at : {" + "".join(lines)
    (tmp_path / "layout.cpp").write_text(text + '}) std::printf("%zu ", at); }')
    compiler = next(name for name in library.COMPILERS if shutil.which(name))
    built = tmp_path / "layout"
    command = [compiler, "-std=c++17", "-w", f"-I{library.SOURCE}", str(tmp_path / "layout.cpp")]
    subprocess.run([*command, "-o", str(built)], check=True)
    told = subprocess.run([str(built)], capture_output=True, text=True, check=True).stdout.split()
    offsets = [getattr(kind, name).offset for kind, name in asked]
    assert list(map(int, told)) == [*offsets, *map(ctypes.sizeof, kinds)]


def test_a_layer_answers_in_the_dtype_it_is_asked_in():
    """Rows in bfloat16 are computed in float32, and rounded at the end; so is a bias."""
    weight, bias = torch.randn(40, 64).bfloat16(), torch.randn(40).bfloat16()
    x = torch.randn(3, 64).bfloat16()
    out = CpuLinear(weight, bias)(x)
    right = x.double() @ weight.double().T + bias.double()
    torch.testing.assert_close(out, right.bfloat16(), atol=0.1, rtol=0.02)


@pytest.mark.parametrize("page_size", [5, 32])
@pytest.mark.parametrize("dim", [16, 32, 64, 80, 128, 192, 256])
def test_a_cache_in_bfloat16_computes_what_float32_copies_of_it_compute(dim: int, page_size: int):
    """Keeping keys and values in half the memory changes only the order in which they are summed, on either side of the
    position from which a matrix unit computes."""
    kernels, paged = CpuKernels(), make_paged((300, 7, 256, 257), 2, dim, page_size, torch.bfloat16)
    narrow, wide = (paged.k_cache, paged.v_cache), (paged.k_cache.float(), paged.v_cache.float())
    generator = torch.Generator().manual_seed(0)
    prompt, decodes = (torch.randn(rows, 6, dim, generator=generator) for rows in (60, 4))
    for window in (0, 40, 290):
        chunk = (paged.page_table[:1], (0, 60), (300,), dim**-0.5, window)
        right = kernels.prefill_attention(prompt, *wide, *chunk)
        torch.testing.assert_close(kernels.prefill_attention(prompt, *narrow, *chunk), right, atol=8e-7, rtol=0)
        rest = (paged.page_table, paged.lengths, dim**-0.5, window)
        right = kernels.decode_attention(decodes, *wide, *rest)
        torch.testing.assert_close(kernels.decode_attention(decodes, *narrow, *rest), right, atol=8e-7, rtol=0)


@pytest.mark.parametrize(("group", "dim"), [(1, 32), (3, 64), (7, 128), (2, 96), (4, 256)])
def test_rounded_attention_is_nearer_to_the_truth_than_torch_s_in_bfloat16(group: int, dim: int):
    """And near the beginning of a context nothing is rounded."""
    if not attention_rounds():
        pytest.skip("attention rounds nothing here")
    context = 600
    paged = make_paged((context,), 1, dim, 32, torch.bfloat16)
    q = torch.randn(context, group, dim, generator=torch.Generator().manual_seed(0))
    given = (q, paged.k_cache, paged.v_cache, paged.page_table, (0, context), (context,), dim**-0.5, 0)
    rounded, exact = (CpuKernels(may_round).prefill_attention(*given) for may_round in (True, False))
    keys, values = (cache[paged.page_table[0].long(), 0].flatten(0, 1) for cache in (paged.k_cache, paged.v_cache))
    heads = [part.expand(group, -1, -1)[:, :context] for part in (keys, values)]

    def theirs(dtype: torch.dtype) -> Tensor:
        of_heads = (part.to(dtype) for part in (q.transpose(0, 1), *heads))
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(*of_heads, is_causal=True, scale=dim**-0.5).transpose(0, 1).double()

    right = theirs(torch.float64)
    assert (rounded - right)[256:].norm() < (theirs(torch.bfloat16) - right)[256:].norm()
    assert (rounded != exact)[256:].any() and torch.equal(rounded[:256], exact[:256])


@pytest.mark.parametrize(("heads", "dim"), [(3, 64), (2, 80), (1, 24)])
def test_what_goes_into_a_cache_in_bfloat16_is_rounded_as_torch_rounds(heads: int, dim: int):
    """To the nearest number, of two equally near ones to the even one, NaN and infinity to themselves."""
    kernels = CpuKernels()
    k, v = (torch.randn(40, heads, dim, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    v[0, 0, :8] = torch.tensor([1.00390625, 1.01171875, torch.nan, torch.inf, -torch.inf, 3.4e38, -0.0, 1e-40])
    k[1, 0, 0] = torch.tensor(0x7F800001, dtype=torch.int32).view(torch.float32)  # NaN in its last bits alone
    angles, positions = torch.randn(50, dim), torch.arange(40)
    slots = torch.randperm(48)[:40]
    slots[5] = -1
    narrow, wide = (
        [torch.zeros(3, heads, 16, dim, dtype=dtype) for _ in "kv"] for dtype in (torch.bfloat16, torch.float32)
    )
    for write in (
        lambda caches: kernels.write_cache(k, v, slots, *caches),
        lambda caches: kernels.rope_and_cache(k, k, v, angles, positions, slots, *caches, None, None, 1e-6),
    ):
        write(narrow)
        write(wide)
        for one, all_bits in zip(narrow, wide, strict=True):
            torch.testing.assert_close(one, all_bits.bfloat16(), rtol=0, atol=0, equal_nan=True)


def test_the_gate_of_extreme_numbers_is_its_limit():
    """Nothing below, the number itself above, infinity for infinity, and NaN for NaN."""
    extreme = [-3e38, -1e4, -100.0, -87.5, -86.5, -1e-30, 0.0, 87.5, 88.5, 100.0, 3e38, torch.inf, torch.nan]
    gate = torch.tensor([extreme])
    out = CpuKernels().silu_mul(torch.cat((gate, torch.ones_like(gate)), dim=-1))
    torch.testing.assert_close(out.double(), gate.double() * gate.double().sigmoid(), equal_nan=True)


def test_the_weight_is_not_held_twice():
    """A packed layer keeps nothing of the tensor it was made from."""
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
    """Engines in one process share the helpers; whoever finds them busy computes alone, and everybody gets his own."""
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
    """Whoever is about to help when its help is no longer wanted does no harm, and its work is counted."""
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


def test_what_was_compiled_once_is_not_compiled_again(compiling: pytest.MonkeyPatch):
    """The second load takes the file of the first."""
    first = library._built(library._cache())
    made = first.stat()
    assert library._built(library._cache()) == first
    assert first.stat().st_ino == made.st_ino


@pytest.mark.parametrize("left", [0, 500])
def test_a_damaged_file_is_compiled_again(compiling: pytest.MonkeyPatch, left: int):
    """It would end the process that loads it, every time."""
    made = library._built(library._cache())
    whole = made.read_bytes()
    made.write_bytes(whole[:left])
    assert library._built(library._cache()) == made
    assert made.read_bytes() == whole


def test_what_is_kept_where_nothing_may_be_written_is_used(compiling: pytest.MonkeyPatch):
    """As in an image whose home was filled when it was made."""
    made = library._built(library._cache())
    compiling.setattr(library.tempfile, "TemporaryDirectory", None)
    assert library._built(library._cache()) == made


@pytest.mark.parametrize("left", [b"\xff\xfe", b""])
def test_a_seal_that_is_none_has_it_compiled_again(compiling: pytest.MonkeyPatch, left: bytes):
    """Whatever it is."""
    made = library._built(library._cache())
    seal = made.with_suffix(library.SEAL)
    whole = seal.read_bytes()
    seal.write_bytes(left)
    assert library._built(library._cache()) == made
    assert seal.read_bytes() == whole


def test_what_can_be_kept_nowhere_leaves_nothing_behind(tmp_path: Path):
    """It is compiled for the process and taken away once it is loaded; and where there is no folder at all, torch
    serves."""
    (tmp_path / "file").touch()
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "none.cpp").touch()
    code = "from kernels.cpu import library; from pathlib import Path; import sys, logging; logging.basicConfig();"
    code += "library.SOURCE = Path(sys.argv[1]); library.SIGNATURES = library.NUMBERS = {}; print(library.load())"
    nowhere = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "file"), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", code, str(tmp_path / "source")]
    ran = subprocess.run(command, env=nowhere, capture_output=True, text=True, check=False)
    assert "CDLL" in ran.stdout, ran.stderr
    assert "every start compiles them again" in ran.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "source"]


def test_what_cannot_be_loaded_is_said(compiling: pytest.MonkeyPatch):
    """Such as files of a folder from which nothing may be run: torch serves then."""
    library.load.cache_clear()
    compiling.setattr(library, "_built", lambda folder: library.SOURCE / "part0.cpp")
    with pytest.raises(CannotCompile, match="cannot be loaded"):
        library.load()


def test_another_flag_or_source_is_another_file(compiling: pytest.MonkeyPatch):
    """Nothing is loaded that was compiled otherwise, or from something else; and what is compiled has all parts."""
    first = library._built(library._cache())
    compiling.setattr(library, "FLAGS", (*library.FLAGS, "-DOTHER"))
    second = library._built(library._cache())
    (library.SOURCE / "part1.cpp").write_text('extern "C" int part1() { return 7; }\n')
    third = library._built(library._cache())
    assert len({first, second, third}) == 3
    made = ctypes.CDLL(str(third))
    assert (made.part0(), made.part1(), made.part2()) == (0, 7, 2)


def test_without_a_compiler_the_reason_is_told(compiling: pytest.MonkeyPatch):
    """The error names what was looked for."""
    compiling.delenv("CXX", raising=False)
    compiling.setattr(library, "COMPILERS", ("no-such-compiler",))
    with pytest.raises(CannotCompile, match="no-such-compiler"):
        library._built(library._cache())


def test_a_compiler_that_fails_is_quoted(compiling: pytest.MonkeyPatch):
    """The error holds the compiler's first complaint."""
    compiling.setattr(library, "FLAGS", (*library.FLAGS, "-no-such-flag"))
    with pytest.raises(CannotCompile, match="no-such-flag"):
        library._built(library._cache())


def test_without_a_compiler_torch_serves_and_says_so(tmp_path: Path):
    """A machine without a compiler gets the references, and a warning with the reason."""
    code = (
        "import logging, torch; logging.basicConfig()\n"
        "from kernels.load import load\n"
        "print(type(load(torch.device('cpu'), torch.float32)).__name__)"
    )
    environment = {**os.environ, "CXX": "no-such-compiler", "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "ReferenceKernels"
    assert "no-such-compiler" in done.stderr and "slower" in done.stderr
