"""POST /v1/requests/{id} on the real application, with a fake engine on a thread."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import httpx
import pytest
from starlette.testclient import TestClient

from app import request_changes
from app.admission.tenants import Tenant, key_digest
from app.engine_client.client import EngineClient
from app.generation.generation import Generation
from app.server import create_app
from app.settings import Settings
from engine.config import EngineConfig
from engine.types import ServiceClass
from tests.app.engine_client.test_client import CONFIG, fake_engine
from tests.app.routes.test_http import BODY, CHAT, ready
from tests.app.text_models import byte_level
from tests.fakes import CrashInjector
from tests.limits import HANG_SECONDS

ANNA, BEN = ({"Authorization": f"Bearer {name}"} for name in ("anna", "ben"))
TOKENS = 300  # of an answer, which takes at least half a second
RESUME = {"X-Carousel-Resume": "0"}  # the stream has comments with the status
TENANTS = (
    Tenant(name="anna", digest=key_digest("anna")),
    Tenant(name="ben", digest=key_digest("ben"), tiers=("default", "flex")),
)


class Running:
    """Answer that is read by a thread while the test changes it."""

    def __init__(self, client: TestClient, headers: dict[str, str], **options: object) -> None:
        self.client, self.headers = client, headers
        body = BODY | {"max_tokens": TOKENS, "ignore_eos": True, "seed": 5, "stream": True} | options
        before = set(self.registry._streams)
        self._lines: list[str] = []
        self._thread = threading.Thread(target=self._read, args=(body,))
        self._thread.start()
        until(lambda: self.registry._streams.keys() - before)
        [self.id] = self.registry._streams.keys() - before

    @property
    def registry(self):
        return self.client.app.state.service.registry

    @property
    def generation(self) -> Generation:
        return self.registry.get_any_owner(self.id)

    def _read(self, body: dict[str, object]) -> None:
        with self.client.stream("POST", CHAT, json=body, headers=self.headers | RESUME) as answer:
            self._lines += answer.iter_lines()

    def change(self, **body: object) -> httpx.Response:
        return self.client.post(f"/v1/requests/{self.id}", json=body, headers=self.headers)

    def paused(self) -> Running:
        """Pause it, and wait until the engine has taken its slot."""
        assert self.change(state="paused").status_code == 200
        until(lambda: self.load.suspended != (0, 0, 0))
        return self

    @property
    def load(self):
        return self.client.app.state.service.client.members[0].load

    def end(self) -> str:
        """Return its text."""
        self._thread.join(HANG_SECONDS)
        assert not self._thread.is_alive()
        events = [json.loads(line[6:]) for line in self._lines if line.startswith("data: {")]
        assert not any("error" in event for event in events), events
        return "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])

    @property
    def statuses(self) -> list[dict[str, object]]:
        return [json.loads(line.removeprefix(": carousel ")) for line in self._lines if line.startswith(": carousel {")]


def until(is_true, seconds: float = HANG_SECONDS) -> None:
    ends_at = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < ends_at
        time.sleep(0.002)


@contextmanager
def serving(**options) -> Iterator[TestClient]:
    settings = Settings(
        engine=EngineConfig(model="fake"), model_name="fake", tenants=TENANTS, public_metrics=True, **options
    )
    engine = partial(fake_engine, crash_injector=CrashInjector())  # a step takes 2 ms
    app = create_app(settings, EngineClient(CONFIG, engine), byte_level())
    with TestClient(app, base_url="http://127.0.0.1:8000", headers=ANNA) as client:
        yield ready(client)


@pytest.fixture(scope="module")
def http():
    with serving() as client:
        yield client


def code_of(answer: httpx.Response) -> tuple[int, str, str | None]:
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["param"]


def test_a_paused_answer_goes_on_with_the_same_text_and_its_reader_sees_the_state(http):
    """Its timeline has the pause as an interval of its own, and pausing again changes nothing."""
    expected = Running(http, ANNA).end()
    answer = Running(http, ANNA).paused()
    again = answer.change(state="paused")
    assert again.status_code == 200 and again.json()["state"] == "paused"
    tokens = answer.generation.completion_tokens
    assert answer.load.suspended == (0, 1, 0) and answer.load.running == (0, 0, 0)
    assert answer.change(state="running").json()["state"] in ("queued", "running")
    assert answer.end() == expected and tokens < TOKENS
    assert {"state": "paused", "cause": "client"} in answer.statuses
    [choice] = http.get(f"/v1/requests/{answer.id}").json()["choices"]
    [pause] = [interval for interval in choice["intervals"] if interval["phase"] == "paused"]
    assert pause["cause"] == "client" and "mechanism" not in pause


def test_an_answer_moves_to_another_tier_and_is_counted_there(http):
    expected = Running(http, ANNA).end()
    answer = Running(http, ANNA).paused()
    body = answer.change(service_tier="flex").json()
    assert (body["class"], body["state"]) == ("batch", "paused")
    until(lambda: answer.load.suspended == (0, 0, 1))
    answer.change(state="running")
    assert answer.end() == expected
    assert 'vllm:e2e_request_latency_seconds_count{model_name="fake",service_class="batch",tenant="anna"} 1.0' in (
        http.get("/metrics").text
    )


def test_a_pause_counts_in_no_latency(http):
    """The time to the first token, the gaps between tokens and the whole time are those without the pause."""
    answer = Running(http, ANNA)
    until(lambda: answer.generation.completion_tokens > 3)
    answer.paused()
    timing = answer.generation.timing
    before = timing.first_token - timing.received_at
    received_at, paused_at = timing.received_at, time.monotonic()
    time.sleep(0.5)
    answer.change(state="running")
    moved = timing.received_at - received_at
    assert moved >= time.monotonic() - paused_at - 0.4
    assert timing.first_token - timing.received_at == pytest.approx(before)
    generation = answer.generation
    answer.end()
    assert generation.mean_gap * (TOKENS - 1) <= time.monotonic() - received_at - moved


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({}, (400, "invalid_value", "state")),
        ({"state": "stopped"}, (400, "invalid_value", "state")),
        ({"service_tier": "auto"}, (400, "invalid_value", "service_tier")),
        ({"state": "paused", "priority": 3}, (400, "unsupported_parameter", "priority")),
        ([], (400, "invalid_value", None)),
    ],
)
def test_a_wrong_change_is_refused_by_name(http, body, error):
    assert code_of(http.post("/v1/requests/unknown", json=body)) == error


def test_only_the_owner_changes_a_request_and_not_after_its_end(http):
    answer = Running(http, ANNA).paused()
    unknown = http.post("/v1/requests/unknown", json={"state": "running"}, headers=BEN)
    others = http.post(f"/v1/requests/{answer.id}", json={"state": "running"}, headers=BEN)
    assert code_of(unknown) == code_of(others) == (404, "request_not_found", "request_id")
    answer.change(state="running")
    answer.end()
    assert code_of(answer.change(state="paused")) == (409, "request_ended", "request_id")


def test_a_key_moves_its_requests_only_to_its_own_tiers(http):
    answer = Running(http, BEN)
    refused = answer.change(state="paused", service_tier="priority")
    assert code_of(refused) == (403, "tier_not_allowed", "service_tier")
    assert not answer.generation.request.is_paused, "a refused change changes nothing"
    assert answer.change(service_tier="flex").status_code == 200
    answer.end()


def test_a_request_is_changed_a_limited_number_of_times(http, monkeypatch):
    """Its timeline would grow with each change; it can always be resumed."""
    monkeypatch.setattr(request_changes, "MAX_CHANGES", 3)
    answer = Running(http, ANNA).paused()
    for tier in ("flex", "priority"):
        assert answer.change(service_tier=tier).status_code == 200
    assert code_of(answer.change(service_tier="flex")) == (429, "too_many_changes", "request_id")
    assert answer.change(state="running").status_code == 200
    assert code_of(answer.change(state="paused")) == (429, "too_many_changes", "request_id")
    answer.end()


def test_a_request_that_is_paused_for_too_long_ends_by_name():
    with serving(max_pause=1.0) as http:
        answer = Running(http, ANNA).paused()
        until(lambda: answer.generation.log.is_closed)
        assert answer.generation.log.records[-1].code == "paused_too_long"
        until(lambda: answer.load.suspended == (0, 0, 0))
        assert 'code="paused_too_long"' in http.get("/metrics").text
        assert http.app.state.service.counts.running == 0


def test_one_key_pauses_many_requests_and_others_are_served_as_before():
    """Beyond its limit it is refused by name; paused requests wait in no queue, whose room is free for others."""
    with serving(max_paused=20, max_queue=30, max_queue_share=1.0) as http:
        paused = [Running(http, ANNA, n=1).paused() for _ in range(20)]
        extra = Running(http, ANNA)
        assert code_of(extra.change(state="paused")) == (429, "too_many_paused", "state")
        service = http.app.state.service
        extra.end()
        assert service.admission.waiting(ServiceClass.STANDARD).requests == 0
        assert Running(http, BEN).end()
        assert service.counts.running == 0
        for _ in range(50):
            paused[0].change(state="running")
            assert paused[0].change(state="paused").status_code in (200, 409)
        for answer in paused:
            answer.change(state="running")
        for answer in paused:
            answer.end()
        until(lambda: service.counts.running == 0)
        assert not service.counts._paused and not service.counts._paused_of


def test_a_waiting_request_leaves_the_queue_and_returns_only_if_that_has_room(http):
    """Neither says anything about the rate at which the queue drains."""
    service = http.app.state.service
    answer = Running(http, ANNA)
    request = answer.generation.request
    queue = service.admission.waiting(ServiceClass.BATCH)
    drained = queue.rates(time.monotonic())
    service.admission.add_waiting(request.tenant, ServiceClass.BATCH, 7)
    service.admission.withdraw(request.tenant, ServiceClass.BATCH, 7)
    assert (queue.requests, queue.tokens) == (0, 0)
    assert queue.rates(time.monotonic())[0] <= drained[0]
    answer.end()


def test_a_waiting_request_has_its_place_in_line_and_the_time_until_its_start(http: TestClient):
    """The time is known once others have started after a second of waiting, and a running request has neither."""
    slots = CONFIG.max_num_seqs
    answers = [Running(http, ANNA, max_tokens=2 * TOKENS) for _ in range(3 * slots + 1)]
    last = answers[-1]
    found: list[dict[str, object]] = []

    def is_estimated() -> bool:
        found.append(http.get(f"/v1/requests/{last.id}").json())
        return "wait_ms" in found[-1]

    until(is_estimated)
    assert found[-1]["state"] == "queued" and found[-1]["position"] in range(1, 2 * slots + 2)
    assert 0 < found[-1]["wait_ms"] < 1000 * HANG_SECONDS
    for answer in answers:
        answer.end()
    ended = http.get(f"/v1/requests/{last.id}").json()
    assert ended["state"] == "ended" and not {"position", "wait_ms"} & ended.keys()
