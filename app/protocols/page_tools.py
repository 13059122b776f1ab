"""`/v1/page/tools`: calls of tools of MCP servers, as the chat page sends them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from pydantic import Field

from app.errors import ApiError
from app.mcp.tools import TOOL_NAME
from app.protocols.schema import Strict, max_fields

MAX_ARGUMENT_BYTES = 64 << 10  # as JSON


class ToolCallRequest(Strict):
    """Body of `POST /v1/page/tools/call`."""

    server: str = Field(min_length=1, max_length=320)
    name: str = Field(pattern=TOOL_NAME)
    arguments: Annotated[dict[str, Any], max_fields(4096)]

    def check(self) -> None:
        """Refuse arguments of too many bytes."""
        size = len(msgspec.json.encode(self.arguments))
        if size > MAX_ARGUMENT_BYTES:
            message = f"arguments must have at most {MAX_ARGUMENT_BYTES:,} bytes as JSON, got {size:,}"
            raise ApiError(400, message, param="arguments", code="invalid_value")
