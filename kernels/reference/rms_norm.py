"""Root mean square normalisation (Zhang and Sennrich, 2019), with and without the residual addition before it."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x[..., H], weight[H] -> [..., H] in the dtype of x; torch accumulates half-precision inputs in float32."""
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x[T, H], residual[T, H] -> (normed, x + residual). The sum is written into `x`, which saves an allocation."""
    total = x.add_(residual)
    return rms_norm(total, weight, eps), total
