"""/v1/page/rows over HTTP: refusals, keys, pages, and clients that send too much."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from app.admission.tenants import tenant_of_key
from app.conversations.page_rows import ROW_BYTES
from tests.app.routes.test_http import make, ready

ROWS = "/v1/page/rows"
ALICE, BOB = ({"Authorization": f"Bearer {name}"} for name in ("alice", "bob"))
TENANTS = (tenant_of_key("alice"), tenant_of_key("bob"))
ROW = {"id": "m1", "revision": 1, "writer": "tab", "value": '{"text": "Hi"}'}


@pytest.fixture
def http(tmp_path: Path) -> Iterator[TestClient]:
    with make(tmp_path / "s.db", tenants=TENANTS, public_metrics=True) as client:
        yield ready(client)


def post(http: TestClient, *rows: object, key: dict[str, str] = ALICE) -> dict:
    answer = http.post(ROWS, json={"rows": rows}, headers=key)
    assert answer.status_code == 200, answer.text
    return answer.json()


def get(http: TestClient, query: str = "", key: dict[str, str] = ALICE) -> dict:
    answer = http.get(f"{ROWS}{query}", headers=key)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_rows_follow_their_key(http: TestClient):
    """In the order of their changes and with their values as they were sent; another key has rows of its own."""
    joined = post(http, ROW, ROW | {"id": "m2", "value": "\U0001f600 \0 \\"})
    epoch = joined["epoch"]
    assert joined == {"object": "page.rows", "last": 2, "epoch": epoch}
    assert post(http, ROW | {"revision": 2, "value": None}, ROW)["last"] == 3
    second = ROW | {"id": "m2", "value": "\U0001f600 \0 \\", "number": 2}
    deleted = ROW | {"revision": 2, "value": None, "number": 3}
    assert get(http) == {"object": "list", "data": [second, deleted], "last": 3, "has_more": False, "epoch": epoch}
    assert get(http, "?limit=1") == {"object": "list", "data": [second], "last": 2, "has_more": True, "epoch": epoch}
    assert get(http, "?after=2")["data"] == [deleted] and get(http, "?after=3&limit=1000")["data"] == []
    of_bob = get(http, key=BOB)
    assert of_bob.pop("epoch") != epoch
    assert of_bob == {"object": "list", "data": [], "last": 0, "has_more": False}
    assert post(http, ROW | {"value": "of bob"}, key=BOB)["last"] == 1
    assert get(http)["data"] == [second, deleted]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (None, "rows"),
        ([ROW | {"id": ""}], "rows.0.id"),
        ([ROW, ROW | {"id": "x" * 201}], "rows.1.id"),
        ([ROW | {"revision": -1}], "rows.0.revision"),
        ([ROW | {"revision": 1 << 53}], "rows.0.revision"),
        ([ROW | {"revision": 1.5}], "rows.0.revision"),
        ([ROW | {"writer": "w" * 65}], "rows.0.writer"),
        ([ROW | {"writer": "ä"}], "rows.0.writer"),
        ([ROW | {"writer": "a\n"}], "rows.0.writer"),
        ([ROW | {"value": {"text": "Hi"}}], "rows.0.value"),
        ([ROW | {"value": "x" * ((1 << 20) + 1)}], "rows.0.value"),
        ([{"id": "m1", "revision": 1, "writer": "tab"}], "rows.0.value"),
        ([ROW | {"number": 1}], "unsupported parameter: rows.0.number"),
        ([ROW] * 1001, "rows"),
    ],
)
def test_wrong_rows_are_refused_by_name(http: TestClient, rows, message: str):
    """None of the others is joined."""
    answer = http.post(ROWS, json={"rows": rows}, headers=ALICE)
    assert answer.status_code == 400 and answer.json()["error"]["message"].startswith(message), answer.text
    assert get(http)["data"] == []


def test_half_of_a_character_is_refused(http: TestClient):
    """It cannot be written as UTF-8."""
    headers = ALICE | {"Content-Type": "application/json"}
    answer = http.post(ROWS, content=json.dumps({"rows": [ROW | {"value": "\ud83d"}]}), headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json")


@pytest.mark.parametrize("query", ["after=-1", "after=x", "after=9007199254740992", "limit=0", "limit=1001", "limit="])
def test_wrong_numbers_of_a_query_are_refused(http: TestClient, query: str):
    answer = http.get(f"{ROWS}?{query}", headers=ALICE)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, query.partition("=")[0])


def test_rows_need_a_key_and_a_store(tmp_path: Path):
    """Each refusal has a code by which the page knows that its conversations stay in the browser."""
    with make(tmp_path / "s.db") as client:
        for answer in (client.get(ROWS), client.post(ROWS, json={"rows": [ROW]})):
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "page_rows_need_key")
            assert "--api-key" in answer.json()["error"]["message"]
    with make(tenants=TENANTS) as client:
        for answer in (client.get(ROWS, headers=ALICE), client.post(ROWS, json={"rows": [ROW]}, headers=ALICE)):
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "page_rows_need_store")
            assert "--store" in answer.json()["error"]["message"]
        assert client.get(ROWS).status_code == 401


def test_a_client_that_fills_its_bytes_is_refused_alone(http: TestClient, monkeypatch: pytest.MonkeyPatch):
    """Also with deletions of rows that never were, and with longer rows; what fits is joined, and other keys are."""
    monkeypatch.setattr(http.app.state.service.state_file.page_rows, "_max_bytes", 100_000)
    sent = 0
    while True:
        rows = [{"id": f"{sent}-{at}", "revision": 0, "writer": "w", "value": None} for at in range(100)]
        answer = http.post(ROWS, json={"rows": rows}, headers=ALICE)
        if answer.status_code != 200:
            break
        sent += 1
    assert sent == 100_000 // (100 * (ROW_BYTES + 4))
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "page_rows_full")
    assert "100,000" in answer.json()["error"]["message"]
    longer = [ROW | {"id": "0-0", "value": "x" * 20_000}]
    assert http.post(ROWS, json={"rows": longer}, headers=ALICE).status_code == 413
    post(http, ROW | {"id": "0-0", "value": None})
    post(http, ROW, key=BOB)
    found = get(http, "?limit=1000")
    assert len(found["data"]) == 100 * sent and found["last"] == 100 * sent + 1
    metrics = http.get("/metrics").text
    assert 'carousel:page_rows_refused_total{model_name="fake"} 2.0' in metrics
    [size] = [line for line in metrics.splitlines() if line.startswith("carousel:page_rows_bytes{")]
    assert 100_000 - 100 * (ROW_BYTES + 4) < float(size.rpartition(" ")[2]) < 100_000 + 1000


def test_a_body_is_bounded_as_others_are(tmp_path: Path):
    with make(tmp_path / "s.db", tenants=TENANTS, max_body=50_000) as client:
        large = {"rows": [ROW | {"value": "x" * 50_000}]}
        answer = ready(client).post(ROWS, json=large, headers=ALICE)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")
