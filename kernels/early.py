"""Kernels that begin while the one before them ends (programmatic dependent launch, CUDA programming guide).

Such a kernel lets the next one come as soon as all of its programs are there, does what needs nothing of what came
before, and then waits until all of that is done and can be seen. So of a row of them each has waited for all before it,
and an ordinary kernel behind one waits for all of it, as ever.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN201

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl


@cache
def can_start_early(device: torch.device) -> bool:
    """Whether a kernel there may begin while the one before it ends: on compute capability 9 and 10."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] in (9, 10)


def early(device: torch.device) -> dict[str, Any]:
    """What a launch says of it: the kernel's constant EARLY, and the option that lets the driver begin it."""
    return {"EARLY": True, "launch_pdl": True} if can_start_early(device) else {"EARLY": False}


@triton.jit
def take_turn(EARLY: tl.constexpr):
    """The first statement of a kernel that has nothing to do before its turn has come."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
