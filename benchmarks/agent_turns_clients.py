"""Clients of `benchmarks.agent_turns`: an agent that uses the library of openai or of anthropic, and floods."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Protocol

import anthropic
import openai

from benchmarks.serving import Serving
from benchmarks.sse_client import Part, receive

MODEL = "agent-turns"  # name of the model for clients
# Most tokenizers have a token for each of these words.
TEXT_OF_WORDS = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city community name president team minute idea body information "
    "back parent face level office door health person art war history party result change morning reason research girl "
    "guy moment air teacher force education"
)
WORDS = TEXT_OF_WORDS.split()
FUNCTION = "run_command"
# The only call that the schema allows: the length of an answer does not depend on the model.
ARGUMENTS = {
    "command": "python -m pytest -q tests/engine",
    "directory": "/home/user/project",
    "reason": "the tests of the engine must pass first",
}
OTHER_TOOLS = 4
MAX_TOKENS = 400  # of a call; it has fewer, also if the model writes blanks
TEXT = b'"delta":{"content":'  # in an event with text


def random_text(dice: random.Random, words: int) -> str:
    """Return random words in one line."""
    return " ".join(dice.choices(WORDS, k=words))


@dataclass(frozen=True)
class Sizes:
    """Lengths in words, of about a token each. system: the system prompt and descriptions of tools."""

    system: int = 1640
    result: int = 230
    flood_prompt: int = 670
    flood_answer: int = 60  # tokens


@dataclass(frozen=True)
class Tool:
    """A function that the agent may call."""

    name: str
    description: str
    parameters: dict[str, Any]


def tools(dice: random.Random, words: int) -> list[Tool]:
    """Return the function that the agent calls and others, with descriptions of so many words in all."""
    properties = {name: {"type": "string", "enum": [value]} for name, value in ARGUMENTS.items()}
    called = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    other = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    each = words // (OTHER_TOOLS + 1)
    others = [Tool(f"tool_{number}", random_text(dice, each), other) for number in range(OTHER_TOOLS)]
    return [Tool(FUNCTION, random_text(dice, each), called), *others]


@dataclass(frozen=True)
class Turn:
    """A turn of an agent; times in seconds since its request, and numbers of tokens."""

    first: float  # first event with text, or with a part of a call
    seconds: float
    prompt: int
    cached: int
    answer: int


class Agent(Protocol):
    """A client that keeps one conversation."""

    async def ask(self, text: str) -> Turn:
        """Send a text as the result of the last call, or as the first question, and return the turn."""

    async def close(self) -> None:
        """Close the connections."""


class OpenAIAgent:
    """Agent that streams chat completions with the library of openai."""

    def __init__(self, url: str, key: str, dice: random.Random, sizes: Sizes) -> None:
        self._client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key)
        self._messages: list[Any] = [{"role": "system", "content": random_text(dice, sizes.system // 2)}]
        functions = [tool.__dict__ for tool in tools(dice, sizes.system // 2)]
        self._fields: dict[str, Any] = {
            "model": MODEL,
            "tools": [{"type": "function", "function": function} for function in functions],
            "tool_choice": {"type": "function", "function": {"name": FUNCTION}},
            "stream_options": {"include_usage": True},
            "max_tokens": MAX_TOKENS,
            "temperature": 0,
        }

    async def ask(self, text: str) -> Turn:
        """Implement `Agent.ask`."""
        role: dict[str, Any] = {"role": "user"}
        if calls := getattr(self._messages[-1], "tool_calls", None):
            role = {"role": "tool", "tool_call_id": calls[0].id}
        self._messages.append({**role, "content": text})
        sent, first = time.perf_counter(), 0.0
        async with self._client.chat.completions.stream(messages=self._messages, **self._fields) as stream:
            async for event in stream:
                if not first and event.type == "chunk":
                    deltas = [choice.delta for choice in event.chunk.choices]
                    if any(delta.content or delta.tool_calls for delta in deltas):
                        first = time.perf_counter() - sent
            answer = await stream.get_final_completion()
        seconds = time.perf_counter() - sent
        self._messages.append(answer.choices[0].message)
        usage = answer.usage
        assert usage is not None and usage.prompt_tokens_details is not None
        cached = usage.prompt_tokens_details.cached_tokens or 0
        return Turn(first, seconds, usage.prompt_tokens, cached, usage.completion_tokens)

    async def close(self) -> None:
        """Implement `Agent.close`."""
        await self._client.close()


class AnthropicAgent:
    """Agent that streams messages with the library of anthropic."""

    def __init__(self, url: str, key: str, dice: random.Random, sizes: Sizes) -> None:
        self._client = anthropic.AsyncAnthropic(base_url=url, api_key=key)
        self._messages: list[Any] = []
        self._call_id = ""
        system = random_text(dice, sizes.system // 2)
        self._fields: dict[str, Any] = {
            "model": MODEL,
            "system": system,
            "tools": [
                {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
                for tool in tools(dice, sizes.system // 2)
            ],
            "tool_choice": {"type": "tool", "name": FUNCTION},
            "max_tokens": MAX_TOKENS,
            "extra_body": {"temperature": 0},  # the library has no such parameter any more
        }

    async def ask(self, text: str) -> Turn:
        """Implement `Agent.ask`."""
        content: Any = text
        if self._call_id:
            content = [{"type": "tool_result", "tool_use_id": self._call_id, "content": text}]
        self._messages.append({"role": "user", "content": content})
        sent, first = time.perf_counter(), 0.0
        async with self._client.messages.stream(messages=self._messages, **self._fields) as stream:
            async for event in stream:
                if not first and event.type in ("content_block_start", "content_block_delta"):
                    first = time.perf_counter() - sent
            answer = await stream.get_final_message()
        seconds = time.perf_counter() - sent
        self._messages.append({"role": answer.role, "content": answer.content})
        self._call_id = next(block.id for block in answer.content if block.type == "tool_use")
        usage = answer.usage
        cached = usage.cache_read_input_tokens or 0
        return Turn(first, seconds, usage.input_tokens + cached, cached, usage.output_tokens)

    async def close(self) -> None:
        """Implement `Agent.close`."""
        await self._client.close()


AGENTS: dict[str, type[OpenAIAgent | AnthropicAgent]] = {"openai": OpenAIAgent, "anthropic": AnthropicAgent}


async def chat(server: Serving, key: str, prompt: str, answer: int, arrived: list[float]) -> None:
    """Stream the answer to a prompt, and append the arrival time of each event that has text. answer: tokens."""
    messages = [{"role": "user", "content": prompt}]
    body = {"messages": messages, "max_tokens": answer, "ignore_eos": True, "stream": True, "temperature": 0}

    def take(part: Part) -> None:
        moment, data = part
        arrived.extend([moment] * data.count(TEXT))

    await receive(server.host, server.port, "/v1/chat/completions", body, take, key=key)


@dataclass
class Floods:
    """Clients that send random prompts, each as soon as its last answer has ended."""

    server: Serving
    sizes: Sizes
    arrived: list[float] = field(default_factory=list)  # time of each event with text
    answers: list[tuple[float, float]] = field(default_factory=list)  # end of each answer, and its seconds

    async def follow(self, key: str, seed: int) -> None:
        """Send one request after another, until cancelled."""
        dice = random.Random(seed)
        while True:
            prompt, sent = random_text(dice, self.sizes.flood_prompt), time.perf_counter()
            await chat(self.server, key, prompt, self.sizes.flood_answer, self.arrived)
            now = time.perf_counter()
            self.answers.append((now, now - sent))

    def figures(self, began: float, seconds: float) -> dict[str, float | None]:
        """Return the tokens per second of a window, and the median seconds of the answers that ended in it.

        began: by `time.perf_counter`.
        """
        tokens = sum(began <= moment < began + seconds for moment in self.arrived)
        ended = [each for moment, each in self.answers if began <= moment < began + seconds]
        return {"floods_tokens_per_s": tokens / seconds, "floods_p50_s": median(ended) if ended else None}


async def converse(agent: Agent, turns: int, words: int, gap: float, done: list[Turn]) -> None:
    """Append the turns of an agent to `done`. words: of the first question and of each result; gap: seconds."""
    dice = random.Random(2)
    while len(done) < turns:
        if done:
            await asyncio.sleep(gap)
        done.append(await agent.ask(random_text(dice, words)))
