"""No valid request blocks the event loop for 20 ms.

The heaviest bodies of every kind are sent, one after another.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.admission.tenants import anonymous, tenant_of_key
from app.cli.serve import MAX_FRAME_BYTES, SWITCH_SECONDS, spare_loaded_objects
from app.conversations.store import StoredItem, StoredResponse
from app.engine_client.client import EngineClient
from app.engine_client.prefix_index import MAX_MARKS
from app.generation.warm_requests import _Entry
from app.protocols.messages import MAX_MESSAGES
from app.protocols.page_rows import MAX_ROWS
from app.protocols.page_warm import MAX_REQUESTS
from app.protocols.responses_input import MAX_ITEMS
from app.protocols.responses_tools import MAX_TOOLS
from app.protocols.schema import MAX_CONTENT_PARTS
from app.routes.page_warm import PATH as WARM
from app.routes.responses_session import ResponsesSession
from app.server import create_app
from app.settings import Settings
from app.store.state_file import StateFile
from app.text.text_model import TextModel
from engine.config import EngineConfig
from engine.prefixes import KEY_BYTES, MARK_PAGES, PrefixChanges
from tests.app.engine_client.test_client import CONFIG, fake_engine
from tests.limits import HANG_SECONDS

SCHEDSTAT = Path("/proc/thread-self/schedstat")  # time of a thread on a processor, and waiting for one

pytestmark = [
    pytest.mark.slow,  # tracing of coverage would slow down what is measured
    pytest.mark.skipif(not SCHEDSTAT.exists(), reason="needs the scheduler statistics of Linux"),
]

MAX_LAG_SECONDS = 0.020
# On a slow or shared processor the limit is a number of decodes of this text, which has as many values as a body may
# have. On a processor where it binds, both are slower by the same factor.
NUMBERS = json.dumps(list(range(150_000)))
MAX_LAG_DECODES = 2.5
ATTEMPTS = 8  # a busy machine stops any process at times; a request that blocks the loop does so every time
CONTEXT = 16_384  # of the fake engine
IDS = 1 << 17

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MESSAGES = "/v1/messages"


def chat(*contents, **fields) -> dict:
    """Return the body of a conversation, with an answer of one token."""
    return {"messages": [{"role": "user", "content": content} for content in contents], "max_tokens": 1, **fields}


def response(*items, **fields) -> dict:
    """Return the body of a response of one token."""
    return {"input": items, "max_output_tokens": 1, **fields}


def input_text(text: str) -> dict:
    """Return a content part of an input item."""
    return {"type": "input_text", "text": text}


def call_and_output(number: int) -> tuple[dict, dict]:
    """Return a function call, and its output."""
    call = {"type": "function_call", "call_id": f"call_{number}", "name": "f", "arguments": "{}"}
    return call, {"type": "function_call_output", "call_id": f"call_{number}", "output": "done"}


def part(text: str) -> dict:
    """Return a content part."""
    return {"type": "text", "text": text}


def text(unit: str, size: int = 3_900_000) -> str:
    """Return a text of about `size` bytes."""
    return unit * (size // len(unit.encode()))


def deep(levels: int) -> dict:
    """Return a schema of nested objects."""
    return {"type": "object", "properties": {"a": deep(levels - 1)} if levels else {}}


def wide(count: int) -> dict:
    """Return a schema of an object with many properties."""
    properties = {f"property{number}": {"type": "string", "description": "text " * 8} for number in range(count)}
    return {"type": "object", "properties": properties}


def chat_tool(number: int, parameters: dict) -> dict:
    """Return a tool of chat completions."""
    return {"type": "function", "function": {"name": f"f{number}", "parameters": parameters}}


def json_format(schema: dict) -> dict:
    """Return a response format."""
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


def assistant_calls(count: int) -> dict:
    """Return a message with many tool calls."""
    function = {"name": "f", "arguments": '{"a": [1, 2, 3]}'}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": f"c{number}", "type": "function", "function": function} for number in range(count)],
    }


CHAT_TOOLS = [chat_tool(number, {"type": "object"}) for number in range(MAX_TOOLS)]
KEYS = [f"key{number}" for number in range(29_000)]
CALLS = [item for number in range(MAX_ITEMS // 2) for item in call_and_output(number)]
TOOLS = [{"type": "function", "name": f"f{number}", "parameters": {"type": "object"}} for number in range(MAX_TOOLS)]
HOSTED = [{"type": f"t{number}", **dict.fromkeys(KEYS[:20], 0)} for number in range(MAX_TOOLS)]
IMAGE = {"type": "image", "source": {"url": "data:image/png;base64,AAAA"}, "name": "a.png"}

BODIES = {
    "2,200 messages of 60 parts": (CHAT, chat(*[[part("a")] * 60] * 2200)),
    "the maximum number of parts": (CHAT, chat(*[[part("a")] * 4] * (MAX_CONTENT_PARTS // 4))),
    "the maximum number of parts in one message": (CHAT, chat([part("a")] * MAX_CONTENT_PARTS)),
    "the maximum number of messages": (CHAT, chat(*["a"] * MAX_MESSAGES)),
    "a message of one letter many times": (CHAT, chat(text("a"))),
    "a message of digits": (CHAT, chat(text("7"))),
    "a message of words": (CHAT, chat(text("Hello world, "))),
    "a message of quotes": (CHAT, chat(text('"', 1_900_000))),
    "a message of emoji": (CHAT, chat(text("\U0001f600", 1_200_000))),
    "a message of line ends": (CHAT, chat(text("\n", 1_900_000))),
    "a message of possible beginnings of control tokens": (CHAT, chat(text("<"))),
    "a message of control tokens": (CHAT, chat(text("<|end|>"))),
    "a message of spaces": (CHAT, chat(text(" "))),
    "unknown keys": (CHAT, {f"{number}": 0 for number in range(300_000)}),
    "the maximum number of unknown keys": (CHAT, {f"key{number}": 0 for number in range(29_000)}),
    "metadata of many keys": (CHAT, chat("hi", metadata={f"key{number}": "" for number in range(29_000)})),
    "empty arrays": (CHAT, chat("hi", tools=[[]] * 9_900)),
    "empty arrays without end": (CHAT, chat("hi", tools=[[]] * 1_000_000)),
    "the maximum number of tools of a chat": (CHAT, chat("hi", tools=CHAT_TOOLS)),
    "tools with a large schema": (CHAT, chat("hi", tools=[chat_tool(0, wide(2400))])),
    "a hundred tools with large schemas": (CHAT, chat("hi", tools=[chat_tool(i, wide(70)) for i in range(100)])),
    "required tools with large schemas": (
        CHAT,
        chat("hi", tools=[chat_tool(i, wide(70)) for i in range(100)], tool_choice="required"),
    ),
    "a large schema": (CHAT, chat("hi", response_format=json_format(wide(2400)))),
    "a schema that is too large": (CHAT, chat("hi", response_format=json_format(wide(30_000)))),
    "a long pattern": (CHAT, chat("hi", structured_outputs={"regex": "a" * 250_000})),
    "many choices": (CHAT, chat("hi", structured_outputs={"choice": ["a" * 200] * 1024})),
    "many tool calls": (
        CHAT,
        {"messages": [{"role": "user", "content": "hi"}, *[assistant_calls(80)] * 30], "max_tokens": 1},
    ),
    "blocks of Anthropic's protocol": (MESSAGES, {**chat([part("a")] * 4096), "model": "fake"}),
    "tool results of Anthropic's protocol": (
        MESSAGES,
        {
            "messages": [
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "content": "y"}] * 4000}
            ],
            "max_tokens": 1,
        },
    ),
    "long adjacent messages of Anthropic's protocol": (
        MESSAGES,
        {**chat(*["a" * 900] * MAX_MESSAGES), "model": "fake"},
    ),
    "messages of both sides of Anthropic's protocol": (
        MESSAGES,
        {
            "messages": [{"role": role, "content": "a" * 900} for role in ("user", "assistant")] * (MAX_MESSAGES // 2),
            "max_tokens": 1,
        },
    ),
    "long results of tools": (
        CHAT,
        {
            "messages": [
                {"role": "user", "content": "hi"},
                assistant_calls(1),
                *[{"role": "tool", "tool_call_id": "c0", "content": "a" * 900}] * (MAX_MESSAGES - 2),
            ],
            "max_tokens": 1,
        },
    ),
    "wrong blocks of Anthropic's protocol": (MESSAGES, {**chat([{"type": "image"}] * 4096), "model": "fake"}),
    "a logit bias of many tokens": (CHAT, chat("hi", logit_bias={str(number): 1 for number in range(1024)})),
    "a megabyte of wrong items": (RESPONSES, response(*[{"type": "x" * 90, "id": "y"}] * 9_900)),
    "items without content": (RESPONSES, response(*[{"role": "user"}] * MAX_ITEMS)),
    "an item of wrong parts": (RESPONSES, response({"role": "user", "content": [input_text(5)] * 4096})),
    "unknown keys of an item": (RESPONSES, response({"role": "user", "content": "a"} | dict.fromkeys(KEYS, 0))),
    "the maximum number of items": (RESPONSES, response(*[{"role": "user", "content": "a"}] * MAX_ITEMS)),
    "the maximum number of calls": (RESPONSES, response(*CALLS)),
    "the maximum number of calls of one answer": (RESPONSES, response(*sorted(CALLS, key=len, reverse=True))),
    "an output without a call": (RESPONSES, response(*CALLS[:-1], CALLS[1])),
    "the maximum number of parts of items": (
        RESPONSES,
        response(*[{"role": "user", "content": [input_text("a")] * 4}] * (MAX_CONTENT_PARTS // 4)),
    ),
    "the maximum number of tools": (RESPONSES, response({"role": "user", "content": "a"}, tools=TOOLS)),
    "tools of deep schemas": (
        RESPONSES,
        response(
            {"role": "user", "content": "a"}, tools=[{"type": "function", "name": "f", "parameters": deep(40)}] * 99
        ),
    ),
    "long instructions": (RESPONSES, response({"role": "user", "content": "a"}, instructions=text("Be brief. "))),
    "the tokens of many items": (
        f"{RESPONSES}/input_tokens",
        {"input": [{"role": "user", "content": "a"}] * MAX_ITEMS},
    ),
    "a prompt of ids": (COMPLETIONS, {"prompt": [100] * (CONTEXT - 10), "max_tokens": 1}),
    "a prompt of more ids than fit": (COMPLETIONS, {"prompt": [100] * IDS, "max_tokens": 1}),
    "lists of ids": (COMPLETIONS, {"prompt": [[1, 2, 3]] * 1024, "max_tokens": 1}),
    "too many lists of ids": (COMPLETIONS, {"prompt": [[1, 2, 3]] * 4096, "max_tokens": 1}),
    "the maximum number of images in history": (CHAT, chat(*[[IMAGE] * 4] * (MAX_CONTENT_PARTS // 4), "And?")),
    "an image of many fields in history": (CHAT, chat([IMAGE | dict.fromkeys(KEYS, "data:")], "And?")),
    "messages with the maximum number of media beside the content": (
        CHAT,
        {"messages": [{"role": "user", "content": "a", "images": ["b"] * 4}] * 1000 + chat("And?")["messages"]},
    ),
    "messages with the maximum number of attachments": (
        CHAT,
        {"messages": [{"role": "user", "content": "a", "attachments": [IMAGE] * 4}] * 1000 + chat("?")["messages"]},
    ),
    "messages of many unknown fields": (
        CHAT,
        {"messages": [{"role": "user", "content": "a", **{key: {} for key in KEYS[:13]}} for _ in range(700)]},
    ),
    "blocks of the maximum number of images in history": (
        MESSAGES,
        chat(*[[IMAGE] * 4] * (MAX_CONTENT_PARTS // 4), "And?"),
    ),
    "items of the maximum number of images in history": (
        RESPONSES,
        response(*[{"role": "user", "content": [IMAGE] * 4}] * (MAX_CONTENT_PARTS // 4), chat("And?")["messages"][0]),
    ),
    "the maximum number of hosted tools": (RESPONSES, response(chat("hi")["messages"][0], tools=HOSTED)),
    "a text to continue": (COMPLETIONS, {"prompt": text("Hello world, "), "max_tokens": 1}),
    "a text to tokenize": ("/tokenize", {"prompt": text("7", 16 * CONTEXT)}),
    "a text that is too long to tokenize": ("/tokenize", {"prompt": text("7")}),
    "a conversation to tokenize": ("/tokenize", {"messages": chat(*["a"] * MAX_MESSAGES)["messages"]}),
    "ids to detokenize": ("/detokenize", {"tokens": [100 + number % 100 for number in range(IDS)]}),
}


@pytest.fixture(scope="module")
def bodies() -> dict[str, tuple[str, bytes]]:
    """Return routes and encoded bodies by name."""
    return {name: (route, json.dumps(body).encode()) for name, (route, body) in BODIES.items()}


@asynccontextmanager
async def serving(demo: Path, state_file: StateFile | None = None, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of the application, which runs on this event loop.

    Switch interval and garbage collection are those of the server.
    """
    settings = Settings(engine=EngineConfig(model="fake"), model_name="fake", **options)
    app = create_app(settings, EngineClient(CONFIG, fake_engine), TextModel.load(demo), state_file=state_file)
    before, thresholds = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(SWITCH_SECONDS)
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client,
    ):
        while (await client.get("/health")).status_code != 200:
            await asyncio.sleep(0.001)
        spare_loaded_objects()
        yield client
        gc.unfreeze()
    sys.setswitchinterval(before)
    gc.set_threshold(*thresholds)


