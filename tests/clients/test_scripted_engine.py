"""The scripted model and its server."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.clients.scripted_engine import (
    ANSWER_BEGIN,
    COUNTS,
    DEFAULT_ANSWER,
    RESULT_PREFIX,
    UNREADABLE,
    scripted_answer,
)
from tests.conftest import Server

TOOLS = '<tools>\n{"name": "read"}\n</tools>\n'
CALL = 'Please read it. @call read {"path": "a {b}", "lines": [1, 2]} Thank you.'
RESULT = "<tool_response>\nfirst line\nsecond line\n</tool_response>"


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [
        ("Hello", DEFAULT_ANSWER),
        ("@endless", None),
        (CALL, DEFAULT_ANSWER),
        ("### Task:\nSuggest a title. @endless", DEFAULT_ANSWER),
        (
            f"{TOOLS}{CALL}",
            '<tool_call>\n{"name": "read", "arguments": {"path": "a {b}", "lines": [1, 2]}}\n</tool_call>',
        ),
        (f"{TOOLS}@call read {{path}}", UNREADABLE),
        (f"{TOOLS}{CALL}{RESULT}", f"{RESULT_PREFIX}first line\nsecond line"),
        ('@write {"b":  [1, "é"]} Thank you.', '{"b":  [1, "é"]}'),
        ("@write [1, 2", UNREADABLE),
        (
            f"{TOOLS}{CALL}{ANSWER_BEGIN}{RESULT}{ANSWER_BEGIN} @count {ANSWER_BEGIN}",
            COUNTS.format(answers=2, results=1),
        ),
        (f"{TOOLS}{CALL}{RESULT} @call stop {{}}", '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>'),
    ],
)
def test_the_last_directive_of_a_prompt_states_the_answer(prompt: str, answer: str | None):
    """A result after it is repeated, and without tools there is no call."""
    assert scripted_answer(prompt) == answer


@pytest.fixture(scope="module")
def scripted() -> Iterator[httpx.Client]:
    server = Server.start(command=("tests.clients.scripted_server",))
    with httpx.Client(base_url=server.url) as client:
        yield client
    server.stop()


def ask(scripted: httpx.Client, text: str, **fields: object) -> httpx.Response:
    return scripted.post(
        "/v1/chat/completions", json={"messages": [{"role": "user", "content": text}], **fields}, timeout=60
    )


def test_a_scripted_call_is_a_tool_call_of_the_answer(scripted: httpx.Client):
    """Its text is generated under the grammar of the tool, and parsed."""
    parameters = {"type": "object", "properties": {"path": {"type": "string"}}, "additionalProperties": False}
    function = {"name": "read", "parameters": parameters, "strict": True}
    answer = ask(scripted, '@call read {"path": "a.txt"}', tools=[{"type": "function", "function": function}]).json()
    [call] = answer["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "read", "arguments": '{"path": "a.txt"}'}
    refused = ask(scripted, '@call read {"file": "a.txt"}', tools=[{"type": "function", "function": function}])
    assert refused.json()["error"]["code"] == "no_token_allowed"


def test_an_endless_answer_ends_at_the_limit_of_tokens_or_with_its_client(scripted: httpx.Client):
    """It is not the scripted model that ends it."""
    limited = ask(scripted, "@endless", max_tokens=50).json()
    assert limited["choices"][0]["finish_reason"] == "length"
    assert limited["choices"][0]["message"]["content"].startswith("on and on and on")
