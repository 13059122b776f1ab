"""Hosted tools, which this server does not run: left out where they are offered, refused where they are needed."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from app.errors import ApiError
from app.protocols.anthropic import MessagesRequest
from app.protocols.chat import ChatRequest
from app.protocols.hosted_tools import MAX_NAMED
from app.protocols.responses import ResponsesRequest
from app.protocols.schema import validate
from app.text.tools.definitions import Tool, ToolUse
from tests.app.routes.test_http import make, ready

USER = {"role": "user", "content": "hi"}
WEATHER = Tool("weather", "", {"type": "object"})
CHAT_TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
RESPONSES_TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
ANTHROPIC_TOOL = {"name": "weather", "input_schema": {"type": "object"}}

OPENAI_TYPES = (
    "web_search",
    "web_search_preview",
    "web_search_preview_2025_03_11",
    "file_search",
    "code_interpreter",
    "image_generation",
    "mcp",
    "computer",
    "computer_use_preview",
    "local_shell",
    "shell",
    "apply_patch",
    "tool_search",
    "openrouter:web_search",
    "not_yet_invented",
)
ANTHROPIC_TYPES = (
    "web_search_20250305",
    "code_execution_20260521",
    "computer_20250124",
    "bash_20250124",
    "mcp_toolset",
)
FIELDS = {"name": "n", "description": "d", "filters": {"a": [1]}, "container": {"type": "auto"}, "max_uses": 5}

CHAT, RESPONSES, ANTHROPIC = "/v1/chat/completions", "/v1/responses", "/v1/messages"
SCHEMAS = {CHAT: ChatRequest, RESPONSES: ResponsesRequest, ANTHROPIC: MessagesRequest}
OWN_TOOLS = {CHAT: CHAT_TOOL, RESPONSES: RESPONSES_TOOL, ANTHROPIC: ANTHROPIC_TOOL}
REQUIRED = {CHAT: "required", RESPONSES: "required", ANTHROPIC: {"type": "any"}}
every_type = pytest.mark.parametrize(
    ("path", "kind"),
    [(path, kind) for path in (CHAT, RESPONSES) for kind in OPENAI_TYPES]
    + [(CHAT, "builtin_function")]
    + [(ANTHROPIC, kind) for kind in ANTHROPIC_TYPES],
)
each_protocol = pytest.mark.parametrize("path", [CHAT, RESPONSES, ANTHROPIC])


def body(path: str, **fields) -> dict[str, Any]:
    if path == RESPONSES:
        return {"input": "hi", "max_output_tokens": 5, **fields}
    return {"messages": [USER], "max_tokens": 5, **fields}


def tools_of(path: str, **fields) -> ToolUse | None:
    """Return the tools that the answer to a request may call."""
    return validate(SCHEMAS[path], body(path, **fields)).generation_request().prompt.tools


@every_type
def test_a_hosted_tool_that_is_merely_offered_is_left_out(path: str, kind: str):
    """Its own fields do not matter, and the functions beside it remain."""
    hosted = {**FIELDS, "type": kind}
    if kind == "builtin_function":
        hosted["function"] = {"name": "$web_search"}
    assert tools_of(path, tools=[hosted, OWN_TOOLS[path]]) == ToolUse((WEATHER,))
    assert tools_of(path, tools=[hosted]) is None
    assert validate(SCHEMAS[path], body(path, tools=[hosted, hosted])).ignored_tools == (kind,)
    assert tools_of(path, tools=[hosted, OWN_TOOLS[path]], tool_choice=REQUIRED[path]).choice == "required"


@every_type
def test_a_request_that_needs_a_hosted_tool_is_refused_by_its_name(path: str, kind: str):
    """Otherwise the answer would be another one than the client asked for."""
    hosted = {**FIELDS, "type": kind}
    choices: list[Any] = [REQUIRED[path]]
    if path == ANTHROPIC:
        choices.append({"type": "tool", "name": "n"})
    else:
        choices.append({"type": kind})
        allowed = {"mode": "required", "tools": [{"type": kind}]}
        choices.append({"type": "allowed_tools", **({"allowed_tools": allowed} if path == CHAT else allowed)})
    own = [OWN_TOOLS[path]]
    for choice, others in zip(choices, ([], own, own), strict=False):
        with pytest.raises(ApiError, match="tool_choice") as refused:
            tools_of(path, tools=[hosted, *others], tool_choice=choice)
        assert (refused.value.code, refused.value.param) == ("unsupported_parameter", "tool_choice")
        assert kind in str(refused.value)


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
def test_hosted_tools_are_left_out_of_allowed_tools(path: str):
    """If all that are allowed are hosted, none is called."""
    reference = {"type": "function", "function": {"name": "weather"}} if path == CHAT else RESPONSES_TOOL["name"]
    function = reference if path == CHAT else {"type": "function", "name": reference}
    for listed, mode, expected in (
        ([{"type": "web_search"}, function], "auto", ToolUse((WEATHER,))),
        ([{"type": "web_search"}, function], "required", ToolUse((WEATHER,), "required")),
        ([{"type": "web_search"}], "auto", None),
    ):
        allowed = {"mode": mode, "tools": listed}
        choice = {"type": "allowed_tools", **({"allowed_tools": allowed} if path == CHAT else allowed)}
        assert tools_of(path, tools=[OWN_TOOLS[path], {"type": "web_search"}], tool_choice=choice) == expected


@pytest.mark.parametrize(
    ("path", "tool"),
    [
        (CHAT, {"type": "custom", "custom": {"name": "n"}}),
        (CHAT, {"type": "functoin", "function": {"name": "n"}}),
        (RESPONSES, {"type": "custom", "name": "n"}),
        (RESPONSES, {"type": "functoin", "name": "n", "parameters": {}}),
        (RESPONSES, {"type": "a\r\nSet-Cookie: b"}),
        (RESPONSES, {"type": "x" * 65}),
        (ANTHROPIC, {"type": "customs", "name": "n", "input_schema": {}}),
        (ANTHROPIC, {"name": "n"}),
        (ANTHROPIC, {"type": "custom", "name": "n"}),
    ],
)
def test_a_tool_of_the_client_is_not_taken_for_a_hosted_one(path: str, tool: dict):
    """A tool with a definition, or of a type that has one, is refused as before; so is a type that is no name."""
    with pytest.raises(ApiError) as refused:
        tools_of(path, tools=[tool])
    assert str(refused.value.param).startswith("tools")


def test_all_deferred_tools_are_seen_without_their_search():
    """The hosted search would be the only way to load them."""
    deferred = {**ANTHROPIC_TOOL, "defer_loading": True}
    search = {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"}
    assert tools_of(ANTHROPIC, tools=[search, deferred]) == ToolUse((WEATHER,))
    with pytest.raises(ApiError, match="defer_loading"):
        tools_of(ANTHROPIC, tools=[deferred])
    assert tools_of(RESPONSES, tools=[{**RESPONSES_TOOL, "defer_loading": True}]) == ToolUse((WEATHER,))


@pytest.mark.parametrize("path", [RESPONSES, ANTHROPIC])
def test_a_function_that_hosted_tools_may_call_too_is_offered(path: str):
    """One that the model must not call itself is refused."""
    callers = ["code_execution_20260521", "direct"]
    assert tools_of(path, tools=[{**OWN_TOOLS[path], "allowed_callers": callers}]) == ToolUse((WEATHER,))
    with pytest.raises(ApiError, match="must include"):
        tools_of(path, tools=[{**OWN_TOOLS[path], "allowed_callers": callers[:1]}])


def test_mcp_servers_are_left_out_like_hosted_tools():
    """They are Anthropic's form of the hosted tool mcp."""
    servers = [{"type": "url", "url": "https://a.example", "name": "a"}]
    request = validate(MessagesRequest, body(ANTHROPIC, mcp_servers=servers))
    assert request.ignored_tools == ("mcp_servers",)
    assert validate(MessagesRequest, body(ANTHROPIC, mcp_servers=[])).ignored_tools == ()


