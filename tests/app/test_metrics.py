"""/metrics of the real application: who was turned away and why, what waits, what counts as good."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from app.admission import Admission
from app.collectors import AdmissionCollector
from app.tenants import Tenant
from engine.types import ServiceClass
from tests.app.test_http import ASK, CHAT, make, ready
from tests.promql import catalogue

NIGHT = Tenant(name="night", key="n", tiers=("flex",))
ANNA = Tenant(name="anna", key="a", max_queue_tokens=10)


def samples(client: TestClient, name: str) -> set[str]:
    """Lines of one metric."""
    return {line for line in client.get("/metrics").text.splitlines() if line.startswith(name + "{")}


def refusal(tenant: str, service_class: str, code: str, count: int) -> str:
    labels = f'code="{code}",model_name="fake",service_class="{service_class}",tenant="{tenant}"'
    return f"carousel:requests_refused_total{{{labels}}} {count}.0"


def ask(client: TestClient, tenant: Tenant, **fields) -> int:
    headers = {"Authorization": f"Bearer {tenant.key}"}
    return client.post(CHAT, json={**ASK, **fields}, headers=headers).status_code


def test_refusals_are_counted_once_by_code_class_and_tenant():
    """A tier that is not its own, a request that no engine could serve, a server that is going."""
    with make(tenants=(NIGHT, ANNA)) as client:
        ready(client)
        assert ask(client, NIGHT, service_tier="priority") == 403
        assert ask(client, ANNA, max_tokens=10**6) == 400
        client.app.state.service.draining = True
        assert ask(client, NIGHT) == ask(client, NIGHT) == ask(client, ANNA) == 503
        assert samples(client, "carousel:requests_refused_total") == {
            refusal("night", "interactive", "tier_not_allowed", 1),
            refusal("anna", "standard", "context_length_exceeded", 1),
            refusal("night", "batch", "server_shutdown", 2),
            refusal("anna", "standard", "server_shutdown", 1),
        }


def test_a_full_server_s_refusals_say_so():
    """The code that clients are told."""
    with make(max_queue=0) as client:
        assert ready(client).post(CHAT, json=ASK).status_code == 503
        assert samples(client, "carousel:requests_refused_total") == {refusal("anybody", "standard", "server_full", 1)}


def test_what_waits_and_how_fast_it_becomes_less_is_told_by_class(monkeypatch):
    """In requests and in prompt tokens."""
    now = 100.0
    monkeypatch.setattr("app.collectors.time.monotonic", lambda: now)
    admission = Admission(10, 1000, lambda: now)
    for _ in range(4):
        admission.enter("", ServiceClass.BATCH, 50)
    now += 10
    admission.leave("", ServiceClass.BATCH, 50)
    admission.leave("", ServiceClass.BATCH, 50)
    told = {
        (sample.name, sample.labels["service_class"], sample.labels.get("unit")): sample.value
        for family in AdmissionCollector(admission, "fake").collect()
        for sample in family.samples
    }
    assert told["carousel:waiting_prompt_tokens", "batch", None] == 100
    assert told["carousel:waiting_prompt_tokens", "standard", None] == 0
    assert told["carousel:drain_rate", "batch", "requests"] == pytest.approx(2.0)
    assert told["carousel:drain_rate", "batch", "tokens"] == pytest.approx(100.0)
    assert told["carousel:drain_rate", "standard", "requests"] == 0


def test_goodput_stands_beside_its_objectives():
    """What is good enough for one server is not for another."""
    for objective, good in ((1e-9, 0), (1000.0, 1)):
        with make(slo_ttft=objective, slo_itl=1000.0) as client:
            assert ready(client).post(CHAT, json=ASK).status_code == 200
            lines = client.get("/metrics").text
            series = catalogue(lines)
            assert series["carousel:slo_seconds"].values["objective"] == {"ttft", "itl"}
            found = [line for line in lines.splitlines() if line.startswith("carousel:requests_within_slo_total{")]
            assert [float(line.rsplit(" ", 1)[1]) for line in found] == [good]
