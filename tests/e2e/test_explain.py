"""`carousel explain` of a request to a real server."""

from __future__ import annotations

import os
import subprocess
import sys

import httpx
import pytest

from tests.conftest import ROOT, Server
from tests.limits import HANG_SECONDS


@pytest.mark.parametrize(("encoding", "block"), [("utf-8", "█"), ("ascii", "#")])
def test_the_command_draws_the_timeline(server: Server, encoding: str, block: str):
    """Terminals with and without block characters are supported."""
    answer = httpx.post(
        f"{server.url}/v1/completions", json={"prompt": "hi", "max_tokens": 3}, timeout=HANG_SECONDS
    ).json()
    done = subprocess.run(
        [sys.executable, "-m", "app", "explain", answer["id"], "--url", server.url],
        capture_output=True,
        encoding=encoding,
        env=os.environ | {"PYTHONIOENCODING": encoding},
        timeout=HANG_SECONDS,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert answer["id"].rpartition("-")[2] in done.stdout
    assert "prompt tokens were in the cache" in done.stdout
    assert block in done.stdout
