"""Requests of `/v1/responses`, as conversations, tools and constraints."""

from __future__ import annotations

import pytest

from app.errors import ApiError
from app.generation.request import GenerationRequest
from app.protocols.chat import ChatRequest
from app.protocols.common import template_variables
from app.protocols.responses import ResponsesRequest
from app.protocols.schema import validate
from app.text.content_format import ContentFormat
from app.text.tools.definitions import Tool, ToolUse

USER = {"role": "user", "content": "hi"}
WEATHER = {"type": "function", "name": "weather", "description": "d", "parameters": {"type": "object"}, "strict": True}
CLOCK = {"type": "function", "name": "clock", "parameters": None, "strict": None}

AGENTS = {"type": "namespace", "name": "agents", "description": "Other agents.", "tools": [CLOCK, WEATHER]}


def requested(given="hi", **fields) -> GenerationRequest:
    return validate(ResponsesRequest, {"input": given, **fields}).generation_request()


def turns(*items, **fields) -> list[dict]:
    return requested(list(items), **fields).prompt.turns


def call(name: str, **fields) -> dict:
    return {"type": "function_call", "call_id": name, "name": "f", "arguments": "{}", **fields}


def output(name: str, content="done") -> dict:
    return {"type": "function_call_output", "call_id": name, "output": content}


def tool_call(name: str) -> dict:
    return {"id": name, "type": "function", "function": {"name": "f", "arguments": {}}}


