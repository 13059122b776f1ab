"""The keys file of a running server, edited by `carousel keys` in other processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.conftest import ROOT, Server
from tests.e2e.raw import wait_until
from tests.limits import HANG_SECONDS

BODY = {"messages": [{"role": "user", "content": "Tell me a story."}], "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys.toml"
    path.touch(mode=0o644)
    return path


@pytest.fixture(scope="module")
def server_with_keys(path: Path) -> Iterator[Server]:
    """Yield a server with an empty keys file and the slowest kernels."""
    server = Server.start("--keys-file", str(path), "--kernels", "torch", "--max-model-len", "2048")
    yield server
    server.stop()


def run_keys(path: Path, *arguments: str) -> str:
    """Run `carousel keys` and return its standard output."""
    command = [sys.executable, "-m", "app", "keys", *arguments, "--keys-file", str(path)]
    return subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=HANG_SECONDS
    ).stdout.strip()


def replace(path: Path, text: str) -> None:
    """Write a file in one step: a file that is being written is empty for a moment, which revokes all keys."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def headers(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def status(server: Server, key: str | None) -> int:
    # Responses to a series of wrong keys are delayed by up to 5 s, which is also the default timeout.
    return httpx.get(f"{server.url}/v1/models", headers=headers(key) if key else {}, timeout=HANG_SECONDS).status_code


def revoke(server: Server, path: Path, name: str) -> None:
    """Revoke a key and wait until the server has read that; a request with the key would be delayed for seconds."""

    def count() -> int:
        return sum(line.rstrip().endswith("1 revoked") for line in server.log)

    before = count()
    run_keys(path, "revoke", name)
    wait_until(lambda: count() > before)


def event(socket: ClientConnection, kind: str) -> dict:
    """Return the next event of `kind`."""
    while (found := json.loads(socket.recv(timeout=HANG_SECONDS)))["type"] != kind:
        pass
    return found


def test_an_empty_file_admits_no_client_and_an_exposed_file_is_reported(server_with_keys: Server, path: Path):
    """Requests with a key and without are refused."""
    assert status(server_with_keys, None) == status(server_with_keys, "anything") == 401
    assert httpx.get(f"{server_with_keys.url}/metrics").status_code == 403
    assert [line for line in server_with_keys.log if str(path) in line and "chmod 600" in line]


def test_a_key_works_soon_after_it_is_added_and_until_it_is_revoked(server_with_keys: Server, path: Path):
    """A running stream is completed, the feed of the engine page ends early, and a replaced key is refused."""
    first = run_keys(path, "add", "alice")
    wait_until(lambda: status(server_with_keys, first) == 200)
    second = run_keys(path, "add", "alice", "--replace")
    wait_until(lambda: status(server_with_keys, second) == 200)
    assert status(server_with_keys, first) == 401
    body = {**BODY, "max_tokens": 1200, "min_tokens": 1200, "stream_options": {"include_usage": True}}
    url = f"{server_with_keys.url}/v1/chat/completions"
    feed = f"{server_with_keys.url}/v1/engine/events"
    with (
        httpx.stream("GET", feed, headers=headers(second), timeout=HANG_SECONDS) as watching,
        httpx.stream("POST", url, json=body, headers=headers(second), timeout=HANG_SECONDS) as response,
    ):
        lines = response.iter_lines()
        while not next(lines).startswith("data: "):
            pass
        run_keys(path, "revoke", "alice")
        wait_until(lambda: status(server_with_keys, second) == 401)
        watching.read()
        data = [line[6:] for line in lines if line.startswith("data: ")]
    assert data[-1] == "[DONE]" and json.loads(data[-2])["usage"]["completion_tokens"] == 1200


def test_a_session_of_a_revoked_key_is_closed_at_its_next_event(server_with_keys: Server, path: Path):
    """The close code is 1008, with a reason."""
    key = run_keys(path, "add", "bob")
    wait_until(lambda: status(server_with_keys, key) == 200)
    url = server_with_keys.url.replace("http", "ws") + "/v1/realtime"
    with connect(url, additional_headers=headers(key)) as socket:
        event(socket, "session.created")
        socket.send('{"type": "session.update", "session": {}}')
        event(socket, "session.updated")
        revoke(server_with_keys, path, "bob")
        socket.send('{"type": "response.create"}')
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=HANG_SECONDS)
    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1008, "The API key of this session was revoked.")


def test_a_session_has_the_current_limits_of_its_key(server_with_keys: Server, path: Path):
    """Requests over HTTP have them too."""
    key = run_keys(path, "add", "carol")
    wait_until(lambda: status(server_with_keys, key) == 200)
    url = server_with_keys.url.replace("http", "ws") + "/v1/realtime"
    with connect(url, additional_headers=headers(key)) as socket:
        event(socket, "session.created")
        text = path.read_text().replace("[tenants.carol]", "[tenants.carol]\ntokens_per_minute = 1")
        replace(path, text)
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello!"}]}
        socket.send(json.dumps({"type": "conversation.item.create", "item": item}))

        def is_refused() -> bool:
            socket.send('{"type": "response.create", "response": {"max_output_tokens": 1}}')
            while (found := json.loads(socket.recv(timeout=HANG_SECONDS)))["type"] not in ("response.done", "error"):
                pass
            return found["type"] == "error" and found["error"]["code"] == "tokens_per_minute_exceeded"

        wait_until(is_refused)


def test_an_invalid_file_changes_nothing_and_is_logged_once_per_change(server_with_keys: Server, path: Path):
    """A deleted file changes nothing either, and SIGHUP rereads an unchanged file."""
    key = run_keys(path, "add", "dave")
    wait_until(lambda: status(server_with_keys, key) == 200)
    original = path.read_text()

    def errors() -> list[str]:
        return [line for line in server_with_keys.log if "are unchanged" in line]

    count = len(errors())
    replace(path, "[tenants.broken")
    wait_until(lambda: len(errors()) == count + 1)
    assert str(path) in errors()[-1] and status(server_with_keys, key) == 200
    path.unlink()
    wait_until(lambda: len(errors()) == count + 2)
    assert "does not exist" in errors()[-1] and status(server_with_keys, key) == 200
    server_with_keys.process.send_signal(signal.SIGHUP)
    wait_until(lambda: len(errors()) == count + 3)
    assert "SIGHUP" in errors()[-1] and str(path) in errors()[-1]
    replace(path, original.replace("dave", "erin"))
    wait_until(
        lambda: status(server_with_keys, key) == 200 and any("0 revoked" in line for line in server_with_keys.log)
    )
    assert len(errors()) == count + 3
    revoke(server_with_keys, path, "erin")
    assert status(server_with_keys, key) == 401
