"""Clients of `benchmarks.api_deaths`, each of which reads one answer through any number of servers."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

TOKENS = 200
RETRY_SECONDS = 0.05  # pause of a client whose server is gone
MAX_SECONDS = 180.0  # for an answer
CHAT, COMPLETIONS, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
KINDS = (
    *("chat", "page", "message", "response", "format", "tool", "realtime", "realtime tool", "completion"),
    *("choices", "logprobs"),
)
NUMBERS = {"type": "array", "items": {"type": "integer"}, "minItems": 40, "maxItems": 60}
FORMAT = {"type": "json_schema", "json_schema": {"name": "numbers", "schema": NUMBERS}}
PARAMETERS = {"type": "object", "properties": {"numbers": NUMBERS}, "required": ["numbers"]}
FUNCTION = {"name": "add", "description": "Add numbers.", "parameters": PARAMETERS}


def kind_of(number: int) -> str:
    """Return the kind of a client."""
    return KINDS[number % len(KINDS)]


def question(number: int) -> str:
    """Return the question of a client."""
    return f"Tell me story number {number}."


def request(number: int) -> tuple[str, dict[str, Any]]:
    """Return path and body of a client's request over HTTP."""
    messages = [{"role": "user", "content": question(number)}]
    sampled = {"temperature": 0.8, "seed": number, "stream": True}
    chat = {"messages": messages, "max_tokens": TOKENS, **sampled}
    match kind_of(number):
        case "completion":
            return COMPLETIONS, {"prompt": f"Story {number}", "max_tokens": TOKENS, "ignore_eos": True, **sampled}
        case "page":  # as static/js/sampling.js makes it
            return CHAT, {**chat, "service_tier": "priority", "stream_options": {"include_usage": True}}
        case "message":
            greedy = {"max_tokens": TOKENS, "temperature": 0, "stream": True}
            return MESSAGES, {"model": "demo", "messages": messages, **greedy}
        case "response":
            return RESPONSES, {"input": messages, "max_output_tokens": TOKENS, **sampled}
        case "format":
            return CHAT, {**chat, "response_format": FORMAT}
        case "choices":
            return CHAT, {**chat, "n": 3, "stop": ["q"]}  # which end at different lengths
        case "logprobs":
            return CHAT, {**chat, "logprobs": True, "top_logprobs": 3}
        case "tool":
            tools = [{"type": "function", "function": FUNCTION}]
            return CHAT, {**chat, "tools": tools, "tool_choice": "required"}
    return CHAT, {**chat, "ignore_eos": True}


@dataclass
class Answer:
    """One client with its answer."""

    number: int
    text: str = ""
    cursors: list[int] = field(default_factory=list)  # numbers of records or events, in order of arrival
    moments: list[float] = field(default_factory=list)
    streams: set[str] = field(default_factory=set)  # ids of the answers that it was given: one, unless it ran twice
    is_whole: bool = False
    failure: str = ""

    @property
    def longest_silence(self) -> float:
        """Return the largest gap between arrivals, in seconds."""
        return max((after - before for before, after in pairwise(self.moments)), default=0.0)

    async def follow(self, url: str) -> None:
        """Read the answer to its end, through any number of servers."""
        try:
            async with asyncio.timeout(MAX_SECONDS):
                await self._follow(url)
        except TimeoutError:
            self.failure = "it has not ended in time"

    async def _follow(self, url: str) -> None:
        raise NotImplementedError


@dataclass
class HttpAnswer(Answer):
    """Client over HTTP, which resumes with the cursor of the last event, or repeats its request with its key."""

    events: list[dict[str, Any]] = field(default_factory=list)
    _cursor: str = ""

    async def _follow(self, url: str) -> None:
        key = secrets.token_hex(8)
        async with httpx.AsyncClient(base_url=url, timeout=MAX_SECONDS) as http:
            while not (self.is_whole or self.failure):
                try:
                    async with http.stream(**self._next(key)) as response:
                        await self._read(response)
                except httpx.TransportError:
                    await asyncio.sleep(RETRY_SECONDS)
        self.text = "".join(map(_text, sorted(self.events, key=_choice)))
        self.streams |= {event["id"] for event in self.events if "choices" in event}

    def _next(self, key: str) -> dict[str, Any]:
        """Return the request that begins the answer, or continues it."""
        path, body = request(self.number)
        if not self.events:
            headers = {"X-Carousel-Resume": "120", "Idempotency-Key": key}
            return {"method": "POST", "url": path, "json": body, "headers": headers}
        stream = self._cursor.partition(".")[0]
        if path == RESPONSES:
            query = {"stream": "true", "starting_after": str(self.cursors[-1])}
            return {"method": "GET", "url": f"{RESPONSES}/{self.events[0]['response']['id']}", "params": query}
        return {"method": "GET", "url": f"/v1/streams/{stream}", "headers": {"Last-Event-ID": self._cursor}}

    async def _read(self, response: httpx.Response) -> None:
        if response.status_code == 503:  # the next server restores its answers
            await response.aread()
            await asyncio.sleep(RETRY_SECONDS)
            return
        if response.status_code != 200:
            self.failure = f"{response.status_code} {(await response.aread()).decode()[:200]}"
            return
        pending: list[dict[str, Any]] = []  # events of a record whose position has not arrived
        received = ""  # last position in this response
        async for line in response.aiter_lines():
            if line.startswith("id: "):
                self._cursor = line[4:]
                if received != self._cursor:  # the usage and the end mark are one record
                    self.cursors.append(int(line.rpartition(".")[2]))
                received = self._cursor
            elif line.startswith("data: "):
                self.moments.append(time.perf_counter())
                self._take(line[6:], pending)
            elif not line and self._is_placed(pending):
                self.events += pending
                pending.clear()

    def _take(self, data: str, pending: list[dict[str, Any]]) -> None:
        if data == "[DONE]":
            self.is_whole = True
            return
        event = json.loads(data)
        kind = event.get("type", "")
        if "error" in event or kind in ("error", "response.failed"):
            self.failure = data[:200]
        self.is_whole = self.is_whole or kind in ("message_stop", "response.completed", "response.incomplete")
        if "sequence_number" in event:
            self.cursors.append(event["sequence_number"])
        if kind != "ping":
            pending.append(event)

    def _is_placed(self, pending: list[dict[str, Any]]) -> bool:
        """Return whether the events so far are not sent again after the cursor. In Messages the last event of a record
        has the position of all of them.
        """
        is_messages = kind_of(self.number) == "message"
        return not is_messages or self.is_whole or bool(pending and pending[-1].get("type") == "content_block_delta")


