"""Load the library of `source`, compiled for the local processor, and declare its functions."""

from __future__ import annotations

import ctypes
import functools
import logging
import tempfile
from pathlib import Path
from typing import Any

from kernels.cpu import structs
from kernels.cpu.cache import build, cache_folder
from kernels.cpu.compiler import CompileError

log = logging.getLogger(__name__)

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


@functools.cache
def load() -> ctypes.CDLL:
    """Return the library from the cache, compiling it if needed.

    If the cache is not writable, compile it for this process only. Raises `CompileError`.
    """
    try:
        library = _open(build(cache_folder()))
    except OSError as error:
        log.warning("Compiled kernels cannot be cached, so every start compiles them again: %s", error)
        try:
            with tempfile.TemporaryDirectory(prefix="carousel-kernels-") as temporary:
                library = _open(build(Path(temporary)))
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
