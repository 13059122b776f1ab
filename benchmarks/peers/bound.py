"""What the model's linear layers alone take: no peer that computes the same layers can be faster. A worker of peers.py.

Each candidate is one way to compute a linear layer. A step is every matrix of the model once, the head included; the
bound is that of the fastest candidate. Prefill is left out, so the true limit is a little lower.

    python -m benchmarks.peers.bound MODEL_FOLDER      # then {"rows": 8} on its standard input
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Layer = Callable[[Tensor], Tensor]
SECONDS = 1.0  # spent on each candidate


def onednn(weight: Tensor) -> Layer:
    """oneDNN with the weight in its own layout."""
    packed = torch.ops.mkldnn._reorder_linear_weight(weight)

    def multiply(x: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
        return out

    return multiply


# name: (dtype of weights and activations, weight[N, K] -> layer). A further way to compute a layer is one more line.
CANDIDATES: dict[str, tuple[torch.dtype, Callable[[Tensor], Layer]]] = {
    "oneDNN bfloat16": (torch.bfloat16, onednn),
    "oneDNN float32": (torch.float32, onednn),
}


def matrices(config: dict[str, Any]) -> list[tuple[int, int]]:
    """(outputs, inputs) of every matrix of a step, in the order they are used."""
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    layer = [(queries + 2 * keys, hidden), (hidden, queries), (2 * inner, hidden), (hidden, inner)]
    layers: int = config["num_hidden_layers"]
    return layer * layers + [(config["vocab_size"], hidden)]


def build(config: dict[str, Any], name: str) -> list[tuple[int, Layer]]:
    """(inputs, layer) of every matrix, with random weights."""
    dtype, make = CANDIDATES[name]
    return [(inputs, make(torch.randn(outputs, inputs).to(dtype))) for outputs, inputs in matrices(config)]


def milliseconds(layers: list[tuple[int, Layer]], rows: int, dtype: torch.dtype) -> float:
    """Median time of a step."""
    activations = {inputs: torch.randn(rows, inputs).to(dtype) for inputs, _ in layers}
    steps: list[float] = []
    end = time.perf_counter() + SECONDS
    while len(steps) < 5 or time.perf_counter() < end:
        began = time.perf_counter()
        for inputs, layer in layers:
            layer(activations[inputs])
        steps.append(time.perf_counter() - began)
    return 1000 * statistics.median(steps[2:])  # the first are a warm-up


def main(folder: Path) -> None:
    """Build all candidates, then measure on demand."""
    torch.set_num_threads(os.cpu_count() or 1)
    config = json.loads((folder / "config.json").read_text())
    with torch.inference_mode():
        built = {name: build(config, name) for name in CANDIDATES}
        print(json.dumps({"ready": True}), flush=True)
        for line in sys.stdin:
            rows = json.loads(line)["rows"]
            times = {name: milliseconds(built[name], rows, CANDIDATES[name][0]) for name in CANDIDATES}
            print(json.dumps({"milliseconds": times}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
