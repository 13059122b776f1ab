"""Compilation and cache of the CPU kernels' library, with sources that compile quickly."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.cpu import cache, compiler, library
from kernels.cpu.compiler import CompileError
from tests.conftest import ROOT
from tests.kernels.conftest import cpu_kernels


@pytest.fixture(autouse=True)
def compiled() -> None:
    """Skip this file if kernels cannot be compiled."""
    cpu_kernels()


@pytest.fixture
def compiling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Use an empty cache and sources that compile quickly, so that every load compiles first."""
    source = tmp_path / "source"
    source.mkdir()
    for number in range(3):
        (source / f"part{number}.cpp").write_text(f'extern "C" int part{number}() {{ return {number}; }}\n')
    monkeypatch.setattr(cache, "SOURCE", source)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return monkeypatch


def test_a_compiled_library_is_not_compiled_again(compiling: pytest.MonkeyPatch):
    """The second load uses the file of the first."""
    first = cache.build(cache.cache_folder())
    made = first.stat()
    assert cache.build(cache.cache_folder()) == first
    assert first.stat().st_ino == made.st_ino


@pytest.mark.parametrize("left", [0, 500])
def test_a_damaged_file_is_compiled_again(compiling: pytest.MonkeyPatch, left: int):
    """Otherwise it would crash every process that loads it."""
    made = cache.build(cache.cache_folder())
    whole = made.read_bytes()
    made.write_bytes(whole[:left])
    assert cache.build(cache.cache_folder()) == made
    assert made.read_bytes() == whole


def test_a_library_in_a_read_only_cache_is_used(compiling: pytest.MonkeyPatch):
    """For example in an image with a home folder filled at build time."""
    made = cache.build(cache.cache_folder())
    compiling.setattr(cache.tempfile, "TemporaryDirectory", None)
    assert cache.build(cache.cache_folder()) == made


@pytest.mark.parametrize("left", [b"\xff\xfe", b""])
def test_an_invalid_checksum_causes_compilation(compiling: pytest.MonkeyPatch, left: bytes):
    """An invalid or empty checksum file causes compilation."""
    made = cache.build(cache.cache_folder())
    seal = made.with_suffix(cache.CHECKSUM_SUFFIX)
    whole = seal.read_bytes()
    seal.write_bytes(left)
    assert cache.build(cache.cache_folder()) == made
    assert seal.read_bytes() == whole


def test_a_library_without_a_cache_folder_leaves_no_files(tmp_path: Path):
    """A library compiled for one process only is deleted after loading; without any writable folder, torch is used."""
    (tmp_path / "file").touch()
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "none.cpp").touch()
    code = (
        "from kernels.cpu import cache, library; from pathlib import Path; import sys, logging; logging.basicConfig();"
    )
    code += "cache.SOURCE = Path(sys.argv[1]); library.SIGNATURES = library.INT_SIGNATURES = {}; print(library.load())"
    nowhere = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "file"), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", code, str(tmp_path / "source")]
    ran = subprocess.run(command, env=nowhere, capture_output=True, text=True, check=False)
    assert "CDLL" in ran.stdout, ran.stderr
    assert "every start compiles them again" in ran.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "source"]


def test_a_library_that_cannot_be_loaded_is_reported(compiling: pytest.MonkeyPatch):
    """For example files in a folder without execute permission; torch is used then."""
    library.load.cache_clear()
    compiling.setattr(library, "build", lambda folder: cache.SOURCE / "part0.cpp")
    with pytest.raises(CompileError, match="cannot be loaded"):
        library.load()


def test_another_flag_or_source_is_another_file(compiling: pytest.MonkeyPatch):
    """A library of other flags or sources is never loaded, and a new one contains all parts."""
    first = cache.build(cache.cache_folder())
    compiling.setattr(compiler, "FLAGS", (*compiler.FLAGS, "-DOTHER"))
    second = cache.build(cache.cache_folder())
    (cache.SOURCE / "part1.cpp").write_text('extern "C" int part1() { return 7; }\n')
    third = cache.build(cache.cache_folder())
    assert len({first, second, third}) == 3
    made = ctypes.CDLL(str(third))
    assert (made.part0(), made.part1(), made.part2()) == (0, 7, 2)


def test_flags_of_the_environment_override_the_others(compiling: pytest.MonkeyPatch):
    """KERNELS_CXXFLAGS adds flags after all others, and its library is another file."""
    plain = cache.build(cache.cache_folder())
    compiling.setenv("KERNELS_CXXFLAGS", "-DNUMBER=5 '-std=gnu++20'")
    (cache.SOURCE / "part1.cpp").write_text('extern "C" int part1() { return NUMBER * (__cplusplus / 100); }\n')
    built = cache.build(cache.cache_folder())
    assert built != plain
    assert ctypes.CDLL(str(built)).part1() == 5 * 2020


def test_without_a_compiler_the_reason_is_reported(compiling: pytest.MonkeyPatch):
    """The error names the compilers that were looked for."""
    compiling.delenv("CXX", raising=False)
    compiling.setattr(compiler, "COMPILERS", ("no-such-compiler",))
    with pytest.raises(CompileError, match="no-such-compiler"):
        cache.build(cache.cache_folder())


def test_a_compiler_that_fails_is_quoted(compiling: pytest.MonkeyPatch):
    """The error contains the compiler's first complaint."""
    compiling.setattr(compiler, "FLAGS", (*compiler.FLAGS, "-no-such-flag"))
    with pytest.raises(CompileError, match="no-such-flag"):
        cache.build(cache.cache_folder())


def test_without_a_compiler_torch_is_used_with_a_warning(tmp_path: Path):
    """A machine without a compiler gets the reference kernels, and a warning with the reason."""
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
