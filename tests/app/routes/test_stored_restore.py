"""Stored records of an earlier process: ends that it has not written, and answers that are gone."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.app.routes.test_http import BODY, CHAT, make, ready
from tests.app.routes.test_responses import LONG, RESPONSES
from tests.app.routes.test_stored_responses import CONVERSATIONS, create, forget_streams
from tests.limits import HANG_SECONDS


@contextmanager
def served(path: Path, **options: object) -> Iterator[TestClient]:
    """Serve with a store, until answers of an earlier process are restored."""
    with make(store=path / "s.db", **options) as client:
        ready(client)
        deadline = time.monotonic() + HANG_SECONDS
        while client.app.state.service.registry.awaited:
            assert time.monotonic() < deadline
            client.get("/health")
        yield client


def change(path: Path, statement: str) -> None:
    """Change the store of a server that has ended."""
    with closing(sqlite3.connect(path / "s.db", isolation_level=None)) as connection:
        connection.execute(statement)


def test_an_end_that_was_not_written_is_made_up_for(tmp_path: Path):
    """The journal has it; the conversation has got its items already, and gets none twice."""
    with served(tmp_path) as http:
        conversation = http.post(CONVERSATIONS, json={}).json()["id"]
        response = create(http, conversation=conversation)
        completion = http.post(CHAT, json=BODY | {"store": True}).json()
        items = http.get(f"{CONVERSATIONS}/{conversation}/items").json()["data"]
    assert len(items) == 2
    change(tmp_path, "DELETE FROM item WHERE part = 2")
    change(tmp_path, "UPDATE record SET body = x'' WHERE kind <> 'conversation'")
    with served(tmp_path) as http:
        forget_streams(http)
        assert http.get(f"{RESPONSES}/{response['id']}").json() == response
        assert http.get(f"{CHAT}/{completion['id']}").json()["choices"] == completion["choices"]
        assert http.get(f"{CONVERSATIONS}/{conversation}/items").json()["data"] == items


def test_an_item_that_was_deleted_after_the_end_does_not_come_back(tmp_path: Path):
    """The answer is restored for its readers, and has its end already."""
    with served(tmp_path) as http:
        conversation = http.post(CONVERSATIONS, json={}).json()["id"]
        create(http, conversation=conversation)
        path = f"{CONVERSATIONS}/{conversation}/items"
        newest, oldest = http.get(path).json()["data"]
        assert http.delete(f"{path}/{newest['id']}").status_code == 200
    with served(tmp_path) as http:
        assert http.get(path).json()["data"] == [oldest]


def test_a_deleted_response_does_not_come_back(tmp_path: Path):
    with served(tmp_path) as http:
        response = create(http)
        assert http.delete(f"{RESPONSES}/{response['id']}").status_code == 200
    with served(tmp_path) as http:
        assert http.get(f"{RESPONSES}/{response['id']}").status_code == 404


@pytest.mark.parametrize("statement", ["DELETE FROM request", "UPDATE request SET entry = x'00'"])
def test_a_response_without_a_request_ends_as_failed(tmp_path: Path, statement: str):
    """It can be read, and continues nothing."""
    with served(tmp_path) as http:
        first = create(http)
        response = create(http, previous_response_id=first["id"])
        http.post(CHAT, json=BODY | {"store": True})
    change(tmp_path, statement)
    change(tmp_path, f"UPDATE record SET body = x'' WHERE id = '{response['id']}' OR kind = 'completion'")
    with served(tmp_path) as http:
        found = http.get(f"{RESPONSES}/{response['id']}").json()
        assert (found["status"], found["error"]["type"]) == ("failed", "server_restarted")
        assert {name: found[name] for name in ("id", "created_at", "previous_response_id")} == {
            name: response[name] for name in ("id", "created_at", "previous_response_id")
        }
        assert found.keys() == response.keys()
        http.get(f"{RESPONSES}/unknown")
        assert http.app.state.service.store.usage()["completions"].records == 0
        assert http.get(f"{RESPONSES}/{first['id']}").json() == first


def test_a_response_whose_context_has_grown_too_large_ends_as_failed(tmp_path: Path):
    """A conversation may get items while its answer is interrupted."""
    with served(tmp_path) as http:
        conversation = http.post(CONVERSATIONS, json={}).json()["id"]
        response = create(http, conversation=conversation)
        item = {"role": "user", "content": "a" * 5000}
        assert http.post(f"{CONVERSATIONS}/{conversation}/items", json={"items": [item]}).status_code == 200
    change(tmp_path, "UPDATE record SET body = x'' WHERE kind = 'response'")
    change(tmp_path, "UPDATE request SET end = NULL")
    change(tmp_path, "DELETE FROM tokens")
    change(tmp_path, "DELETE FROM item WHERE part = 2 AND record LIKE 'resp_%'")
    with served(tmp_path, max_body=4000) as http:
        found = http.get(f"{RESPONSES}/{response['id']}").json()
        assert (found["status"], found["error"]["type"]) == ("failed", "server_restarted")
        assert "at most 4,000 are allowed" in found["error"]["message"]
        assert found["max_output_tokens"] == response["max_output_tokens"]
        forget_streams(http)
        assert http.get(f"{RESPONSES}/{response['id']}").json() == found


def test_an_answer_that_is_not_stored_is_not_journaled(tmp_path: Path):
    """Unless it may be resumed."""
    with served(tmp_path) as http:
        create(http, store=False)
        http.post(CHAT, json=BODY)
        http.post(RESPONSES, json=LONG | {"max_output_tokens": 1, "store": False})
    with closing(sqlite3.connect(tmp_path / "s.db")) as connection:
        assert connection.execute("SELECT count(*) FROM request").fetchone() == (0,)
