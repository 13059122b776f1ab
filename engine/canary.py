"""Test request to a new engine before it becomes ready, so that a model that computes NaN is found at startup."""

from __future__ import annotations

import math

from engine.engine import Engine
from engine.types import EndEvent, FinishReason, Request, SamplingParams, TokenEvent

PROMPT_TOKENS = 8
NEW_TOKENS = 2


def has_finite_answers(engine: Engine) -> bool:
    """Return whether a prompt of tokens from the whole vocabulary gets an answer with finite log-probabilities.

    An engine that is too small for a prompt counts as finite. The engine's counters include the request, so it should
    not serve afterwards.
    """
    info = engine.info
    max_length = min(info.max_model_len, info.num_pages * info.page_size) - NEW_TOKENS
    length = min(PROMPT_TOKENS, max_length)
    if length < 1:
        return True
    prompt = tuple(i * (info.vocab_size - 1) // PROMPT_TOKENS for i in range(length))
    sampling = SamplingParams(max_tokens=NEW_TOKENS, temperature=0.0, logprobs=1)
    engine.submit(Request(id="canary", prompt=prompt, sampling=sampling))
    is_finite = True
    while engine.has_work:
        for event in engine.step():
            if isinstance(event, TokenEvent):
                is_finite = is_finite and event.logprob is not None and math.isfinite(event.logprob)
            elif isinstance(event, EndEvent):
                is_finite = is_finite and event.finish is not FinishReason.ERROR
    return is_finite
