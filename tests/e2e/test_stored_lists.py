"""`carousel serve --api-processes 2`: lists of what is in the stores of both processes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.conftest import Server
from tests.e2e.test_api_processes import OPTIONS, only, processes
from tests.e2e.test_journal import CHAT

BODY = {"messages": [{"role": "user", "content": "Say one word."}], "max_tokens": 2, "store": True}
KEY = {"Authorization": "Bearer key-alice"}


@pytest.fixture(scope="module")
def service() -> Iterator[Server]:
    """Yield a service of two API processes and an engine, with a key."""
    server = Server.start(*OPTIONS, "--api-key", "key-alice", "--store", "none")
    yield server
    assert server.stop() == -signal.SIGTERM
    assert not any("Traceback" in line for line in server.log)


def listed(client: httpx.Client, **query: Any) -> dict[str, Any]:
    answer = client.get(CHAT, params=query, headers=KEY)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_stored_chat_completions_of_all_processes_are_listed(service: Server):
    """In one order, whichever process is asked, and page by page after an entry of either."""
    with only(service, 0) as first, only(service, 1) as second:
        made = [
            client.post(CHAT, json=BODY | {"metadata": {"at": str(at % 3)}}, headers=KEY).json()["id"]
            for at, client in enumerate((first, second, second, first, second))
        ]
        for client in (first, second):
            found = listed(client)
            assert [each["id"] for each in found["data"]] == made
            assert (found["first_id"], found["last_id"], found["has_more"]) == (made[0], made[-1], False)
            pages, after = list[str](), dict[str, str]()
            while True:
                found = listed(client, order="desc", limit=2, **after)
                pages += [each["id"] for each in found["data"]]
                if not found["has_more"]:
                    break
                after = {"after": found["last_id"]}
            assert pages == made[::-1]
            assert [each["id"] for each in listed(client, **{"metadata[at]": "1"})["data"]] == [made[1], made[4]]
            unknown = client.get(CHAT, params={"after": "chatcmpl-none"}, headers=KEY)
            assert (unknown.status_code, unknown.json()["error"]["param"]) == (400, "after")
            assert client.get("/internal/completions", headers=KEY).status_code == 404


def test_a_list_with_a_process_that_cannot_be_asked_is_refused(service: Server):
    """It would have holes. The client may retry."""
    [_, other] = processes(service, "supervised_api")
    with only(service, 0) as first:
        other.suspend()
        try:
            answer = first.get(CHAT, headers=KEY)
        finally:
            other.resume()
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
        assert answer.json()["error"]["code"] == "engine_unavailable"
        assert listed(first)["data"]
