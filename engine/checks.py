"""What a request must be to be served. The API process asks before it submits, the engine again when it arrives."""

from __future__ import annotations

from engine.errors import CapacityExceeded, ContextExceeded, InvalidParameter
from engine.types import ModelInfo, Request

MOST = 1e6  # of numbers that have no natural end; far beyond use, and far from what overflows


def check_request(request: Request, info: ModelInfo) -> None:
    """Raise `RequestRefused` for what can never be served, naming the parameter."""
    _check_numbers(request, info)
    _check_ids(request, info)
    _check_length(request, info)


def _check_numbers(request: Request, info: ModelInfo) -> None:
    sampling = request.sampling
    for name, value, low, high in (
        ("n", request.n, 1, MOST),
        ("temperature", sampling.temperature, 0.0, MOST),
        ("top_k", sampling.top_k, 0, 2**31 - 1),
        ("top_p", sampling.top_p, 0.0, 1.0),
        ("min_p", sampling.min_p, 0.0, 1.0),
        ("frequency_penalty", sampling.frequency_penalty, -MOST, MOST),
        ("presence_penalty", sampling.presence_penalty, -MOST, MOST),
        ("repetition_penalty", sampling.repetition_penalty, 1 / MOST, MOST),
        ("seed", sampling.seed, 0, 2**64 - 1),
        ("logprobs", sampling.logprobs or 0, 0, info.vocab_size),
    ):
        if not low <= value <= high:  # NaN fails too
            raise InvalidParameter(f"{name} must lie in [{low:g}, {high:g}], not {value}", param=name)
    if sampling.max_tokens < 1:
        raise InvalidParameter(f"max_tokens must be at least 1, not {sampling.max_tokens}", param="max_tokens")
    if not 0 <= sampling.min_tokens <= sampling.max_tokens:
        raise InvalidParameter(
            f"min_tokens must lie between 0 and max_tokens ({sampling.max_tokens}), not {sampling.min_tokens}",
            param="min_tokens",
        )


def _check_ids(request: Request, info: ModelInfo) -> None:
    sampling = request.sampling
    if not request.prompt:
        raise InvalidParameter("the prompt is empty", param="prompt")
    for choice, tokens in request.said.items():
        if not 0 <= choice < request.n or len(tokens) >= sampling.max_tokens:
            raise InvalidParameter(f"said: choice {choice} has ended, or was never asked for", param="said")
        if tokens and not 0 <= min(tokens) <= max(tokens) < info.vocab_size:
            raise InvalidParameter(f"said: not all are token ids in [0, {info.vocab_size})", param="said")
    lowest, highest = min(request.prompt), max(request.prompt)
    if lowest < 0 or highest >= info.vocab_size:
        raise InvalidParameter(
            f"prompt token ids must lie in [0, {info.vocab_size}), found {lowest} to {highest}", param="prompt"
        )
    for name, ids in (("logit_bias", sampling.logit_bias), ("stop_token_ids", sampling.stop_token_ids)):
        for token_id in ids:
            if not 0 <= token_id < info.vocab_size:
                raise InvalidParameter(f"{name}: token id {token_id} is not in [0, {info.vocab_size})", param=name)
    for token_id, bias in sampling.logit_bias.items():
        if not abs(bias) <= MOST:
            raise InvalidParameter(
                f"logit_bias: {bias} for token id {token_id} is not between {-MOST} and {MOST}",
                param="logit_bias",
            )


def _check_length(request: Request, info: ModelInfo) -> None:
    length, wanted = len(request.prompt), request.sampling.max_tokens
    if length >= info.max_model_len:
        raise ContextExceeded(
            f"the prompt has {length} tokens, the model's context {info.max_model_len}", param="prompt"
        )
    together = f"the prompt has {length} tokens and max_tokens is {wanted}: together more than the"
    if length + wanted > info.max_model_len:
        raise ContextExceeded(f"{together} model's context of {info.max_model_len} tokens", param="max_tokens")
    capacity = info.num_pages * info.page_size
    if length >= capacity:
        raise CapacityExceeded(
            f"the prompt has {length} tokens, the KV pool can hold {capacity} with the answer", param="prompt"
        )
    if length + wanted > capacity:
        raise CapacityExceeded(f"{together} {capacity} tokens that the KV pool can hold", param="max_tokens")
