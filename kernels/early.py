"""Kernels that begin while the one before them ends (programmatic dependent launch, CUDA programming guide).

Such a kernel lets the next one come as soon as all of its programs are there, does what needs nothing of what came
before, and then waits until all of that is done and can be seen. So of a row of them each has waited for all before it,
and an ordinary kernel behind one waits for all of it, as ever.

Before its turn such a kernel writes nothing, and reads what is never written, weights and tables of angles, or was
written before the last ordinary kernel ahead of the row: that one did not begin before all of it could be seen. Of a
step these are the rows that `gather_slots` has gathered and what `plan_decode` makes, which looking tokens up in the
embedding is behind.
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

ALIGNED = tl.constexpr(16)  # bytes, of which what is fetched is a multiple, and begins at one


@dataclass(slots=True)
class Switch:
    """Process-wide permission for early launch, for drivers on which it fails and for comparison."""

    is_on: bool = True


SWITCH = Switch()


@cache
def can_start_early(device: torch.device) -> bool:
    """Whether a kernel there may begin while the one before it ends: on compute capability 9 and 10."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] in (9, 10)


def starts_early(device: torch.device) -> bool:
    """Return whether the device supports early launch and `SWITCH` permits it."""
    return SWITCH.is_on and can_start_early(device)


def early(device: torch.device) -> dict[str, Any]:
    """Return launch arguments: the kernel's constant EARLY and the option that lets the driver begin it."""
    return {"EARLY": True, "launch_pdl": True} if starts_early(device) else {"EARLY": False}


@triton.jit
def take_turn(EARLY: tl.constexpr):
    """Where a kernel has done what it can before its turn."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


@triton.jit
def fetch(
    places,  # pointers, aligned
    wanted,  # bool: which of them
    BYTES: tl.constexpr,
):
    """Asks that so many bytes behind each of `places` be brought to the second-level cache, and waits for nothing. What
    is being written may be among them: it is not read yet. Only for compute capability 9 and above; a prefetch of a
    line would bring as much of it as the device pleases. The lanes of a warp ask one after the other: let few want.
    """
    tl.inline_asm_elementwise(
        "@$3 cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0;",
        "=r,l,r,b",
        [places, tl.full(places.shape, BYTES, tl.int32), wanted],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
