"""Root mean square normalisation (Zhang and Sennrich, 2019)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise x[..., H], weight[H] -> [..., H] in the dtype of x; torch accumulates half precision in float32."""
    return F.rms_norm(x, (x.shape[-1],), weight, eps)
