"""`continue_final_message` and `add_generation_prompt` of chat completions, with a fake engine."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from app.text.text_model import TextModel
from tests.app.routes.test_http import CHAT, make, ready

QUESTION = {"role": "user", "content": "hi"}
OPEN = {"role": "assistant", "content": "hell"}


@pytest.fixture(scope="module")
def http():
    with make() as client:
        yield ready(client)


def ask(http: TestClient, *messages: dict, **fields) -> dict:
    return http.post(CHAT, json={"messages": messages, "max_tokens": 2, **fields}).json()


def test_the_prompt_of_a_continued_answer_ends_with_the_answer(http):
    """The prompt has exactly the tokens of the rendered text, and the response holds the new text only."""
    whole = ask(http, QUESTION, OPEN, add_generation_prompt=False)
    more = ask(http, QUESTION, OPEN, add_generation_prompt=False, continue_final_message=True)
    text = http.app.state.service.text
    assert more["usage"]["prompt_tokens"] == len(text.encode("[user]hi[assistant]hell"))
    assert more["usage"]["prompt_tokens"] <= whole["usage"]["prompt_tokens"]
    assert more["usage"]["completion_tokens"] == 2
    assert not more["choices"][0]["message"]["content"].startswith("hell")


@pytest.mark.parametrize(
    ("messages", "fields", "message"),
    [
        ([QUESTION], {}, "needs a last message with the role 'assistant', got 'user'"),
        ([OPEN, {"role": "system", "content": "x"}], {}, "got 'system'"),
        ([QUESTION, OPEN], {"add_generation_prompt": True}, "add_generation_prompt cannot both be true"),
    ],
)
def test_an_answer_that_cannot_be_continued_is_refused_by_name(http, messages, fields, message):
    """The last message is not an answer, or a new answer is requested too."""
    error = ask(http, *messages, continue_final_message=True, **fields)["error"]
    assert (error["param"], error["code"]) == ("continue_final_message", "invalid_value")
    assert message in error["message"]


def test_a_conversation_may_be_given_without_a_generation_prompt(http, monkeypatch):
    """The default of the template's flag is true."""
    template = "{% for m in messages %}{{ m.content }}{% endfor %}{{ 'hell' if add_generation_prompt }}"
    service = http.app.state.service
    monkeypatch.setattr(service.prompts, "text", TextModel(service.text.tokenizer, template, {}, frozenset()))
    flags = ({}, {"add_generation_prompt": True}, {"add_generation_prompt": False})
    counts = [ask(http, QUESTION, **flag)["usage"]["prompt_tokens"] for flag in flags]
    assert counts[0] == counts[1] == counts[2] + 1


def test_a_continued_message_with_an_open_block_gets_more_reasoning(http):
    """Streamed and whole, until the model closes the block."""
    message = {"role": "assistant", "content": "<think>Hm"}
    fields = {"add_generation_prompt": False, "continue_final_message": True, "temperature": 0}
    whole = ask(http, QUESTION, message, **fields)["choices"][0]["message"]
    assert whole["content"] == "" and whole["reasoning_content"]
    plain = ask(http, QUESTION, {"role": "assistant", "content": "<think>Hm</think>a"}, **fields)
    assert plain["choices"][0]["message"].keys() == {"role", "content", "refusal"}
