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
from tests.e2e.raw import until

ASK = {"messages": [{"role": "user", "content": "Tell me a story."}], "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys.toml"
    path.touch(mode=0o644)
    return path


@pytest.fixture(scope="module")
def locked(path: Path) -> Iterator[Server]:
    """A server with an empty keys file and the slowest kernels."""
    server = Server.start("--keys-file", str(path), "--kernels", "torch", "--max-model-len", "2048")
    yield server
    server.stop()


def keys(path: Path, *arguments: str) -> str:
    """Run `carousel keys` and return its standard output."""
    command = [sys.executable, "-m", "app", "keys", *arguments, "--keys-file", str(path)]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=60).stdout.strip()


def replace(path: Path, text: str) -> None:
    """Write a file in one step: a file that is being written is empty for a moment, which revokes all keys."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def headers(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def status(server: Server, key: str | None) -> int:
    # The answer to one wrong key after another is delayed by up to 5 s, which is also the default timeout.
    return httpx.get(f"{server.url}/v1/models", headers=headers(key) if key else {}, timeout=60).status_code


def revoke(server: Server, path: Path, name: str) -> None:
    """Revoke a key and wait until the server has read that; an answer to the key would be delayed for seconds."""

    def count() -> int:
        return sum(line.rstrip().endswith("1 revoked") for line in server.log)

    before = count()
    keys(path, "revoke", name)
    until(lambda: count() > before)


def event(socket: ClientConnection, kind: str) -> dict:
    """Return the next event of `kind`."""
    while (found := json.loads(socket.recv(timeout=60)))["type"] != kind:
        pass
    return found


def test_an_empty_file_admits_no_client_and_an_exposed_file_is_reported(locked: Server, path: Path):
    """With keys and without."""
    assert status(locked, None) == status(locked, "anything") == 401
    assert httpx.get(f"{locked.url}/metrics").status_code == 403
    assert [line for line in locked.log if str(path) in line and "chmod 600" in line]


def test_a_key_works_soon_after_it_is_added_and_until_it_is_revoked(locked: Server, path: Path):
    """A running stream ends whole, the feed of the engine page ends early, and a rotated key is refused."""
    first = keys(path, "add", "alice")
    until(lambda: status(locked, first) == 200)
    second = keys(path, "add", "alice", "--replace")
    until(lambda: status(locked, second) == 200)
    assert status(locked, first) == 401
    asked = {**ASK, "max_tokens": 1200, "min_tokens": 1200, "stream_options": {"include_usage": True}}
    url = f"{locked.url}/v1/chat/completions"
    feed = f"{locked.url}/v1/engine/events"
    with (
        httpx.stream("GET", feed, headers=headers(second), timeout=120) as watching,
        httpx.stream("POST", url, json=asked, headers=headers(second), timeout=120) as response,
    ):
        lines = response.iter_lines()
        while not next(lines).startswith("data: "):
            pass
        keys(path, "revoke", "alice")
        until(lambda: status(locked, second) == 401)
        watching.read()
        data = [line[6:] for line in lines if line.startswith("data: ")]
    assert data[-1] == "[DONE]" and json.loads(data[-2])["usage"]["completion_tokens"] == 1200


def test_a_session_of_a_revoked_key_is_closed_at_its_next_event(locked: Server, path: Path):
    """With 1008 and a reason."""
    key = keys(path, "add", "bob")
    until(lambda: status(locked, key) == 200)
    url = locked.url.replace("http", "ws") + "/v1/realtime"
    with connect(url, additional_headers=headers(key)) as socket:
        event(socket, "session.created")
        socket.send('{"type": "session.update", "session": {}}')
        event(socket, "session.updated")
        revoke(locked, path, "bob")
        socket.send('{"type": "response.create"}')
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=60)
    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1008, "The API key of this session was revoked.")


def test_a_session_has_the_current_limits_of_its_key(locked: Server, path: Path):
    """As a request over HTTP has."""
    key = keys(path, "add", "carol")
    until(lambda: status(locked, key) == 200)
    url = locked.url.replace("http", "ws") + "/v1/realtime"
    with connect(url, additional_headers=headers(key)) as socket:
        event(socket, "session.created")
        text = path.read_text().replace("[tenants.carol]", "[tenants.carol]\ntokens_per_minute = 1")
        replace(path, text)
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello!"}]}
        socket.send(json.dumps({"type": "conversation.item.create", "item": item}))

        def is_refused() -> bool:
            socket.send('{"type": "response.create", "response": {"max_output_tokens": 1}}')
            while (found := json.loads(socket.recv(timeout=60)))["type"] not in ("response.done", "error"):
                pass
            return found["type"] == "error" and found["error"]["code"] == "tokens_per_minute_exceeded"

        until(is_refused)


def test_a_broken_file_changes_nothing_and_is_logged_once_a_change(locked: Server, path: Path):
    """A file that was lost, too; SIGHUP reads it again although it has not changed."""
    key = keys(path, "add", "dave")
    until(lambda: status(locked, key) == 200)
    whole = path.read_text()

    def errors() -> list[str]:
        return [line for line in locked.log if "are unchanged" in line]

    count = len(errors())
    replace(path, "[tenants.broken")
    until(lambda: len(errors()) == count + 1)
    assert str(path) in errors()[-1] and status(locked, key) == 200
    path.unlink()
    until(lambda: len(errors()) == count + 2)
    assert "does not exist" in errors()[-1] and status(locked, key) == 200
    locked.process.send_signal(signal.SIGHUP)
    until(lambda: len(errors()) == count + 3)
    assert "SIGHUP" in errors()[-1] and str(path) in errors()[-1]
    replace(path, whole.replace("dave", "erin"))
    until(lambda: status(locked, key) == 200 and any("0 revoked" in line for line in locked.log))
    assert len(errors()) == count + 3
    revoke(locked, path, "erin")
    assert status(locked, key) == 401
