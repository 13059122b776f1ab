"""Operations of the HTTP interface: parts of the OpenAPI document that neither schemas nor routes have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.protocols.anthropic import CountTokensRequest, MessagesRequest
from app.protocols.chat import ChatRequest
from app.protocols.completions import CompletionRequest
from app.protocols.conversations import ConversationRequest, ItemsRequest, MetadataRequest
from app.protocols.ollama import OllamaChatRequest, OllamaGenerateRequest, ShowRequest
from app.protocols.page_rows import PageRowsRequest
from app.protocols.page_tools import ToolCallRequest
from app.protocols.page_warm import PageWarmRequest
from app.protocols.request_changes import RequestChange
from app.protocols.responses import InputTokensRequest, ResponsesRequest
from app.protocols.schema import Strict
from app.protocols.tokens import DetokenizeRequest, TokenizeRequest

QUESTION = [{"role": "user", "content": "Why do cats purr?"}]
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
JSON_SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


@dataclass(frozen=True)
class Operation:
    """Operation of a route.

    tag: group. answer: name of the schema of its answer; None for another media type. body: schema of the request.
    examples: bodies by name. summary: replaces the handler's docstring. streams: whether pieces can be sent instead.
    stream_type: their media type.
    status: that of success, or the only one. parameters: meanings by place (query or header) and name. errors: further
    statuses. key: kind of key that it needs, if any.
    """

    tag: str
    answer: str | None = None
    body: type[Strict] | None = None
    examples: Mapping[str, Mapping[str, Any]] | None = None
    summary: str = ""
    media_type: str = "application/json"
    streams: bool = False
    stream_type: str = "text/event-stream"
    status: int = 200
    parameters: Mapping[tuple[str, str], str] | None = None
    errors: tuple[int, ...] = ()
    key: str | None = "key"


CHAT, RESPONSES, CONVERSATIONS, ANTHROPIC, OLLAMA, STREAMS, CHAT_PAGE, MODELS, SERVER = (
    "Chat and text completions",
    "Responses",
    "Conversations",
    "Anthropic Messages",
    "Ollama",
    "Streams and timelines",
    "Chat page",
    "Models and tokens",
    "Server",
)
RESUME = {
    ("header", "X-Carousel-Resume"): "Seconds, at most 600, for which the answer continues without a reader.",
    ("header", "Idempotency-Key"): "A request that is repeated with the same key gets the first one's answer.",
}
AFTER = {
    ("header", "Last-Event-ID"): "Id of the last received event; the events after it follow.",
    ("query", "starting_after"): "The same in the query; the header takes precedence.",
}
EVENTS_AFTER = {
    ("query", "stream"): "`true` returns the events instead of the response.",
    ("query", "starting_after"): "Number of the last received event; needs `stream=true`.",
}
PAGES = {
    ("query", "limit"): "Number of entries, from 1 to 100. Default: 20.",
    ("query", "order"): "`asc` begins with the oldest entry, `desc` with the newest.",
    ("query", "after"): "Id of the entry after which the list begins.",
}
GENERATION_ERRORS = (400, 404, 413, 415, 429, 500, 503, 504)
BODY_ERRORS = (400, 404, 413, 415, 503)
EVENT_STREAM, LINES = "text/event-stream", "application/x-ndjson"
FUNCTION = {"name": "get_weather", "description": "Get the current weather in a city.", "parameters": WEATHER}

PATH_PARAMETERS = {
    "response_id": "Id of a response.",
    "conversation_id": "Id of a conversation.",
    "item_id": "Id of an item.",
    "completion_id": "Id of a stored chat completion.",
    "stream_id": "Id of the answer, or of its stream (`X-Carousel-Stream`).",
    "request_id": "Id of the answer, of its stream (`X-Carousel-Stream`), or of the request (`X-Request-Id`).",
    "model_id": "Name of a model.",
    "digest": "Digest of a file.",
}

REFUSED = Operation(OLLAMA, "OllamaError", status=501)

OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("POST", "/v1/chat/completions"): Operation(
        CHAT,
        "ChatCompletion",
        ChatRequest,
        {
            "conversation": {"messages": QUESTION, "max_tokens": 200, "service_tier": "priority"},
            "streamed": {
                "messages": QUESTION,
                "max_tokens": 200,
                "stream": True,
                "stream_options": {"include_usage": True},
            },
            "with a tool": {
                "messages": QUESTION,
                "max_tokens": 200,
                "tools": [{"type": "function", "function": FUNCTION}],
            },
            "JSON": {
                "messages": QUESTION,
                "max_tokens": 200,
                "response_format": {"type": "json_schema", "json_schema": {"name": "cat", "schema": JSON_SCHEMA}},
            },
        },
        streams=True,
        parameters=RESUME,
        errors=GENERATION_ERRORS,
    ),
    ("GET", "/v1/chat/completions"): Operation(
        CHAT,
        "CompletionList",
        summary="List the stored chat completions of the key.",
        parameters=PAGES,
        errors=(400, 403, 503),
    ),
    ("GET", "/v1/chat/completions/{completion_id}"): Operation(
        CHAT, "ChatCompletion", summary="Return a stored chat completion.", errors=(404,)
    ),
    ("POST", "/v1/chat/completions/{completion_id}"): Operation(
        CHAT,
        "ChatCompletion",
        MetadataRequest,
        {"metadata": {"metadata": {"topic": "cats"}}},
        summary="Replace the metadata of a stored chat completion.",
        errors=BODY_ERRORS,
    ),
    ("DELETE", "/v1/chat/completions/{completion_id}"): Operation(
        CHAT, "Deleted", summary="Delete a stored chat completion.", errors=(404,)
    ),
    ("GET", "/v1/chat/completions/{completion_id}/messages"): Operation(
        CHAT, "ItemList", parameters=PAGES, errors=(400, 404)
    ),
    ("POST", "/v1/completions"): Operation(
        CHAT,
        "Completion",
        CompletionRequest,
        {"text": {"prompt": "Once upon a time", "max_tokens": 50, "temperature": 0.7}},
        streams=True,
        parameters=RESUME,
        errors=GENERATION_ERRORS,
    ),
    ("POST", "/v1/responses"): Operation(
        RESPONSES,
        "Response",
        ResponsesRequest,
        {
            "text": {"input": "Why do cats purr?", "max_output_tokens": 200},
            "with a tool": {
                "input": QUESTION,
                "max_output_tokens": 200,
                "tools": [{"type": "function", **FUNCTION}],
            },
        },
        streams=True,
        parameters=RESUME,
        errors=GENERATION_ERRORS,
    ),
    ("POST", "/v1/responses/input_tokens"): Operation(
        RESPONSES,
        "ResponseInputTokens",
        InputTokensRequest,
        {"text": {"input": "Why do cats purr?"}},
        errors=BODY_ERRORS,
    ),
    ("GET", "/v1/responses/{response_id}"): Operation(
        RESPONSES,
        "Response",
        summary="Return a response as of now, or its events.",
        streams=True,
        parameters=EVENTS_AFTER,
        errors=(400, 404),
    ),
    ("DELETE", "/v1/responses/{response_id}"): Operation(
        RESPONSES, "DeletedResponse", summary="End a response and make it unreadable.", errors=(404,)
    ),
    ("POST", "/v1/responses/{response_id}/cancel"): Operation(RESPONSES, "Response", errors=(404,)),
    ("GET", "/v1/responses/{response_id}/input_items"): Operation(
        RESPONSES, "ItemList", parameters=PAGES, errors=(400, 404)
    ),
    ("POST", "/v1/conversations"): Operation(
        CONVERSATIONS,
        "Conversation",
        ConversationRequest,
        {"empty": {}, "items": {"items": QUESTION}},
        errors=BODY_ERRORS,
    ),
    ("GET", "/v1/conversations/{conversation_id}"): Operation(
        CONVERSATIONS, "Conversation", summary="Return a conversation.", errors=(404,)
    ),
    ("POST", "/v1/conversations/{conversation_id}"): Operation(
        CONVERSATIONS,
        "Conversation",
        MetadataRequest,
        {"metadata": {"metadata": {"topic": "cats"}}},
        summary="Replace the metadata of a conversation.",
        errors=BODY_ERRORS,
    ),
    ("DELETE", "/v1/conversations/{conversation_id}"): Operation(
        CONVERSATIONS, "Deleted", summary="Delete a conversation with its items.", errors=(404,)
    ),
    ("GET", "/v1/conversations/{conversation_id}/items"): Operation(
        CONVERSATIONS, "ItemList", summary="List the items of a conversation.", parameters=PAGES, errors=(400, 404)
    ),
    ("POST", "/v1/conversations/{conversation_id}/items"): Operation(
        CONVERSATIONS,
        "ItemList",
        ItemsRequest,
        {"question": {"items": QUESTION}},
        summary="Append items to a conversation and return them.",
        errors=BODY_ERRORS,
    ),
    ("GET", "/v1/conversations/{conversation_id}/items/{item_id}"): Operation(
        CONVERSATIONS, "Item", summary="Return an item of a conversation.", errors=(404,)
    ),
    ("DELETE", "/v1/conversations/{conversation_id}/items/{item_id}"): Operation(
        CONVERSATIONS, "Conversation", summary="Delete an item and return its conversation.", errors=(404,)
    ),
    ("POST", "/v1/messages"): Operation(
        ANTHROPIC,
        "AnthropicAnswer",
        MessagesRequest,
        {
            "conversation": {"messages": QUESTION, "max_tokens": 200},
            "with a tool": {
                "messages": QUESTION,
                "max_tokens": 200,
                "tools": [{"name": "get_weather", "input_schema": WEATHER}],
            },
        },
        streams=True,
        parameters=RESUME,
        errors=GENERATION_ERRORS,
    ),
    ("POST", "/v1/messages/count_tokens"): Operation(
        ANTHROPIC, "InputTokens", CountTokensRequest, {"conversation": {"messages": QUESTION}}, errors=BODY_ERRORS
    ),
    ("POST", "/api/chat"): Operation(
        OLLAMA,
        "OllamaAnswer",
        OllamaChatRequest,
        {"conversation": {"messages": QUESTION, "stream": False}},
        streams=True,
        stream_type=LINES,
        parameters=RESUME,
        errors=GENERATION_ERRORS,
    ),
    ("POST", "/api/generate"): Operation(
        OLLAMA,
        "OllamaAnswer",
        OllamaGenerateRequest,
        {"prompt": {"prompt": "Why do cats purr?", "stream": False}},
        streams=True,
        stream_type=LINES,
        parameters=RESUME,
        errors=GENERATION_ERRORS,
    ),
    ("GET", "/api/tags"): Operation(OLLAMA, "OllamaModels", errors=(503,)),
    ("GET", "/api/ps"): Operation(OLLAMA, "OllamaModels", errors=(503,)),
    ("POST", "/api/show"): Operation(
        OLLAMA, "OllamaModel", ShowRequest, {"the served model": {"verbose": False}}, errors=BODY_ERRORS
    ),
    ("GET", "/api/version"): Operation(OLLAMA, "OllamaVersion"),
    ("DELETE", "/api/delete"): REFUSED,
    ("POST", "/api/blobs/{digest}"): REFUSED,
    **{("POST", f"/api/{name}"): REFUSED for name in ("pull", "push", "create", "copy", "embed", "embeddings")},
    ("GET", "/v1/streams/{stream_id}"): Operation(
        STREAMS,
        media_type=EVENT_STREAM,
        summary="Resume an answer after the last received event.",
        parameters=AFTER,
        errors=(400, 404, 410),
    ),
    ("DELETE", "/v1/streams/{stream_id}"): Operation(
        STREAMS, media_type="", status=204, summary="Stop an answer. The text so far stays readable.", errors=(404, 410)
    ),
    ("GET", "/v1/requests/{request_id}"): Operation(
        STREAMS, "Timeline", summary="Return the timeline of a request.", errors=(404, 503)
    ),
    ("POST", "/v1/requests/{request_id}"): Operation(
        STREAMS,
        "Timeline",
        RequestChange,
        {"pause": {"state": "paused"}, "go on behind people": {"state": "running", "service_tier": "flex"}},
        summary="Pause or resume a request that has not ended, or move it to another service tier.",
        errors=(400, 403, 404, 409, 429, 503),
    ),
    ("GET", "/v1/realtime"): Operation(
        STREAMS,
        "Error",
        summary="WebSocket of a realtime session. Without an upgrade it is refused.",
        status=426,
        errors=(403, 404, 429, 503),
    ),
    ("GET", "/v1/page/rows"): Operation(
        CHAT_PAGE,
        "PageRowList",
        summary="Return the rows of the key that have changed after a number.",
        parameters={
            ("query", "after"): "`last` of the page before. Default: 0, which begins with the first row.",
            ("query", "limit"): "Number of rows, from 1 to 1000. Default: 100.",
        },
        errors=(400, 403, 404, 429, 503),
        key="own key",
    ),
    ("POST", "/v1/page/rows"): Operation(
        CHAT_PAGE,
        "PageRows",
        PageRowsRequest,
        {
            "message": {"rows": [{"id": "m1", "revision": 1, "writer": "tab-1", "value": '{"text": "Hi"}'}]},
            "deletion": {"rows": [{"id": "m1", "revision": 2, "writer": "tab-1", "value": None}]},
        },
        summary="Join rows: of each, the version with the higher (revision, writer) is kept.",
        errors=(400, 403, 404, 408, 413, 415, 429, 503),
        key="own key",
    ),
    ("POST", "/v1/page/warm"): Operation(
        CHAT_PAGE,
        "PageWarm",
        PageWarmRequest,
        {"answers": {"requests": ["chatcmpl-0f7b4c", "0f7b4d"]}},
        summary="Return which of the client's own requests are in the prefix cache, and the time that this saves.",
        errors=(400, 404, 408, 413, 415, 429, 503),
    ),
    ("GET", "/v1/page/tools"): Operation(
        CHAT_PAGE,
        "PageTools",
        summary="List the tools of the MCP servers that the operator has named.",
        errors=(404, 429),
        key="own key",
    ),
    ("POST", "/v1/page/tools/call"): Operation(
        CHAT_PAGE,
        "PageToolResult",
        ToolCallRequest,
        {"call": {"server": "weather", "name": "get_weather", "arguments": {"city": "Ghent"}}},
        summary="Run a tool of an MCP server. An error of the tool is a result too.",
        errors=(400, 404, 408, 413, 415, 429, 502, 503, 504),
        key="own key",
    ),
    ("GET", "/v1/models"): Operation(MODELS, "ModelList", summary="List the served model.", errors=(503,)),
    ("GET", "/v1/models/{model_id}"): Operation(
        MODELS, "Model", summary="Return the served model. Its name may contain slashes.", errors=(404, 503)
    ),
    ("POST", "/tokenize"): Operation(
        MODELS,
        "TokenList",
        TokenizeRequest,
        {"text": {"prompt": "Why do cats purr?"}, "conversation": {"messages": QUESTION}},
        errors=BODY_ERRORS,
    ),
    ("POST", "/detokenize"): Operation(
        MODELS, "Text", DetokenizeRequest, {"tokens": {"tokens": [42, 43]}}, errors=BODY_ERRORS
    ),
    ("GET", "/v1/engine/events"): Operation(SERVER, media_type=EVENT_STREAM),
    ("GET", "/health"): Operation(SERVER, "Status", errors=(503,), key=None),
    ("GET", "/readyz"): Operation(SERVER, "Status", errors=(503,), key=None),
    ("GET", "/livez"): Operation(SERVER, "Status", errors=(503,), key=None),
    ("POST", "/drain"): Operation(SERVER, "Status", status=202, errors=(403,), key="operator"),
    ("GET", "/metrics"): Operation(SERVER, media_type="text/plain", errors=(403,), key="metrics"),
}
