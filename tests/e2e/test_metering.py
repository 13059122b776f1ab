"""Usage rows of a real server that is killed, and of one that shuts down."""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
import time
from pathlib import Path

import httpx
import psutil
import pytest

from app.cli.usage import read
from tests.conftest import Server
from tests.limits import HANG_SECONDS

BODY = {"messages": [{"role": "user", "content": "Tell me a story about a fox."}], "max_tokens": 8, "ignore_eos": True}
LONG_BODY = {**BODY, "max_tokens": 600, "min_tokens": 600, "stream": True}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "usage.db"


@pytest.fixture
def server(path: Path):
    """Yield a server whose longest answer takes seconds, with the slowest kernels."""
    options = ("--max-num-seqs", "4", "--max-model-len", "2048", "--kernels", "torch")
    started = Server.start(*options, "--metering", str(path))
    engine = psutil.Process(started.process.pid).children()
    yield started
    started.process.kill()
    started.process.wait()
    assert psutil.wait_procs(engine, timeout=HANG_SECONDS)[1] == []


def outcomes(path: Path) -> dict[str, int]:
    return {key[0]: sums.requests for key, sums in read(path, ("outcome",)).items()}


def wait_for_first_token(lines) -> None:
    while '"content"' not in (line := next(lines)) or '"content":""' in line.replace(" ", ""):
        pass


def test_a_killed_server_keeps_its_committed_rows(server: Server, path: Path):
    """Committed rows stay, the file is valid, and the next server appends to it."""
    with httpx.Client(base_url=server.url, timeout=HANG_SECONDS) as http:
        usages = [http.post("/v1/chat/completions", json=BODY).json()["usage"] for _ in range(5)]
        deadline = time.monotonic() + HANG_SECONDS
        while outcomes(path) != {"length": 5}:
            assert time.monotonic() < deadline, outcomes(path)
            time.sleep(0.01)
        with http.stream("POST", "/v1/chat/completions", json=LONG_BODY) as response:
            wait_for_first_token(response.iter_lines())
            server.process.send_signal(signal.SIGKILL)
            server.process.wait(HANG_SECONDS)
    assert outcomes(path) == {"length": 5}
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    (sums,) = read(path, ("tenant",)).values()
    assert sums.input_tokens == sum(usage["prompt_tokens"] for usage in usages)
    assert sums.output_tokens == sum(usage["completion_tokens"] for usage in usages) == 40
    again = Server.start("--max-num-seqs", "4", "--max-model-len", "2048", "--metering", str(path))
    try:
        assert httpx.post(f"{again.url}/v1/chat/completions", json=BODY, timeout=HANG_SECONDS).status_code == 200
    finally:
        again.stop()
    assert outcomes(path) == {"length": 6}


@pytest.mark.parametrize("signals", [1, 2])
def test_a_shutdown_writes_every_row(server: Server, path: Path, signals: int):
    """Running answers are included, also those that end with an error, and a second signal loses no row."""
    with httpx.Client(base_url=server.url, timeout=HANG_SECONDS) as http:
        for _ in range(3):
            http.post("/v1/chat/completions", json=BODY)
        with http.stream("POST", "/v1/chat/completions", json=LONG_BODY) as response:
            lines = response.iter_lines()
            wait_for_first_token(lines)
            server.process.send_signal(signal.SIGTERM)
            if signals == 2:
                while http.get("/health").status_code == 200:
                    time.sleep(0.01)
                server.process.send_signal(signal.SIGTERM)
            last = [line[6:] for line in lines if line.startswith("data: ")][-1]
    server.process.wait(HANG_SECONDS)
    ended = "length" if last == "[DONE]" else "error"
    assert ended == "length" or json.loads(last)["error"]["code"] == "server_shutdown"
    assert outcomes(path) == ({"length": 4} if ended == "length" else {"error": 1, "length": 3})
    (sums,) = read(path, ("tenant",)).values()
    assert sums.output_tokens > 24
    assert not [line for line in server.log if "Traceback" in line or "rows" in line]


def test_an_answer_that_ended_before_a_kill_is_counted_once(path: Path, tmp_path: Path):
    """The metering file is locked until the kill, so that only the store has the row; later servers count no answer
    twice that they restore.
    """
    store = tmp_path / "store.db"
    options = ("--max-num-seqs", "4", "--metering", str(path), "--store", str(store))
    headers = {"Idempotency-Key": "one"}
    first = Server.start(*options)
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        url = f"{first.url}/v1/chat/completions"
        usage = httpx.post(url, json=BODY, headers=headers, timeout=HANG_SECONDS).json()["usage"]
        with contextlib.closing(sqlite3.connect(store)) as reader:
            deadline = time.monotonic() + HANG_SECONDS
            while reader.execute("SELECT count(*) FROM request WHERE ended IS NOT NULL").fetchone() == (0,):
                assert time.monotonic() < deadline
            assert reader.execute("SELECT count(*) FROM usage_row").fetchone() == (1,)
        first.process.kill()
        first.process.wait(HANG_SECONDS)
        other.rollback()
    assert outcomes(path) == {}
    for _ in range(2):
        later = Server.start(*options)
        again = httpx.post(f"{later.url}/v1/chat/completions", json=BODY, headers=headers, timeout=HANG_SECONDS)
        assert again.headers["Idempotent-Replayed"] == "true"
        assert later.stop() in (0, -signal.SIGTERM)
        (sums,) = read(path, ("tenant",)).values()
        assert (sums.requests, sums.output_tokens) == (1, usage["completion_tokens"])
        with contextlib.closing(sqlite3.connect(store)) as reader:
            assert reader.execute("SELECT count(*) FROM usage_row").fetchone() == (0,)