def reasoning(text: str, **fields) -> dict:
    return {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": text}], **fields}


def test_a_text_is_a_turn_of_the_user_after_the_instructions():
    """Empty instructions are none."""
    assert requested(instructions="Be brief.").prompt.turns == [{"role": "system", "content": "Be brief."}, USER]
    assert requested(instructions="").prompt.turns == [USER]


def test_messages_of_every_form_become_turns():
    """Types, ids, states, annotations and cache marks do not reach the template."""
    mark = {"mode": "explicit"}
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b", "prompt_cache_breakpoint": mark}]
    answer = [
        {"type": "output_text", "text": "c", "annotations": [{"type": "file_path"}], "logprobs": []},
        {"type": "refusal", "refusal": "d"},
    ]
    extra = {"type": "message", "id": "msg_1", "status": "completed", "phase": "final_answer"}
    assert turns(
        {"role": "developer", "content": "s"},
        {"type": "message", "role": "system", "content": "t"},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": answer, **extra},
    ) == [
        {"role": "system", "content": "s"},
        {"role": "system", "content": "t"},
        {"role": "user", "content": "ab"},
        {"role": "assistant", "content": "cd"},
    ]


def test_consecutive_items_of_the_assistant_are_one_turn():
    """The text of reasoning is preferred to its summary, and the text after a call belongs to the same turn."""
    content = [{"type": "reasoning_text", "text": "whole"}]
    found = turns(
        USER,
        reasoning("short", content=content, encrypted_content="x", status="completed"),
        {"role": "assistant", "content": "Wait."},
        call("a", id="fc_1", status="completed"),
        reasoning("more"),
        call("b"),
        {"role": "assistant", "content": "Done?"},
        output("b"),
        output("a", [{"type": "input_text", "text": "o"}, {"type": "input_text", "text": "k"}]),
        {"role": "assistant", "content": "Yes."},
    )
    assert found == [
        USER,
        {
            "role": "assistant",
            "content": "Wait.\n\nDone?",
            "reasoning_content": "whole\n\nmore",
            "tool_calls": [tool_call("a"), tool_call("b")],
        },
        {"role": "tool", "tool_call_id": "b", "content": "done"},
        {"role": "tool", "tool_call_id": "a", "content": "ok"},
        {"role": "assistant", "content": "Yes."},
    ]


def test_calls_in_sequence_are_a_turn_each():
    """A turn ends where its outputs begin."""
    found = turns(USER, call("a"), output("a"), call("a"), output("a"))
    assert [turn["role"] for turn in found] == ["user", "assistant", "tool", "assistant", "tool"]
    assert found[1] == {"role": "assistant", "content": "", "tool_calls": [tool_call("a")]}


def test_reasoning_without_a_text_or_an_answer_is_dropped():
    """Encrypted reasoning cannot be read, and reasoning alone is not a turn."""
    assert turns(reasoning("alone"), USER) == [USER]
    encrypted = {"type": "reasoning", "encrypted_content": "x"}
    assert turns(encrypted, {"role": "assistant", "content": "a"}) == [{"role": "assistant", "content": "a"}]


def refusal(given="hi", **fields) -> ApiError:
    with pytest.raises(ApiError) as refused:
        requested(given, **fields)
    return refused.value


@pytest.mark.parametrize(
    ("items", "param", "message"),
    [
        ([output("a")], "input[0].call_id", "no function_call before this item has the call_id 'a'"),
        ([call("a"), output("a"), output("a")], "input[2].call_id", "lacks an output"),
        ([USER, {**USER, "content": [{"type": "input_text", "text": 5}]}], "input[1].content[0].text", "valid string"),
        ([{**USER, "content": 5}], "input[0].content", "input[0].content: "),
        ([{**USER, "role": "tool"}], "input[0].role", "input[0].role: "),
        ([{**USER, "content": [{"type": "input_image"}]}], "input[0].content[0]", "'input_image' is not supported"),
        ([{**USER, "content": [{"type": "input_file"}]}], "input[0].content[0]", "'input_file' is not supported"),
        ([{**USER, "content": [{"text": "a"}]}], "input[0].content[0]", "an object with a type"),
        ([USER, {"type": "custom_tool_call"}], "input[1]", "'custom_tool_call' is not supported"),
        ([USER, {"type": "local_shell_call"}], "input[1]", "'local_shell_call' is not supported"),
        ([{"type": ["message"]}], "input[0]", "an object with a type"),
        (["hi"], "input[0]", "an object with a type"),
        ([call("")], "input[0].call_id", "at least 1 character"),
        ([call("a", arguments={})], "input[0].arguments", "valid string"),
        ([call("a", namespace="")], "input[0].namespace", "at least 1 character"),
        ([reasoning("a", content=[{"type": "text", "text": ""}])], "input[0].content[0].type", "'reasoning_text'"),
        ([{**USER, "content": [{"type": "input_text", "text": ""}] * 4000}] * 2, "input", "got 8000"),
        ([call("a"), output("a", [{"type": "input_text", "text": ""}] * 4096), reasoning("")], "input", "got 4097"),
        ([reasoning("", content=[{"type": "reasoning_text", "text": ""}] * 4096)], "input", "got 4097"),
        ([], "input", "at least 1 item"),
        ([USER] * 4097, "input", "at most 4096 items"),
    ],
)
def test_a_wrong_item_is_refused_by_its_path(items: list, param: str, message: str):
    """The path is the one that OpenAI's own server reports."""
    error = refusal(items)
    assert (error.status, error.param) == (400, param)
    assert message in str(error)


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"prompt": {"id": "pmpt_1"}}, "prompt", "send its text"),
        ({"context_management": [{"type": "compaction"}]}, "context_management", "send a shorter input"),
        ({"moderation": {"model": "m"}}, "moderation", "unsupported"),
        ({"tools": [{"type": "custom"}]}, "tools[0]", "'custom' is not supported, only function"),
        ({"tools": [{**CLOCK, "type": "functoin"}]}, "tools[0]", "'functoin' is not supported, only function"),
        ({"tools": [{**AGENTS, "tools": []}]}, "tools[0].tools", "at least 1 item"),
        ({"tools": [{**AGENTS, "tools": [{"type": "custom"}]}]}, "tools[0].tools[0]", "'custom' is not supported"),
        ({"tools": [WEATHER, AGENTS, AGENTS]}, "tools[2].tools[0].name", "'agents__clock' too"),
        ({"tools": [{**AGENTS, "name": "n" * 125}]}, "tools[0].tools[0].name", "more than 128 characters"),
        ({"tools": [WEATHER | {"name": "a b"}]}, "tools[0].name", "pattern"),
        ({"tools": [WEATHER | {"async": True}]}, "tools[0].async", "only false"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].name", "'weather' too"),
        ({"tool_choice": "required"}, "tool_choice", "at least one tool"),
        ({"tool_choice": "any"}, "tool_choice", "'auto', 'none' or 'required'"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice", "only function, allowed_tools"),
        ({"tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name", "no tool in tools has the name 'x'"),
        (
            {
                "tools": [WEATHER],
                "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "x"}]},
            },
            "tool_choice.tools[0].name",
            "no tool in tools has the name 'x'",
        ),
        ({"text": {"verbosity": "huge"}}, "text.verbosity", "'low', 'medium' or 'high'"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format", "'grammar' is not supported"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema", "required"),
        ({"text": {"format": {"type": "text", "schema": {}}}}, "text.format.schema", "unsupported parameter"),
        (
            {"text": {"format": {"type": "json_schema", "name": "a", "schema": {}, "x": 1}}},
            "text.format.x",
            "unsupported parameter",
        ),
        ({"reasoning": {"context": "all_turns"}}, "reasoning.context", 'only "auto"'),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode", 'only "standard"'),
        ({"include": ["all"]}, "include[0]", "message.output_text.logprobs"),
        ({"stream": True, "stream_options": {"include_usage": True}}, "stream_options.include_usage", "unsupported"),
        (
            {"stream": True, "stream_options": {"include_obfuscation": True}},
            "stream_options.include_obfuscation",
            "only",
        ),
        ({"prompt_cache_options": {"prewarm": True}}, "prompt_cache_options.prewarm", "only false"),
        ({"max_output_tokens": 0}, "max_output_tokens", "greater than or equal to 1"),
        ({"n": 2}, "n", "unsupported parameter"),
        ({"messages": []}, "messages", "unsupported parameter"),
    ],
)
def test_a_field_that_cannot_be_honoured_is_refused_by_name(fields: dict, param: str, message: str):
    """The message has the alternative, where there is one."""
    error = refusal(**fields)
    assert (error.status, error.param) == (400, param)
    assert message in str(error)


