"""Early launch: kernels that start while the previous one ends (programmatic dependent launch, CUDA programming guide).

Such a kernel permits the next launch as soon as all of its own programs have started, does the work that does not
depend on earlier kernels, and then waits until their results are complete and visible. In a sequence of such kernels
each has thus waited for all previous ones, and an ordinary kernel after the sequence waits for all of it, as usual.

Before its turn such a kernel writes nothing. It reads only data that is never written (weights, tables of angles) or
that was written before the last ordinary kernel ahead of the sequence, which started only when that data was visible.
In a step this covers the rows gathered by `gather_slots` and the output of `plan_decode`; the embedding lookup is the
ordinary kernel after them.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN001, ANN201

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl

PREFETCH_ALIGN_BYTES = tl.constexpr(16)  # bytes: required alignment of a prefetch's address and size


@dataclass(slots=True)
class PdlSwitch:
    """Process-wide permission for early launch, for drivers on which it fails and for comparison."""

    is_on: bool = True


PDL_SWITCH = PdlSwitch()


@cache
def supports_pdl(device: torch.device) -> bool:
    """Return whether the device supports early launch: compute capability 9 and 10."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] in (9, 10)


def uses_pdl(device: torch.device) -> bool:
    """Return whether the device supports early launch and `PDL_SWITCH` permits it."""
    return PDL_SWITCH.is_on and supports_pdl(device)


def pdl_options(device: torch.device) -> dict[str, Any]:
    """Return launch arguments: the kernel's constant USE_PDL and, if enabled, the driver option for early launch."""
    return {"USE_PDL": True, "launch_pdl": True} if uses_pdl(device) else {"USE_PDL": False}


@triton.jit
def wait_for_previous(USE_PDL: tl.constexpr):
    """Permit the next launch, then wait for earlier kernels. Call it after all independent work."""
    if USE_PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


@triton.jit
def fetch(
    places,  # pointers, aligned to ALIGNED bytes
    wanted,  # bool mask
    BYTES: tl.constexpr,
):
    """Prefetch BYTES bytes from each masked pointer to the L2 cache, without waiting.

    The range may include data that is still being written, as nothing is read yet. Requires compute capability 9 or
    above; the size that a line prefetch brings is up to the device. The lanes of a warp issue prefetches one after
    another, so keep the mask sparse.
    """
    tl.inline_asm_elementwise(
        "@$3 cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0;",
        "=r,l,r,b",
        [places, tl.full(places.shape, BYTES, tl.int32), wanted],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
