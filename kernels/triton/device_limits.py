"""Device limits that launch parameters depend on."""

from __future__ import annotations

from functools import cache

import torch

SHARED_BYTES = {80: 166_912, 89: 101_376, 90: 232_448}  # maximum shared memory per program, by compute capability
INTERPRETED_CAPABILITY = 90


@cache
def multiprocessors(device: torch.device) -> int:
    """Return the number of multiprocessors; 1 on a CPU, where kernels run in the interpreter."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


@cache
def shared_bytes(device: torch.device) -> int:
    """Return the maximum shared memory per program in bytes; the value of an H100 on a CPU."""
    if device.type != "cuda":
        return SHARED_BYTES[INTERPRETED_CAPABILITY]
    properties = torch.cuda.get_device_properties(device)
    limit: int = properties.shared_memory_per_block_optin  # type: ignore[attr-defined]  # missing in torch's stubs
    return limit
