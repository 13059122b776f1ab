"""Tools for chat templates that do not support them: a prompt in the Hermes format, and history as text.

The answer is parsed and constrained in the Hermes format too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from app.text.tools.definitions import Tool

_INSTRUCTIONS = """\
You can call the functions in <tools>. To call one, write its name and arguments as JSON in <tool_call> tags:
<tool_call>
{"name": "NAME", "arguments": {"KEY": "VALUE"}}
</tool_call>
The result follows in <tool_response> tags. Call a function only if you need its result; otherwise answer in words.
"""


def default_prompt(tools: Iterable[Tool]) -> str:
    """Return the text of a system message that offers `tools`."""
    lines = [json.dumps(tool.template_form()["function"], ensure_ascii=False) for tool in tools]
    return _INSTRUCTIONS + "\n".join(["<tools>", *lines, "</tools>"])


def with_system_text(messages: Sequence[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """Return a conversation whose system message ends with `text`."""
    first, *others = messages
    if first["role"] != "system":
        return [{"role": "system", "content": text}, *messages]
    return [{**first, "content": f"{first['content']}\n\n{text}"}, *others]


def text_turns(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a conversation without tool calls and tool messages: calls become text of the assistant's message, and
    results a message of the user, together with adjacent messages of the user.

    messages: as in OpenAI's chat completions; contents are texts or None. The arguments of a call are JSON text or an
    object.
    """
    turns: list[dict[str, Any]] = []
    texts: list[list[Any]] = []  # of the messages that each turn is made of
    follows_result = False
    for message in messages:
        turn, is_result = _text_turn(message), message["role"] == "tool"
        if (is_result or follows_result) and turns and turn["role"] == turns[-1]["role"] == "user":
            texts[-1].append(turn["content"])
        else:
            turns.append(turn)
            texts.append([turn.get("content")])
        follows_result = is_result
    for turn, parts in zip(turns, texts, strict=True):
        if len(parts) > 1:
            turn["content"] = "\n".join(map(str, parts))
    return turns


def _text_turn(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content") or ""
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"}
    if not message.get("tool_calls"):
        return dict(message)
    calls = "\n".join(_text_of_call(call["function"]) for call in message["tool_calls"])
    others = {key: value for key, value in message.items() if key not in ("content", "tool_calls")}
    return others | {"content": f"{content}\n{calls}".lstrip("\n")}


def _text_of_call(function: dict[str, Any]) -> str:
    """Return a call as the prompt describes it. Arguments that are not a JSON object are written as a string."""
    arguments = function.get("arguments") or "{}"
    if not (isinstance(arguments, str) and _is_object(arguments)):
        arguments = json.dumps(arguments, ensure_ascii=False)
    name = json.dumps(function["name"], ensure_ascii=False)
    return f'<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>'


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
