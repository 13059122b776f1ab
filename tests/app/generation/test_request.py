"""Requests of all protocols become the same `GenerationRequest`."""

from __future__ import annotations

import pytest

from app.generation.request import GenerationRequest
from app.protocols.chat import ChatRequest
from app.protocols.common import SAMPLING_NAMES, TextRequest
from app.protocols.completions import CompletionRequest
from app.protocols.realtime_fields import ResponseFields, SessionFields, generation_request
from app.protocols.responses import ResponsesRequest
from app.protocols.schema import validate
from engine.types import SamplingParams, ServiceClass

EOS = frozenset({2})
TURNS = [{"role": "user", "content": "hi"}]
RECOMMENDED = {"temperature": 0.6, "top_k": 20, "repetition_penalty": 1.1}


def params(request: GenerationRequest) -> SamplingParams:
    return request.sampling_params(50, EOS, RECOMMENDED)


def chat(**fields) -> GenerationRequest:
    return validate(ChatRequest, {"messages": TURNS, **fields}).generation_request()


def completion(**fields) -> GenerationRequest:
    return validate(CompletionRequest, {"prompt": "hi", **fields}).generation_request()


def response(**fields) -> GenerationRequest:
    return validate(ResponsesRequest, {"input": "hi", **fields}).generation_request()


def realtime(session: dict | None = None, **fields) -> GenerationRequest:
    response, defaults = ResponseFields(**fields), SessionFields(**(session or {}))
    return generation_request(TURNS, response, defaults, ServiceClass.INTERACTIVE, "s1")


def test_the_same_parameters_give_the_same_sampling_in_every_protocol():
    """Set values override the checkpoint's recommendations, which override neutral ones."""
    given = {"temperature": 0.2, "top_p": 0.9, "seed": 7}
    expected = SamplingParams(
        max_tokens=9, temperature=0.2, top_k=20, top_p=0.9, repetition_penalty=1.1, stop_token_ids=(2,), seed=7
    )
    assert params(chat(**given, max_tokens=9)) == expected
    assert params(completion(**given, max_tokens=9)) == expected
    assert params(response(**given, max_output_tokens=9)) == expected
    assert params(realtime(**given, max_output_tokens=9)) == expected
    assert params(realtime({"temperature": 0.2, "top_p": 0.1}, top_p=0.9, seed=7, max_output_tokens=9)) == expected


@pytest.mark.parametrize("schema", [ChatRequest, CompletionRequest, ResponsesRequest])
def test_every_sampling_field_of_a_schema_reaches_the_engine(schema: type[TextRequest]):
    """A field that is forgotten would be accepted without effect."""
    values = {
        "min_tokens": 3,
        "temperature": 0.5,
        "top_k": 4,
        "top_p": 0.7,
        "min_p": 0.1,
        "top_n_sigma": 1.5,
        "frequency_penalty": 0.2,
        "presence_penalty": 0.3,
        "repetition_penalty": 1.2,
        "logit_bias": {"5": 1.5},
        "seed": -1,
    }
    assert set(SAMPLING_NAMES) <= values.keys(), "add the new parameter to this test"
    names = {ChatRequest: "messages", CompletionRequest: "prompt", ResponsesRequest: "input"}
    prompt = {names[schema]: "hi" if schema is CompletionRequest else TURNS}
    sampling = params(validate(schema, prompt | values | {"stop": ["a"]}).generation_request())
    expected = values | {"logit_bias": {5: 1.5}, "seed": 2**64 - 1}
    assert {name: getattr(sampling, name) for name in values} == expected
    assert sampling.has_stop_strings


@pytest.mark.parametrize(
    ("request_", "limit"),
    [
        (completion(), 16),
        (completion(min_tokens=30), 30),
        (completion(min_tokens=60), 50),
        (completion(max_tokens=70), 70),
        (chat(), 50),
        (chat(max_completion_tokens=3), 3),
        (realtime(), 50),
        (realtime({"max_output_tokens": 8}, max_output_tokens="inf"), 50),
    ],
)
def test_each_protocol_has_its_own_default_limit(request_: GenerationRequest, limit: int):
    """50 tokens fit after the prompt. A limit that does not fit is refused later, by the engine's check."""
    assert request_.token_limit(50) == limit


def test_a_seed_is_drawn_for_each_request_without_one():
    """The engine always receives one, and -1 of `top_k` means off."""
    assert params(chat()).seed != params(chat()).seed
    assert params(chat(top_k=-1)).top_k == 0


def test_only_answers_to_conversations_are_messages_of_their_own():
    """Text completions continue the prompt."""
    assert isinstance(completion().prompt, str) and completion().continues_prompt
    assert not chat().continues_prompt


@pytest.mark.parametrize(
    ("response", "session", "prompt", "limit"),
    [
        ({"max_output_tokens": 5}, {}, "conversation", "response.max_output_tokens"),
        ({}, {"max_output_tokens": 5}, "conversation", "session.max_output_tokens"),
        ({"max_output_tokens": 5}, {"max_output_tokens": 6}, "conversation", "response.max_output_tokens"),
        ({"input": []}, {}, "response.input", "session.max_output_tokens"),
    ],
)
def test_errors_of_a_realtime_response_name_the_fields_that_were_sent(response, session, prompt: str, limit: str):
    """A limit may be the session's, and the prompt may be the response's own input."""
    fields, defaults = validate(ResponseFields, response), validate(SessionFields, session)
    names = generation_request(TURNS, fields, defaults, ServiceClass.INTERACTIVE, "s1").parameter_names
    assert names == {"prompt": prompt, "max_tokens": limit}
