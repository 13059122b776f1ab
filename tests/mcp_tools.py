"""Program of `tests.mcp_server`, with the official package: tools.py PORT (0 takes a free one)."""

from __future__ import annotations

import json
import socket
import sys
from collections import Counter
from pathlib import Path

import anyio
import uvicorn
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

MARKUP = '<img src="x" onerror="document.title = 1"><script>document.title = 2</script>'

server = MCPServer("weather", log_level="ERROR")
counts: Counter[str] = Counter()


@server.tool()
def get_weather(city: str) -> str:
    """Get the current weather in a city."""
    return f"18 degrees in {city}"


@server.tool()
def fail() -> str:
    """Fail with a reason."""
    raise ToolError("there is no such city")


@server.tool()
def headers(ctx: Context) -> str:
    """Return the headers of the request."""
    return json.dumps(dict(ctx.headers or {}))


@server.tool()
def count(ctx: Context) -> str:
    """Count the calls of the session."""
    session = (ctx.headers or {})["mcp-session-id"]
    counts[session] += 1
    return str(counts[session])


@server.tool(structured_output=False)
def picture() -> list[str | Image]:
    """Return a text and a picture."""
    return ["A picture:", Image(data=b"png", format="png")]


@server.tool()
def markup() -> str:
    """Return markup."""
    return MARKUP


@server.tool()
def append(path: str, text: str) -> str:
    """Append a line to a file."""
    with Path(path).open("a") as file:
        file.write(f"{text}\n")
    return "appended"


@server.tool()
async def wait(path: str) -> str:
    """Wait until the call is cancelled, and write its beginning and its end to a file."""
    append(path, "begun")
    try:
        await anyio.sleep_forever()
    finally:
        append(path, "cancelled")
    return ""


def main(port: int) -> None:
    """Serve until the process is killed."""
    listener = socket.create_server(("127.0.0.1", port))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
    app = server.streamable_http_app()
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])


if __name__ == "__main__":
    main(int(sys.argv[1]))
