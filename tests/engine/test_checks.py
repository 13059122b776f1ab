"""A request that can never be served is refused with the parameter's name."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from engine.checks import check_request
from engine.errors import CapacityExceeded, ContextExceeded, InvalidParameter, RequestRefused
from engine.types import SAMPLING_BOUNDS, ModelInfo, Request, SamplingParams

INFO = ModelInfo(
    name="m", vocab_size=50, max_model_len=64, num_pages=3, page_size=16, max_num_seqs=2, device="cpu", dtype="float32",
    parameters=1,
)  # fmt: skip
GOOD = Request(id="r", prompt=(1, 2, 3), sampling=SamplingParams(max_tokens=8))


def test_a_good_request_passes():
    """Defaults and the ends of every range are accepted."""
    check_request(GOOD, INFO)
    ends = {"temperature": 0.0, "top_p": 0.0, "min_p": 1.0, "seed": 2**64 - 1, "min_tokens": 8, "logprobs": 50}
    check_request(replace(GOOD, sampling=replace(GOOD.sampling, **ends)), INFO)
    check_request(replace(GOOD, sampling=SamplingParams(max_tokens=45)), INFO)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1), ("temperature", math.nan), ("temperature", math.inf), ("top_k", -1), ("top_k", 2**31),
        ("top_p", 1.1), ("top_p", math.nan), ("min_p", -0.1), ("top_n_sigma", -0.1), ("frequency_penalty", math.inf),
        ("presence_penalty", math.nan), ("repetition_penalty", 0.0), ("seed", -1), ("seed", 2**64), ("logprobs", 51),
        ("logprobs", -1), ("max_tokens", 0), ("min_tokens", 9), ("min_tokens", -1), ("logit_bias", {50: 1.0}),
        ("logit_bias", {3: math.inf}), ("logit_bias", {3: math.nan}), ("logit_bias", {3: -1e39}),
        ("stop_token_ids", (-1,)),
    ],
)  # fmt: skip
def test_a_sampling_parameter_out_of_range_is_named(name: str, value: Any):
    """NaN and infinity are out of range."""
    with pytest.raises(RequestRefused, match=name) as refused:
        check_request(replace(GOOD, sampling=replace(GOOD.sampling, **{name: value})), INFO)
    assert refused.value.param == name


@pytest.mark.parametrize("name", SAMPLING_BOUNDS)
def test_every_bound_of_a_sampling_parameter_is_checked_by_the_engine_and_not_by_the_decoder(name: str):
    """A value beyond a declared bound crosses the process border and is refused with name, bounds and value."""
    low, high = SAMPLING_BOUNDS[name].low, SAMPLING_BOUNDS[name].high
    beyond = high + 1 if isinstance(high, int) else high * 2 + 1
    request = replace(GOOD, sampling=replace(GOOD.sampling, **{name: beyond}))
    if name != "seed":  # MessagePack has no larger integer
        request = msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=Request)
    with pytest.raises(InvalidParameter) as refused:
        check_request(request, INFO)
    assert str(refused.value) == f"{name} must be between {low:g} and {high:g}, got {beyond}"


@pytest.mark.parametrize(
    "changes",
    [
        {"n": 0}, {"prompt": ()}, {"prompt": (1, 50)}, {"prompt": (-1,)}, {"output_so_far": {1: ()}},
        {"output_so_far": {-1: ()}},
        {"output_so_far": {0: (1,) * 8}}, {"output_so_far": {0: (50,)}}, {"output_so_far": {0: (3, -1)}},
        {"prediction": (1, 50)}, {"prediction": (-1, 1)},
    ],
)  # fmt: skip
def test_a_bad_request_field_is_named(changes: dict[str, Any]):
    """Invalid choice counts, prompts and resumed outputs are refused with the field's name."""
    with pytest.raises(RequestRefused) as refused:
        check_request(replace(GOOD, **changes), INFO)
    assert refused.value.param == next(iter(changes))


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "error", "param"),
    [
        (64, 1, ContextExceeded, "prompt"),
        (60, 5, ContextExceeded, "max_tokens"),
        (40, 9, CapacityExceeded, "max_tokens"),
    ],
)
def test_a_request_that_never_fits_is_refused_with_the_numbers(
    prompt: int, max_tokens: int, error: type[RequestRefused], param: str
):
    """The context has 64 tokens, the pool 48."""
    request = Request(id="r", prompt=(1,) * prompt, sampling=SamplingParams(max_tokens=max_tokens))
    with pytest.raises(error, match=str(prompt)) as refused:
        check_request(request, INFO)
    assert refused.value.param == param
