"""Choice of the back end for a device."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal

import torch

from kernels.interface import BackendChoice, Kernels

log = logging.getLogger("carousel.kernels")


class QuantizationError(ValueError):
    """No back end can quantise weights here."""


def load(
    device: torch.device,
    dtype: torch.dtype | None = None,
    choice: BackendChoice = "auto",
    batch_invariant: bool = False,
    allow_bf16_activations: bool = False,
    weight_bits: Literal[4, 8] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Kernels:
    """Return the fastest back end for `device` and the requested `dtype` (None: unknown).

    Triton on a CUDA device; C++ for float32 and bfloat16 on a CPU if it compiles; else the torch references, which
    `choice="torch"` selects explicitly. batch_invariant: return a back end that gives a row the same bits in every
    batch, as all do in float32 on a CPU; raise `ValueError` if there is none. allow_bf16_activations: for float32 on a
    CPU, allow rounding the operands that bfloat16 weights, keys and values are multiplied with, as `dtype` bfloat16
    does. weight_bits: quantise the matrices of layers; raise `QuantizationError` where that is not possible.
    progress: called with files compiled and files in total, if C++ has to be compiled.
    """
    from kernels.reference.backend import ReferenceKernels

    is_compiled = device.type == "cpu" and choice != "torch" and dtype in (torch.float32, torch.bfloat16)
    if weight_bits and not (is_compiled or (device.type == "cuda" and choice != "torch")):
        raise QuantizationError("only Triton and compiled CPU kernels in float32 or bfloat16 quantise weights")
    if device.type == "cuda":
        if batch_invariant and choice == "torch":
            raise ValueError(
                "torch's kernels are not batch-invariant on a GPU; use kernels=auto or batch_invariant=False"
            )
        if choice == "torch":
            return ReferenceKernels()
        if weight_bits:
            _load_quantizer(progress)
        if batch_invariant:
            from kernels.triton.invariant import InvariantKernels

            return InvariantKernels(weight_bits)
        from kernels.triton.backend import TritonKernels

        return TritonKernels(weight_bits)
    if is_compiled:
        from kernels.cpu.compiler import CompileError

        try:
            from kernels.cpu.backend import CpuKernels
            from kernels.cpu.library import load as load_library

            load_library(progress)
            return CpuKernels(allow_bf16_activations or dtype == torch.bfloat16, weight_bits)
        except CompileError as error:
            if weight_bits:
                raise QuantizationError(f"the CPU kernels are unavailable: {error}") from error
            log.warning("The CPU kernels are unavailable; falling back to torch, which is slower. Reason: %s", error)
    if batch_invariant and dtype != torch.float32:
        raise ValueError(f"torch's kernels are batch-invariant on a CPU in float32 only, got dtype {dtype}")
    return ReferenceKernels()


def _load_quantizer(progress: Callable[[int, int], None]) -> None:
    """Load the C++ functions that quantise weights on the host, also those of a GPU."""
    from kernels.cpu.compiler import CompileError
    from kernels.cpu.library import load as load_library

    try:
        load_library(progress)
    except CompileError as error:
        raise QuantizationError(f"the CPU kernels are unavailable: {error}") from error
