"""Hostile client that steers its own responses over a WebSocket, each as soon as it has begun."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

LANES = 4
RECEIVE_SECONDS = 5.0
ENDLESS = {"type": "response.create", "input": "Tell me a story.", "max_output_tokens": 1000, "store": False}


def steer(port: int, deadline: float, key: str) -> Counter[str]:
    """Steer responses in several lanes until the deadline. Return the number of events by their kind."""
    kinds: Counter[str] = Counter()
    while time.monotonic() < deadline:
        try:
            headers = {"Authorization": f"Bearer {key}"}
            with connect(f"ws://127.0.0.1:{port}/v1/responses", additional_headers=headers, max_size=None) as socket:
                for lane in range(LANES):
                    socket.send(json.dumps(ENDLESS | {"stream_id": str(lane)}))
                while time.monotonic() < deadline:
                    event = json.loads(socket.recv(RECEIVE_SECONDS))
                    kinds[_kind(event)] += 1
                    if event["type"] == "response.created":
                        socket.send(_steer(event["response"]["id"]))
                    elif event["type"] in ("response.completed", "error"):
                        socket.send(json.dumps(ENDLESS | {"stream_id": event.get("stream_id")}))
        except ConnectionClosed as closed:
            kinds[f"close {closed.rcvd.code if closed.rcvd else ''}"] += 1
        except TimeoutError:
            kinds["no event"] += 1
    return kinds


def _kind(event: dict[str, Any]) -> str:
    return f"error {event['error']['code']}" if event["type"] == "error" else str(event["type"])


def _steer(response_id: str) -> str:
    return json.dumps({"type": "response.steer", "previous_response_id": response_id, "input": "Another one."})
