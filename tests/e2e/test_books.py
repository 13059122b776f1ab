"""Five hundred clients that come and go as they like, and what is left of them: nothing."""

from __future__ import annotations

import asyncio
import json
import random
import re
import ssl

import httpx
import psutil
import pytest
from websockets.asyncio.client import connect

from tests.conftest import Server

CLIENTS = 500
AT_ONCE = 24
CERTIFICATES = ssl.create_default_context()  # that nobody here needs; each client would read them all anew


@pytest.fixture(scope="module")
def own_server():
    running = Server.start("--max-num-seqs", "8", "--num-pages", "120", "--page-size", "16")
    yield running
    running.stop()


def books(url: str) -> dict[str, float]:
    """Everything that must come back to where it was."""
    text = httpx.get(f"{url}/metrics").text
    wanted = r'^((?:vllm|carousel):num_requests_\w+\{.*\}|carousel:kv_pages\{.*state="(?:held|swapped)"\}) (\S+)$'
    return {name: float(value) for name, value in re.findall(wanted, text, re.M)}


def footprint(pid: int) -> dict[str, float]:
    """Open descriptors, threads and memory (MiB) of the server and its engine."""
    processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    assert len(processes) == 2
    return {
        "descriptors": sum(p.num_fds() for p in processes),
        "threads": sum(p.num_threads() for p in processes),
        "memory": sum(p.memory_info().rss for p in processes) / 2**20,
    }


async def client(url: str, draw: random.Random) -> None:
    """Connect, ask for something, and leave at some point in one of several ways."""
    how = draw.choice(["read", "leave", "leave", "stop", "socket", "socket", "raw", "bad"])
    body = {
        "messages": [{"role": "user", "content": "Tell me a story about " + "a fox and " * draw.randrange(30)}],
        "max_tokens": draw.randrange(1, 60),
        "n": draw.choice([1, 1, 1, 2, 3]),
        "service_tier": draw.choice(["flex", "default", "priority"]),
        "stream": True,
    }
    patience = draw.random() * 0.5
    if how == "socket":
        # Who leaves with unread words in a full queue would wait for them at its own end, and not for us.
        async with connect(url.replace("http", "ws") + "/v1/realtime", max_queue=None) as socket:
            item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Tell me a story."}]}
            await socket.send(json.dumps({"type": "conversation.item.create", "item": item}))
            await socket.send(json.dumps({"type": "response.create", "response": {"max_output_tokens": 50}}))
            await asyncio.sleep(patience)
            if draw.random() < 0.5:
                await socket.send(json.dumps({"type": "response.cancel"}))
        return
    if how == "raw":  # leaves in the middle of its own request
        host, port = url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        payload = json.dumps(body).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        whole = head.encode() + f"Content-Length: {len(payload)}\r\n\r\n".encode() + payload
        writer.write(whole[: draw.randrange(len(whole) + 1)])
        await asyncio.sleep(patience / 5)
        writer.close()
        return
    async with httpx.AsyncClient(base_url=url, timeout=60, verify=CERTIFICATES) as http:
        if how == "bad":
            assert (await http.post("/v1/chat/completions", json=body | {"n": -1})).status_code == 400
            return
        async with http.stream("POST", "/v1/chat/completions", json=body) as response:
            assert response.status_code == 200
            if how == "stop":
                await http.delete(f"/v1/streams/{response.headers['x-carousel-stream']}")
            elif how == "leave":
                await asyncio.sleep(patience)
                return
            async for _ in response.aiter_lines():
                pass


async def crowd(url: str, count: int, seed: int) -> None:
    """`count` clients, a few at once."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        async with room:
            await client(url, random.Random(seed * 100_000 + number))

    await asyncio.gather(*(one(number) for number in range(count)))


async def settle(url: str, before: dict[str, float]) -> None:
    """Wait until nothing runs; fails when that takes long."""
    async with asyncio.timeout(20):
        while await asyncio.to_thread(books, url) != before:
            await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_after_500_clients_the_books_are_as_at_the_start(own_server):
    """No slot, page, host page or descriptor is kept, and no process grew."""
    url, pid = own_server.url, own_server.process.pid
    before = await asyncio.to_thread(books, url)
    assert before
    assert not any(before.values())
    await crowd(url, 300, seed=1)  # what is cached, imported or first touched once is so now
    await settle(url, before)
    start = footprint(pid)
    await crowd(url, CLIENTS, seed=2)
    await settle(url, before)
    await asyncio.sleep(1.0)  # closed sockets leave the table
    end = footprint(pid)
    assert end["descriptors"] <= start["descriptors"]
    assert end["threads"] <= start["threads"]
    # Finished answers stay readable for their time to live, and the allocator keeps some; the rest is given back.
    assert end["memory"] - start["memory"] < 40, (start, end)
    assert own_server.process.poll() is None
    assert not [line for line in own_server.log if "Traceback" in line or "ERROR" in line], own_server.log[-30:]
