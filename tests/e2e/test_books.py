"""Five hundred clients that disconnect at random times leave no resources in use."""

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
from tests.limits import HANG_SECONDS
from tests.profiles import examples

CLIENTS = examples(500)
CONCURRENT_CLIENTS = 24
CERTIFICATES = ssl.create_default_context()  # not needed here, but each client would load all certificates anew


@pytest.fixture(scope="module")
def own_server():
    running = Server.start("--max-num-seqs", "8", "--num-pages", "120", "--page-size", "16")
    yield running
    running.stop()


def outstanding(url: str) -> dict[str, float]:
    """Return all metrics that must return to their initial values."""
    text = httpx.get(f"{url}/metrics").text
    pattern = r'^((?:vllm|carousel):num_requests_\w+\{.*\}|carousel:kv_pages\{.*state="(?:held|swapped)"\}) (\S+)$'
    return {name: float(value) for name, value in re.findall(pattern, text, re.M)}


def footprint(pid: int) -> dict[str, float]:
    """Return open descriptors, threads and memory (MiB) of the server and its engine."""
    processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    assert len(processes) == 3, "the API, the engine, and the process that checks grammars"
    return {
        "descriptors": sum(p.num_fds() for p in processes),
        "threads": sum(p.num_threads() for p in processes),
        "memory": sum(p.memory_info().rss for p in processes) / 2**20,
    }


async def client(url: str, rng: random.Random) -> None:
    """Connect, send a request, and disconnect at some point in one of several ways."""
    action = rng.choice(["read", "leave", "leave", "stop", "socket", "socket", "raw", "bad"])
    body = {
        "messages": [{"role": "user", "content": "Tell me a story about " + "a fox and " * rng.randrange(30)}],
        "max_tokens": rng.randrange(1, 60),
        "n": rng.choice([1, 1, 1, 2, 3]),
        "service_tier": rng.choice(["flex", "default", "priority"]),
        "stream": True,
    }
    delay = rng.random() * 0.5
    if action == "socket":
        # A client with unread messages in a full queue would block in its own close, not in the server's.
        async with connect(url.replace("http", "ws") + "/v1/realtime", max_queue=None) as socket:
            item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Tell me a story."}]}
            await socket.send(json.dumps({"type": "conversation.item.create", "item": item}))
            await socket.send(json.dumps({"type": "response.create", "response": {"max_output_tokens": 50}}))
            await asyncio.sleep(delay)
            if rng.random() < 0.5:
                await socket.send(json.dumps({"type": "response.cancel"}))
        return
    if action == "raw":  # disconnects in the middle of its own request
        host, port = url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        payload = json.dumps(body).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        request = head.encode() + f"Content-Length: {len(payload)}\r\n\r\n".encode() + payload
        writer.write(request[: rng.randrange(len(request) + 1)])
        await asyncio.sleep(delay / 5)
        writer.close()
        return
    async with httpx.AsyncClient(base_url=url, timeout=HANG_SECONDS, verify=CERTIFICATES) as http:
        if action == "bad":
            assert (await http.post("/v1/chat/completions", json=body | {"n": -1})).status_code == 400
            return
        async with http.stream("POST", "/v1/chat/completions", json=body) as response:
            assert response.status_code == 200
            if action == "stop":
                await http.delete(f"/v1/streams/{response.headers['x-carousel-stream']}")
            elif action == "leave":
                await asyncio.sleep(delay)
                return
            async for _ in response.aiter_lines():
                pass


async def run_clients(url: str, count: int, seed: int) -> None:
    """Run `count` clients, `DIRECT_WRITE` at a time."""
    room = asyncio.Semaphore(CONCURRENT_CLIENTS)

    async def run_one(number: int) -> None:
        async with room:
            await client(url, random.Random(seed * 100_000 + number))

    await asyncio.gather(*(run_one(number) for number in range(count)))


async def settle(url: str, before: dict[str, float]) -> None:
    """Wait until nothing runs; fail after 20 s."""
    async with asyncio.timeout(HANG_SECONDS):
        while await asyncio.to_thread(outstanding, url) != before:
            await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_hundreds_of_clients_leave_no_resources_in_use(own_server):
    """No slot, page, host page or descriptor is leaked, and no process has grown."""
    url, pid = own_server.url, own_server.process.pid
    before = await asyncio.to_thread(outstanding, url)
    assert before
    assert not any(before.values())
    await run_clients(url, 300, seed=1)  # fill caches, import modules and touch memory for the first time
    await settle(url, before)
    start = footprint(pid)
    await run_clients(url, CLIENTS, seed=2)
    await settle(url, before)
    await asyncio.sleep(1.0)  # closed sockets leave the table
    end = footprint(pid)
    assert end["descriptors"] <= start["descriptors"]
    assert end["threads"] <= start["threads"]
    # Finished answers stay readable for their time to live, and the allocator keeps some memory; the rest is freed.
    assert end["memory"] - start["memory"] < 40, (start, end)
    assert own_server.process.poll() is None
    assert not [line for line in own_server.log if "Traceback" in line or "ERROR" in line], own_server.log[-30:]
