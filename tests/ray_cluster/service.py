"""A service in a real Ray cluster on this machine: `make ray`. Other runs do not collect this file, because Ray is not
among their packages, needs 1 GB of memory, and takes a minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import httpx
import pytest

from app.ray_launcher import app
from app.ray_launcher.directory import NAMESPACE

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]'")

pytestmark = pytest.mark.filterwarnings("ignore")  # of Ray's

STREAMS, TOKENS = 16, 1500
START_SECONDS = 180.0  # for actors and their processes
NAME = "smoke"


@pytest.fixture(scope="module")
def status_url() -> Iterator[str]:
    """Start a cluster and the service. Yields the URL of its status."""
    from ray import serve

    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False)
    port = free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    apis = {"num": 2, "port": free_port(), "host": "127.0.0.1"}
    args = {"model": "demo", "name": NAME, "engines": {"min": 2, "max": 3, "placement": "PACK"}, "apis": apis}
    serve.run(app(args), name="carousel", route_prefix="/")
    yield f"http://127.0.0.1:{port}/"
    serve.delete("carousel")
    assert not [each for each in groups() if each["state"] != "REMOVED"]
    serve.shutdown()
    ray.shutdown()


def groups() -> list[dict[str, Any]]:
    """Return the placement groups of the service."""
    from ray.util import placement_group_table

    return [each for each in placement_group_table().values() if each["name"].startswith(f"{NAME}-")]


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


class Service:
    """Client of the service."""

    def __init__(self, status_url: str) -> None:
        self._status_url = status_url
        self._client = httpx.AsyncClient(timeout=START_SECONDS, trust_env=False)

    async def __aenter__(self) -> Service:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def status(self, is_expected: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait for a status. Returns it."""
        async with asyncio.timeout(START_SECONDS):
            while True:
                status: dict[str, Any] = (await self._client.get(self._status_url)).json()
                if is_expected(status):
                    return status
                await asyncio.sleep(0.5)

    async def is_ready(self, url: str) -> None:
        """Wait until an API process that was killed serves requests again."""
        async with asyncio.timeout(START_SECONDS):
            while True:
                with contextlib.suppress(httpx.TransportError):
                    if (await self._client.get(f"{url}/health")).status_code == 200:
                        return
                await asyncio.sleep(0.5)

    async def texts(self, urls: list[str], during: Callable[[], Awaitable[None]] | None = None) -> list[str]:
        """Return the texts of some sampled streams, which are resumed at the next URL if their connection breaks.

        during: called once each stream has text.
        """
        began = [asyncio.Event() for _ in range(STREAMS)]
        streams = [
            asyncio.create_task(self._text(urls[number % len(urls) :] + urls, number, began[number]))
            for number in range(STREAMS)
        ]
        if during is not None:
            await asyncio.gather(*(each.wait() for each in began))
            assert not any(each.done() for each in streams)
            await during()
        return await asyncio.gather(*streams)

    async def _text(self, urls: list[str], number: int, began: asyncio.Event) -> str:
        body = {
            "model": "carousel-demo",
            "prompt": f"Story {number}:",
            "max_tokens": TOKENS,
            "ignore_eos": True,
            "seed": number,
            "temperature": 0.8,
            "stream": True,
        }
        texts: dict[str, str] = {}  # by the ids of events
        stream, resumable = "", {"X-Carousel-Resume": "120"}
        for url in urls:
            request = self._client.stream("POST", f"{url}/v1/completions", json=body, headers=resumable)
            if stream:
                cursor = {"Last-Event-ID": list(texts)[-1]}
                request = self._client.stream("GET", f"{url}/v1/streams/{stream}", headers=cursor)
            try:
                async with request as response:
                    assert response.status_code == 200, await response.aread()
                    stream, event = response.headers.get("X-Carousel-Stream", stream), ""
                    async for line in response.aiter_lines():
                        if line.startswith("id: "):
                            event = line[4:]
                        elif line.startswith("data: {"):
                            texts[event] = json.loads(line[6:])["choices"][0]["text"]
                            began.set()
                        elif line == "data: [DONE]":
                            return "".join(texts.values())
            except httpx.TransportError:
                continue
        raise AssertionError(f"stream {number} has no end at any of {urls}")


def all_serve(status: dict[str, Any]) -> bool:
    return len(status["engines"]) == len(status["apis"]) == 2


async def kill_actor(name: str) -> None:
    """Kill the process of an actor, and with it its child."""
    actor = ray.get_actor(name, namespace=NAMESPACE)
    os.kill(await actor.process_id.remote(), signal.SIGKILL)


async def test_texts_are_whole_when_an_engine_is_killed(status_url: str):
    """Its actor is started again, at another port."""
    async with Service(status_url) as service:
        status = await service.status(all_serve)
        urls = list(status["apis"].values())
        expected = await service.texts(urls)
        assert all(expected)
        [victim, _] = status["engines"]
        assert await service.texts(urls, lambda: kill_actor(victim)) == expected
        address = status["engines"][victim]
        await service.status(lambda status: all_serve(status) and status["engines"][victim] != address)


async def test_a_placement_group_has_room_for_all_engines_that_there_may_be(status_url: str):
    async with Service(status_url) as service:
        await service.status(all_serve)
    [group] = groups()
    assert (group["strategy"], group["state"]) == ("PACK", "CREATED")
    assert list(group["bundles"].values()) == [{"CPU": 1.0}] * 3


async def test_no_text_is_lost_when_an_api_process_is_killed(status_url: str):
    """Its clients resume their streams at the other one, and it comes back at its port."""
    async with Service(status_url) as service:
        status = await service.status(all_serve)
        victim, _ = status["apis"]
        urls = list(status["apis"].values())
        expected = await service.texts(urls)
        assert await service.texts(urls, lambda: kill_actor(victim)) == expected
        await service.is_ready(status["apis"][victim])
        assert (await service.status(all_serve))["apis"] == status["apis"]
