"""Requests of the soak's clients, and their answers over SSE and WebSockets in a comparable form."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from websockets.asyncio.client import ClientConnection

from benchmarks.hostile_bodies import words
from benchmarks.hostile_clients import CHAT, COMPLETIONS, HOST
from benchmarks.sse_client import receive

MAX_ANSWER_SECONDS = 180.0  # for any answer, including a restart of a stopped engine
MAX_TOKENS = (1, 8, 40, 120, 300)
PROMPT_CHARACTERS = (0, 0, 300, 1500, 3000)
DONE = "[DONE]"


class BadAnswer(Exception):
    """An answer is incomplete or incorrect; `kind` is a short name for counting."""

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind, self.detail = kind, detail


@dataclass(frozen=True)
class SoakRequest:
    """Request of the fixed set."""

    name: str
    path: str
    body: dict[str, Any]


@dataclass
class Answer:
    """Text and finish reason of each choice of a complete answer."""

    texts: dict[int, str]
    finishes: dict[int, str]


VARIANTS: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {"temperature": 0.8},
    {"temperature": 1.0, "top_p": 0.9, "logprobs": True, "top_logprobs": 2},
    {"temperature": 0.8, "n": 2},
    {"temperature": 0.7, "frequency_penalty": 0.5, "presence_penalty": 0.5, "logit_bias": {"300": 2}},
    {"temperature": 0.8, "stop": [" the end", "\n\n"]},
    {"temperature": 0, "service_tier": "flex"},
)


def sse_asks(count: int) -> list[SoakRequest]:
    """Return `count` different streamed requests, the same in every run."""
    chance = random.Random(1)
    asks = []
    for number in range(count):
        text = f"Tell me story number {number}. {words(chance.choice(PROMPT_CHARACTERS))}"
        body: dict[str, Any] = {"max_tokens": chance.choice(MAX_TOKENS), "seed": number, "stream": True}
        if number % 8 == 7:
            body |= {"prompt": text, "temperature": 0.8, "ignore_eos": True}
        else:
            messages = [{"role": "user", "content": text}]
            body |= {"messages": messages, "ignore_eos": number % 2 == 0} | VARIANTS[number % 8]
        asks.append(SoakRequest(f"sse {number}", COMPLETIONS if "prompt" in body else CHAT, body))
    return asks


def realtime_asks(count: int) -> list[SoakRequest]:
    """Return `count` different `response.create` events, the same in every run, that leave no conversation items."""
    chance = random.Random(2)
    asks = []
    for number in range(count):
        text = f"Tell me story number {number}. {words(chance.choice(PROMPT_CHARACTERS))}"
        content = [{"type": "input_text", "text": text}]
        response = {
            "conversation": "none",
            "input": [{"type": "message", "role": "user", "content": content}],
            "temperature": 0.8 * (number % 2),
            "seed": number,
            "max_output_tokens": chance.choice(MAX_TOKENS),
        }
        asks.append(
            SoakRequest(f"realtime {number}", "/v1/realtime", {"type": "response.create", "response": response})
        )
    return asks


def body_of(raw: bytes) -> bytes:
    """Return the body of an HTTP response as far as it has arrived, decoding chunks (RFC 9112, 7.1)."""
    head, _, rest = raw.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" not in head.lower():
        return rest
    body = bytearray()
    while rest:
        size, end, rest = rest.partition(b"\r\n")
        if not end:
            break
        length = int(size, 16)
        body += rest[:length]
        rest = rest[length + 2 :]
    return bytes(body)


def events_of(raw: bytes) -> list[tuple[str, str]]:
    """Return ID (or an empty string) and data of every complete server-sent event of an HTTP response."""
    events = []
    blocks = body_of(raw).replace(b"\r\n", b"\n").split(b"\n\n")
    for block in blocks[:-1]:  # the last one is empty or incomplete
        fields = dict(line.partition(b": ")[::2] for line in block.split(b"\n"))
        if b"data" in fields:
            events.append((fields.get(b"id", b"").decode(), fields[b"data"].decode()))
    return events


def answer_of(data: Iterable[str]) -> Answer:
    """Assemble an answer from the data of events. Raises `BadAnswer`."""
    answer = Answer({}, {})
    is_done = False
    for text in data:
        if is_done:
            raise BadAnswer("data after [DONE]", text)
        is_done = text == DONE
        chunk = {} if is_done else json.loads(text)
        if "error" in chunk:
            raise BadAnswer("error event", text)
        for choice in chunk.get("choices", []):
            index = choice["index"]
            piece = choice["text"] if "text" in choice else choice["delta"].get("content")
            answer.texts[index] = answer.texts.get(index, "") + (piece or "")
            if choice["finish_reason"]:
                answer.finishes[index] = choice["finish_reason"]
    if not is_done:
        raise BadAnswer("no [DONE]", f"{len(answer.finishes)} of {len(answer.texts)} choices ended")
    return answer


async def ask_sse(port: int, ask: SoakRequest) -> Answer:
    """Send a streamed request and return its answer. Raises `BadAnswer`, `OSError`, `TimeoutError`."""
    raw = bytearray()
    try:
        async with asyncio.timeout(MAX_ANSWER_SECONDS):
            await receive(HOST, port, ask.path, ask.body, lambda part: raw.extend(part[1]))
    except RuntimeError as error:
        raise BadAnswer("refused", str(error)) from None
    return answer_of(data for _, data in events_of(bytes(raw)))


async def ask_realtime(socket: ClientConnection, ask: SoakRequest) -> Answer:
    """Request a response over an open WebSocket and return it.

    Raises `BadAnswer`, `TimeoutError` and the exceptions of websockets.
    """
    text = ""
    async with asyncio.timeout(MAX_ANSWER_SECONDS):
        await socket.send(json.dumps(ask.body))
        while (event := json.loads(await socket.recv()))["type"] != "response.done":
            if event["type"] == "error":
                raise BadAnswer("error event", json.dumps(event))
            text += event["delta"] if event["type"] == "response.output_text.delta" else ""
    status = event["response"]["status"]
    if status not in ("completed", "incomplete"):
        raise BadAnswer("response failed", json.dumps(event))
    return Answer({0: text}, {0: status})