def test_contents_of_hosted_calls_may_be_included():
    """No answer has such calls."""
    include = ["web_search_call.action.sources", "file_search_call.results", "code_interpreter_call.outputs"]
    assert validate(ResponsesRequest, {"input": "hi", "include": include}).include == include


@pytest.mark.parametrize("kind", ["web_search_call", "file_search_call", "code_interpreter_call", "mcp_call"])
def test_calls_of_hosted_tools_by_another_server_are_left_out_of_responses_input(kind: str):
    """The conversation continues here with the answer that followed them."""
    items = [USER, {"type": kind, "id": "x_1", "status": "completed"}, {"role": "assistant", "content": "Yes."}, USER]
    turns = validate(ResponsesRequest, {"input": items}).chat_prompt.turns
    assert turns == [USER, {"role": "assistant", "content": "Yes."}, USER]


def test_a_generated_image_in_responses_input_is_replaced():
    """It is a medium in history."""
    items = [USER, {"type": "image_generation_call", "id": "ig_1", "result": "AAAA"}, USER]
    turns = validate(ResponsesRequest, {"input": items}).chat_prompt.turns
    assert turns[1] == {"role": "assistant", "content": "[image omitted: this model reads text only]"}


def test_calls_of_hosted_tools_by_another_server_are_left_out_of_messages():
    """Blocks of calls and results stand in messages of the assistant."""
    blocks = [
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": [{"type": "web_search_result"}]},
        {"type": "mcp_tool_use", "id": "m", "name": "n", "server_name": "a", "input": {}},
        {"type": "mcp_tool_result", "tool_use_id": "m", "content": []},
        {"type": "text", "text": "Yes."},
    ]
    messages = [USER, {"role": "assistant", "content": blocks}, USER]
    turns = validate(MessagesRequest, {"max_tokens": 5, "messages": messages}).prompt.turns
    assert turns == [USER, {"role": "assistant", "content": "Yes."}, USER]


