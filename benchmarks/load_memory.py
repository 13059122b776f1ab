"""Memory of the engine process for a GGUF file, while it loads and afterwards, and of llama-server without mmap.

Both serve one sequence of 256 tokens. The figures are VmHWM and VmRSS of /proc/PID/status once the server is ready and
its memory no longer grows. Those of the same program with a model of 100 kB are subtracted (interpreter, libraries,
buffers of any model), and the keys and values of 256 tokens, 2 bytes each. The rest belongs to the weights, and is
divided by the bytes of the file's tensors. Medians of 3 runs, which take turns.

    python -m benchmarks.load_memory FILE.gguf      # after python -m benchmarks.peers --setup
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.peers.servers import Server
from benchmarks.results import save
from benchmarks.serving import Serving
from engine.model_files.open_model import open_model
from tests.packaged_models import tiny_llama, write_gguf

HOME = Path.home() / ".cache/carousel/peers"
CONTEXT, PAGE = 256, 16  # tokens
NO_MAP = ("--load-mode", "none")  # --no-mmap, as it was called before
VALUE_BYTES = 2  # of keys and values: bfloat16, and llama-server's float16
SETTLE_SECONDS = 1.0  # between two readings that must be the same
MB = 1e6

Memory = dict[str, int]  # "resident" and "peak", in bytes


def memory(pid: int) -> Memory:
    """Return the memory of a process, once it no longer changes."""
    last = -1
    while (found := _status(pid))["resident"] != last:
        last = found["resident"]
        time.sleep(SETTLE_SECONDS)
    return found


def _status(pid: int) -> Memory:
    names = {"VmRSS": "resident", "VmHWM": "peak"}
    pairs = (line.split(":") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {names[name]: 1024 * int(value.split()[0]) for name, value in pairs if name in names}


def carousel(file: Path) -> Memory:
    """Return the memory of our engine process."""
    cache = ("--num-pages", str(CONTEXT // PAGE), "--page-size", str(PAGE), "--swap-space", "0")
    with Serving("--max-num-seqs", "1", "--max-model-len", str(CONTEXT), *cache, model=str(file)) as server:
        return memory(server.engine.pid)


def llama(file: Path) -> Memory:
    """Return the memory of llama-server, which has one process."""
    command = [str(HOME / "llama/build/bin/llama-server"), "-m", str(file), "--port", "PORT", *NO_MAP]
    command += ["-np", "1", "-c", str(CONTEXT), "-t", str(os.cpu_count() or 1), "--cache-ram", "0"]
    server = Server(command, {}, HOME / "logs/load_memory.log", lambda prompt, length: {})
    try:
        server.wait()
        return memory(server.process.pid)
    finally:
        server.process.stop()


SERVERS: dict[str, Callable[[Path], Memory]] = {"carousel": carousel, "llama-server": llama}


def write_tiny(folder: Path) -> Path:
    """Write a model of 100 kB for the memory that does not depend on the model, and return its file."""
    model = tiny_llama()
    model.config.max_position_embeddings = CONTEXT
    write_gguf(folder / "tiny.gguf", model)
    return folder / "tiny.gguf"


def measure(file: Path, runs: int) -> list[dict[str, Any]]:
    """Return a row for each server and run."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        tiny = write_tiny(Path(folder))
        for run in range(runs):
            for name, server in SERVERS.items():
                found, base = server(file), server(tiny)
                row = {
                    "server": name,
                    "run": run,
                    **found,
                    "base_resident": base["resident"],
                    "base_peak": base["peak"],
                }
                rows.append(row)
                print(row, flush=True)
    return rows


def cache_bytes(file: Path) -> int:
    """Return the bytes of keys and values of the context."""
    config = open_model(file).config().content
    heads, size, layers = (config[name] for name in ("num_key_value_heads", "head_dim", "num_hidden_layers"))
    return int(2 * VALUE_BYTES * CONTEXT * heads * size * layers)


def summarize(rows: list[dict[str, Any]], tensor_bytes: int, cached: int) -> dict[str, dict[str, float]]:
    """Return the memory of the weights for each server, in bytes, and as multiples of the file's tensors."""
    summary: dict[str, dict[str, float]] = {}
    for name in SERVERS:
        own = [row for row in rows if row["server"] == name]
        net = {
            kind: statistics.median(row[kind] - row[f"base_{kind}"] for row in own) - cached
            for kind in ("resident", "peak")
        }
        summary[name] = net | {f"{kind}_ratio": value / tensor_bytes for kind, value in net.items()}
    return summary


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="GGUF file")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    tensor_bytes, cached = open_model(options.file).description().file_bytes, cache_bytes(options.file)
    rows = measure(options.file, options.runs)
    summary = summarize(rows, tensor_bytes, cached)
    print(f"{'':14} {'resident':>16} {'peak':>16}   of tensors with {tensor_bytes / MB:.1f} MB")
    for name, each in summary.items():
        columns = (f"{each[kind] / MB:7.1f} MB {each[f'{kind}_ratio']:5.2f}" for kind in ("resident", "peak"))
        print(f"{name:14} {'  '.join(columns)}")
    settings = {"model": options.file.stem, "tensor_bytes": tensor_bytes, "cache_bytes": cached, "context": CONTEXT}
    print("Saved to", save(f"load_memory_{options.file.stem.lower()}", settings, rows, summary))


if __name__ == "__main__":
    main()
