"""/v1/page/warm over HTTP, with a fake engine whose cache is small."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
from starlette.testclient import TestClient

from app.admission.tenants import tenant_of_key
from app.engine_client.client import EngineClient
from app.server import create_app
from app.settings import Settings
from engine.config import EngineConfig
from engine.prefixes import MARK_PAGES
from tests.app.engine_client import test_client
from tests.app.engine_client.test_client import CONFIG, fake_engine
from tests.app.routes.test_http import CHAT, ready
from tests.app.routes.test_request_changes import until
from tests.app.text_models import byte_level
from tests.fakes import CrashInjector

WARM = "/v1/page/warm"
ALICE, BOB = ({"Authorization": f"Bearer {name}"} for name in ("alice", "bob"))
TENANTS = (tenant_of_key("alice"), tenant_of_key("bob"))
MARK = MARK_PAGES * CONFIG.tokens_per_page  # tokens
PROMPT, ANSWER = 104, 41  # tokens, of which the last one's page is never computed


@contextmanager
def serving(crash_injector: CrashInjector) -> Iterator[TestClient]:
    """Yield a client of a server whose engine has 64 pages."""
    settings = Settings(engine=EngineConfig(model="fake"), model_name="fake", tenants=TENANTS, public_metrics=True)
    engine = partial(fake_engine, crash_injector=crash_injector)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(test_client, "PAGES", 64)
        app = create_app(settings, EngineClient(CONFIG, engine), byte_level())
        with TestClient(app, base_url="http://127.0.0.1:8000") as client:
            yield ready(client)


@pytest.fixture
def crash_injector() -> CrashInjector:
    return CrashInjector()


@pytest.fixture
def http(crash_injector: CrashInjector) -> Iterator[TestClient]:
    with serving(crash_injector) as client:
        yield client


def ask(http: TestClient, letter: str = "a", resume: str = "60", key: dict[str, str] = ALICE) -> str:
    """Return the id of a request that has ended."""
    body = {"messages": [{"role": "user", "content": letter * (PROMPT - len("[user]"))}], "max_tokens": ANSWER}
    answer = http.post(CHAT, json=body | {"ignore_eos": True}, headers=key | {"X-Carousel-Resume": resume})
    assert answer.json()["usage"]["prompt_tokens"] == PROMPT, answer.text
    return answer.json()["id"]


def warm(http: TestClient, *requests: str, key: dict[str, str] = ALICE) -> dict[str, dict[str, int]]:
    answer = http.post(WARM, json={"requests": requests}, headers=key)
    assert answer.status_code == 200 and answer.json()["object"] == "page.warm", answer.text
    return answer.json()["requests"]


def test_an_answer_is_warm_until_other_prompts_fill_the_cache(http: TestClient):
    """Its end is lost first. The times are those of the tokens that are not in the cache."""
    name = ask(http)
    full = (PROMPT + ANSWER - 1) // MARK * MARK
    seen = []
    for letter in "bcdefghi":
        [found] = warm(http, name).values()
        assert found["tokens"] == PROMPT + ANSWER
        assert found["first_token_ms"] <= found["cold_first_token_ms"]
        seen.append(found["cached_tokens"])
        ask(http, letter)
    assert seen[0] == full and seen[-1] == 0 and seen == sorted(seen, reverse=True)
    assert {0, full} < set(seen)


def test_nothing_is_warm_in_an_engine_that_was_started_again(http: TestClient, crash_injector: CrashInjector):
    """It is found again once another request has brought its tokens back."""
    name = ask(http)
    assert warm(http, name)[name]["cached_tokens"] > 0
    crash_injector.is_killed = True
    ask(http, "b")
    assert crash_injector.engines_started == 2
    assert warm(http, name)[name]["cached_tokens"] == 0
    ask(http)
    assert warm(http, name)[name]["cached_tokens"] >= PROMPT // MARK * MARK


def test_requests_of_other_keys_and_unknown_ones_are_left_out(http: TestClient):
    """So are those that cannot be resumed. An id with or without its prefix names the same request."""
    name, other = ask(http), ask(http, resume="0")
    bare = name.rpartition("-")[2]
    assert list(warm(http, "no-such-id", other, name, bare)) == [name, bare]
    assert warm(http, name, key=BOB) == {}
    [of_bob] = warm(http, ask(http, key=BOB), key=BOB).values()
    assert of_bob["cached_tokens"] > 0
    assert http.post(WARM, json={"requests": [name]}).status_code == 401


@pytest.mark.parametrize(
    ("requests", "message"),
    [(None, "requests"), ("x", "requests"), (["a"] * 101, "requests"), ([""], "requests.0"), (["a", 5], "requests.1")],
)
def test_wrong_questions_are_refused_by_name(http: TestClient, requests: object, message: str):
    answer = http.post(WARM, json={"requests": requests}, headers=ALICE)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "requests") and error["message"].startswith(message), error


def test_the_memory_of_ended_requests_is_a_metric(http: TestClient):
    ask(http)
    until(lambda: 'carousel:warm_request_bytes{model_name="fake"} 0' not in http.get("/metrics").text)
    assert 'carousel:warm_requests_evicted_total{model_name="fake"} 0.0' in http.get("/metrics").text
