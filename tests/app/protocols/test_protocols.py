"""Errors for invalid request bodies; their cost does not grow with the number of faults."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from app.errors import ApiError
from app.protocols.chat import ChatRequest
from app.protocols.completions import CompletionRequest
from app.protocols.realtime import EventRefused, ResponseCreate, parse_event
from app.protocols.schema import MAX_NAME_CHARACTERS, Strict, parse
from app.text.chat_template import ChatTemplate

MANY_FIELDS = {f"k{number}": 1 for number in range(5000)}
MESSAGE = {"role": "user", "content": "a"}


@pytest.mark.parametrize(
    ("schema", "body"),
    [
        (CompletionRequest, {"prompt": "a", **MANY_FIELDS}),
        (CompletionRequest, {"prompt": "a", "metadata": MANY_FIELDS}),
        (CompletionRequest, {"prompt": "a", "logit_bias": dict.fromkeys(MANY_FIELDS, "x")}),
        (CompletionRequest, {"prompt": ["a"] * 5000}),
        (CompletionRequest, {"prompt": [1.5] * 5000}),
        (ChatRequest, {"messages": [MANY_FIELDS] * 50}),
        (ChatRequest, {"messages": [{"role": "user", "content": [{"type": "text", **MANY_FIELDS}] * 50}]}),
        (ChatRequest, {"messages": [MESSAGE], "stream_options": MANY_FIELDS}),
        (ResponseCreate, {"type": "response.create", **MANY_FIELDS}),
        (ResponseCreate, {"type": "response.create", "response": {"input": [MANY_FIELDS] * 50}}),
    ],
)
def test_the_number_of_reported_faults_is_bounded(schema: type[Strict], body: dict[str, Any]):
    """Each fault would be an object, and a body has room for hundreds of thousands."""
    with pytest.raises(ValidationError) as refused:
        schema.model_validate_json(json.dumps(body))
    assert refused.value.error_count() < 50


def test_too_many_logit_biases_are_refused_before_validation():
    with pytest.raises(ApiError, match="logit_bias: at most 1024 fields, got 5000") as refused:
        parse(CompletionRequest, json.dumps({"prompt": "a", "logit_bias": MANY_FIELDS}).encode())
    assert refused.value.param == "logit_bias"


@pytest.mark.parametrize("name", ["tools[]", "str", "int", "constrained-x", "k", "", "\u2028"])
@pytest.mark.parametrize("more", [{}, MANY_FIELDS])
def test_an_unknown_field_of_any_name_is_named(name: str, more: dict[str, Any]):
    """This includes names of types, which a Pydantic path uses for the alternatives of a field."""
    body = {"prompt": "a", name: 1, **more}
    with pytest.raises(ApiError) as refused:
        parse(CompletionRequest, json.dumps(body).encode())
    assert (str(refused.value), refused.value.param) == (f"unsupported parameter: {name}", name)


def test_a_very_long_field_name_is_shortened_in_the_error():
    with pytest.raises(ApiError) as refused:
        parse(CompletionRequest, json.dumps({"prompt": "a", "x" * 100_000: 1}).encode())
    assert refused.value.param == "x" * MAX_NAME_CHARACTERS and len(str(refused.value)) < 2 * MAX_NAME_CHARACTERS


def test_an_unknown_field_of_an_event_is_named_among_many():
    with pytest.raises(EventRefused) as refused:
        parse_event(json.dumps({"type": "response.create", "response": {}, **MANY_FIELDS}))
    assert refused.value.error.param == "k0"


def test_a_list_that_is_too_long_is_reported_as_too_long():
    """The error does not report the type of the list or of its items."""
    with pytest.raises(ApiError, match="prompt: List should have at most") as refused:
        parse(CompletionRequest, json.dumps({"prompt": [1] * (1 << 19)}).encode())
    assert refused.value.param == "prompt"


def test_the_name_of_a_message_reaches_the_template():
    """A template gets the name of a message if there is one; AutoGen gives every message a name."""
    messages = [MESSAGE | {"name": "anna"}, MESSAGE | {"name": None}, MESSAGE]
    turns = parse(ChatRequest, json.dumps({"messages": messages}).encode()).prompt.turns
    template = ChatTemplate("{% for m in messages %}{{ m.name | default('nobody') }} {% endfor %}", {})
    assert template.render(turns) == "anna nobody nobody "
