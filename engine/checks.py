"""Validation of requests, before submission by the API process and again on arrival by the engine."""

from __future__ import annotations

from engine.errors import CapacityExceeded, ContextExceeded, InvalidParameter
from engine.types import MAX_NUMBER, SAMPLING_BOUNDS, Bounds, ModelInfo, Request


def check_request(request: Request, info: ModelInfo) -> None:
    """Raise `RequestRefused`, with the parameter, for a request that can never be served."""
    _check_numbers(request, info)
    _check_ids(request, info)
    _check_length(request, info)


def _check_numbers(request: Request, info: ModelInfo) -> None:
    sampling = request.sampling
    _check_bounds("n", request.n, Bounds(1, MAX_NUMBER))
    for name, bounds in SAMPLING_BOUNDS.items():
        _check_bounds(name, getattr(sampling, name), bounds)
    _check_bounds("logprobs", sampling.logprobs or 0, Bounds(0, info.vocab_size))
    _check_bounds("prompt_logprobs", sampling.prompt_logprobs or 0, Bounds(0, info.vocab_size))
    if sampling.max_tokens < 1:
        raise InvalidParameter(f"max_tokens must be at least 1, got {sampling.max_tokens}", param="max_tokens")
    if not 0 <= sampling.min_tokens <= sampling.max_tokens:
        raise InvalidParameter(
            f"min_tokens must be between 0 and max_tokens ({sampling.max_tokens}), got {sampling.min_tokens}",
            param="min_tokens",
        )


def _check_bounds(name: str, value: float, bounds: Bounds) -> None:
    if not bounds.low <= value <= bounds.high:  # NaN fails too
        raise InvalidParameter(f"{name} must be between {bounds.low:g} and {bounds.high:g}, got {value}", param=name)


def _check_ids(request: Request, info: ModelInfo) -> None:
    sampling = request.sampling
    if not request.prompt:
        raise InvalidParameter("the prompt is empty", param="prompt")
    for choice, tokens in request.output_so_far.items():
        if not 0 <= choice < request.n or len(tokens) >= sampling.max_tokens:
            raise InvalidParameter(f"output_so_far: choice {choice} has ended or does not exist", param="output_so_far")
        if tokens and not 0 <= min(tokens) <= max(tokens) < info.vocab_size:
            raise InvalidParameter(
                f"output_so_far: token IDs must be between 0 and {info.vocab_size - 1}", param="output_so_far"
            )
    lowest, highest = min(request.prompt), max(request.prompt)
    if lowest < 0 or highest >= info.vocab_size:
        raise InvalidParameter(
            f"prompt token IDs must be between 0 and {info.vocab_size - 1}, got {lowest} to {highest}", param="prompt"
        )
    if request.prediction and not 0 <= min(request.prediction) <= max(request.prediction) < info.vocab_size:
        raise InvalidParameter(f"prediction: token IDs must be between 0 and {info.vocab_size - 1}", param="prediction")
    for name, ids in (("logit_bias", sampling.logit_bias), ("stop_token_ids", sampling.stop_token_ids)):
        for token_id in ids:
            if not 0 <= token_id < info.vocab_size:
                raise InvalidParameter(
                    f"{name}: token IDs must be between 0 and {info.vocab_size - 1}, got {token_id}", param=name
                )
    if (limit := sampling.reasoning_limit) is not None:
        if limit.max_tokens < 0 or not limit.closing_ids or not limit.close_tag:
            raise InvalidParameter(
                f"reasoning_limit must have max_tokens of at least 0 and closing tokens, got {limit.max_tokens} and "
                f"{len(limit.closing_ids)}",
                param="reasoning_limit",
            )
        if not 0 <= min(limit.closing_ids) <= max(limit.closing_ids) < info.vocab_size:
            raise InvalidParameter(
                f"reasoning_limit: token IDs must be between 0 and {info.vocab_size - 1}", param="reasoning_limit"
            )
    for token_id, bias in sampling.logit_bias.items():
        if not abs(bias) <= MAX_NUMBER:
            raise InvalidParameter(
                f"logit_bias must be between {-MAX_NUMBER:g} and {MAX_NUMBER:g}, got {bias} for token ID {token_id}",
                param="logit_bias",
            )


def _check_length(request: Request, info: ModelInfo) -> None:
    length, wanted = len(request.prompt), request.sampling.max_tokens
    if length >= info.max_model_len:
        raise ContextExceeded(
            f"the prompt has {length} tokens, but the model's context has {info.max_model_len}, including the answer",
            param="prompt",
        )
    together = f"the prompt has {length} tokens and max_tokens is {wanted}, together more than the"
    if length + wanted > info.max_model_len:
        raise ContextExceeded(f"{together} model's context of {info.max_model_len} tokens", param="max_tokens")
    capacity = info.num_pages * info.page_size
    if length >= capacity:
        raise CapacityExceeded(
            f"the prompt has {length} tokens, but the KV cache holds {capacity}, including the answer", param="prompt"
        )
    if length + wanted > capacity:
        raise CapacityExceeded(f"{together} {capacity} tokens that the KV cache holds", param="max_tokens")
