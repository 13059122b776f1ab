"""The engine process is killed while quantised weights generate: texts continue as if nothing had happened."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import requirements
from tests.conftest import Server
from tests.e2e.test_resume import events
from tests.engine.models.quantized_tensors import KINDS as SAFETENSORS_KINDS
from tests.engine.test_gguf_models import exported
from tests.engine.test_quantized_checkpoints import AWQ, export
from tests.kernels.conftest import cpu_kernels
from tests.limits import HANG_SECONDS

TOKENS = 600
ANIMALS = {"type": "array", "items": {"enum": ["fox", "hen", "owl"]}, "minItems": 1000}  # longer than the limit
JSON_FORMAT = {"type": "json_schema", "json_schema": {"name": "animals", "schema": ANIMALS}}
GREEDY, SAMPLED = {"temperature": 0.0}, {"temperature": 0.9, "seed": 11}
BODIES: list[dict[str, Any]] = [
    GREEDY | {"ignore_eos": True},
    SAMPLED | {"ignore_eos": True},
    GREEDY | {"response_format": JSON_FORMAT},
    SAMPLED | {"response_format": JSON_FORMAT},
]
KILL_AFTER_CHUNKS = 60  # of all streams together
MODELS: dict[str, Callable[[Path, Path], tuple[Path, tuple[str, ...]]]] = {
    "Q4_1": lambda demo, folder: (exported(demo, folder, "Q4_1"), ()),
    "Q4_K and Q6_K": lambda demo, folder: (exported(demo, folder, "K"), ()),
    "AWQ": lambda demo, folder: (export(demo, folder, SAFETENSORS_KINDS[AWQ])[0], ()),
    "int4 at load": lambda demo, folder: (demo, ("--quantization", "int4")),
}


@dataclass(frozen=True)
class Answer:
    """Text of a stream. has_restarted: whether its timeline has a restart of the engine before its end."""

    text: str
    has_restarted: bool


def read(server: Server, more: dict[str, Any], on_chunk: Callable[[], None]) -> Answer:
    messages = [{"role": "user", "content": "Tell me a story about a fox."}]
    body = {"messages": messages, "max_tokens": TOKENS, "stream": True} | more
    text = ""
    with httpx.Client(base_url=server.url, timeout=HANG_SECONDS) as http:
        with http.stream("POST", "/v1/chat/completions", json=body) as response:
            for _, data in events(response):
                if data == "[DONE]":
                    break
                for choice in json.loads(data)["choices"]:
                    text += choice["delta"].get("content", "")
                    on_chunk()
        timeline = http.get(f"/v1/requests/{response.headers['x-carousel-stream']}").json()
    return Answer(text, any(each.get("cause") == "restart" for each in timeline["choices"][0]["intervals"]))


def read_all(server: Server, on_chunk: Callable[[], None] = lambda: None) -> list[Answer]:
    with ThreadPoolExecutor(len(BODIES)) as pool:
        return [each.result() for each in [pool.submit(read, server, body, on_chunk) for body in BODIES]]


@requirements.a_compiler
@pytest.mark.parametrize("kind", MODELS)
def test_answers_of_quantised_weights_continue_unchanged_after_a_kill(kind: str, demo: Path, tmp_path: Path):
    """Greedy and sampled, plain and with a JSON format; the new engine quantises and packs the same numbers."""
    cpu_kernels()
    model, options = MODELS[kind](demo, tmp_path)
    server = Server.start("--max-num-seqs", "4", "--threads", "1", *options, model=model)
    chunks, lock = 0, threading.Lock()

    def kill_once() -> None:
        nonlocal chunks
        with lock:
            chunks += 1
            if chunks == KILL_AFTER_CHUNKS:
                os.kill(server.engine.pid, signal.SIGKILL)

    try:
        undisturbed = read_all(server)
        disturbed = read_all(server, kill_once)
    finally:
        server.stop()
    assert [each.text for each in disturbed] == [each.text for each in undisturbed]
    assert not any(each.has_restarted for each in undisturbed)
    assert all(each.has_restarted for each in disturbed), "every answer was cut"
    assert len({each.text for each in undisturbed}) == len(BODIES)
