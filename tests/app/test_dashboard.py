"""The Grafana dashboard against what /metrics really says, both ways round."""

from __future__ import annotations

import json
import re
import sys

import pytest

from app.tenants import Tenant, key_digest
from tests.app.test_energy import zone
from tests.app.test_http import ASK, CHAT, make, ready
from tests.conftest import ROOT
from tests.promql import Query, QueryError, series_by_name

BOARD = json.loads((ROOT / "docs/grafana/carousel.json").read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
VARIABLES = {variable["name"]: variable for variable in BOARD["templating"]["list"]}
TARGETS = [(panel["title"], target) for panel in PANELS for target in panel["targets"]]

# Families of ours that are not on the dashboard, with the reason.
LEFT_OUT: dict[str, str] = {
    "carousel:log_lines_dropped": "it is 0 unless nothing reads standard error",
    "carousel:connections": "it is for an alert near --max-connections",
    "carousel:connections_refused": "it is for an alert, not for the picture of the load",
    "carousel:keys_refused": "it is for an alert, not for the picture of the load",
}


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    """What a server says that served a request, refused another, keeps rows and can read its energy."""
    folder = tmp_path_factory.mktemp("dashboard")
    zone(folder / "intel-rapl:0", "package-0", 0)
    night = Tenant(name="night", digest=key_digest("n"), tiers=("flex", "default"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "pynvml", None)
        patch.setattr("app.energy.POWERCAP", folder)
        with make(
            tenants=(night,), public_metrics=True, metering=str(folder / "usage.db"), price_per_hour=2.0
        ) as client:
            headers = {"Authorization": "Bearer n"}
            assert ready(client).post(CHAT, json=ASK, headers=headers).status_code == 200
            refused = client.post(CHAT, json={**ASK, "service_tier": "priority"}, headers=headers)
            assert refused.status_code == 403
            return series_by_name(client.get("/metrics").text)


@pytest.mark.parametrize(("title", "target"), TARGETS, ids=lambda part: part if isinstance(part, str) else "")
def test_every_query_parses_and_finds_its_metrics_and_labels(known, title: str, target):
    """Counters through rates, gauges as they are, and a legend of labels that are there."""
    query = Query(target["expr"], known)
    assert query.names
    legend = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
    assert legend == query.labels


def test_every_variable_of_a_query_is_one_of_the_dashboard_s():
    """Grafana would send the others as they stand."""
    used = {name for _, target in TARGETS for name in re.findall(r"\$(\w+)", target["expr"])}
    assert used - {"__rate_interval", "__range"} == {"model", "class", "tenant"}
    assert set(VARIABLES) == {"datasource", "model", "class", "tenant"}
    sources = [part["datasource"]["uid"] for part in PANELS] + [t["datasource"]["uid"] for _, t in TARGETS]
    assert set(sources) == {"${datasource}"}


@pytest.mark.parametrize("name", ["model", "class", "tenant"])
def test_a_variable_takes_its_values_from_a_label_that_is_there(known, name: str):
    """label_values(selector, label)."""
    asked = VARIABLES[name]["query"]["query"]
    series, selector, label = re.fullmatch(r"label_values\(([\w:]+)(\{.*\})?, (\w+)\)", asked).groups()
    assert known[series].values[label]
    for inner in re.findall(r"(\w+)=~", selector or ""):
        assert inner in known[series].labels


def test_every_metric_of_ours_is_on_the_dashboard_or_left_out_for_a_reason(known):
    """One that is added is seen."""

    def family(name: str) -> str:
        return re.sub(r"_(total|bucket|count|sum|created)$", "", name)

    shown = {family(name) for _, target in TARGETS for name in Query(target["expr"], known).names}
    assert {family(name) for name in known} - shown == set(LEFT_OUT)


def test_every_metric_of_ours_is_in_the_manual(known):
    """Under the name that a query needs."""
    text = (ROOT / "docs/operations.md").read_text()
    wanted = {re.sub(r"_(bucket|count|sum)$", "", name) for name in known if not name.endswith("_created")}
    assert [name for name in sorted(wanted) if f"`{name}`" not in text] == []


def test_panels_neither_overlap_nor_share_an_id():
    """A grid of 24 columns."""
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + i, at["y"] + j) for i in range(at["w"]) for j in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
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
def test_the_checker_refuses_what_prometheus_would_not_answer(known, wrong: str):
    """Or would answer with nothing."""
    with pytest.raises(QueryError):
        Query(wrong, known)
