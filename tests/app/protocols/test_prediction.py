"""Fields `prediction` and `speculation`, and the counts of a prediction in the usage."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.errors import ApiError
from app.protocols.answers import usage
from app.protocols.chat import ChatRequest
from app.protocols.common import SamplingFields
from app.protocols.completions import CompletionRequest
from app.protocols.responses import ResponsesRequest
from app.protocols.schema import parse
from app.streams.stream_log import PredictionTokens, Usage

BODIES: list[tuple[type[SamplingFields], dict[str, Any]]] = [
    (ChatRequest, {"messages": [{"role": "user", "content": "Hello"}]}),
    (CompletionRequest, {"prompt": "Hello"}),
]


def read(schema: type[SamplingFields], body: dict[str, Any], prediction: Any) -> SamplingFields:
    return parse(schema, json.dumps(body | {"prediction": prediction}).encode())


@pytest.mark.parametrize(("schema", "body"), BODIES)
@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("a b", "a b"),
        ("", ""),
        ([{"type": "text", "text": "a "}, {"type": "text", "text": "b", "annotations": []}], "a b"),
        ([], ""),
    ],
)
def test_the_content_is_a_text_or_text_parts(schema: type[SamplingFields], body: dict, content: Any, text: str):
    """Parts are joined."""
    request = read(schema, body, {"type": "content", "content": content}).generation_request()
    assert request.prediction == text


@pytest.mark.parametrize(("schema", "body"), BODIES)
def test_a_request_without_a_prediction_has_none(schema: type[SamplingFields], body: dict):
    """Null counts as left out."""
    assert read(schema, body, None).generation_request().prediction is None


@pytest.mark.parametrize(("schema", "body"), BODIES)
@pytest.mark.parametrize(
    ("prediction", "message"),
    [
        ("a", "prediction: "),
        ({"content": "a"}, "prediction.type: Field required"),
        ({"type": "content"}, "prediction.content: Field required"),
        ({"type": "text", "content": "a"}, "prediction.type: Input should be 'content'"),
        ({"type": "content", "content": 5}, "prediction.content: "),
        ({"type": "content", "content": ["a"]}, "prediction.content.0: "),
        ({"type": "content", "content": [{"type": "image_url", "text": "a"}]}, "prediction.content.0.type: "),
        ({"type": "content", "content": "a", "x": 1}, "unsupported parameter: prediction.x"),
    ],
)
def test_a_wrong_prediction_is_refused_by_name(schema: type[SamplingFields], body: dict, prediction: Any, message: str):
    """With the path to what is wrong."""
    with pytest.raises(ApiError) as refused:
        read(schema, body, prediction)
    assert str(refused.value).startswith(message)
    assert (refused.value.status, refused.value.param) == (400, "prediction")


@pytest.mark.parametrize(("schema", "body"), [*BODIES, (ResponsesRequest, {"input": "Hello"})])
def test_a_request_has_drafts_unless_it_turns_speculation_off(schema: type[SamplingFields], body: dict):
    """Null counts as left out."""
    for given, expected in (({}, True), ({"speculation": None}, True), ({"speculation": False}, False)):
        request = parse(schema, json.dumps(body | given).encode()).generation_request()
        assert request.speculation is expected


def test_a_prediction_needs_a_single_prompt():
    """It is the answer to one of them at most."""
    request = read(CompletionRequest, {"prompt": ["a", "b"]}, {"type": "content", "content": "c"})
    with pytest.raises(ApiError, match="prediction needs a single prompt, got 2") as refused:
        request.generation_requests()
    assert refused.value.param == "prediction"


def test_the_usage_has_the_tokens_of_a_prediction_if_there_was_one():
    """With zeros if none was tried."""
    assert usage(Usage(1, 2, 0))["completion_tokens_details"] == {"reasoning_tokens": 0}
    counted = usage(Usage(1, 9, 0, prediction=PredictionTokens(3, 0)))["completion_tokens_details"]
    assert counted == {"reasoning_tokens": 0, "accepted_prediction_tokens": 3, "rejected_prediction_tokens": 0}
