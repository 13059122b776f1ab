"""Log probabilities of chosen and most likely tokens. In torch on every device, as only some requests need them."""

from __future__ import annotations

import torch
from torch import Tensor


def log_probs(logits: Tensor, chosen: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return log probabilities of the chosen and of the k most likely tokens, in float32.

    logits[R, V] any float, chosen[R] int64 (any value for a row with a NaN) -> (chosen_logprob[R], top_ids[R, k],
    top_logprobs[R, k]).
    """
    all_log_probs = logits.log_softmax(dim=-1, dtype=torch.float32)
    chosen_log_prob = all_log_probs.gather(1, chosen.clamp(min=0).unsqueeze(1))
    top = all_log_probs.topk(k, dim=-1)
    return chosen_log_prob.squeeze(1), top.indices, top.values
