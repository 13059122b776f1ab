"""Hints for prompt caches say how long a conversation is expected to go on."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from app.protocols.anthropic import MessagesRequest
from app.protocols.chat import ChatRequest
from app.protocols.responses import ResponsesRequest

MESSAGES = [{"role": "user", "content": "Hello"}]
CHAT = {"messages": MESSAGES}
RESPONSES = {"input": "Hello"}
ANTHROPIC = {"messages": MESSAGES, "max_tokens": 5}
MARK, HOUR = {"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}
TOOL = {"name": "weather", "input_schema": {"type": "object"}}
BLOCK = {"type": "text", "text": "Hello"}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "sunny"}
USE = {"type": "tool_use", "id": "t1", "name": "weather", "input": {}}

CASES: list[tuple[Any, dict[str, Any], float]] = [
    (ChatRequest, CHAT, 0),
    (ChatRequest, CHAT | {"prompt_cache_key": "k"}, 300),
    (ChatRequest, CHAT | {"prompt_cache_key": "k", "prompt_cache_retention": "in_memory"}, 300),
    (ChatRequest, CHAT | {"prompt_cache_retention": "24h"}, 86_400),
    (ResponsesRequest, RESPONSES, 0),
    (ResponsesRequest, RESPONSES | {"prompt_cache_key": "k"}, 300),
    (ResponsesRequest, RESPONSES | {"previous_response_id": "resp_1"}, 300),
    (ResponsesRequest, RESPONSES | {"conversation": "conv_1"}, 300),
    (ResponsesRequest, RESPONSES | {"prompt_cache_options": {"ttl": "30m"}}, 1800),
    (ResponsesRequest, RESPONSES | {"prompt_cache_options": {"ttl": "12h"}}, 43_200),
    (MessagesRequest, ANTHROPIC, 0),
    (MessagesRequest, ANTHROPIC | {"cache_control": MARK}, 300),
    (MessagesRequest, ANTHROPIC | {"system": [BLOCK, BLOCK | {"cache_control": HOUR}]}, 3600),
    (MessagesRequest, ANTHROPIC | {"tools": [TOOL | {"cache_control": HOUR}], "cache_control": MARK}, 3600),
    (MessagesRequest, ANTHROPIC | {"messages": [{"role": "user", "content": [BLOCK | {"cache_control": MARK}]}]}, 300),
    (
        MessagesRequest,
        ANTHROPIC
        | {
            "messages": [
                *MESSAGES,
                {"role": "assistant", "content": [USE]},
                {"role": "user", "content": [RESULT | {"cache_control": HOUR}]},
            ]
        },
        3600,
    ),
]


@pytest.mark.parametrize(("schema", "body", "seconds"), CASES)
def test_a_hint_says_how_long_a_conversation_goes_on(schema: Any, body: dict[str, Any], seconds: float) -> None:
    """The longest of several counts."""
    assert schema.model_validate(body).session_seconds == seconds


@pytest.mark.parametrize(
    ("schema", "body", "param"),
    [
        (ChatRequest, CHAT | {"prompt_cache_retention": "2h"}, "prompt_cache_retention"),
        (MessagesRequest, ANTHROPIC | {"cache_control": MARK | {"ttl": "2h"}}, "ttl"),
    ],
)
def test_a_time_that_is_not_kept_is_refused_by_name(schema: Any, body: dict[str, Any], param: str) -> None:
    """Clients would otherwise rely on it."""
    with pytest.raises(ValidationError) as refused:
        schema.model_validate(body)
    assert param in str(refused.value.errors()[0]["loc"])