@dataclass
class RealtimeAnswer(Answer):
    """Client over a WebSocket, which takes its session up, and asks again if its question has not arrived."""

    _session: str = ""
    _items: set[str] = field(default_factory=set)

    async def _follow(self, url: str) -> None:
        address = f"{url.replace('http', 'ws')}/v1/realtime"
        while not (self.is_whole or self.failure):
            try:
                query = f"?session={self._session}" if self._session else ""
                async with connect(address + query, max_size=None, open_timeout=None) as socket:
                    await self._converse(socket)
            except InvalidStatus as refused:
                if refused.response.status_code != 503:
                    self.failure = f"{refused.response.status_code} {refused.response.body.decode()[:200]}"
            except (ConnectionClosed, OSError, EOFError):
                pass
            await asyncio.sleep(RETRY_SECONDS)

    async def _converse(self, socket: ClientConnection) -> None:
        """Read events to the end of the answer or of the connection."""
        async for message in socket:
            self.moments.append(time.perf_counter())
            event = json.loads(message)
            match event["type"]:
                case "session.created":
                    self._session = event["session"]["id"]
                    for request in self._missing(event["session"]):
                        await socket.send(json.dumps(request))
                case "conversation.item.added":
                    self._items.add(event["item"]["id"])
                case "response.created":
                    self.streams.add(event["response"]["id"])
                case "error":
                    # Its request had arrived just before the server was killed.
                    known = ("item_create_duplicate_item_id", "conversation_already_has_active_response")
                    if event["error"]["code"] not in known:
                        self.failure = message[:200] if isinstance(message, str) else ""
                        return
                case "response.done":
                    self._end(event["response"])
                    return

    def _missing(self, session: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the events that the server has not confirmed."""
        fields: dict[str, Any] = {"temperature": 0.8, "seed": self.number, "max_output_tokens": TOKENS}
        if kind_of(self.number) == "realtime tool":
            fields |= {"tools": [{"type": "function", **FUNCTION}], "tool_choice": "required"}
        missing: list[dict[str, Any]] = []
        if session["seed"] is None:
            missing.append({"type": "session.update", "session": fields})
        content = [{"type": "input_text", "text": question(self.number)}]
        if "question" not in self._items:
            item = {"type": "message", "id": "question", "role": "user", "content": content}
            missing.append({"type": "conversation.item.create", "item": item})
        return missing if self.streams else [*missing, {"type": "response.create"}]

    def _end(self, response: dict[str, Any]) -> None:
        if response["status"] == "failed":
            self.failure = json.dumps(response["status_details"])[:200]
            return
        for item in response["output"]:
            self.text += item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        self.is_whole = True


def answer(number: int) -> Answer:
    """Return a client."""
    return (RealtimeAnswer if kind_of(number).startswith("realtime") else HttpAnswer)(number)


async def play(
    url: str, numbers: Sequence[int], disturb: Callable[[], Awaitable[None]] | None = None, after: float = 0
) -> list[Answer]:
    """Run the clients with these numbers at once, and call `disturb` once `after` events have arrived in all."""
    answers = [answer(number) for number in numbers]
    reading = [asyncio.create_task(each.follow(url)) for each in answers]
    if disturb is not None:
        while not all(task.done() for task in reading):
            if sum(len(each.moments) for each in answers) >= after:
                break
            await asyncio.sleep(0.001)
        await disturb()
    await asyncio.gather(*reading)
    return answers


async def play_undisturbed(url: str, numbers: Sequence[int]) -> list[Answer]:
    """Return answers of an undisturbed server that is warm. Raises `RuntimeError` if one is not whole."""
    await play(url, numbers)
    answers = await play(url, numbers)
    if failed := [each for each in answers if not (each.is_whole and each.text)]:
        raise RuntimeError(f"Answers of an undisturbed server are not whole: {failed}")
    return answers


def _choice(event: dict[str, Any]) -> int:
    """Return the choice of an event: choices take turns differently in each run."""
    return int(event["choices"][0]["index"]) if event.get("choices") else 0


def _text(event: dict[str, Any]) -> str:
    """Return the text, or the arguments of calls, of an event of any protocol over HTTP, with its log-probabilities."""
    if "choices" in event:
        texts = []
        for choice in event["choices"]:
            delta = choice.get("delta", {})
            calls = [call["function"]["arguments"] for call in delta.get("tool_calls") or ()]
            texts.append(choice.get("text") or delta.get("content") or "".join(calls))
            if choice.get("logprobs"):
                texts.append(json.dumps(choice["logprobs"]))
        return "".join(texts)
    delta = event.get("delta", "")
    if isinstance(delta, dict):
        return str(delta.get("text", ""))
    return str(delta) if event.get("type") == "response.output_text.delta" else ""
