"""Starting badly: one line that names what is wrong, before anything expensive, and a status that says so."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from safetensors.torch import load_file, save_file

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


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--num-pages", "1000000000000"], "num_pages must be at most"),
        (["--num-pages", "2000000000"], "num_pages (2000000000) of "),
        (["--max-num-seqs", "1000000000"], "max_num_seqs must be at most"),
        (["--page-size", "1000000000"], "page_size must be at most"),
        (["--threads", "1000000000"], "threads must be at most"),
    ],
)
def test_an_absurd_size_of_an_option_is_named(options: list[str], named: str):
    """And its number, in one line."""
    status, lines = serve("--port", "0", *options)
    assert status in (1, 2)
    assert named in lines[-1]
    assert all(line.startswith(("carousel: ", "Carousel is starting")) for line in lines)


@pytest.mark.parametrize(
    ("key", "value"),
    [("max_position_embeddings", 100_000_000_000), ("vocab_size", 10**11), ("num_hidden_layers", 10**9),
     ("hidden_size", 2**20), ("rope_theta", 10**400), ("architectures", 5)],
)  # fmt: skip
def test_an_absurd_value_in_config_json_is_named(copied: Path, key: str, value: object):
    """File and key, in one line, before memory is taken."""
    config = json.loads((copied / "config.json").read_text()) | {key: value}
    if key == "rope_theta":
        del config["rope_parameters"]
    (copied / "config.json").write_text(json.dumps(config))
    status, lines = serve(str(copied), "--port", "0")
    assert status == 1
    assert "config.json" in lines[-1] and (key in lines[-1] or "config.json requires" in lines[-1])
    assert all(line.startswith(("carousel: ", "Carousel is starting")) for line in lines)


def test_too_few_open_files_are_named():
    """Before anything is loaded."""
    command = f"ulimit -n 16; exec {sys.executable} -m app serve --port 0"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=90, cwd=ROOT, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines() == ["carousel: `ulimit -n` allows 16 open files; at least 128 are needed"]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_found_before_the_server_is_ready(copied: Path, value: float):
    """The file and the tensor."""
    tensors = load_file(copied / "model.safetensors")
    name = "model.layers.3.mlp.down_proj.weight"
    tensors[name][0, 0] = value
    save_file(tensors, copied / "model.safetensors")
    status, lines = serve(str(copied), "--port", "0")
    assert status == 1
    assert f"model.safetensors: tensor {name} contains NaN or infinity" in lines[-1]
    assert not [line for line in lines if line.startswith("Ready")]


def test_the_tokenizer_of_another_model_is_named(copied: Path):
    """Ids beyond the model's vocabulary, before anything is loaded."""
    config = json.loads((copied / "config.json").read_text()) | {"vocab_size": 4000}
    (copied / "config.json").write_text(json.dumps(config))
    status, lines = serve(str(copied), "--port", "0")
    assert status == 1 and len(lines) == 1
    assert "token ids up to 4095, and config.json has vocab_size = 4000" in lines[0]
