"""The Grafana dashboard checked against real /metrics output, in both directions."""

from __future__ import annotations

import json
import re
import sys

import pytest

from app.admission.tenants import Tenant, key_digest
from app.mcp.addresses import read_addresses
from tests.app.observe.test_energy import zone
from tests.app.routes.test_http import BODY, CHAT, make, post_late, ready
from tests.conftest import ROOT
from tests.promql import Query, QueryError, series_by_name

BOARD = json.loads((ROOT / "docs/grafana/carousel.json").read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
VARIABLES = {variable["name"]: variable for variable in BOARD["templating"]["list"]}
TARGETS = [(panel["title"], target) for panel in PANELS for target in panel["targets"]]

# metric families that are not on the dashboard, with the reason
NOT_SHOWN: dict[str, str] = {
    "carousel:log_lines_dropped": "it is 0 unless nothing reads standard error",
    "carousel:num_requests_suspended": "paused requests take nothing from others",
    "carousel:num_requests_unplaced": "it is 0 with one engine, unless that is lost",
    "carousel:replicas_wanted": "it is for an autoscaler",
    "carousel:people_demand": "it is a part of the wanted number of engines",
    "carousel:ready_slots": "it is a part of the wanted number of engines",
    "carousel:longest_wait_seconds": "it is a part of the wanted number of engines",
    "carousel:connections": "it is for an alert near --max-connections",
    "carousel:connections_refused": "it is for an alert, not for the picture of the load",
    "carousel:body_memory_bytes": "it is for an alert near --max-body-memory",
    "carousel:bodies_waiting": "it is for an alert: it is 0 unless bodies reach a limit",
    "carousel:bodies_refused": "it is for an alert, not for the picture of the load",
    "carousel:requests_delayed": "it is for a look at programs that send many requests",
    "carousel:requests_rate_refused": "it is for an alert, not for the picture of the load",
    "carousel:kept_sessions": "it is for a look at connections that are lost",
    "carousel:kept_session_bytes": "it is for a look at the memory of kept sessions",
    "carousel:kept_sessions_ended": "it is for an alert: clients of evicted sessions have lost them",
    "carousel:idempotency_keys": "it is for a look at the memory of keys",
    "carousel:idempotency_keys_evicted": "it is for an alert: a retry of such a key runs again",
    "carousel:stored_records": "it is for a look at the memory of the store",
    "carousel:stored_bytes": "it is for a look at the memory of the store",
    "carousel:stored_records_evicted": "it is for an alert: clients continue what is no longer stored",
    "carousel:store_pending_bytes": "it is for a look at the disk of the store",
    "carousel:store_written_bytes": "it is for a look at the disk of the store",
    "carousel:store_lost_changes": "it is for an alert: it is 0 unless the disk of the store fails",
    "carousel:store_failing": "it is for an alert: it is 0 unless the disk of the store fails",
    "carousel:store_waiting": "it is for a look at a server that replaces another one",
    "carousel:page_rows_bytes": "it is for an alert near --page-bytes times the number of keys",
    "carousel:page_rows_refused": "it is for an alert: conversations of its client stay in one browser",
    "vllm:spec_decode_num_drafts": "it is for a look at the gain of drafts",
    "vllm:spec_decode_num_draft_tokens": "it is for a look at the gain of drafts",
    "vllm:spec_decode_num_accepted_tokens": "it is for a look at the gain of drafts",
    "vllm:spec_decode_num_accepted_tokens_per_pos": "it is for a look at the gain of drafts",
    "carousel:session_pages": "it is for a look at what conversations keep",
    "carousel:session_tokens": "it is for a look at what conversations keep",
    "carousel:warm_request_bytes": "it is for a look at the memory of ended requests",
    "carousel:warm_requests_evicted": "it is for a look at the memory of ended requests",
    "carousel:tool_calls": "it is for a look at the tools of the chat page",
    "carousel:tool_call_seconds": "it is for a look at the tools of the chat page",
    "carousel:mask_seconds": "it is for a look at the cost of formats",
    "carousel:rows_without_mask": "it is for an alert: it is near 0 unless formats are hostile",
    "carousel:trials": "it is for an alert: it is 0 unless engines die",
    "carousel:trial_pause_seconds": "it is for a look at the cost of trials",
    "carousel:limit_sharing_processes": "it is for a look at whether API processes share limits",
    "carousel:limit_sharing_tenants": "it is for a look at whether API processes share limits",
    "carousel:requests_failed": "it is for an alert: it is the codes of vllm:request_success's errors",
    "carousel:requests_refused_by_shared_limits": "these are among the refused requests",
    "carousel:keys_refused": "it is for an alert, not for the picture of the load",
}


@pytest.fixture(scope="module")
def exposed(tmp_path_factory):
    """Return the series of a server that has requests, a refusal, errors, metering rows and energy counters."""
    folder = tmp_path_factory.mktemp("dashboard")
    zone(folder / "intel-rapl:0", "package-0", 0)
    night = Tenant(name="night", digest=key_digest("n"), tiers=("flex", "default"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "pynvml", None)
        patch.setattr("app.observe.energy.POWERCAP", folder)
        files = {
            "store": folder / "s.db",
            "metering": str(folder / "usage.db"),
            "mcp": read_addresses("w=http://127.0.0.1:1"),
        }
        with make(tenants=(night,), public_metrics=True, price_per_hour=2.0, **files) as client:
            headers = {"Authorization": "Bearer n"}
            assert ready(client).post(CHAT, json=BODY, headers=headers).status_code == 200
            refused = client.post(CHAT, json={**BODY, "service_tier": "priority"}, headers=headers)
            assert refused.status_code == 403
            call = {"server": "w", "name": "t", "arguments": {}}
            assert client.post("/v1/page/tools/call", json=call, headers=headers).status_code == 502
            assert post_late(client, BODY, headers) == 504
            return series_by_name(client.get("/metrics").text)


@pytest.mark.parametrize(("title", "target"), TARGETS, ids=lambda part: part if isinstance(part, str) else "")
def test_every_query_parses_and_finds_its_metrics_and_labels(exposed, title: str, target):
    """Counters are read through rates, gauges directly, and legends use labels that exist."""
    query = Query(target["expr"], exposed)
    assert query.names
    legend = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
    assert legend == query.labels


def test_every_variable_of_a_query_is_defined_by_the_dashboard():
    """Grafana would send unknown variables literally."""
    used = {name for _, target in TARGETS for name in re.findall(r"\$(\w+)", target["expr"])}
    assert used - {"__rate_interval", "__range"} == {"model", "class", "tenant"}
    assert set(VARIABLES) == {"datasource", "model", "class", "tenant"}
    sources = [part["datasource"]["uid"] for part in PANELS] + [t["datasource"]["uid"] for _, t in TARGETS]
    assert set(sources) == {"${datasource}"}


@pytest.mark.parametrize("name", ["model", "class", "tenant"])
def test_a_variable_takes_its_values_from_an_existing_label(exposed, name: str):
    """The query has the form label_values(selector, label)."""
    query = VARIABLES[name]["query"]["query"]
    series, selector, label = re.fullmatch(r"label_values\(([\w:]+)(\{.*\})?, (\w+)\)", query).groups()
    assert exposed[series].values[label]
    for inner in re.findall(r"(\w+)=~", selector or ""):
        assert inner in exposed[series].labels


def test_every_metric_is_on_the_dashboard_or_excluded_with_a_reason(exposed):
    """A metric that is added later cannot be forgotten."""

    def family(name: str) -> str:
        return re.sub(r"_(total|bucket|count|sum|created)$", "", name)

    shown = {family(name) for _, target in TARGETS for name in Query(target["expr"], exposed).names}
    assert {family(name) for name in exposed} - shown == set(NOT_SHOWN)


def test_every_metric_is_in_the_manual(exposed):
    """The manual has the name that a query needs."""
    text = (ROOT / "docs/operations.md").read_text()
    metrics = {re.sub(r"_(bucket|count|sum)$", "", name) for name in exposed if not name.endswith("_created")}
    assert [name for name in sorted(metrics) if f"`{name}`" not in text] == []


def test_panels_neither_overlap_nor_share_an_id():
    """The grid has 24 columns."""
    occupied: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + i, at["y"] + j) for i in range(at["w"]) for j in range(at["h"])}
        assert not cells & occupied, panel["title"]
        assert at["x"] + at["w"] <= 24
        occupied |= cells
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])


@pytest.mark.parametrize(
    "wrong",
    [
        "sum(rate(carousel:steps_total[5m])",
        "sum(rate(carousel:steps_total))",
        "carousel:steps_total",
        "rate(carousel:slots[5m])",
        "sum(carousel:turns)",
        'sum(carousel:slots{colour="red"})',
        'sum(carousel:slots{state="red"})',
        'sum(carousel:slots{model_name="$model"})',
        "sum by (tenant) (carousel:slots)",
        "sum by (state) (carousel:slots) / sum(carousel:slots)",
        "sum(carousel:slots) sum(carousel:slots)",
        "median(carousel:slots)",
        "histogram_quantile(0.5, sum by (tenant) (rate(vllm:inter_token_latency_seconds_bucket[5m])))",
        "carousel:slots[5m]",
        "sum(carousel:slots) % 2",
    ],
)
def test_the_checker_refuses_queries_that_prometheus_cannot_answer(exposed, wrong: str):
    """Such queries are invalid or have no result."""
    with pytest.raises(QueryError):
        Query(wrong, exposed)
