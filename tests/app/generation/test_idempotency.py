"""Idempotency keys."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import AsyncIterator

import httpx
import pytest

import app.generation.idempotency as idempotency
from app.admission.tenants import ANONYMOUS, Tenant, anonymous
from app.engine_client.client import EngineClient
from app.generation.generation import Generation
from app.generation.idempotency import IdempotentRequests
from app.generation.registry import StreamRegistry
from app.server import create_app
from app.settings import Settings
from engine.config import EngineConfig
from tests.app.engine_client.test_client import CONFIG, fake_engine
from tests.app.text_models import byte_level

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    settings = Settings(engine=EngineConfig(model="fake"), model_name="fake")
    app = create_app(settings, EngineClient(CONFIG, fake_engine), byte_level())
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client,
    ):
        while (await client.get("/health")).status_code != 200:
            await asyncio.sleep(0.001)
        yield client


async def post(http: httpx.AsyncClient, key: str, path: str = CHAT, **fields) -> httpx.Response:
    return await http.post(path, json=BODY | fields, headers={"Idempotency-Key": key})


async def test_a_repeated_request_gets_the_same_answer(http: httpx.AsyncClient):
    """Also while the first one is being generated; another key gets an answer of its own."""
    first, second = await asyncio.gather(post(http, "a"), post(http, "a"))
    third = await post(http, "a")
    assert first.json() == second.json() == third.json()
    assert [one.headers.get("idempotent-replayed") for one in (first, second, third)].count("true") == 2
    assert (await post(http, "b")).json()["id"] != first.json()["id"]


async def test_a_repeated_stream_has_the_same_events(http: httpx.AsyncClient):
    """It is sent from the beginning."""
    first = await post(http, "a", stream=True)
    again = await post(http, "a", stream=True)
    assert first.text == again.text and first.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize(("path", "fields"), [(CHAT, {"max_tokens": 6}), ("/v1/messages", {})])
async def test_a_key_with_another_request_is_refused(http: httpx.AsyncClient, path: str, fields: dict):
    """Its body or its route differs."""
    await post(http, "a")
    refused = await post(http, "a", path, **fields)
    assert refused.status_code == 409 and "Idempotency-Key" in refused.text


async def test_a_refused_request_may_be_repeated(http: httpx.AsyncClient):
    """Its key is free again."""
    assert (await post(http, "a", model="other")).status_code == 404
    assert (await post(http, "a")).status_code == 200


async def test_a_key_does_not_keep_an_expired_answer(http: httpx.AsyncClient):
    """Its memory is free once its stream expires, though the key is remembered."""
    registry = http._transport.app.state.service.registry  # type: ignore[attr-defined]
    first = await post(http, "a")
    kept = weakref.ref(registry.get_any_owner(first.json()["id"].removeprefix("chatcmpl-")))
    registry.expire(lambda: time.monotonic() + 2 * registry.ttl)
    gc.collect()
    assert kept() is None
    assert (await post(http, "a")).json()["id"] != first.json()["id"]


@pytest.mark.parametrize("key", ["", "a" * 256])
async def test_a_key_has_a_limited_length(http: httpx.AsyncClient, key: str):
    """The error names the header."""
    refused = await post(http, key)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "Idempotency-Key"


async def test_a_waiting_request_starts_itself_if_the_first_client_leaves_early():
    """The first one was not queued yet."""
    requests = IdempotentRequests(StreamRegistry())
    began, generation = asyncio.Event(), Generation.__new__(Generation)

    async def never() -> Generation:
        began.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def start() -> Generation:
        return generation

    first = asyncio.create_task(requests.run(ANONYMOUS, "k", b"d", never))
    await began.wait()
    second = asyncio.create_task(requests.run(ANONYMOUS, "k", b"d", start))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == (generation, False)


async def generation_of(requests: IdempotentRequests, tenant: Tenant, key: str) -> Generation:
    """Return the generation of a key, which is started if there is none."""

    async def start() -> Generation:
        return Generation.__new__(Generation)

    return (await requests.run(tenant, key, b"d", start))[0]


@pytest.mark.parametrize(
    ("victim", "flood"),
    [
        (Tenant(name="victim", digest="v" * 64), Tenant(name="flood", digest="f" * 64)),
        (anonymous("192.0.2.1"), anonymous("192.0.2.2")),
    ],
)
async def test_a_flood_of_keys_does_not_make_a_retry_of_another_tenant_run_again(
    monkeypatch: pytest.MonkeyPatch, victim: Tenant, flood: Tenant
):
    """Neither with API keys nor, without, from another network; the flood loses its own oldest keys."""
    monkeypatch.setattr(IdempotentRequests, "_is_kept", lambda *_: True)
    requests = IdempotentRequests(StreamRegistry())
    first = await generation_of(requests, victim, "order")
    kept = [await generation_of(requests, flood, str(n)) for n in range(idempotency.MAX_KEYS_PER_TENANT + 10)]
    assert await generation_of(requests, victim, "order") is first
    assert await generation_of(requests, flood, "10") is kept[10]
    assert await generation_of(requests, flood, "0") is not kept[0]
    assert requests.entries.evicted == 11


async def test_networks_without_keys_have_own_idempotency_keys(monkeypatch: pytest.MonkeyPatch):
    """The same key from another network is another request, whatever its body is."""
    monkeypatch.setattr(IdempotentRequests, "_is_kept", lambda *_: True)
    requests = IdempotentRequests(StreamRegistry())
    networks = [anonymous("192.0.2.1"), anonymous("192.0.2.2"), ANONYMOUS]
    first = [await generation_of(requests, network, "1") for network in networks]
    assert len({id(generation) for generation in first}) == 3
    assert [await generation_of(requests, network, "1") for network in networks] == first
