"""Errors of MCP servers. The message continues a sentence that begins with the server's name."""

from __future__ import annotations


class McpError(Exception):
    """The server cannot be reached, or did not answer as the protocol requires."""


class McpTimeout(McpError):
    """The server did not answer in time."""


class SessionLost(McpError):
    """The server does not know the session, because it was restarted or has ended it."""


class RequestRefused(McpError):
    """The server answered a request with an error of its own. reason: its text."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"refused the request: {reason}")
        self.reason = reason
