"""Being told to stop."""

from __future__ import annotations

import json
import signal

import httpx
import psutil

from tests.conftest import Server

LONG = {
    "messages": [{"role": "user", "content": "Tell me a story."}],
    "stream": True,
    "ignore_eos": True,
    "temperature": 0.0,
}


def test_streams_are_finished_or_ended_with_an_error_never_cut():
    """SIGTERM under a short and an endless answer: one completes, the other says why it does not; the exit is clean."""
    server = Server.start("--max-num-seqs", "4", "--max-model-len", "2048")
    children = psutil.Process(server.process.pid).children()
    assert len(children) == 1
    try:
        with httpx.Client(base_url=server.url, timeout=60) as http:
            endless = {**LONG, "max_tokens": 2000, "min_tokens": 2000}
            short = {**LONG, "max_tokens": 60}
            with (
                http.stream("POST", "/v1/chat/completions", json=endless) as first,
                http.stream("POST", "/v1/chat/completions", json=short) as second,
            ):
                lines = first.iter_lines()
                while not next(lines).startswith("data: "):
                    pass
                server.process.send_signal(signal.SIGTERM)
                data = [line[6:] for line in second.iter_lines() if line.startswith("data: ")]
                assert data[-1] == "[DONE]"
                data = [line[6:] for line in lines if line.startswith("data: ")]
        last = data[-1]
        assert last == "[DONE]" or json.loads(last)["error"]["code"] == "server_shutdown"
        # uvicorn raises the signal again when all is done, so that a supervisor sees what ended it.
        assert server.process.wait(30) in (0, -signal.SIGTERM)
        assert psutil.wait_procs(children, timeout=10)[1] == []
    finally:
        server.process.kill()
        server.process.wait()
