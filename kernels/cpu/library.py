"""Load the library of `source`, compiled for the local processor, and declare its functions."""

from __future__ import annotations

import ctypes
import logging
import os
from pathlib import Path
from typing import Any

from kernels.cpu import structs
from kernels.cpu.cache import cache_folder, digest_of, provide, temporary_folder
from kernels.cpu.compiler import CompileError, Progress, ignore_progress

log = logging.getLogger(__name__)

NOEXEC = getattr(os, "ST_NOEXEC", 0)  # flag of a file system; not on every system

_int, _float, _pointer = ctypes.c_int64, ctypes.c_float, ctypes.c_void_p


def _struct(kind: type[ctypes.Structure]) -> Any:
    return ctypes.POINTER(kind)


# Argument types of the functions in source/api.cpp: first those without a result, then those that return an int64.
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "set_threads": (ctypes.c_int,),
    "count_progress": (_pointer,),
    "pack": (_pointer, _int, _int, _int, _pointer),
    "pack_quantized": (_struct(structs.QuantSegment), _struct(structs.Planes), _int, _int, _pointer),
    "unpack_rows": (_struct(structs.Linear), _pointer, _int, _pointer),
    "pack_float8": (_pointer, _pointer, _int, _int, _int, _pointer),
    "quantize": (_pointer, _int, _int, _int, _pointer, _pointer, _pointer),
    "linear": (_struct(structs.Linear), _pointer, _int, _pointer),
    "add_linear": (_struct(structs.Linear), _pointer, _int, _float, _pointer),
    "norm_linear": (_struct(structs.Linear), _pointer, _pointer, _float, _int, _pointer),
    "rms_norm": (_pointer, _pointer, _int, _int, _float, _pointer),
    "silu_mul": (_pointer, _int, _int, _pointer),
    "rope_and_cache": (_struct(structs.Rope), _pointer, _pointer, _int, _pointer),
    "write_cache": (_struct(structs.Rope), _pointer, _int),
    "attention": (_struct(structs.Attention), _pointer),
    "penalize": (_struct(structs.Penalties),),
    "mask_logits": (_struct(structs.Masking),),
    "sample": (_struct(structs.Sampling),),
    "forward": (_struct(structs.Decoder), _struct(structs.Step)),
    "step": (_struct(structs.Decoder), _struct(structs.Linear), _struct(structs.Slots), _struct(structs.Work)),
}
INT_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "has_layout": (_int,),
    "packed_words": (_int, _int, _int),
    "float8_words": (_int, _int, _int),
    "quantized_bytes": (_struct(structs.QuantSegment), _int, _int),
    "supports_attention": (_int, _int),
    "scratch_bytes": (_struct(structs.Decoder), _int),
    "step_bytes": (_struct(structs.Decoder), _struct(structs.Linear), _int, _int),
}


class LibraryLoader:
    """The library of this process, loaded at the first call."""

    def __init__(self) -> None:
        self._library: ctypes.CDLL | None = None

    def __call__(self, progress: Progress = ignore_progress) -> ctypes.CDLL:
        """Return the library from the cache, compiling it if needed. Raises `CompileError`."""
        if self._library is None:
            self._library = _load(progress)
        return self._library


load = LibraryLoader()


def _load(progress: Progress) -> ctypes.CDLL:
    """Load the library. If the cache is not writable, compile it for this process only."""
    try:
        return load_from(cache_folder(), progress)
    except OSError as error:
        log.warning("Compiled kernels cannot be cached, so every start compiles them again: %s", error)
    try:
        with temporary_folder() as folder:
            return load_from(folder, progress)
    except OSError as error:
        raise CompileError(f"No folder to compile in is writable: {error}") from error


def load_from(folder: Path, progress: Progress) -> ctypes.CDLL:
    """Return the library in `folder`, compiled if there is none, and once more if it cannot be loaded.

    Raises `OSError` if it must be compiled and the folder is not writable, and `CompileError`.
    """
    file = provide(folder, progress)
    try:
        return _open(file)
    except CompileError as error:
        if os.statvfs(folder).f_flag & NOEXEC:  # nothing in this folder can be loaded
            raise
        log.warning("%s It is compiled again.", error)
        return _open(provide(folder, progress, unless=digest_of(file)))


def _open(file: Path) -> ctypes.CDLL:
    """Load a file and declare its functions."""
    try:
        library = ctypes.CDLL(str(file))
        for names, result in ((SIGNATURES, None), (INT_SIGNATURES, _int)):
            for name, arguments in names.items():
                function = getattr(library, f"carousel_{name}")
                function.argtypes, function.restype = arguments, result
    except (OSError, AttributeError) as error:  # for example a folder mounted with noexec
        raise CompileError(f"The compiled library cannot be loaded: {error}.") from error
    return library
