"""Rows of the chat page of `carousel serve`, in one process and in two: kills and restarts lose none."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.conftest import Server
from tests.e2e.test_api_processes import OPTIONS, only, processes, wait_until
from tests.e2e.test_api_stores import kill_all
from tests.limits import HANG_SECONDS

ROWS = "/v1/page/rows"
KEY = {"Authorization": "Bearer key-alice"}
KEYS = ("--api-key", "key-alice,key-bob")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Return a function that starts a server with the same store each time."""
    servers: list[Server] = []

    def begin(*options: str) -> Server:
        servers.append(Server.start("--store", str(tmp_path / "s.db"), *KEYS, *options))
        return servers[-1]

    yield begin
    for server in servers:
        server.stop()
        server.assert_no_traceback()


def row(name: str, revision: int = 1) -> dict[str, object]:
    return {"id": name, "revision": revision, "writer": "tab", "value": f"{name} {revision}"}


def put(client: httpx.Client, *rows: dict[str, object]) -> int:
    answer = client.post(ROWS, json={"rows": rows}, headers=KEY)
    assert answer.status_code == 200, answer.text
    return answer.json()["last"]


def values(client: httpx.Client, after: int = 0) -> list[str]:
    """Return the values of all rows after a number, read in pages."""
    found: list[str] = []
    while True:
        page = client.get(ROWS, params={"after": after, "limit": 3}, headers=KEY).json()
        found += [each["value"] for each in page["data"]]
        after = page["last"]
        if not page["has_more"]:
            return found


def client_of(server: Server) -> httpx.Client:
    return httpx.Client(base_url=server.url, timeout=HANG_SECONDS)


def test_joined_rows_outlive_a_kill(start):
    """The server is killed while a client joins rows one after another; each that was answered is there."""
    server, answered = start(), list[str]()
    is_under_way = threading.Event()

    def send() -> None:
        with client_of(server) as client:
            for number in range(100_000):
                try:
                    put(client, row(f"r{number}"))
                except httpx.TransportError:
                    return
                answered.append(f"r{number} 1")
                if number == 20:
                    is_under_way.set()

    sender = threading.Thread(target=send)
    sender.start()
    assert is_under_way.wait(HANG_SECONDS)
    kill_all(server)
    sender.join(HANG_SECONDS)
    with client_of(start()) as client:
        found = values(client)
        assert found[: len(answered)] == answered and len(found) - len(answered) in (0, 1)
        assert put(client, row("later")) == len(found) + 1


def test_two_processes_have_the_same_rows(start):
    """In one order, also while the process whose store has them is killed and when everything was."""
    service = start(*OPTIONS)
    with only(service, 0) as first, only(service, 1) as second:
        assert [put(client, row(f"r{at}")) for at, client in enumerate((first, second, second, first))] == [1, 2, 3, 4]
        assert put(second, row("r0", 2)) == put(first, row("r0", 1)) == 5
        for client in (first, second):
            assert values(client) == ["r1 1", "r2 1", "r3 1", "r0 2"] and values(client, 4) == ["r0 2"]
            other = client.get(ROWS, headers={"Authorization": "Bearer key-bob"}).json()
            assert other["data"] == [] and other["last"] == 0
        put(first, row("last words"))
        processes(service, "supervised_api")[0].kill()
        assert values(second, 5) == ["last words 1"]
        assert put(second, row("meanwhile")) == 7
    wait_until(lambda: len(processes(service, "supervised_api")) == 2)
    kill_all(service)
    one = start()
    with client_of(one) as client:
        assert values(client, 4) == ["r0 2", "last words 1", "meanwhile 1"]
