"""HTTP overhead: output tokens per second over SSE against the same engine called in process.

A random-weight Llama of about 108M parameters (30 layers, hidden 576, 9 heads, 3 KV heads, intermediate 1536, the demo
model's vocabulary), 64 concurrent streams. Each token is one event: events are not coalesced if the reader keeps up.

Measured with two clients. "elsewhere" is woken when its answer is complete, as if it were on another machine, so the
difference is the server's cost. "beside" shares the cores and wakes for every token.

    python -m benchmarks.http_overhead       # 5 interleaved runs
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from app.engine_client.engine_process import ENGINE_ENVIRONMENT_DEFAULTS
from app.resources import demo_model
from benchmarks.results import save, spread
from benchmarks.serving import Serving
from benchmarks.sse_client import run as run_client
from benchmarks.sse_client import stream

LAYERS, PROMPT, OUTPUT, STREAMS = 30, 64, 64, 64
CLIENTS = {"elsewhere": 1 << 17, "beside": None}  # bytes that must arrive to wake it
SIZE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
}


def make_model(folder: Path) -> None:
    """Write config.json of the shape above and the demo model's tokenizer."""
    demo = json.loads((demo_model() / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(SIZE | {"vocab_size": demo["vocab_size"], "eos_token_id": 0}))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(demo_model() / name, folder / name)


def prompts() -> list[list[int]]:
    """Return the token IDs of each stream's prompt, all different."""
    return [[300 + (7 * i + 13 * j) % 3000 for j in range(PROMPT)] for i in range(STREAMS)]


def in_process(model: Path) -> subprocess.Popen[str]:
    """Start this file's `--engine` mode, which runs the workload once for each input line."""
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.http_overhead", "--engine", str(model)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**ENGINE_ENVIRONMENT_DEFAULTS, **os.environ},  # as the server starts its engine
    )


def engine_mode(model: str) -> None:
    """Build the engine, then measure for each input line."""
    from engine.build import build_engine
    from engine.config import EngineConfig
    from engine.types import Request, SamplingParams

    config = EngineConfig(model=model, load_format="dummy", max_num_seqs=STREAMS, enable_prefix_caching=False)
    engine = build_engine(config)
    print("ready", flush=True)
    for line in sys.stdin:
        while engine.prefault_pages():  # as a server's engine does while it is idle
            pass
        began = time.perf_counter()
        for i, prompt in enumerate(prompts()):
            sampling = SamplingParams(max_tokens=OUTPUT, temperature=0.0)
            engine.submit(Request(id=f"{line}{i}", prompt=tuple(prompt), sampling=sampling))
        while engine.has_work:
            engine.step()
        print(time.perf_counter() - began, flush=True)


async def over_http(host: str, port: int, wakes_at: int | None) -> float:
    """Run all streams and return the seconds until the last has ended."""
    settings: dict[str, Any] = {"max_tokens": OUTPUT, "temperature": 0, "stream": True, "ignore_eos": True}
    bodies = [settings | {"prompt": prompt} for prompt in prompts()]
    began = time.perf_counter()
    await asyncio.gather(*(stream(host, port, "/v1/completions", body, wakes_at) for body in bodies))
    return time.perf_counter() - began


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.engine:
        engine_mode(options.engine)
        return
    rows = []
    with tempfile.TemporaryDirectory() as name:
        make_model(Path(name))
        engine = in_process(Path(name))
        assert engine.stdin is not None and engine.stdout is not None
        assert engine.stdout.readline() == "ready\n"
        options_of_server = [
            "--load-format",
            "dummy",
            "--max-num-seqs",
            str(STREAMS),
            "--no-enable-prefix-caching",
        ]
        with Serving(*options_of_server, model=name) as server:
            for run in range(-1, options.runs):  # the first is a warm-up
                engine.stdin.write(f"{run}\n")
                engine.stdin.flush()
                row = {"in_process": STREAMS * OUTPUT / float(engine.stdout.readline())}
                for client, wakes_at in CLIENTS.items():
                    seconds = run_client(over_http(server.host, server.port, wakes_at))
                    row[client] = STREAMS * OUTPUT / seconds
                    row[f"{client}_ratio"] = row[client] / row["in_process"]
                if run >= 0:
                    rows.append({"run": run, **row})
                    print(f"run {run}: " + ", ".join(f"{key} {value:.4g}" for key, value in row.items()), flush=True)
        engine.stdin.close()
        engine.wait()
    summary = {key: spread([row[key] for row in rows]) for key in rows[0] if key != "run"}
    settings = {"streams": STREAMS, "prompt": PROMPT, "output": OUTPUT, "model": SIZE, "dtype": "auto"}
    for key, found in summary.items():
        print(f"{key:16} {found['median']:.4g} ({found['min']:.4g} to {found['max']:.4g})")
    print("Saved to", save("http_overhead", settings, rows, summary))


if __name__ == "__main__":
    main()
