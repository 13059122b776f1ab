"""Tools of MCP servers and results of calls, within bounds."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from app.mcp.errors import McpError
from app.mcp.tools import (
    MAX_DESCRIPTION_CHARACTERS,
    MAX_LIST_BYTES,
    MAX_PARTS,
    MAX_RESULT_BYTES,
    MAX_SCHEMA_BYTES,
    MAX_TOOLS,
    ToolList,
    decode_page,
    decode_result,
)


def listed(*tools: Any) -> ToolList:
    found = ToolList()
    found.extend([json.dumps(tool).encode() for tool in tools])
    return found


def result(**fields: Any) -> tuple[str, bool]:
    decoded = decode_result(msgspec.Raw(json.dumps(fields).encode()))
    return decoded.content, decoded.is_error


def text(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": each} for each in texts]


@pytest.mark.parametrize(
    "tool",
    [{}, {"name": 5}, {"name": ""}, {"name": "a\nb"}, {"name": "a\x1b[0m"}, {"name": "\u202eabc"}, {"name": "a" * 129},
     {"name": "a", "inputSchema": []}, {"name": "a", "inputSchema": {"x": "y" * MAX_SCHEMA_BYTES}}, [], None],
)  # fmt: skip
def test_a_tool_that_is_not_valid_is_left_out_alone(tool: Any):
    """The list says so."""
    found = listed(tool, {"name": "b/c", "inputSchema": {"type": "object"}})
    assert [each.name for each in found.tools] == ["b/c"] and found.left_out == 1
    assert found.remark is not None and found.remark.startswith("tools left out: 1;")


def test_a_list_is_bounded():
    """In tools, in bytes, and in the characters of a description."""
    many = listed(*({"name": f"t{at}"} for at in range(10_000)))
    assert len(many.tools) == MAX_TOOLS and many.left_out == 10_000 - MAX_TOOLS
    large = listed(*({"name": f"t{at}", "inputSchema": {"x": "y" * 30_000}} for at in range(100)))
    assert 0 < len(large.tools) <= MAX_LIST_BYTES // 30_000 and large.size <= MAX_LIST_BYTES
    [tool] = listed({"name": "a", "description": "x" * 10_000}).tools
    assert len(tool.description) == MAX_DESCRIPTION_CHARACTERS
    assert listed({"name": "a", "description": None}).remark is None


@pytest.mark.parametrize(
    "page", [b"[]", b'{"tools": 1}', b"{}", b'{"tools": [], "nextCursor": "' + b"x" * 5000 + b'"}']
)
def test_another_page_is_an_error_of_the_server(page: bytes):
    with pytest.raises(McpError, match="list of tools"):
        decode_page(msgspec.Raw(page))


def test_texts_are_joined_and_other_parts_are_named():
    """A resource with a text is a text."""
    parts = [
        *text("one", "two"),
        {"type": "image", "data": "aaaa", "mimeType": "image/png"},
        {"type": "audio", "data": "aaaa"},
        {"type": "resource", "resource": {"uri": "file:///a", "text": "three"}},
        {"type": "resource", "resource": {"uri": "file:///a", "blob": "aaaa", "mimeType": "a/b\n"}},
        {"type": "resource_link", "uri": "file:///b", "name": "b"},
        {"type": "else"},
    ]
    assert result(content=parts)[0].split("\n") == [
        "one",
        "two",
        "[an image of type image/png is left out]",
        "[an audio of type unknown is left out]",
        "three",
        "[a resource of type a/b is left out]",
        "[link to a resource: file:///b]",
        "[a part of type unknown is left out]",
    ]


def test_an_error_of_the_tool_is_a_result():
    assert result(content=text("no such city"), isError=True) == ("no such city", True)


def test_a_structured_result_stands_for_a_missing_text():
    assert result(structuredContent={"degrees": 18}) == ('{"degrees": 18}', False)
    assert result(content=text("18"), structuredContent={"degrees": 18}) == ("18", False)
    assert result() == ("", False)


def test_a_result_is_cut_with_a_sentence():
    """At a character, and with many parts too."""
    long, _ = result(content=text("ä" * MAX_RESULT_BYTES))
    shown, _, sentence = long.rpartition("\n")
    assert shown == "ä" * (MAX_RESULT_BYTES // 2)
    assert sentence == f"[The result has {2 * MAX_RESULT_BYTES:,} bytes, of which {MAX_RESULT_BYTES:,} are shown.]"
    many, _ = result(content=text(*["a"] * (MAX_PARTS + 5)))
    assert many.split("\n")[-2:] == ["a", "[5 further parts are left out]"]


def test_what_would_hold_the_interpreter_is_refused():
    """The decoder would create an object for each value."""
    with pytest.raises(McpError, match="too many values"):
        decode_page(msgspec.Raw(b'{"tools": [' + b"1," * 100_000 + b"1]}"))
    with pytest.raises(McpError, match="too many objects"):
        decode_result(msgspec.Raw(b'{"content": [' + b'{"type":""},' * 80_000 + b'{"type":""}]}'))


@pytest.mark.parametrize("raw", [b"[]", b"5", b'{"content": 1}', b'{"content": [1]}', b'{"isError": "x"}'])
def test_another_result_is_an_error_of_the_server(raw: bytes):
    with pytest.raises(McpError, match="valid result"):
        decode_result(msgspec.Raw(raw))
