"""A server that is killed leaves no process, and the next start removes its temporary folders."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from kernels.cpu.cache import LOCK_FILE, SCRATCH_PREFIX
from tests.conftest import ROOT, Server
from tests.e2e.raw import wait_until

MARK = "TEST_SESSION"  # variable in the environment of all processes of a server
BODY = {"messages": [{"role": "user", "content": "Tell me a story."}], "ignore_eos": True, "max_tokens": 1500}
SCHEMA = {"type": "array", "items": {"enum": ["fox", "hen"]}}
FORMATTED = {
    "messages": BODY["messages"],
    "max_tokens": 5,
    "response_format": {"type": "json_schema", "json_schema": {"name": "animals", "schema": SCHEMA}},
}


def session_of(mark: str) -> list[psutil.Process]:
    """Return the running processes of a server."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == mark:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[str]:
    """Yield the mark of this test's processes, all of which are killed afterwards."""
    mark = str(tmp_path)
    yield mark
    for process in session_of(mark):
        process.kill()


@pytest.fixture
def start(mark: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Server]:
    """Return a function that starts a server with the mark; with `ready=False` it does not wait."""
    monkeypatch.setenv(MARK, mark)

    def make(*options: str, model: str = "demo", ready: bool = True) -> Server:
        if ready:
            return Server.start(*options, model=model)
        command = [sys.executable, "-m", "app", "serve", model, "--port", "0", *options]
        server = Server(subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True))
        server._follower.start()
        wait_until(lambda: any(line.startswith("Carousel is starting on ") for line in server.log))
        server.url = server.log[0].split()[4]
        return server

    return make


def kill(server: Server, mark: str) -> None:
    """End the API process as the system does when memory is short, while its children cannot read that it is gone.

    So it is for an engine in a long step, or a driver's call that hangs.
    """
    for process in session_of(mark):
        if "-m" in process.cmdline() and process.pid != server.process.pid:
            process.suspend()
    server.process.kill()
    server.process.wait()


def loading(server: Server) -> dict[str, object]:
    return httpx.get(f"{server.url}/health").json().get("loading") or {}


def test_no_process_survives_a_kill_while_serving(start: Callable[..., Server], mark: str):
    """Neither the engine nor the checker of grammars does."""
    server = start("--kernels", "torch")
    with httpx.Client(base_url=server.url, timeout=60) as http:
        http.post("/v1/chat/completions", json=FORMATTED).raise_for_status()
        with http.stream("POST", "/v1/chat/completions", json=BODY | {"stream": True}) as answer:
            next(answer.iter_raw())
            assert len(session_of(mark)) == 3
            kill(server, mark)
            wait_until(lambda: not session_of(mark))


def test_no_process_survives_a_kill_while_the_model_loads(start: Callable[..., Server], mark: str):
    """The engine reads no message then."""
    server = start("--kernels", "torch", ready=False)
    wait_until(lambda: loading(server).get("what") != "start")  # on a fast machine it may be ready
    kill(server, mark)
    wait_until(lambda: not session_of(mark))


@pytest.fixture
def endless_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make compilations endless: the driver starts a compiler, as g++ does. Returns the folder of the cache."""
    script = tmp_path / "endless"
    script.write_text('#!/bin/sh\n[ "$1" = --version ] && exit\nsleep 1000 &\nwait\n')
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "carousel" / "kernels"


def is_compiling(mark: str) -> bool:
    """Return whether both a driver and its compiler run."""
    return any(process.name() == "sleep" for process in session_of(mark))


def test_no_compiler_survives_a_kill_and_the_next_start_removes_its_folder(
    start: Callable[..., Server], mark: str, endless_compiler: Path
):
    """The health of a server that compiles reports it; SIGTERM leaves neither processes nor a folder."""
    server = start(ready=False)
    wait_until(lambda: is_compiling(mark))
    wait_until(lambda: loading(server).get("what") == "kernels")
    assert loading(server)["done"] == 0
    [left] = endless_compiler.glob(f"{SCRATCH_PREFIX}*")
    kill(server, mark)
    wait_until(lambda: not session_of(mark))
    assert left.exists()

    server = start(ready=False)
    wait_until(lambda: is_compiling(mark))
    assert not left.exists()
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(60) == -signal.SIGTERM
    wait_until(lambda: not session_of(mark))
    assert [file.name for file in endless_compiler.iterdir()] == [LOCK_FILE]


def test_a_child_whose_parent_has_ended_does_not_begin(tmp_path: Path):
    """A signal would come too late: its parent ended before the call."""
    program = ["-P", str(ROOT / "engine" / "parent_death.py"), str(os.getppid()), "touch", str(tmp_path / "made")]
    assert subprocess.run([sys.executable, *program], check=False, timeout=60).returncode == 1
    assert not (tmp_path / "made").exists()
