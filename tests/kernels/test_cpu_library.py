"""Compilation and cache of the CPU kernels' library, with sources that compile quickly."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from kernels.cpu import cache, compiler, library
from kernels.cpu.compiler import CompileError, ignore_progress
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


def provide() -> Path:
    return cache.provide(cache.cache_folder(), ignore_progress)


def manifest_of(library: Path) -> dict[str, str]:
    return json.loads(library.with_suffix(".json").read_text())


def remove_compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave no compiler to be found, as on a machine without one."""
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(compiler, "COMPILERS", ("no-such-compiler",))


def test_a_compiled_library_is_not_compiled_again(compiling: pytest.MonkeyPatch):
    """The second call uses the file of the first."""
    first = provide()
    made = first.stat()
    assert provide() == first
    assert first.stat().st_ino == made.st_ino


def test_a_manifest_states_source_processor_compiler_and_checksum(compiling: pytest.MonkeyPatch):
    """It is the only other file, besides the lock."""
    library = provide()
    listed = manifest_of(library)
    assert listed["compiler"] == compiler.find_compiler().description and listed["processor"] == compiler.processor()
    assert listed["source"] == cache.Target.current().source
    assert listed["library"] == hashlib.sha256(library.read_bytes()).hexdigest()
    names = {file.name for file in library.parent.iterdir()}
    assert names == {library.name, f"{library.stem}.json", cache.LOCK_FILE}


def test_without_a_compiler_a_library_made_elsewhere_is_used(compiling: pytest.MonkeyPatch):
    """For example in an image whose compiler was left behind in an earlier stage."""
    library = provide()
    remove_compilers(compiling)
    assert provide() == library


@pytest.mark.parametrize("field", ["source", "processor", "library", "compiler"])
def test_a_manifest_that_does_not_fit_causes_compilation(compiling: pytest.MonkeyPatch, field: str):
    """Another compiler may be a better one; everything else would be a wrong library."""
    library = provide()
    library.with_suffix(".json").write_text(json.dumps(manifest_of(library) | {field: "another"}))
    made = library.stat().st_ino
    assert provide() == library
    assert library.stat().st_ino != made and manifest_of(library)[field] != "another"


@pytest.mark.parametrize("field", ["source", "processor", "library"])
def test_without_a_compiler_a_library_that_does_not_fit_is_not_used(compiling: pytest.MonkeyPatch, field: str):
    """The error names the compilers that were looked for."""
    library = provide()
    library.with_suffix(".json").write_text(json.dumps(manifest_of(library) | {field: "another"}))
    remove_compilers(compiling)
    with pytest.raises(CompileError, match="no-such-compiler"):
        provide()


def test_a_library_of_another_compiler_in_a_folder_that_cannot_be_written_is_used(compiling: pytest.MonkeyPatch):
    """Otherwise every start would compile."""
    library = provide()
    library.with_suffix(".json").write_text(json.dumps(manifest_of(library) | {"compiler": "another"}))
    made = library.stat().st_ino
    compiling.setattr(cache.os, "access", lambda path, mode: False)
    assert provide() == library
    assert library.stat().st_ino == made


@pytest.mark.parametrize("left", [0, 500])
def test_a_damaged_file_is_compiled_again(compiling: pytest.MonkeyPatch, left: int):
    """Otherwise it would crash every process that loads it."""
    made = provide()
    whole = made.read_bytes()
    made.write_bytes(whole[:left])
    assert provide() == made
    assert made.read_bytes() == whole


@pytest.mark.parametrize("left", [b"\xff\xfe", b"", b"{}", b"[1]", b'{"library": 5}'])
def test_a_damaged_manifest_causes_compilation(compiling: pytest.MonkeyPatch, left: bytes):
    """It is replaced."""
    made = provide()
    manifest = made.with_suffix(".json")
    whole = manifest.read_bytes()
    manifest.write_bytes(left)
    assert provide() == made
    assert manifest.read_bytes() == whole


def test_a_library_in_a_read_only_cache_is_used(compiling: pytest.MonkeyPatch):
    """For example in an image with a home folder filled at build time."""
    made = provide()
    compiling.setattr(cache, "FileLock", None)
    compiling.setattr(cache.tempfile, "TemporaryDirectory", None)
    assert provide() == made


def test_processes_with_one_cache_compile_once(compiling: pytest.MonkeyPatch, tmp_path: Path):
    """The others wait, report progress meanwhile, and load the same file."""
    compiling.setenv("CXX", str(counting_compiler(tmp_path)))
    command = [sys.executable, "-c", PROVIDE, str(cache.SOURCE)]
    running = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    answers = {process.communicate(timeout=120)[0] for process in running}
    assert len(answers) == 1 and all(process.returncode == 0 for process in running)
    assert (tmp_path / "runs").read_text().count("-shared") == 1


# With a source folder: print the library's path.
PROVIDE = """
import sys
from pathlib import Path
from kernels.cpu import cache, compiler
cache.SOURCE = Path(sys.argv[1])
print(cache.provide(cache.cache_folder(), compiler.ignore_progress))
"""


def counting_compiler(folder: Path) -> Path:
    """Return a compiler that writes the arguments of its runs to the file "runs"."""
    script = folder / "counting"
    script.write_text(f'#!/bin/sh\necho "$@" >> {folder}/runs\nexec {compiler.find_compiler().command[0]} "$@"\n')
    script.chmod(0o755)
    return script


