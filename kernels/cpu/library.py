"""Compile `source` once for the local processor, and load it.

The library is cached in the user's cache folder under a hash of everything it depends on. A changed source, compiler or
processor triggers a new compilation, and a library built for another machine is never loaded.
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

from kernels.cpu import slot_record, structs

log = logging.getLogger(__name__)

SOURCE = Path(__file__).parent / "source"
# -ffp-contract=fast: every product followed by a sum becomes one fused multiply-add, with one rounding, everywhere.
FLAGS = ("-std=c++17", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-Wno-psabi", "-fPIC", "-pthread")
# Environment variable with further flags, which may override the others; for sanitizers and debuggers.
EXTRA_FLAGS = "KERNELS_CXXFLAGS"
CHECKSUM_SUFFIX = ".sha256"  # suffix of the file with the library's checksum
COMPILERS = ("g++", "clang++", "c++")

_int, _float, _pointer = ctypes.c_int64, ctypes.c_float, ctypes.c_void_p


def _struct(kind: type[ctypes.Structure]) -> Any:
    return ctypes.POINTER(kind)


# Argument types of the functions in source/api.cpp: first those without a result, then those that return an int64.
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "set_threads": (ctypes.c_int,),
    "count_progress": (_pointer,),
    "pack": (_pointer, _int, _int, _int, _pointer),
    "linear": (_struct(structs.Linear), _pointer, _int, _pointer),
    "norm_linear": (_struct(structs.Linear), _pointer, _pointer, _float, _int, _pointer),
    "rms_norm": (_pointer, _pointer, _int, _int, _float, _pointer),
    "silu_mul": (_pointer, _int, _int, _pointer),
    "rope_and_cache": (_struct(structs.Rope), _pointer, _pointer, _int, _pointer),
    "write_cache": (_struct(structs.Rope), _pointer, _int),
    "attention": (_struct(structs.Attention), _pointer),
    "mask_logits": (_struct(structs.Masking),),
    "sample": (_struct(structs.Sampling),),
    "forward": (_struct(structs.Decoder), _struct(structs.Step)),
    "step": (_struct(structs.Decoder), _struct(structs.Linear), _struct(structs.Slots), _struct(structs.Work)),
}
INT_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "has_layout": (_int,),
    "packed_words": (_int, _int, _int),
    "supports_attention": (_int, _int),
    "scratch_bytes": (_struct(structs.Decoder), _int),
    "step_bytes": (_struct(structs.Decoder), _struct(structs.Linear), _int, _int),
}


class CompileError(Exception):
    """The library could not be compiled or loaded. The message is one line."""


@functools.cache
def load() -> ctypes.CDLL:
    """Return the library from the cache, compiling it if needed.

    If the cache is not writable, compile it for this process only. Raises `CompileError`.
    """
    try:
        library = _open(_build(_cache()))
    except OSError as error:
        log.warning("Compiled kernels cannot be cached, so every start compiles them again: %s", error)
        try:
            with tempfile.TemporaryDirectory(prefix="carousel-kernels-") as temporary:
                library = _open(_build(Path(temporary)))
        except OSError as no_folder:
            raise CompileError(f"No folder to compile in is writable: {no_folder}") from no_folder
    for names, result in ((SIGNATURES, None), (INT_SIGNATURES, _int)):
        for name, arguments in names.items():
            function = getattr(library, f"carousel_{name}")
            function.argtypes, function.restype = arguments, result
    return library


def _open(file: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(file))
    except OSError as error:  # for example a folder mounted with noexec
        raise CompileError(f"The compiled library cannot be loaded: {error}") from error


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "carousel" / "kernels"


def _build(folder: Path) -> Path:
    """Return the compiled library in `folder`, building it if it is missing.

    Only building needs a writable folder. Raises `OSError` if it is not writable, and `CompileError`.
    """
    native = "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"
    command = [*_compiler(), *FLAGS, native, *shlex.split(os.environ.get(EXTRA_FLAGS, ""))]
    sources = sorted(SOURCE.glob("*.cpp"))
    header = slot_record.header()
    digest = hashlib.sha256()
    for part in (*command, _version(command[0]), _processor(), header):
        digest.update(part.encode() + b"\0")
    for file in sorted(SOURCE.iterdir()):
        digest.update(file.read_bytes() + b"\0")
    target = folder / f"cpu-{digest.hexdigest()[:24]}.so"
    if _is_intact(target):
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        log.info("Compiling the CPU kernels for this processor")
        built = Path(scratch) / target.name
        (built.parent / slot_record.FILE_NAME).write_text(header)
        command.append(f"-I{scratch}")
        objects = [built.with_suffix(f".{source.stem}.o") for source in sources]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            units = zip(sources, objects, strict=True)
            list(pool.map(lambda unit: _run([*command, "-c", str(unit[0]), "-o", str(unit[1])]), units))
        _run([*command, "-shared", "-o", str(built), *map(str, objects)])
        seal = built.with_suffix(CHECKSUM_SUFFIX)
        seal.write_bytes(_digest(built))
        seal.replace(target.with_suffix(CHECKSUM_SUFFIX))
        built.replace(target)  # atomic, so that processes that compile concurrently never see a partial file
    return target


def _is_intact(file: Path) -> bool:
    """Return whether the file has its recorded checksum. A file truncated by a full disk would crash the process."""
    try:
        return file.with_suffix(CHECKSUM_SUFFIX).read_bytes() == _digest(file)
    except OSError:  # usually there is no such file
        return False


def _digest(file: Path) -> bytes:
    return hashlib.sha256(file.read_bytes()).hexdigest().encode()


def _run(command: list[str]) -> None:
    run = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if run.returncode:
        first = next((line for line in run.stderr.splitlines() if "error" in line), run.stderr.strip()[:200])
        raise CompileError(f"{command[0]} failed: {first}")


def _compiler() -> list[str]:
    """Return the command in $CXX, or the first installed compiler of COMPILERS."""
    if chosen := shlex.split(os.environ.get("CXX", "")):
        return chosen
    for name in COMPILERS:
        if shutil.which(name):
            return [name]
    raise CompileError(f"No C++ compiler is installed (looked for {', '.join(COMPILERS)}); install one or set CXX")


def _version(compiler: str) -> str:
    try:
        run = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
    except OSError as error:
        raise CompileError(f"The compiler {compiler} cannot be run: {error}") from error
    return run.stdout


def _processor() -> str:
    """Return a description of the `native` target: the processor and, on Linux, its instruction sets."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    kept = {line for line in lines if line.startswith(("model name", "flags", "Features"))}
    return platform.machine() + platform.processor() + "".join(sorted(kept))
