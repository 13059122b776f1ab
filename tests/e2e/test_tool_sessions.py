"""A conversation that waits for the result of a tool keeps its pages, and its next answer has the same text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.conftest import Server
from tests.limits import HANG_SECONDS

PAGE, PAGES = 16, 160
KEYS = ("anna-0123456789abcdef", "bert-0123456789abcdef")
WEATHER = {"type": "object", "properties": {"city": {"enum": ["Paris"]}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": WEATHER}}]
QUESTION = {"role": "user", "content": "What is the weather in Paris? " + "The fox and the owl walk on. " * 30}
FLOOD = "The river bends and the boats go by, one after another, number {}. "


@pytest.fixture(scope="module", params=["host memory", "no host memory"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Yield a server whose cache is smaller than the flood."""
    swap = "0" if request.param == "no host memory" else "1"
    flags = ("--num-pages", str(PAGES), "--page-size", str(PAGE), "--max-num-seqs", "4", "--swap-space", swap)
    running = Server.start(*flags, "--max-model-len", "1024", "--api-key", ",".join(KEYS), "--public-metrics")
    yield running
    running.stop()


def ask(server: Server, messages: list[dict[str, Any]], key: str = KEYS[0], **more: Any) -> dict[str, Any]:
    body = {"messages": messages, "max_tokens": 100, "seed": 1, "temperature": 0} | more
    answer = httpx.post(
        f"{server.url}/v1/chat/completions", json=body, headers={"Authorization": f"Bearer {key}"}, timeout=HANG_SECONDS
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


def flood(server: Server, first: int) -> None:
    """Serve prompts that fill the cache three times."""
    for number in range(first, first + 12):
        ask(server, [{"role": "user", "content": FLOOD.format(number) * 12}], max_tokens=2)


def conversation(server: Server, first: int, key: str, *, calls: bool) -> tuple[int, int, str]:
    """Return the prompt tokens of a first turn, those of them that its second turn found cached, and its text."""
    tools = {"tools": TOOLS, "tool_choice": "required" if calls else "auto"}
    begun = ask(server, [QUESTION], key, **tools)
    message = begun["choices"][0]["message"]
    flood(server, first)
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
    earlier = {"role": "assistant", "content": None, "tool_calls": message.get("tool_calls", [call])}
    result = {"role": "tool", "tool_call_id": earlier["tool_calls"][0]["id"], "content": "sunny"}
    ended = ask(server, [QUESTION, earlier, result], key, tools=TOOLS, max_tokens=20)
    cached = ended["usage"]["prompt_tokens_details"]["cached_tokens"]
    return begun["usage"]["prompt_tokens"], cached, ended["choices"][0]["message"]["content"]


def test_an_answer_that_asks_for_a_tool_is_kept_through_a_flood(server: Server) -> None:
    """Without the call the flood evicts it; the text is the same."""
    prompt, cached, text = conversation(server, 100, KEYS[0], calls=True)
    assert cached >= prompt - PAGE
    _, lost, computed = conversation(server, 200, KEYS[1], calls=False)
    assert lost < prompt / 2
    assert text == computed


def test_metrics_count_what_is_kept(server: Server) -> None:
    """Pages are kept while a conversation waits for its tool."""
    ask(server, [QUESTION], tools=TOOLS, tool_choice="required")
    metrics = httpx.get(f"{server.url}/metrics").text
    (kept,) = [line for line in metrics.splitlines() if line.startswith("carousel:session_pages") and "device" in line]
    assert float(kept.split()[-1]) > 0
