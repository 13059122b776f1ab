"""Failed starts: one line that names the fault, before anything expensive, and an exit status."""

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

from tests.limits import HANG_SECONDS

ROOT = Path(__file__).resolve().parent.parent.parent


def serve(*options: str) -> tuple[int, list[str]]:
    """Run a server that fails to start, and return its exit status and output lines."""
    done = subprocess.run(
        [sys.executable, "-m", "app", "serve", *options],
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        cwd=ROOT,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stderr.strip().splitlines()


@pytest.fixture
def model_copy(demo: Path, tmp_path: Path) -> Path:
    """Return a copy of the demo model that a test may damage."""
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
def test_a_server_works_without_usable_standard_streams(streams: str):
    """The streams are closed, on a full disk, or a pipe without a reader."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = f"exec {sys.executable} -m app serve demo --port {port} {streams}"
    with subprocess.Popen(["bash", "-c", command], cwd=ROOT) as serving:
        try:
            deadline = time.monotonic() + HANG_SECONDS
            while serving.poll() is None and time.monotonic() < deadline:
                with contextlib.suppress(httpx.ConnectError):
                    if httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200:
                        break
                time.sleep(0.05)
            answer = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json={"prompt": "a", "max_tokens": 2})
            assert answer.status_code == 200
        finally:
            serving.terminate()


def test_an_occupied_port_is_named():
    """The port is checked before anything is loaded."""
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        port = occupied.getsockname()[1]
        status, lines = serve("demo", "--port", str(port))
    assert status == 1
    assert len(lines) == 1
    assert f"127.0.0.1:{port}" in lines[0]


@pytest.mark.parametrize("name", ["foo/", "foo/bar baz"])
def test_a_model_that_is_neither_a_folder_nor_a_hub_name_is_named(name: str):
    """The hub is not queried for it."""
    status, lines = serve(name)
    assert status == 2
    assert len(lines) == 1
    assert f"model {name!r}: no such folder" in lines[0]


def test_a_truncated_weight_file_is_named(model_copy: Path):
    """The error names the file and has no traceback."""
    weights = model_copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100_000])
    status, lines = serve(str(model_copy), "--port", "0")
    assert status == 1
    assert "model.safetensors" in lines[-1]


def test_a_missing_tokenizer_is_named(model_copy: Path):
    """The error is one line."""
    (model_copy / "tokenizer.json").unlink()
    status, lines = serve(str(model_copy), "--port", "0")
    assert status == 1
    assert len(lines) == 1
    assert "tokenizer.json" in lines[0]


def test_an_unsupported_value_in_config_json_is_named(model_copy: Path):
    """The error names the key and its value."""
    config = (model_copy / "config.json").read_text()
    (model_copy / "config.json").write_text(config.replace('"silu"', '"relu"'))
    status, lines = serve(str(model_copy), "--port", "0")
    assert status == 1
    assert "hidden_act" in lines[-1]
    assert "relu" in lines[-1]


def test_a_pool_without_pages_is_named():
    """The error names the option."""
    status, lines = serve("demo", "--port", "0", "--num-pages", "0")
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
    """The error names its value too, in one line."""
    status, lines = serve("demo", "--port", "0", *options)
    assert status in (1, 2)
    assert named in lines[-1]
    assert all(line.startswith(("carousel: ", "Carousel is starting", "INFO carousel.engine: ")) for line in lines)


@pytest.mark.parametrize(
    ("key", "value"),
    [("max_position_embeddings", 100_000_000_000), ("vocab_size", 10**11), ("num_hidden_layers", 10**9),
     ("hidden_size", 2**20), ("rope_theta", 10**400), ("architectures", 5)],
)  # fmt: skip
def test_an_absurd_value_in_config_json_is_named(model_copy: Path, key: str, value: object):
    """The error names the file and the key in one line, before memory is allocated."""
    config = json.loads((model_copy / "config.json").read_text()) | {key: value}
    if key == "rope_theta":
        del config["rope_parameters"]
    (model_copy / "config.json").write_text(json.dumps(config))
    status, lines = serve(str(model_copy), "--port", "0")
    assert status == 1
    assert "config.json" in lines[-1] and (key in lines[-1] or "config.json requires" in lines[-1])
    assert all(line.startswith(("carousel: ", "Carousel is starting")) for line in lines)


def test_too_few_open_files_are_named():
    """The error comes before anything is loaded."""
    command = f"ulimit -n 16; exec {sys.executable} -m app serve demo --port 0"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=HANG_SECONDS, cwd=ROOT, check=False
    )
    assert done.returncode == 1
    assert done.stderr.splitlines() == ["carousel: `ulimit -n` allows 16 open files; at least 192 are needed"]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_with_nan_or_infinity_are_found_before_the_server_is_ready(model_copy: Path, value: float):
    """The error names the file and the tensor."""
    tensors = load_file(model_copy / "model.safetensors")
    name = "model.layers.3.mlp.down_proj.weight"
    tensors[name][0, 0] = value
    save_file(tensors, model_copy / "model.safetensors")
    status, lines = serve(str(model_copy), "--port", "0")
    assert status == 1
    assert f"model.safetensors: tensor {name} contains NaN or infinity" in lines[-1]
    assert not [line for line in lines if line.startswith("Ready")]


def test_the_tokenizer_of_another_model_is_named(model_copy: Path):
    """Its ids exceed the model's vocabulary, which is found before anything is loaded."""
    config = json.loads((model_copy / "config.json").read_text()) | {"vocab_size": 4000}
    (model_copy / "config.json").write_text(json.dumps(config))
    status, lines = serve(str(model_copy), "--port", "0")
    assert status == 1 and len(lines) == 1
    assert "token ids up to 4095, and config.json has vocab_size = 4000" in lines[0]
