"""Log probabilities of chosen and of most likely tokens. Torch on every device: it runs only for requests that ask
for it.
"""

from __future__ import annotations

import torch
from torch import Tensor


def log_probs(logits: Tensor, chosen: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """logits[R, V] any float, chosen[R] int64, any number for a row with a NaN -> (chosen_logprob[R], top_ids[R, k],
    top_logprobs[R, k]), in float32."""
    all_log_probs = logits.log_softmax(dim=-1, dtype=torch.float32)
    chosen_log_prob = all_log_probs.gather(1, chosen.clamp(min=0).unsqueeze(1))
    top = all_log_probs.topk(k, dim=-1)
    return chosen_log_prob.squeeze(1), top.indices, top.values
