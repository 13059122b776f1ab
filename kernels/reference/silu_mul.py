"""Gate of a SwiGLU feed-forward layer (Shazeer, 2020)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def silu_mul(gate_up: Tensor) -> Tensor:
    """Compute silu(first half) * second half: gate_up[T, 2I] -> [T, I]."""
    half = gate_up.shape[-1] // 2
    return F.silu(gate_up[:, :half]).mul_(gate_up[:, half:])
