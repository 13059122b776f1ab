"""Rows of a real server: when it is killed, and when it is told to stop."""

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

from app.usage import read
from tests.conftest import Server

ASK = {"messages": [{"role": "user", "content": "Tell me a story about a fox."}], "max_tokens": 8, "ignore_eos": True}
ENDLESS = {**ASK, "max_tokens": 2000, "min_tokens": 2000, "stream": True}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "usage.db"


@pytest.fixture
def server(path: Path):
    """Its longest answer takes seconds: the slowest kernels there are."""
    options = ("--max-num-seqs", "4", "--max-model-len", "2048", "--kernels", "torch")
    made = Server.start(*options, "--metering", str(path))
    engine = psutil.Process(made.process.pid).children()
    yield made
    made.process.kill()
    made.process.wait()
    assert psutil.wait_procs(engine, timeout=20)[1] == []


def outcomes(path: Path) -> dict[str, int]:
    return {key[0]: sums.requests for key, sums in read(path, ("outcome",)).items()}


def first_token(lines) -> None:
    while '"content"' not in (line := next(lines)) or '"content":""' in line.replace(" ", ""):
        pass


def test_a_killed_server_s_rows_are_all_there_but_the_last_moment_s(server: Server, path: Path):
    """Those that a second process has seen stay; the file is sound, and the next server goes on with it."""
    with httpx.Client(base_url=server.url, timeout=60) as http:
        said = [http.post("/v1/chat/completions", json=ASK).json()["usage"] for _ in range(5)]
        deadline = time.monotonic() + 20
        while outcomes(path) != {"length": 5}:
            assert time.monotonic() < deadline, outcomes(path)
            time.sleep(0.01)
        with http.stream("POST", "/v1/chat/completions", json=ENDLESS) as response:
            first_token(response.iter_lines())
            server.process.send_signal(signal.SIGKILL)
            server.process.wait(30)
    assert outcomes(path) == {"length": 5}
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    (sums,) = read(path, ("tenant",)).values()
    assert sums.input_tokens == sum(usage["prompt_tokens"] for usage in said)
    assert sums.output_tokens == sum(usage["completion_tokens"] for usage in said) == 40
    again = Server.start("--max-num-seqs", "4", "--max-model-len", "2048", "--metering", str(path))
    try:
        assert httpx.post(f"{again.url}/v1/chat/completions", json=ASK, timeout=60).status_code == 200
    finally:
        again.stop()
    assert outcomes(path) == {"length": 6}


@pytest.mark.parametrize("signals", [1, 2])
def test_told_to_stop_it_writes_every_row_first(server: Server, path: Path, signals: int):
    """With answers under way, those that are ended with an error included; a second signal loses none either."""
    with httpx.Client(base_url=server.url, timeout=60) as http:
        for _ in range(3):
            http.post("/v1/chat/completions", json=ASK)
        with http.stream("POST", "/v1/chat/completions", json=ENDLESS) as response:
            lines = response.iter_lines()
            first_token(lines)
            server.process.send_signal(signal.SIGTERM)
            if signals == 2:
                while http.get("/health").status_code == 200:
                    time.sleep(0.01)
                server.process.send_signal(signal.SIGTERM)
            last = [line[6:] for line in lines if line.startswith("data: ")][-1]
    server.process.wait(30)
    ended = "length" if last == "[DONE]" else "error"
    assert ended == "length" or json.loads(last)["error"]["code"] == "server_shutdown"
    assert outcomes(path) == ({"length": 4} if ended == "length" else {"error": 1, "length": 3})
    (sums,) = read(path, ("tenant",)).values()
    assert sums.output_tokens > 24
    assert not [line for line in server.log if "Traceback" in line or "rows" in line]
