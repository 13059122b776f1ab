"""Tools of MCP servers, and the results of their calls as texts. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from app.mcp.errors import McpError
from app.mcp.messages import printable

TOOL_NAME = r"^[A-Za-z0-9_.:/-]{1,128}$"
MAX_TOOLS = 500  # of a server
MAX_SCHEMA_BYTES = 32 << 10  # of a tool's input
MAX_LIST_BYTES = 512 << 10  # of the names, descriptions and schemas of a server's tools
MAX_DESCRIPTION_CHARACTERS = 4096
MAX_RESULT_BYTES = 256 << 10  # of a text for the model, in UTF-8
MAX_CURSOR_CHARACTERS = 4096
MAX_PARTS = 1000  # of a result
# A decoder holds the interpreter's lock. At these numbers it does so for less than 15 ms.
MAX_LIST_COMMAS = 60_000
MAX_RESULT_BRACES = 60_000
_name = re.compile(TOOL_NAME)


class ListedTool(msgspec.Struct, rename="camel"):
    """Tool as a server describes it."""

    name: str
    description: str | None = None
    input_schema: msgspec.Raw = msgspec.Raw(b"{}")


class ListPage(msgspec.Struct, rename="camel"):
    """Page of a server's list. Tools are decoded one by one, since one that is not valid is left out alone."""

    tools: list[msgspec.Raw]
    next_cursor: str | None = None


class Resource(msgspec.Struct, rename="camel"):
    """Content of an embedded resource: a text, or bytes that are not read."""

    uri: str = ""
    mime_type: str | None = None
    text: str | None = None


class Part(msgspec.Struct, rename="camel"):
    """Part of a result. Fields of its type are set."""

    type: str
    text: str = ""
    mime_type: str | None = None
    uri: str = ""
    resource: Resource | None = None


class CallResult(msgspec.Struct, rename="camel"):
    """Result of a call as a server sends it."""

    content: list[Part] = []
    structured_content: msgspec.Raw = msgspec.Raw()
    is_error: bool = False


class Tool(msgspec.Struct, frozen=True):
    """Tool of a server, for clients. input_schema: a JSON Schema of the arguments."""

    name: str
    description: str
    input_schema: dict[str, Any]


class ToolResult(msgspec.Struct, frozen=True):
    """Result of a call, for the model. is_error: whether it says why the tool failed."""

    content: str
    is_error: bool


@dataclass(slots=True)
class ToolList:
    """Tools of a server within bounds. left_out: number of those that were beyond them, or not valid."""

    tools: list[Tool] = field(default_factory=list)
    left_out: int = 0
    size: int = 0

    def extend(self, texts: Sequence[bytes]) -> None:
        """Add tools as their server describes them, if they are valid and there is room."""
        self.left_out += len(texts[MAX_TOOLS:])
        for text in texts[:MAX_TOOLS]:
            has_room = len(self.tools) < MAX_TOOLS and self.size + len(text) <= MAX_LIST_BYTES
            tool = _decode_tool(text) if has_room else None
            if tool is None:
                self.left_out += 1
                continue
            self.tools.append(tool)
            self.size += len(text)

    @property
    def remark(self) -> str | None:
        """Return a sentence about tools that are left out; None if all are there."""
        if not self.left_out:
            return None
        return (
            f"tools left out: {self.left_out:,}; a server has at most {MAX_TOOLS} tools and {MAX_LIST_BYTES:,} bytes "
            f"of them here, and a schema {MAX_SCHEMA_BYTES:,} bytes"
        )


def _decode_tool(text: bytes) -> Tool | None:
    """Return a tool; None if it is not valid or has too large a schema."""
    try:
        listed = msgspec.json.decode(text, type=ListedTool)
        if not _name.fullmatch(listed.name) or len(listed.input_schema) > MAX_SCHEMA_BYTES:
            return None
        schema = msgspec.json.decode(listed.input_schema, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return Tool(listed.name, (listed.description or "")[:MAX_DESCRIPTION_CHARACTERS], schema)


def decode_page(result: msgspec.Raw) -> ListPage:
    """Return a page of a list. Raises `McpError`."""
    if bytes(result).count(b",") > MAX_LIST_COMMAS:
        raise McpError("sent too many values in a list of tools")
    try:
        page = msgspec.json.decode(result, type=ListPage)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise McpError("did not send a valid list of tools") from None
    if page.next_cursor is not None and len(page.next_cursor) > MAX_CURSOR_CHARACTERS:
        raise McpError("did not send a valid list of tools")
    return page


def decode_result(result: msgspec.Raw) -> ToolResult:
    """Return the result of a call as one text. Raises `McpError`."""
    if bytes(result).count(b"{") > MAX_RESULT_BRACES:
        raise McpError("sent too many objects in a result")
    try:
        called = msgspec.json.decode(result, type=CallResult)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise McpError("did not send a valid result") from None
    texts = [_text_of(part) for part in called.content[:MAX_PARTS]]
    if len(called.content) > MAX_PARTS:
        texts.append(f"[{len(called.content) - MAX_PARTS:,} further parts are left out]")
    text = "\n".join(texts) if texts else bytes(called.structured_content).decode(errors="replace")
    return ToolResult(cut(text), called.is_error)


def _text_of(part: Part) -> str:
    """Return the text of a part, or a sentence that names what is left out."""
    if part.type == "text":
        return part.text
    if part.type == "resource" and part.resource is not None:
        if part.resource.text is not None:
            return part.resource.text
        return f"[a resource of type {_type(part.resource.mime_type)} is left out]"
    if part.type == "resource_link":
        return f"[link to a resource: {printable(part.uri[:1000])}]"
    kind = {"image": "an image", "audio": "an audio"}.get(part.type, "a part")
    return f"[{kind} of type {_type(part.mime_type)} is left out]"


def _type(media_type: str | None) -> str:
    return printable((media_type or "")[:80]) or "unknown"


def cut(text: str) -> str:
    """Return a text of at most `MAX_RESULT_BYTES` bytes, with a sentence that says how much is missing."""
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= MAX_RESULT_BYTES:
        return encoded.decode()
    kept = encoded[:MAX_RESULT_BYTES].decode(errors="ignore")
    return f"{kept}\n[The result has {len(encoded):,} bytes, of which {MAX_RESULT_BYTES:,} are shown.]"
