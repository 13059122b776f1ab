"""Time of the model's linear layers alone, a lower bound for every peer that computes the same layers. Worker process.

Each candidate is one method to compute a linear layer. A decode step is every matrix of the model once, including the
head; prompts are computed 512 tokens at a time, without the head. The bound is the fastest candidate at each size.

    python -m benchmarks.peers.bound MODEL_FOLDER      # then {"rows": [1, 8, 512]} on standard input
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import timing
from kernels.cpu.backend import CpuKernels
from kernels.cpu.linear import CpuLinear

Layer = Callable[[Tensor], Tensor]
SECONDS = 0.3  # per candidate and number of rows
PREFILL = 512  # rows per prompt step


def onednn(weight: Tensor) -> Layer:
    """Return a oneDNN layer with the weight in oneDNN's own layout."""
    packed = torch.ops.mkldnn._reorder_linear_weight(weight)

    def multiply(x: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
        return out

    return multiply


# name: (dtype of weights, dtype of activations, weight[N, K] -> layer)
CANDIDATES: dict[str, tuple[torch.dtype, torch.dtype, Callable[[Tensor], Layer]]] = {
    "oneDNN bfloat16": (torch.bfloat16, torch.bfloat16, onednn),
    "oneDNN float32": (torch.float32, torch.float32, onednn),
    "carousel float32": (torch.bfloat16, torch.float32, lambda weight: CpuLinear(weight, None)),
    "carousel bfloat16": (
        torch.bfloat16,
        torch.float32,
        lambda weight: CpuLinear(weight, None, allow_bf16_activations=True),
    ),
}


def matrices(config: dict[str, Any]) -> list[tuple[int, int]]:
    """Return (outputs, inputs) of every matrix of a step, in order of use."""
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    layer = [(queries + 2 * keys, hidden), (hidden, queries), (2 * inner, hidden), (hidden, inner)]
    layers: int = config["num_hidden_layers"]
    return layer * layers + [(config["vocab_size"], hidden)]


def build(config: dict[str, Any], name: str) -> list[tuple[int, Layer]]:
    """Return (inputs, layer) of every matrix, with random weights."""
    dtype, _, make = CANDIDATES[name]
    return [(inputs, make(torch.randn(outputs, inputs).to(dtype))) for outputs, inputs in matrices(config)]


def milliseconds(layers: list[tuple[int, Layer]], rows: int, dtype: torch.dtype) -> float:
    """Return the median time of a step in milliseconds."""
    if rows >= PREFILL:
        layers = layers[:-1]  # the head is needed for the last token of a prompt only
    activations = {inputs: torch.randn(rows, inputs).to(dtype) for inputs, _ in layers}

    def step() -> None:
        for inputs, layer in layers:
            layer(activations[inputs])

    return timing.milliseconds(step, SECONDS)


def main(folder: Path) -> None:
    """Build all candidates, then measure for each input line."""
    threads = os.cpu_count() or 1
    CpuKernels().set_threads(threads)
    torch.set_num_threads(threads)
    config = json.loads((folder / "config.json").read_text())
    with torch.inference_mode():
        built = {name: build(config, name) for name in CANDIDATES}
        print(json.dumps({"ready": True}), flush=True)
        for line in sys.stdin:
            counts = json.loads(line)["rows"]
            times = {
                name: {rows: milliseconds(built[name], rows, CANDIDATES[name][1]) for rows in counts}
                for name in CANDIDATES
            }
            print(json.dumps({"milliseconds": times}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