def test_progress_counts_the_compiled_files(compiling: pytest.MonkeyPatch):
    """It begins with none and ends with all of them."""
    seen: list[tuple[int, int]] = []
    cache.provide(cache.cache_folder(), lambda done, total: seen.append((done, total)))
    assert seen[0] == (0, 3) and seen[-1] == (3, 3) and seen == sorted(seen)


def is_running(pid: int) -> bool:
    """Return whether a process computes; one that has ended may be listed until its new parent notices."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Stopped(Exception):
    """The caller of a compilation gives up."""


def test_a_compilation_that_its_caller_gives_up_leaves_no_process_and_no_folder(
    compiling: pytest.MonkeyPatch, tmp_path: Path
):
    """An engine gives up when its channel closes; the compilers would otherwise run on."""
    started = tmp_path / "started"
    script = tmp_path / "endless"
    script.write_text(f'#!/bin/sh\n[ "$1" = --version ] && exit\nsleep 1000 &\necho $! >> {started}; wait\n')
    script.chmod(0o755)
    compiling.setenv("CXX", str(script))

    def give_up(done: int, total: int) -> None:
        if started.exists() and started.read_text().count("\n") >= 2:
            raise Stopped

    with pytest.raises(Stopped):
        cache.provide(cache.cache_folder(), give_up)
    assert not [pid for pid in map(int, started.read_text().split()) if is_running(pid)]
    assert [file.name for file in cache.cache_folder().iterdir()] == [cache.LOCK_FILE]


def test_scratch_folders_of_killed_processes_are_removed(compiling: pytest.MonkeyPatch):
    """The lock shows that none of them is in use."""
    stale = cache.cache_folder() / f"{cache.SCRATCH_PREFIX}old"
    stale.mkdir(parents=True)
    (stale / "part.o").touch()
    provide()
    assert not stale.exists()


def test_temporary_folders_are_removed_unless_their_process_lives(compiling: pytest.MonkeyPatch, tmp_path: Path):
    """A folder that was just made may not have its lock yet."""
    compiling.setattr(cache.tempfile, "tempdir", str(tmp_path))
    stale, young = (tmp_path / f"{cache.TEMPORARY_PREFIX}{name}" for name in ("stale", "young"))
    for folder in (stale, young):
        folder.mkdir()
    with cache.temporary_folder() as used:
        for folder in (stale, used):
            os.utime(folder, (0, 0))
        with cache.temporary_folder() as other:
            assert set(tmp_path.glob(f"{cache.TEMPORARY_PREFIX}*")) == {young, used, other}


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


def make_unloadable(library: Path) -> None:
    """Replace a library by a file that is no library, with a manifest that fits."""
    library.write_bytes(b"no library")
    listed = manifest_of(library) | {"library": hashlib.sha256(b"no library").hexdigest()}
    library.with_suffix(".json").write_text(json.dumps(listed))


def test_a_library_that_cannot_be_loaded_is_compiled_again(
    compiling: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """For example one that was linked with a newer C library; the log has the reason."""
    compiling.setattr(library, "SIGNATURES", {})
    compiling.setattr(library, "INT_SIGNATURES", {})
    made = provide()
    make_unloadable(made)
    assert library.load_from(cache.cache_folder(), ignore_progress).part2() == 2
    assert "cannot be loaded" in caplog.text


def test_a_library_that_cannot_be_loaded_even_when_compiled_again_is_reported(compiling: pytest.MonkeyPatch):
    """It is compiled once; torch is used then."""
    with pytest.raises(CompileError, match="cannot be loaded"):  # the sources have no function of SIGNATURES
        library.LibraryLoader()()


def test_in_a_folder_without_execute_permission_no_library_is_compiled_again(compiling: pytest.MonkeyPatch):
    """Another one could not be loaded either."""
    make_unloadable(made := provide())
    compiling.setattr(library.os, "statvfs", lambda folder: SimpleNamespace(f_flag=os.ST_NOEXEC))
    with pytest.raises(CompileError, match="cannot be loaded"):
        library.load_from(cache.cache_folder(), ignore_progress)
    assert made.read_bytes() == b"no library"


def test_another_flag_or_source_is_another_file(compiling: pytest.MonkeyPatch):
    """A library of other flags or sources is never loaded, and a new one contains all parts."""
    first = provide()
    compiling.setattr(compiler, "FLAGS", (*compiler.FLAGS, "-DOTHER"))
    second = provide()
    (cache.SOURCE / "part1.cpp").write_text('extern "C" int part1() { return 7; }\n')
    third = provide()
    assert len({first, second, third}) == 3
    made = ctypes.CDLL(str(third))
    assert (made.part0(), made.part1(), made.part2()) == (0, 7, 2)


def test_flags_of_the_environment_override_the_others(compiling: pytest.MonkeyPatch):
    """KERNELS_CXXFLAGS adds flags after all others, and its library is another file."""
    plain = provide()
    compiling.setenv("KERNELS_CXXFLAGS", "-DNUMBER=5 '-std=gnu++20'")
    (cache.SOURCE / "part1.cpp").write_text('extern "C" int part1() { return NUMBER * (__cplusplus / 100); }\n')
    built = provide()
    assert built != plain
    assert ctypes.CDLL(str(built)).part1() == 5 * 2020


def test_a_compiler_that_fails_is_quoted(compiling: pytest.MonkeyPatch):
    """The error contains the compiler's first complaint."""
    compiling.setattr(compiler, "FLAGS", (*compiler.FLAGS, "-no-such-flag"))
    with pytest.raises(CompileError, match="no-such-flag"):
        provide()


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