@each_protocol
@pytest.mark.parametrize("stream", [False, True])
def test_the_answer_and_the_log_name_the_tools_that_are_left_out(
    http, path: str, stream: bool, caplog: pytest.LogCaptureFixture
):
    """The header is absent if there are none."""
    tools = [{"type": "mcp", "name": "n"}, {"type": "web_search", "name": "m"}]
    with caplog.at_level(logging.INFO):
        answer = http.post(path, json=body(path, stream=stream, tools=tools))
    assert (answer.status_code, answer.headers["X-Carousel-Ignored-Tools"]) == (200, "mcp, web_search"), answer.text
    [line] = [record for record in caplog.records if record.name == "carousel.requests"]
    assert (line.levelno, "mcp, web_search" in line.getMessage()) == (logging.INFO, True)
    assert line.fields["request_id"] == answer.headers["X-Request-Id"]
    assert "X-Carousel-Ignored-Tools" not in http.post(path, json=body(path, stream=stream)).headers


@pytest.mark.parametrize("path", ["/v1/responses/input_tokens", "/v1/messages/count_tokens"])
def test_counts_of_tokens_name_them_too(http, path: str):
    """Many types are not all named."""
    tools = [{"type": f"t{number}", "name": "n"} for number in range(100)]
    fields = {"input": "hi"} if "responses" in path else {"messages": [USER]}
    answer = http.post(path, json={**fields, "tools": tools})
    named = answer.headers["X-Carousel-Ignored-Tools"].split(", ")
    assert named == [*(f"t{number}" for number in range(MAX_NAMED)), "..."]


@pytest.fixture(scope="module")
def http():
    with make() as client:
        yield ready(client)
