"""/metrics of the real application: refusals, queue lengths, goodput and token counts."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from starlette.testclient import TestClient

from app.admission.queues import Admission
from app.admission.tenants import Tenant, key_digest
from app.generation.generation import ABANDONED_CODE
from app.generation.timing import Timing
from app.observe.collectors import AdmissionCollector, GapCollector
from app.streams.stream_log import Failure
from engine.types import ServiceClass
from tests.app.routes.test_http import BODY, CHAT, fill_queue, make, post_late, ready
from tests.promql import series_by_name

NIGHT = Tenant(name="night", digest=key_digest("n"), tiers=("flex",))
ANNA = Tenant(name="anna", digest=key_digest("a"), max_queue_tokens=10)
KEYS = {"anna": "a", "night": "n"}


def samples(client: TestClient, name: str) -> set[str]:
    """Return the lines of one metric."""
    return {line for line in client.get("/metrics").text.splitlines() if line.startswith(name + "{")}


def refusal(tenant: str, service_class: str, code: str, count: int) -> str:
    labels = f'code="{code}",model_name="fake",service_class="{service_class}",tenant="{tenant}"'
    return f"carousel:requests_refused_total{{{labels}}} {count}.0"


def ask(client: TestClient, tenant: Tenant, **fields) -> int:
    headers = {"Authorization": f"Bearer {KEYS[tenant.name]}"}
    return client.post(CHAT, json={**BODY, **fields}, headers=headers).status_code


def test_refusals_are_counted_once_by_code_class_and_tenant():
    """Refusals are a tier that the key may not use, an impossible request, and a server that is shutting down."""
    with make(tenants=(NIGHT, ANNA), public_metrics=True) as client:
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


def test_refusals_of_a_full_server_have_its_code():
    """The label is the code in the response."""
    with make(max_queue=1) as client:
        fill_queue(ready(client))
        assert client.post(CHAT, json=BODY).status_code == 503
        assert samples(client, "carousel:requests_refused_total") == {refusal("anybody", "standard", "server_full", 1)}


def test_queue_lengths_and_drain_rates_are_reported_by_class(monkeypatch):
    """The units are requests and prompt tokens."""
    now = 100.0
    monkeypatch.setattr("app.observe.collectors.time.monotonic", lambda: now)
    admission = Admission(10, 1000, lambda: now)
    for _ in range(4):
        admission.add_waiting("", ServiceClass.BATCH, 50)
    now += 10
    admission.remove_waiting("", ServiceClass.BATCH, 50)
    admission.remove_waiting("", ServiceClass.BATCH, 50)
    values = {
        (sample.name, sample.labels["service_class"], sample.labels.get("unit")): sample.value
        for family in AdmissionCollector(admission, "fake").collect()
        for sample in family.samples
    }
    assert values["carousel:waiting_prompt_tokens", "batch", None] == 100
    assert values["carousel:waiting_prompt_tokens", "standard", None] == 0
    assert values["carousel:drain_rate", "batch", "requests"] == pytest.approx(2.0)
    assert values["carousel:drain_rate", "batch", "tokens"] == pytest.approx(100.0)
    assert values["carousel:drain_rate", "standard", "requests"] == 0


def test_gaps_are_counted_as_prometheus_counts_them():
    """The lines equal those of the library's histogram, and a value at a bound belongs to its bucket."""
    gaps = [0.0, 0.001, 0.0011, 0.02, 0.3, 0.3, 1.0, 7.5, 1e9]
    own, reference = CollectorRegistry(), CollectorRegistry()
    labels, bounds = ("model_name", "tenant"), (0.001, 0.02, 1, 40)
    collector = GapCollector(labels, bounds)
    own.register(collector)
    histogram = Histogram("vllm:inter_token_latency_seconds", "", labels, buckets=bounds, registry=reference)
    for names in (("m", "anna"), ("m", 'a "quoted" one')):
        for start in range(0, len(gaps), 4):
            collector.add(names, gaps[start : start + 4])
        for gap in gaps:
            histogram.labels(*names).observe(gap)
    lines = [
        {line for line in generate_latest(registry).decode().splitlines() if "_created" not in line and line[0] != "#"}
        for registry in (own, reference)
    ]
    assert lines[0] == lines[1] and len(lines[0]) == 2 * (5 + 2)


def value(text: str, name: str) -> float:
    """Return the value of a metric that has one line."""
    (line,) = (line for line in text.splitlines() if line.startswith(name + "{"))
    return float(line.split()[-1])


@pytest.mark.parametrize("choices", [1, 3])
def test_every_token_is_counted_once(choices):
    """The first token of a request counts by its time since arrival, the others of a choice by the gaps before them."""
    with make() as client:
        answer = ready(client).post(CHAT, json={**BODY, "max_tokens": 7, "ignore_eos": True, "n": choices}).json()
        text = client.get("/metrics").text
    assert value(text, "vllm:generation_tokens_total") == answer["usage"]["completion_tokens"] == 7 * choices
    assert value(text, "vllm:time_to_first_token_seconds_count") == 1
    assert value(text, "vllm:inter_token_latency_seconds_count") == 6 * choices


def test_choices_that_ended_are_counted_by_reason():
    """Each choice is counted once, including those of a request that failed early, which is counted by its code."""
    with make() as client:
        ready(client).post(CHAT, json={**BODY, "n": 3, "ignore_eos": True})
        assert post_late(client, {**BODY, "n": 2}) == 504
        lines = samples(client, "vllm:request_success_total")
        labels = 'code="deadline_exceeded",model_name="fake",service_class="standard",tenant="anybody"'
        assert samples(client, "carousel:requests_failed_total") == {f"carousel:requests_failed_total{{{labels}}} 1.0"}
    ended = {line.split('finished_reason="')[1].split('"')[0]: float(line.split()[-1]) for line in lines}
    assert ended == {"length": 3, "error": 2}


def test_goodput_is_exported_with_its_objectives():
    """The same latency may be good enough for one server and not for another."""
    for objective, good in ((1e-9, 0), (1000.0, 1)):
        with make(slo_ttft=objective, slo_itl=1000.0) as client:
            assert ready(client).post(CHAT, json=BODY).status_code == 200
            lines = client.get("/metrics").text
            series = series_by_name(lines)
            assert series["carousel:slo_seconds"].values["objective"] == {"ttft", "itl"}
            found = [line for line in lines.splitlines() if line.startswith("carousel:requests_within_slo_total{")]
            assert [float(line.rsplit(" ", 1)[1]) for line in found] == [good]


def test_a_client_that_leaves_early_does_not_count_as_a_late_answer():
    """On the engine page it is not counted before the first token, and afterwards it is counted by its token rate."""
    with make() as client:
        ready(client)
        service = client.app.state.service
        ended = []
        service.metrics.recent.add_end = lambda service_class, is_good: ended.append(is_good)
        for first_token in (None, 100.0):
            generation = SimpleNamespace(
                timing=Timing(99.9, 99.9, first_token=first_token),
                request=SimpleNamespace(service_class=ServiceClass.STANDARD, tenant="", prompt=(1,), n=1),
                cached_tokens=0,
                timeline=SimpleNamespace(slot_seconds=0.0),
                log=SimpleNamespace(records=[Failure("left", ABANDONED_CODE, None)]),
                mean_gap=0.0,
            )
            service.metrics.count_end(generation)
        assert ended == [True]
