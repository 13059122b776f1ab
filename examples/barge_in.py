"""Interrupt an answer over WebSocket, as a voice assistant does when its user begins to speak.

OpenAI's realtime protocol in text: the first answer is cancelled after a few pieces, which frees its slot before the
engine's next step, and the second question is answered in the same conversation.

    python examples/barge_in.py --url ws://127.0.0.1:8000/v1/realtime

Needs the package `websockets`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import Any

from websockets.asyncio.client import ClientConnection, connect


async def send(socket: ClientConnection, **event: Any) -> None:
    """Send one event."""
    await socket.send(json.dumps(event))


async def ask(socket: ClientConnection, text: str, interrupt_after: int | None = None) -> str:
    """Ask, print the answer while it comes, and return its status; cancel it after `interrupt_after` pieces."""
    content = [{"type": "input_text", "text": text}]
    print(f"\n> {text}")
    item = {"type": "message", "role": "user", "content": content}
    await send(socket, type="conversation.item.create", item=item)
    await send(socket, type="response.create")
    pieces = 0
    async for frame in socket:
        event = json.loads(frame)
        match event["type"]:
            case "response.output_text.delta":
                print(event["delta"], end="", flush=True)
                pieces += 1
                if pieces == interrupt_after:
                    await send(socket, type="response.cancel")
            case "response.done":
                status: str = event["response"]["status"]
                print(f" [{status}]")
                return status
            case "error":
                raise RuntimeError(event["error"]["message"])
    raise ConnectionError("the server closed the connection")


async def main() -> None:
    """Hold a conversation of two questions, the first of which is interrupted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="ws://127.0.0.1:8000/v1/realtime")
    options = parser.parse_args()
    async with connect(options.url) as socket:
        await ask(socket, "Tell me a story about a fox.", interrupt_after=5)
        await ask(socket, "Count from 1 to 5.")


if __name__ == "__main__":
    asyncio.run(main())
