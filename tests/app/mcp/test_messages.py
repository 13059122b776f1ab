"""Messages of MCP servers."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.mcp.errors import McpError, RequestRefused
from app.mcp.messages import EventDecoder, printable, result_of

LINES = st.lists(st.sampled_from(["data: a", "data:b", "event: x", ": c", "", "", "id: 1", "dataa"]))


@given(LINES, st.sampled_from(["\n", "\r\n", "\r"]), st.randoms())
def test_events_do_not_depend_on_the_cuts_of_their_bytes(lines: list[str], end: str, chance: random.Random):
    """With any of the three ends of lines."""
    blocks = "\n".join([*lines, "", ""]).split("\n\n")
    data = [[line[5:].removeprefix(" ") for line in block.split("\n") if line.startswith("data:")] for block in blocks]
    text = "".join(line + end for line in [*lines, "", ""]).encode()
    decoder, found = EventDecoder(), []
    while text:
        length = chance.randint(1, 4)
        found += decoder.push(text[:length])
        text = text[length:]
    assert [each.decode() for each in found] == ["\n".join(each) for each in data if each]


def test_only_the_answer_with_the_id_of_the_request_counts():
    """Neither those to other requests, nor requests of the server with the same id."""
    assert bytes(result_of(b'{"id": 3, "result": {"a": 1}}', 3) or b"") == b'{"a": 1}'
    for other in (b'{"id": 4, "result": 1}', b'{"id": "3", "result": 1}', b'{"id": 3, "method": "ping"}', b"{}"):
        assert result_of(other, 3) is None


@pytest.mark.parametrize("text", [b"", b"<html>", b"[]", b'{"id": 3}', b'{"id": 3, "error": 5}', b"[" * 100_000])
def test_other_texts_are_errors_of_the_server(text: bytes):
    with pytest.raises(McpError):
        result_of(text, 3)


def test_a_reason_is_one_short_line():
    """Control characters could forge lines of a log."""
    with pytest.raises(RequestRefused) as refused:
        result_of(b'{"id": 3, "error": {"code": 1, "message": "a\\nb\\u001b[0m' + b"x" * 5000 + b'"}}', 3)
    assert refused.value.reason.startswith("a b [0mx") and len(refused.value.reason) <= 1000
    assert printable("\u202eabc\x00") == "abc"
