"""A server that can start no engine exits, so that a service manager can replace it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import httpx
import pytest

from tests.conftest import ROOT, Server
from tests.limits import HANG_SECONDS

# Serves with one real engine; every further engine process fails at once.
PROGRAM = """
import subprocess, sys
import app.engine_client.engine_process, app.engine_client.restart_policy
from app.__main__ import main
app.engine_client.restart_policy.INITIAL_BACKOFF_SECONDS = 0.01
spawn, spawned = app.engine_client.engine_process._spawn, []
def spawn_once(*arguments):
    spawned.append(1)
    return spawn(*arguments) if len(spawned) == 1 else subprocess.Popen([sys.executable, "-c", "exit(3)"])
app.engine_client.engine_process._spawn = spawn_once
sys.exit(main(["serve", "demo", "--port", "0", "--kernels", "torch", *sys.argv[1:]]))
"""
LONG = {"messages": [{"role": "user", "content": "Tell me a story."}], "stream": True, "max_tokens": 500}


@pytest.mark.parametrize("options", [(), ("--restart-interval", "3600")])
def test_streams_end_with_an_error_and_the_process_with_status_1(options: tuple[str, ...]):
    """With --restart-interval it stays alive but is not ready."""
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, *options], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        server = Server(process)
        server._follower.start()
        assert server._ready.wait(HANG_SECONDS)
        engine = server.engine
        body = {**LONG, "ignore_eos": True}
        with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, timeout=HANG_SECONDS) as response:
            lines = response.iter_lines()
            while not next(lines).startswith("data: "):
                pass
            os.kill(engine.pid, signal.SIGKILL)
            data = [line for line in lines if line.startswith("data: ")]
        assert "engine_unavailable" in data[-1]
        if not options:
            assert process.wait(HANG_SECONDS) == 1
            server._follower.join(HANG_SECONDS)
            assert server.log[-1] == "carousel: stopping with status 1, because no engine can be started"
            return
        ready = httpx.get(f"{server.url}/readyz")
        assert (ready.status_code, "retry-after" in ready.headers) == (503, True)
        assert httpx.get(f"{server.url}/livez").status_code == 200
        assert httpx.post(f"{server.url}/v1/chat/completions", json=LONG).status_code == 503
        assert server.stop() == -signal.SIGTERM
    finally:
        process.kill()
        process.wait()
