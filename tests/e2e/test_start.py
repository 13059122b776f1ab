"""Starting badly: one line that names what is wrong, before anything expensive, and a status that says so."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


def serve(*options: str) -> tuple[int, list[str]]:
    """Exit status and what was said."""
    done = subprocess.run(
        [sys.executable, "-m", "app", "serve", *options],
        capture_output=True,
        text=True,
        timeout=90,
        cwd=ROOT,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stderr.strip().splitlines()


@pytest.fixture
def copied(demo: Path, tmp_path: Path) -> Path:
    """The demo model, to be damaged."""
    folder = tmp_path / "model"
    folder.mkdir()
    for name in (
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ):
        shutil.copy(demo / name, folder / name)
    return folder


@pytest.mark.parametrize("streams", ["<&- >&- 2>&-", "2>&-", "2>/dev/full", "2> >(true)"])
def test_a_server_to_which_nobody_listens_serves(streams: str):
    """Whatever its standard streams are: closed, a full disk, somebody who has gone."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = f"exec {sys.executable} -m app serve --port {port} {streams}"
    with subprocess.Popen(["bash", "-c", command], cwd=ROOT) as serving:
        try:
            deadline = time.monotonic() + 60
            while serving.poll() is None and time.monotonic() < deadline:
                with contextlib.suppress(httpx.ConnectError):
                    if httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200:
                        break
                time.sleep(0.05)
            answer = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json={"prompt": "a", "max_tokens": 2})
            assert answer.status_code == 200
        finally:
            serving.terminate()


def test_a_taken_port_is_named():
    """And nothing is loaded."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, lines = serve("--port", str(port))
    assert status == 1
    assert len(lines) == 1
    assert f"127.0.0.1:{port}" in lines[0]


@pytest.mark.parametrize("name", ["foo/", "foo/bar baz"])
def test_a_model_that_is_no_folder_and_no_name_of_the_hub_is_named(name: str):
    """And nobody is asked for it."""
    status, lines = serve(name)
    assert status == 2
    assert len(lines) == 1
    assert f"model {name!r}: no such folder" in lines[0]


def test_a_truncated_weight_file_is_named(copied: Path):
    """The file, not a stack."""
    weights = copied / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100_000])
    status, lines = serve(str(copied), "--port", "0")
    assert status == 1
    assert "model.safetensors" in lines[-1]


def test_a_missing_tokenizer_is_named(copied: Path):
    """In one line."""
    (copied / "tokenizer.json").unlink()
    status, lines = serve(str(copied), "--port", "0")
    assert status == 1
    assert len(lines) == 1
    assert "tokenizer.json" in lines[0]


def test_a_configuration_that_asks_for_the_unknown_is_named(copied: Path):
    """The key and its value."""
    config = (copied / "config.json").read_text()
    (copied / "config.json").write_text(config.replace('"silu"', '"relu"'))
    status, lines = serve(str(copied), "--port", "0")
    assert status == 1
    assert "hidden_act" in lines[-1]
    assert "relu" in lines[-1]


def test_a_pool_too_small_for_anything_is_named():
    """The option and its number."""
    status, lines = serve("--port", "0", "--num-pages", "0")
    assert status == 2
    assert "num_pages" in lines[-1]