def test_fields_that_change_no_answer_are_accepted():
    """Codex and OpenAI's libraries send them, also as null."""
    fields = {
        "store": True,
        "background": False,
        "include": ["reasoning.encrypted_content"],
        "user": "u",
        "metadata": {"a": "b"},
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "prompt_cache_retention": "24h",
        "prompt_cache_options": {"mode": "implicit", "ttl": "30m", "prewarm": False},
        "client_metadata": {"a": "b"},
        "max_tool_calls": 3,
        "truncation": "disabled",
        "reasoning": {"summary": "auto", "generate_summary": "concise", "context": "auto", "mode": "standard"},
        "text": {"format": {"type": "text"}, "verbosity": None},
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "stream": True,
        "stream_options": {"include_obfuscation": False},
    }
    names = ResponsesRequest.model_fields.keys() - fields.keys() - {"input"}
    request = requested(**fields, **dict.fromkeys(names))
    assert request.prompt.tools is None and request.prompt.variables is None and request.content_format is None


@pytest.mark.parametrize(
    ("choice", "parallel", "expected"),
    [
        (None, None, {"choice": "auto"}),
        ("none", True, {"choice": "none", "parallel": True}),
        ("required", False, {"choice": "required", "parallel": False}),
        ("required", True, {"choice": "required", "parallel": True}),
        ({"type": "function", "name": "clock"}, None, {"choice": "required", "name": "clock"}),
    ],
)
def test_tools_and_their_choice_reach_the_prompt(choice, parallel: bool | None, expected: dict):
    """A tool without parameters takes none."""
    use = requested(tools=[WEATHER, CLOCK], tool_choice=choice, parallel_tool_calls=parallel).prompt.tools
    tools = Tool("weather", "d", {"type": "object"}, True), Tool("clock", "", {}, False)
    assert use == ToolUse(tools, **expected)


