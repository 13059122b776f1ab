"""Realtime client with minimal CPU cost during an answer, as if it ran on another machine.

It polls its socket a few times a second.
"""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

from websockets.client import ClientProtocol
from websockets.uri import parse_uri

POLL_SECONDS = 0.2


async def answer(port: int, text: str, tokens: int) -> str:
    """Request an answer of `tokens` tokens to `text`, wait for its end, and return the response's ID."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        client = ClientProtocol(parse_uri(f"ws://127.0.0.1:{port}/v1/realtime"), max_size=None)
        client.send_request(client.connect())
        content = [{"type": "input_text", "text": text}]
        unsent: list[dict[str, Any]] = [
            {"type": "conversation.item.create", "item": {"type": "message", "role": "user", "content": content}},
            {"type": "response.create", "response": {"max_output_tokens": tokens, "temperature": 0}},
        ]
        connection.setblocking(False)
        events: list[dict[str, Any]] = []
        while not events or events[-1]["type"] != "response.done":
            if events and unsent:  # session.created has arrived
                for event in unsent:
                    client.send_text(json.dumps(event).encode())
                unsent = []
            for data in client.data_to_send():
                connection.sendall(data)
            await asyncio.sleep(0.0 if unsent else POLL_SECONDS)
            try:
                data = connection.recv(1 << 20)
            except BlockingIOError:
                continue
            if not data:
                raise RuntimeError("The server closed the connection before the answer was complete.")
            client.receive_data(data)
            events += [json.loads(frame.data) for frame in client.events_received() if hasattr(frame, "data")]
            if (end := events[-1] if events else None) and end["type"] == "error":
                raise RuntimeError(end["error"]["message"])
        response: str = events[-1]["response"]["id"]
        return response
