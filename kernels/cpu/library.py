"""Compiles `source` for this very processor, once, and loads it.

The result is kept in the user's cache under a name made of all that it depends on, so a changed source, compiler or
processor is compiled anew and nobody ever loads what another machine made.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from kernels.cpu import structs

log = logging.getLogger(__name__)

SOURCE = Path(__file__).parent / "source"
# Fused multiply-adds wherever the source writes a product and a sum: one rounding, and the same one everywhere.
FLAGS = ("-std=c++17", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-Wno-psabi", "-fPIC", "-pthread")
SEAL = ".sha256"  # ends the name of the file beside, with what a compiled one must be
COMPILERS = ("g++", "clang++", "c++")

_int, _float, _pointer = ctypes.c_int64, ctypes.c_float, ctypes.c_void_p


def _struct(kind: type[ctypes.Structure]) -> Any:
    return ctypes.POINTER(kind)


# source/api.cpp: what the functions that return nothing take, and what those take that return a number.
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "set_threads": (ctypes.c_int,),
    "count_tasks": (_pointer,),
    "pack": (_pointer, _int, _int, _int, _pointer),
    "linear": (_struct(structs.Linear), _pointer, _int, _pointer),
    "norm_linear": (_struct(structs.Linear), _pointer, _pointer, _float, _int, _pointer),
    "rms_norm": (_pointer, _pointer, _int, _int, _float, _pointer),
    "silu_mul": (_pointer, _int, _int, _pointer),
    "rope_and_cache": (_struct(structs.Rope), _pointer, _pointer, _int, _pointer),
    "write_cache": (_struct(structs.Rope), _pointer, _int),
    "attention": (_struct(structs.Attention), _pointer),
    "sample": (_struct(structs.Sampling),),
    "forward": (_struct(structs.Decoder), _struct(structs.Step)),
    "step": (_struct(structs.Decoder), _struct(structs.Linear), _struct(structs.Slots), _struct(structs.Work)),
}
NUMBERS: dict[str, tuple[Any, ...]] = {
    "has_layout": (_int,),
    "packed_words": (_int, _int, _int),
    "attention_fits": (_int, _int),
    "scratch_bytes": (_struct(structs.Decoder), _int),
    "step_bytes": (_struct(structs.Decoder), _struct(structs.Linear), _int, _int),
}


class CannotCompile(Exception):
    """No library here; says why, in one line."""


@functools.cache
def load() -> ctypes.CDLL:
    """The library: what the cache has, or what is compiled for it, or, where nothing can be kept, for this process.
    Raises `CannotCompile`."""
    try:
        library = _open(_built(_cache()))
    except OSError as error:
        log.warning("compiled kernels cannot be kept, so every start compiles them anew: %s", error)
        try:
            with tempfile.TemporaryDirectory(prefix="carousel-kernels-") as passing:
                library = _open(_built(Path(passing)))
        except OSError as nowhere:
            raise CannotCompile(f"there is no folder to compile in: {nowhere}") from nowhere
    for names, result in ((SIGNATURES, None), (NUMBERS, _int)):
        for name, arguments in names.items():
            function = getattr(library, f"carousel_{name}")
            function.argtypes, function.restype = arguments, result
    return library


def _open(file: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(file))
    except OSError as error:  # such as a folder from which nothing may be run
        raise CannotCompile(f"what was compiled cannot be loaded: {error}") from error


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "carousel" / "kernels"


def _built(folder: Path) -> Path:
    """The compiled file: the one in `folder`, which need not be writable then, or a new one. Raises `OSError` where
    that cannot be written, and `CannotCompile`."""
    command = [*_compiler(), *FLAGS, "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"]
    sources = sorted(SOURCE.glob("*.cpp"))
    digest = hashlib.sha256()
    for part in (*command, _version(command[0]), _processor()):
        digest.update(part.encode() + b"\0")
    for file in sorted(SOURCE.iterdir()):
        digest.update(file.read_bytes() + b"\0")
    target = folder / f"cpu-{digest.hexdigest()[:24]}.so"
    if _is_whole(target):
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        log.info("compiling kernels for this processor")
        made = Path(scratch) / target.name
        objects = [made.with_suffix(f".{source.stem}.o") for source in sources]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            pieces = zip(sources, objects, strict=True)
            list(pool.map(lambda piece: _run([*command, "-c", str(piece[0]), "-o", str(piece[1])]), pieces))
        _run([*command, "-shared", "-o", str(made), *map(str, objects)])
        seal = made.with_suffix(SEAL)
        seal.write_bytes(_digest(made))
        seal.replace(target.with_suffix(SEAL))
        made.replace(target)  # whole or not at all, whoever else compiles at this moment
    return target


def _is_whole(file: Path) -> bool:
    """Whether it is what was compiled: of a file that a full disk or a power cut left shorter the process would die."""
    try:
        return file.with_suffix(SEAL).read_bytes() == _digest(file)
    except OSError:  # most often there is none
        return False


def _digest(file: Path) -> bytes:
    return hashlib.sha256(file.read_bytes()).hexdigest().encode()


def _run(command: list[str]) -> None:
    run = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if run.returncode:
        first = next((line for line in run.stderr.splitlines() if "error" in line), run.stderr.strip()[:200])
        raise CannotCompile(f"{command[0]} fails: {first}")


def _compiler() -> list[str]:
    """$CXX as the user has it, or the first compiler that is there."""
    if chosen := shlex.split(os.environ.get("CXX", "")):
        return chosen
    for name in COMPILERS:
        if shutil.which(name):
            return [name]
    raise CannotCompile(f"no C++ compiler is installed (looked for {', '.join(COMPILERS)})")


def _version(compiler: str) -> str:
    try:
        run = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
    except OSError as error:
        raise CannotCompile(f"{compiler} cannot be run: {error}") from error
    return run.stdout


def _processor() -> str:
    """What `native` stands for here: the instruction sets, where Linux tells them."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    kept = {line for line in lines if line.startswith(("model name", "flags", "Features"))}
    return platform.machine() + platform.processor() + "".join(sorted(kept))
