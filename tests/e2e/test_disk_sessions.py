"""Conversations on disk: a server that was killed and started again finds their prompts, and gives the same texts."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import httpx
import pytest

from tests.conftest import Server
from tests.e2e.raw import wait_until
from tests.e2e.test_tool_sessions import KEYS, QUESTION, TOOLS, ask
from tests.limits import HANG_SECONDS

pytestmark = pytest.mark.model

CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
SECOND_TURN = [
    QUESTION,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
]


def start(model: Path, folder: Path) -> Server:
    flags = ("--page-size", "16", "--max-num-seqs", "4", "--max-model-len", "2048", "--kv-disk", str(folder))
    return Server.start(*flags, "--api-key", ",".join(KEYS), "--public-metrics", model=model)


def kill(server: Server) -> None:
    """Kill all processes of a server at once."""
    engine = server.engine
    os.kill(engine.pid, signal.SIGKILL)
    server.process.send_signal(signal.SIGKILL)
    server.process.wait(HANG_SECONDS)
    engine.wait(HANG_SECONDS)


def metric(server: Server, name: str, label: str) -> float:
    """Return the value of a metric with a label."""
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    (line,) = [line for line in lines if line.startswith(name) and label in line]
    return float(line.split()[-1])


def first_turn(server: Server) -> int:
    """Return the prompt tokens of an answer that asks for a tool, once its conversation is on disk."""
    begun = ask(server, [QUESTION], KEYS[0], tools=TOOLS, tool_choice="required")
    tokens: int = begun["usage"]["prompt_tokens"]
    wait_until(lambda: metric(server, "carousel:session_pages", 'place="disk"') * 16 > tokens - 16)
    return tokens


def second_turn(server: Server, key: str) -> tuple[int, str]:
    """Return the cached tokens and the text of the next answer."""
    ended = ask(server, SECOND_TURN, key, tools=TOOLS, max_tokens=20)
    return ended["usage"]["prompt_tokens_details"]["cached_tokens"], ended["choices"][0]["message"]["content"]


def test_a_killed_server_finds_its_conversations_again(chat_checkpoint: Path, tmp_path: Path) -> None:
    """The next turn computes its new tokens alone; another key finds nothing, and both texts are the same."""
    server = start(chat_checkpoint, tmp_path)
    tokens = first_turn(server)
    kill(server)
    for file in tmp_path.rglob("*.kv"):
        assert file.stat().st_mode & 0o777 == 0o600
    server = start(chat_checkpoint, tmp_path)
    cached, text = second_turn(server, KEYS[0])
    assert cached >= tokens - 16
    assert second_turn(server, KEYS[1]) == (0, text)
    assert metric(server, "carousel:session_tokens_total", 'event="read"') >= tokens - 32
    server.stop()
    server.assert_no_traceback()


def test_damaged_files_cost_time_and_nothing_else(chat_checkpoint: Path, tmp_path: Path) -> None:
    """Flipped, truncated, empty and foreign files: one line in the log, and the text that is computed."""
    server = start(chat_checkpoint, tmp_path)
    tokens = first_turn(server)
    kill(server)
    files = sorted(tmp_path.rglob("*.kv"))
    assert len(files) >= 2
    for number, file in enumerate(files):
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content[: len(content) // 2] if number % 3 == 1 else content)
    (files[0].parent / "0123456789abcdef.kv").write_bytes(b"")
    (files[0].parent / "notes.txt").write_text("not ours")
    server = start(chat_checkpoint, tmp_path)
    cached, text = second_turn(server, KEYS[0])
    assert cached < tokens - 32, "pages before the first damaged one are still good"
    assert second_turn(server, KEYS[1])[1] == text
    server.stop()
    server.assert_no_traceback()
    assert len([line for line in server.log if re.search(r"kv.disk|carousel-kv", line, re.IGNORECASE)]) <= 2
    assert (files[0].parent / "notes.txt").exists()