@pytest.fixture
async def http(demo: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of a server without keys and without a store."""
    async with serving(demo) as client:
        yield client


async def longest_gap(work: asyncio.Task) -> float:
    """Return the longest time for which the loop ran nothing else while `work` ran, in seconds.

    Two kinds of time are not counted, since the machine ran other processes then: time in which the whole process
    computed nothing, and time in which this thread waited for a processor. Time in which it waits for another thread of
    the process, such as one that holds the interpreter, does count.
    """
    with SCHEDSTAT.open("rb", buffering=0) as schedstat:  # noqa: ASYNC230  # a read of it does not wait

        def clocks() -> tuple[float, float]:
            """Return wall time without waiting for a processor, and processor time of the process, in seconds."""
            schedstat.seek(0)
            waited = int(schedstat.read().split()[1]) / 1e9
            return time.monotonic() - waited, time.process_time()

        longest, before = 0.0, clocks()
        while not work.done():
            await asyncio.sleep(0)
            now = clocks()
            longest = max(longest, min(now[0] - before[0], now[1] - before[1]))
            before = now
    return longest


def decode_seconds() -> float:
    """Return the processor time of one decode of `NUMBERS`."""
    began = time.thread_time()
    json.loads(NUMBERS)
    return time.thread_time() - began


@pytest.mark.parametrize("name", BODIES)
async def test_the_heaviest_bodies_do_not_block_the_event_loop(http: httpx.AsyncClient, bodies, name: str):
    """The request is answered or refused, in an attempt that the machine did not disturb."""
    route, body = bodies[name]
    await check_gaps(http, route, body)


async def check_gaps(http: httpx.AsyncClient, route: str, body: bytes) -> None:
    """Check that a request does not block the event loop, in one attempt of several."""

    async def post() -> None:
        headers = {"Content-Type": "application/json"}
        answer = await http.post(route, content=body, headers=headers, timeout=HANG_SECONDS)
        # 503: a busy machine checks no schema of this size in time.
        assert answer.status_code in (200, 400, 503), answer.text[:200]

    await check_attempts(post)


async def check_attempts(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Check that work does not block the event loop, in one attempt of several."""
    gaps = []
    for _ in range(ATTEMPTS):
        attempt = asyncio.ensure_future(work())
        gaps.append(await longest_gap(attempt))
        attempt.result()
        if gaps[-1] < max(MAX_LAG_SECONDS, MAX_LAG_DECODES * decode_seconds()):
            return
    pytest.fail(f"the event loop was blocked for {[round(1000 * gap, 1) for gap in gaps]} ms")


FRAMES = {
    name: body
    for name, (route, body) in BODIES.items()
    if route == RESPONSES and len(json.dumps(body)) < MAX_FRAME_BYTES - 100
}


@pytest.mark.parametrize("name", FRAMES)
async def test_the_heaviest_frames_do_not_block_the_event_loop(http: httpx.AsyncClient, name: str):
    """Responses over a WebSocket are read, validated and rendered like those over HTTP."""
    service, sent = http._transport.app.state.service, []
    frame = json.dumps({"type": "response.create", **FRAMES[name]})

    async def send(message: bytes) -> None:
        sent.append(message)

    async def respond() -> None:
        session = ResponsesSession(service, anonymous("127.0.0.1"), send, lambda _: False, "request")
        await session.handle_frame(frame)
        while not session.idle_seconds:
            await asyncio.sleep(0)
        await session.detach()

    await check_attempts(respond)
    assert sent


CONVERSATIONS = "/v1/conversations"
ITEMS = [{"role": "user", "content": "a"}] * (MAX_ITEMS - 1)


async def posted(http: httpx.AsyncClient, route: str, body: dict) -> dict:
    answer = await http.post(route, json=body, timeout=HANG_SECONDS)
    assert answer.status_code == 200, answer.text[:200]
    return answer.json()


async def test_the_longest_chains_do_not_block_the_event_loop(http: httpx.AsyncClient):
    """Stored items are read, validated and rendered in a thread."""
    fields = {"truncation": "auto", "input": "a", "max_output_tokens": 1}
    whole = await posted(http, RESPONSES, fields | {"input": ITEMS[1:]})
    conversation = (await posted(http, CONVERSATIONS, {"items": ITEMS}))["id"]
    items = (await http.get(f"{CONVERSATIONS}/{conversation}/items")).json()["data"]
    references = [{"type": "item_reference", "id": items[0]["id"]}] * MAX_ITEMS
    await check_gaps(http, RESPONSES, json.dumps(fields | {"previous_response_id": whole["id"]}).encode())
    await check_gaps(http, RESPONSES, json.dumps(fields | {"conversation": conversation}).encode())
    await check_gaps(http, RESPONSES, json.dumps(fields | {"input": references}).encode())
    await check_gaps(http, CONVERSATIONS, json.dumps({"items": ITEMS}).encode())


async def test_the_deepest_chain_does_not_block_the_event_loop(http: httpx.AsyncClient):
    """Each response has one item, and only the last one is not deleted."""
    store = http._transport.app.state.service.store
    for at in range(MAX_ITEMS - 10):
        item = StoredItem(f"msg_{at}", b'{"role":"user","content":"a"}')
        previous = f"resp_{at - 1}" if at else None
        store.add_response(
            StoredResponse(id=f"resp_{at}", owner="", tenant="", created=0.0, previous_id=previous, input=(item,)), ()
        )
        store.end_response(f"resp_{at}", b"{}", ())
    body = {"truncation": "auto", "input": "a", "max_output_tokens": 1, "previous_response_id": f"resp_{at}"}
    await check_gaps(http, RESPONSES, json.dumps(body).encode())


async def test_the_heaviest_rows_of_the_chat_page_do_not_block_the_event_loop(demo: Path, tmp_path: Path):
    """They are read and joined in threads, and a page of them has a bounded size."""
    rows = "/v1/page/rows"
    row = {"id": "a" * 200, "revision": 1, "writer": "w" * 64}
    joins = [
        [row | {"id": f"{number:0200}", "value": "a" * 3_000} for number in range(MAX_ROWS)],
        [row | {"id": f"{number}", "value": text("\U0001f600", 1_900_000)} for number in range(2)],
        [row | {"id": "2", "value": text("\1", 600_000)}],
        [row | {"id": f"{number}", "value": text('"', 900_000)} for number in range(3, 5)],
    ]
    keys = {"tenants": (tenant_of_key("alice"),)}
    async with serving(demo, StateFile(tmp_path / "s.db"), **keys) as client:
        client.headers["Authorization"] = "Bearer alice"
        for join in joins:
            await check_gaps(client, rows, json.dumps({"rows": join}, ensure_ascii=False).encode())

        async def read() -> None:
            after, count = 0, 0
            while count < sum(map(len, joins)):
                answer = await client.get(rows, params={"after": after, "limit": MAX_ROWS}, timeout=HANG_SECONDS)
                # Only the end is decoded, since this client runs on the same loop.
                after = json.loads(b'{"' + answer.content[-100:].rpartition(b'],"')[2])["last"]
                count += answer.content.count(b',"number":')

        await check_attempts(read)


async def test_the_longest_ended_requests_do_not_block_the_event_loop(http: httpx.AsyncClient):
    """As many as a page may ask for, each of which has all its marks in a cache."""
    service = http._transport.app.state.service
    for number in range(MAX_REQUESTS):
        marks = b"".join((512 * number + at).to_bytes(KEY_BYTES, "big") for at in range(MAX_MARKS))
        service.client.prefixes.update(0, PrefixChanges(marks, b""), CONFIG.tokens_per_page)
        service.warm._entries[f"r{number}"] = _Entry("", "", 1 << 15, marks)
        service.warm._tenants.setdefault("", OrderedDict())[f"r{number}"] = 0
    body = {"requests": [f"r{number}" for number in range(MAX_REQUESTS)]}
    found = (await http.post(WARM, json=body)).json()["requests"].values()
    assert {each["cached_tokens"] for each in found} == {MAX_MARKS * MARK_PAGES * CONFIG.tokens_per_page}
    await check_gaps(http, WARM, json.dumps(body).encode())
