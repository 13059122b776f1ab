"""Limits of connections and WebSockets of a running server."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from app.admission.connection_limits import MAX_LINGERING, RESERVED_FILES
from app.admission.websocket_limits import MAX_FLOODS
from benchmarks.hostile_clients import CYCLE_BYTES, PING, frame, handshake
from tests.conftest import ROOT, Server
from tests.e2e.raw import open_socket, read_all, wait_until
from tests.limits import HANG_SECONDS

OPEN_FILES = 192
TENANTS = """
[tenants.anna]
key = "anna"
max_websockets = 2

[tenants.bert]
key = "bert"
websocket_idle_timeout = 1.0

[tenants.carl]
key = "carl"
"""


@pytest.fixture(scope="module")
def limited(tmp_path_factory) -> Iterator[Server]:
    """Yield a server that allows four connections per address, including loopback."""
    config = tmp_path_factory.mktemp("limits") / "carousel.toml"
    config.write_text(f"max_connections_per_address = 4\npublic_metrics = true\n{TENANTS}")
    server = Server.start("--config", str(config), "--max-num-seqs", "1")
    yield server
    server.stop()


def is_served(server: Server) -> bool:
    return httpx.get(f"{server.url}/health").status_code == 200


def metric(server: Server, name: str) -> float:
    text = httpx.get(f"{server.url}/metrics").text
    return float(re.findall(rf"^carousel:{name}\S*? (\S+)$", text, re.M)[0])


def realtime(server: Server, key: str) -> ClientConnection:
    url = server.url.replace("http", "ws") + "/v1/realtime"
    return connect(url, additional_headers={"Authorization": f"Bearer {key}"})


def refused(server: Server, key: str) -> tuple[int, str]:
    """Return status and code of a refused WebSocket, whose response has Retry-After."""
    with pytest.raises(InvalidStatus) as raised, realtime(server, key):
        pass
    response = raised.value.response
    assert int(response.headers["Retry-After"]) > 0
    return response.status_code, json.loads(response.body)["error"]["code"]


def can_connect(server: Server, key: str) -> bool:
    try:
        with realtime(server, key):
            return True
    except InvalidStatus:
        return False


def test_a_connection_beyond_the_limit_of_its_address_gets_429(limited: Server):
    """The error has the usual shape, with or without a request, and WebSockets count too."""
    wait_until(lambda: metric(limited, "connections") == 1)  # the one that reads the metrics
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(closing(open_socket(limited)))
        socket_ = stack.enter_context(realtime(limited, "anna"))
        with closing(open_socket(limited)) as silent:
            answer = read_all(silent)
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 429 ") and b"Retry-After: 5" in head and b"connection: close" in head
        assert json.loads(body)["error"]["code"] == "max_connections_per_address_exceeded"
        response = httpx.post(f"{limited.url}/v1/chat/completions", json={"model": "x" * 100_000})
        assert (response.status_code, response.json()["error"]["type"]) == (429, "rate_limit_error")
        assert refused(limited, "anna") == (429, "max_connections_per_address_exceeded")
        socket_.close()
        wait_until(lambda: is_served(limited))
    wait_until(lambda: metric(limited, "connections") == 1)


@pytest.mark.parametrize(
    "pieces", [(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n",), (b"GET /li", b"vez?x=1 HTTP/1.1\r\n")]
)
def test_a_full_server_is_alive(limited: Server, pieces: tuple[bytes, ...]):
    """A probe that finds all connections taken, and more refused ones open than may be, does not restart the server."""
    wait_until(lambda: metric(limited, "connections") == 1)
    with ExitStack() as stack:
        for _ in range(4 + 3 * MAX_LINGERING):
            stack.enter_context(closing(open_socket(limited)))
        probe = stack.enter_context(closing(open_socket(limited)))
        for piece in pieces:
            probe.sendall(piece)
        head, _, body = read_all(probe).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ") and json.loads(body) == {"status": "alive"}
    wait_until(lambda: is_served(limited))


def test_a_key_may_have_as_many_websockets_as_its_limit(limited: Server):
    """Another key is not affected, and a closed one makes room."""
    with realtime(limited, "anna") as first, realtime(limited, "anna"):
        assert refused(limited, "anna") == (429, "max_websockets_exceeded")
        with realtime(limited, "bert"):
            pass
        first.close()

        def is_admitted() -> bool:
            try:
                with realtime(limited, "anna"):
                    return True
            except InvalidStatus:
                return False

        wait_until(is_admitted)
    wait_until(lambda: metric(limited, "connections") == 1)


def test_a_key_s_own_idle_timeout_closes_its_sessions(limited: Server):
    """The option's own timeout is an hour."""
    with realtime(limited, "bert") as session, pytest.raises(ConnectionClosed) as closed:
        while True:
            session.recv(timeout=HANG_SECONDS)
    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1000, "The session was idle for 1 s.")


