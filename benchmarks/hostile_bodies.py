"""Bodies of requests of hostile clients: many parts or keys, long texts, expensive formats."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable

from benchmarks.hostile_formats import FORMATS

# Grammars of some 50 bytes whose masks take 10 to 1,000 times as long as those of an ordinary schema.
AMBIGUOUS = ('(((("a"?){1,50}){1,50}){1,50}){1,50}', "x\nx: x x | x x x | /[a-z ]/ |")


def many_parts(messages: int, parts: int) -> bytes:
    """Return a chat body of messages with that many parts of one letter each."""
    part = {"type": "text", "text": "a"}
    return json.dumps({"messages": messages * [{"role": "user", "content": parts * [part]}]}).encode()


def unknown_keys(keys: int) -> bytes:
    """Return a body with that many unknown keys."""
    return b"{%b}" % b",".join(b'"%06x":0' % number for number in range(keys))


def text_body(text: str) -> bytes:
    """Return a body with a prompt."""
    return json.dumps({"prompt": text}).encode()


def one_message(content: str) -> bytes:
    """Return a chat body with one message."""
    return json.dumps({"messages": [{"role": "user", "content": content}]}).encode()


def hostile_format(number: int) -> bytes:
    """Return a chat body with a hostile format that the server has not seen before."""
    _, fields = list(FORMATS.items())[number % len(FORMATS)]
    fields = copy.deepcopy(fields)
    if "response_format" in fields and isinstance(fields["response_format"]["json_schema"]["schema"], dict):
        fields["response_format"]["json_schema"]["schema"]["description"] = f"number {number}"
    for kind in ("regex", "grammar"):
        if kind in fields.get("structured_outputs", {}):
            more = f"|x{number}" if kind == "regex" else f"\nX{number}: /x/"
            fields["structured_outputs"][kind] += more
    return json.dumps({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 60, **fields}).encode()


def length(choices: int) -> dict[str, int]:
    """Return the fields of a body for that many answers without an end."""
    return {"max_tokens": 1000, "min_tokens": 1000, "n": choices}


def expensive_masks(choices: int) -> Callable[[int], bytes]:
    """Return a function that makes a chat body with that many answers in an ambiguous grammar, without an end.

    Half of the grammars begin with digits, so that a random walk of the checking process finds no expensive mask.
    """

    def body(number: int) -> bytes:
        digits = "DIGITS " if number % 4 > 1 else ""
        grammar = f"start: {digits}{AMBIGUOUS[number % 2]}\nDIGITS: /[0-9]{{{90 + number}}}/"
        fields = {"structured_outputs": {"grammar": grammar}, **length(choices)}
        return json.dumps({"messages": [{"role": "user", "content": "Hi"}], **fields}).encode()

    return body


def endless_array(choices: int) -> Callable[[int], bytes]:
    """Return a function that makes a chat body with that many answers of an ordinary schema, as long as the masks'."""

    def body(number: int) -> bytes:
        schema = {"type": "array", "items": {"type": "integer"}, "minItems": 1000}
        fields = {"response_format": {"type": "json_schema", "json_schema": {"name": "numbers", "schema": schema}}}
        return json.dumps({"messages": [{"role": "user", "content": "Hi"}], **fields, **length(choices)}).encode()

    return body


def words(size: int) -> str:
    """Return a text of short words, of `size` characters."""
    return ("the cat sat on the mat and looked at the moon. " * (size // 47 + 1))[:size]