def test_the_functions_of_a_namespace_have_its_name():
    """Templates and tool formats know no namespaces."""
    request = requested(tools=[CLOCK, AGENTS], tool_choice={"type": "function", "name": "agents__clock"})
    use = request.prompt.tools
    assert [tool.name for tool in use.tools] == ["clock", "agents__clock", "agents__weather"]
    assert [tool.description for tool in use.tools] == ["", "Other agents.", "Other agents.\n\nd"]
    assert use.tools[2].strict and use.name == "agents__clock"
    found = turns(call("a", namespace="agents"), {**output("a"), "namespace": "agents", "name": "f"})
    assert found[0]["tool_calls"][0]["function"]["name"] == "agents__f"


def test_only_allowed_tools_are_offered():
    """They keep their order in `tools`."""
    allowed = [{"type": "function", "name": "clock"}]
    choice = {"type": "allowed_tools", "mode": "required", "tools": allowed}
    use = requested(tools=[WEATHER, CLOCK], tool_choice=choice).prompt.tools
    assert [tool.name for tool in use.tools] == ["clock"]
    assert (use.choice, use.name) == ("required", None)


def test_a_format_is_a_constraint_on_the_answer():
    """Any JSON object satisfies `json_object`."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form = {"type": "json_schema", "name": "n", "schema": schema, "strict": True, "description": "d"}
    assert requested(text={"format": form}).content_format == ContentFormat("json_schema", schema, "text.format.schema")
    expected = ContentFormat("json_schema", {"type": "object"}, "text.format")
    assert requested(text={"format": {"type": "json_object"}}).content_format == expected


def test_a_format_may_be_one_of_vllm_s_structured_outputs():
    """The other fields of `text` do not replace it, but a second format contradicts it."""
    fields = {"structured_outputs": {"choice": ["a", "b"]}}
    for text in (None, {"verbosity": "medium"}, {"format": {"type": "text"}}):
        assert requested(**fields, text=text).content_format.value == ["a", "b"]
    error = refusal(**fields, text={"format": {"type": "json_object"}})
    assert error.param == "structured_outputs" and "cannot be combined" in str(error)


def test_the_effort_is_a_variable_of_the_template():
    """`none` turns reasoning off, under the names that Qwen3's and DeepSeek's templates read."""
    assert requested(reasoning={"effort": "high"}).prompt.variables == {"reasoning_effort": "high"}
    assert requested(reasoning={"effort": "none"}).prompt.variables == {
        "enable_thinking": False,
        "thinking": False,
    }
    assert template_variables(None) == {}


@pytest.mark.parametrize("verbosity", ["low", "medium", "high"])
def test_the_verbosity_is_a_variable_of_the_template(verbosity: str):
    """Templates without it ignore it, as they do the effort; the response repeats it."""
    request = validate(ResponsesRequest, {"input": "hi", "text": {"verbosity": verbosity}})
    assert request.chat_prompt.variables == {"verbosity": verbosity}
    assert request.repeated_fields()["text"]["verbosity"] == verbosity
    chat = {"messages": [USER], "verbosity": verbosity, "reasoning_effort": "low"}
    variables = {"verbosity": verbosity, "reasoning_effort": "low"}
    assert validate(ChatRequest, chat).prompt.variables == variables
    own = validate(ChatRequest, {**chat, "chat_template_kwargs": {"verbosity": "x"}})
    assert own.prompt.variables == variables | {"verbosity": "x"}


def test_reasoning_can_be_limited():
    """The field has the name that it has in chat completions."""
    assert requested(thinking_token_budget=5).thinking_budget == 5
    assert requested().thinking_budget is None


@pytest.mark.parametrize(
    ("fields", "logprobs"),
    [
        ({}, None),
        ({"top_logprobs": 0}, None),
        ({"top_logprobs": 2}, 2),
        ({"include": ["message.output_text.logprobs"]}, 0),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 3}, 3),
    ],
)
def test_log_probabilities_are_requested_by_either_field(fields: dict, logprobs: int | None):
    """`include` alone gives those of the tokens without alternatives."""
    assert requested(**fields).sampling["logprobs"] == logprobs


def test_a_limit_is_reduced_to_the_room_in_the_context():
    """Agents send limits of tens of thousands of tokens."""
    assert requested(max_output_tokens=32_000).token_limit(50) == 50
    assert requested(max_output_tokens=20).token_limit(50) == 20
    assert requested().token_limit(50) == 50