def test_a_client_whose_sockets_flood_is_refused_for_a_while(limited: Server):
    """This takes ten closures with 1008, and a client's own close code is not counted."""
    for _ in range(11):
        with realtime(limited, "bert") as session:
            session.close(1008)
    for _ in range(10):
        with realtime(limited, "bert") as session, pytest.raises(ConnectionClosed) as closed:
            for _ in range(60):
                session.ping()
            while True:
                session.recv(timeout=HANG_SECONDS)
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1008
    wait_until(lambda: not can_connect(limited, "bert"))  # the end of a session is counted after its client sees it
    assert refused(limited, "bert") == (429, "websocket_floods_exceeded")
    with realtime(limited, "anna"):
        pass


@pytest.fixture(scope="module")
def small() -> Iterator[Server]:
    """Yield a server with a low limit of open files."""
    command = f"ulimit -n {OPEN_FILES}; exec {sys.executable} -m app serve demo --port 0 --max-num-seqs 1"
    process = subprocess.Popen(["bash", "-c", command], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    server = Server(process)
    server._follower.start()
    assert server._ready.wait(HANG_SECONDS) and server.url
    yield server
    server.stop()


def test_connections_beyond_the_limit_of_open_files_get_503(small: Server):
    """The server reserves files for itself, so that it can refuse connections, and serves again afterwards."""
    with ExitStack() as stack:
        for _ in range(OPEN_FILES - RESERVED_FILES):
            stack.enter_context(closing(open_socket(small)))
        for _ in range(3):
            with closing(open_socket(small)) as beyond:
                head, _, body = read_all(beyond).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 503 ") and b"Retry-After: 5" in head
            assert json.loads(body)["error"]["code"] == "max_connections_exceeded"
        for _ in range(OPEN_FILES):  # many more than there are files left
            stack.enter_context(closing(open_socket(small)))
    wait_until(lambda: is_served(small))
    assert metric(small, "connections_refused_total") >= 3
    assert [line for line in small.log if "ERROR" in line or "Too many open files" in line] == []


def test_more_connections_than_open_files_are_refused_at_the_start():
    """The exit status is 2, with one line."""
    command = f"ulimit -n {OPEN_FILES}; exec {sys.executable} -m app serve demo --port 0 --max-connections 97"
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=HANG_SECONDS, check=False
    )
    reason = "`ulimit -n` allows 192 open files, of which 96 are reserved"
    assert done.returncode == 2
    assert done.stderr.splitlines() == [f"carousel: max_connections must be at most 96, not 97: {reason}"]


def test_after_floods_loopback_without_keys_still_opens_sockets(small: Server):
    """The handshake takes a second longer, and a client that disconnects before causes no error."""
    url = f"ws{small.url.removeprefix('http')}/v1/realtime"
    for _ in range(MAX_FLOODS):
        with connect(url) as session, pytest.raises(ConnectionClosed):
            for _ in range(60):
                session.ping()
            while True:
                session.recv(timeout=HANG_SECONDS)
    with closing(open_socket(small)) as leaving:
        leaving.sendall(handshake(httpx.URL(small.url).port or 0))
    with connect(url) as session:
        assert json.loads(session.recv(timeout=HANG_SECONDS))["type"] == "session.created"
    small.assert_no_traceback()


def test_a_flood_right_after_the_handshake_is_counted(limited: Server):
    """Frames in the same packet as the handshake close the socket before the session has sent anything."""
    frames = CYCLE_BYTES // 6 * frame(PING)
    for _ in range(MAX_FLOODS):
        with closing(open_socket(limited)) as flooding:
            request = handshake(httpx.URL(limited.url).port or 0)
            flooding.sendall(request.removesuffix(b"\r\n") + b"Authorization: Bearer carl\r\n\r\n" + frames)
            read_all(flooding)
    wait_until(lambda: not can_connect(limited, "carl"))  # the end of a session is counted after its client sees it
    assert refused(limited, "carl") == (429, "websocket_floods_exceeded")
