"""What is said of a body that is wrong, and that saying it costs no more the more there is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from app.chat_template import ChatTemplate
from app.errors import ApiError
from app.schemas.chat import ChatRequest
from app.schemas.common import MAX_NAME, Strict, parse
from app.schemas.completions import CompletionRequest
from app.schemas.realtime import EventRefused, ResponseCreate, parse_event

MANY = {f"k{number}": 1 for number in range(5000)}
SAID = {"role": "user", "content": "a"}


@pytest.mark.parametrize(
    ("schema", "body"),
    [
        (CompletionRequest, {"prompt": "a", **MANY}),
        (CompletionRequest, {"prompt": "a", "metadata": MANY}),
        (CompletionRequest, {"prompt": "a", "logit_bias": dict.fromkeys(MANY, "x")}),
        (CompletionRequest, {"prompt": ["a"] * 5000}),
        (CompletionRequest, {"prompt": [1.5] * 5000}),
        (ChatRequest, {"messages": [{**SAID, **MANY}]}),
        (ChatRequest, {"messages": [MANY] * 50}),
        (ChatRequest, {"messages": [{"role": "user", "content": [{"type": "text", "text": "", "q": MANY}] * 50}]}),
        (ChatRequest, {"messages": [{"role": "user", "content": [{"type": "text", "text": "", **MANY}]}]}),
        (ResponseCreate, {"type": "response.create", **MANY}),
        (ResponseCreate, {"type": "response.create", "response": {"input": [MANY] * 50}}),
    ],
)
def test_a_body_full_of_mistakes_is_not_listed_mistake_by_mistake(schema: type[Strict], body: dict[str, Any]):
    """Each would be an object, and a body has room for hundreds of thousands."""
    with pytest.raises(ValidationError) as refused:
        schema.model_validate_json(json.dumps(body))
    assert refused.value.error_count() < 50


def test_more_biases_than_may_be_are_not_looked_at():
    with pytest.raises(ApiError, match="logit_bias: at most 1024 fields, got 5000") as refused:
        parse(CompletionRequest, json.dumps({"prompt": "a", "logit_bias": MANY}).encode())
    assert refused.value.param == "logit_bias"


@pytest.mark.parametrize("name", ["tools[]", "str", "int", "constrained-x", "k", "", "\u2028"])
@pytest.mark.parametrize("more", [{}, MANY])
def test_an_unknown_field_is_named_whatever_it_is_called(name: str, more: dict[str, Any]):
    """Names of types too, with which a path names one of a field's alternatives."""
    body = {"prompt": "a", name: 1, **more}
    with pytest.raises(ApiError) as refused:
        parse(CompletionRequest, json.dumps(body).encode())
    assert (str(refused.value), refused.value.param) == (f"unsupported parameter: {name}", name)


def test_a_name_as_long_as_a_body_is_not_sent_back_whole():
    with pytest.raises(ApiError) as refused:
        parse(CompletionRequest, json.dumps({"prompt": "a", "x" * 100_000: 1}).encode())
    assert refused.value.param == "x" * MAX_NAME and len(str(refused.value)) < 2 * MAX_NAME


def test_an_unknown_field_of_an_event_is_named_among_many():
    with pytest.raises(EventRefused) as refused:
        parse_event(json.dumps({"type": "response.create", "response": {}, **MANY}))
    assert refused.value.error.param == "k0"


def test_of_a_list_that_is_too_long_that_is_said():
    """And not that it is no string, nor that it holds none."""
    with pytest.raises(ApiError, match="prompt: List should have at most") as refused:
        parse(CompletionRequest, json.dumps({"prompt": [1] * (1 << 19)}).encode())
    assert refused.value.param == "prompt"


def test_who_speaks_is_the_template_s_to_say():
    """A name comes to it where there is one. AutoGen gives every message one."""
    messages = [SAID | {"name": "anna"}, SAID | {"name": None}, SAID]
    turns = parse(ChatRequest, json.dumps({"messages": messages}).encode()).turns
    template = ChatTemplate("{% for m in messages %}{{ m.name | default('nobody') }} {% endfor %}", {})
    assert template.render(turns) == "anna nobody nobody "
