"""A realtime client that costs next to nothing while an answer comes, as if it were on another machine: it looks at its
socket a few times a second."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

from websockets.client import ClientProtocol
from websockets.uri import parse_uri

LOOKS_EVERY = 0.2  # seconds


async def answer(port: int, text: str, tokens: int) -> str:
    """Ask for an answer of `tokens` tokens to `text` and wait for its end; the response's id."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        client = ClientProtocol(parse_uri(f"ws://127.0.0.1:{port}/v1/realtime"), max_size=None)
        client.send_request(client.connect())
        content = [{"type": "input_text", "text": text}]
        asked: list[dict[str, Any]] = [
            {"type": "conversation.item.create", "item": {"type": "message", "role": "user", "content": content}},
            {"type": "response.create", "response": {"max_output_tokens": tokens, "temperature": 0}},
        ]
        connection.setblocking(False)
        heard: list[dict[str, Any]] = []
        while not heard or heard[-1]["type"] != "response.done":
            if heard and asked:  # it has said hello
                for event in asked:
                    client.send_text(json.dumps(event).encode())
                asked = []
            for data in client.data_to_send():
                connection.sendall(data)
            await asyncio.sleep(0.0 if asked else LOOKS_EVERY)
            try:
                data = connection.recv(1 << 20)
            except BlockingIOError:
                continue
            if not data:
                raise RuntimeError("the server hung up before the answer was complete")
            client.receive_data(data)
            heard += [json.loads(frame.data) for frame in client.events_received() if hasattr(frame, "data")]
            if (end := heard[-1] if heard else None) and end["type"] == "error":
                raise RuntimeError(end["error"]["message"])
        response: str = heard[-1]["response"]["id"]
        return response
