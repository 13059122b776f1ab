"""Client of MCP servers (Model Context Protocol, streamable HTTP): their lists of tools, and calls of tools.

Only servers that the operator names are asked. Everything that they send is bounded: bytes, seconds, and entries
(docs/decisions/0068). Knows nothing about routes and the chat page.
"""
