"""Tools in a prompt and history in text, for chat templates that do not support tools."""

from __future__ import annotations

import json

from app.text.tools.default_prompt import default_prompt, text_turns
from app.text.tools.definitions import Tool, ToolUse
from app.text.tools.formats import find_format
from tests.app.text.tools.corpus import TOOLS
from tests.app.text.tools.test_corpus import parse


def call(name: str, arguments: object) -> dict[str, object]:
    """Return a call as in OpenAI's chat completions."""
    return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}


def test_the_prompt_offers_each_tool():
    """Each tool is one line of JSON between the tags, and the prompt is short."""
    prompt = default_prompt(TOOLS)
    listed = prompt.partition("<tools>\n")[2].partition("\n</tools>")[0].splitlines()
    assert [json.loads(line)["name"] for line in listed] == [tool.name for tool in TOOLS]
    assert json.loads(listed[1]) == {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": TOOLS[1].parameters,
    }
    assert len(default_prompt([])) < 400 and prompt.endswith("</tools>")


def test_the_prompt_shows_the_format_that_is_parsed():
    """The example in the prompt is a call of the Hermes format."""
    prompt = default_prompt([])
    found = find_format(prompt)
    assert found is not None and found.name == "hermes"
    _, _, calls = parse("hermes", [prompt], ToolUse((Tool("NAME"),)))
    assert calls == (("NAME", '{"KEY": "VALUE"}'),)


def test_calls_and_results_become_text():
    """A result is a message of the user, because the template has no other role; adjacent results are one message."""
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "Wait.", "tool_calls": [call("a", '{"x":1}'), call("b", {"é": [2]})]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
        {"role": "tool", "tool_call_id": "call_2", "content": "warm"},
        {"role": "assistant", "content": "Fine.", "name": "bot"},
    ]
    assert text_turns(messages) == [
        messages[0],
        messages[1],
        {
            "role": "assistant",
            "content": 'Wait.\n<tool_call>\n{"name": "a", "arguments": {"x":1}}\n</tool_call>\n'
            '<tool_call>\n{"name": "b", "arguments": {"é": [2]}}\n</tool_call>',
        },
        {
            "role": "user",
            "content": "<tool_response>\nsunny\n</tool_response>\n<tool_response>\nwarm\n</tool_response>",
        },
        messages[5],
    ]


def test_a_message_of_the_user_after_a_result_joins_it():
    """Templates refuse two messages of one role in a row; messages that had no tools are not changed."""
    result, user = {"role": "tool", "content": "1"}, {"role": "user", "content": "Go on."}
    [joined, other] = text_turns([result, user, user])
    assert joined == {"role": "user", "content": "<tool_response>\n1\n</tool_response>\nGo on."} and other == user


def test_any_history_is_valid_in_text():
    """Content may be missing, and the arguments of a cut call are written as a string."""
    contents = [
        text_turns([{"role": "assistant", "content": None, "tool_calls": [call('f"', arguments)]}])[0]["content"]
        for arguments in ("", None, '{"a": ', "[1]", "[" * 100_000, {})
    ]
    calls = [json.loads(content.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")) for content in contents]
    assert [each["name"] for each in calls] == ['f"'] * 6
    assert [each["arguments"] for each in calls] == [{}, {}, '{"a": ', "[1]", "[" * 100_000, {}]
