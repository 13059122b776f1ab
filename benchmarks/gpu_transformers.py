"""Continuous batching of transformers on a device, in a separate process that frees its memory and cannot hang the run.

The process reads a task as JSON, which `measure` writes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.shapes import SHAPES, Shape

WAYS, RATE = "computes by: ", "tokens a second: "


@dataclass(frozen=True)
class Measured:
    """Measurements of transformers."""

    ways: dict[str, Any]  # the methods that it chose
    rates: list[float]  # output tokens per second of each run


def measure(
    shape: Shape,
    device: torch.device,
    prompts: Sequence[tuple[int, ...]],
    output: int,
    runs: int,
    timeout: float = 60.0,
) -> Measured:
    """Return the runs that finish within `timeout` seconds.

    Raises subprocess.TimeoutExpired if none does, and RuntimeError if the process failed.
    """
    task = {"shape": shape.name, "device": str(device), "prompts": prompts, "output": output, "runs": runs}
    command = [sys.executable, "-m", "benchmarks.gpu_transformers"]
    try:
        ended = subprocess.run(
            command, input=json.dumps(task).encode(), stdout=subprocess.PIPE, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired as late:
        if (found := _read(late.stdout)).rates:
            return found
        raise
    if ended.returncode:
        raise RuntimeError(f"The transformers process ended with status {ended.returncode}.")
    return _read(ended.stdout)


def _read(output: bytes | None) -> Measured:
    """Parse the complete result lines in a process's output; transformers prints there too."""
    *lines, _ = (output or b"").decode(errors="replace").split("\n")
    ways = [json.loads(line.removeprefix(WAYS)) for line in lines if line.startswith(WAYS)]
    rates = [float(line.removeprefix(RATE)) for line in lines if line.startswith(RATE)]
    return Measured(ways[0] if ways else {}, rates)


def _run_task(shape: Shape, device: torch.device, prompts: list[list[int]], output: int, runs: int) -> Iterator[str]:
    """Measure in this process and yield each result as a line.

    The first run is a warm-up. A run ends with its last answer: the manager starts before the first run and stops after
    the last one.
    """
    from transformers import ContinuousBatchingConfig, GenerationConfig
    from transformers.generation.continuous_batching.utils import WorkloadHints

    # The end token is never sampled, so that every text has its full length.
    settings = GenerationConfig(max_new_tokens=output, do_sample=False, eos_token_id=-1, pad_token_id=0)
    with _model(shape, device).continuous_batching_context_manager(
        generation_config=settings,
        # As in this engine's runs: otherwise every run but the first would find its prompts in the cache.
        continuous_batching_config=ContinuousBatchingConfig(allow_block_sharing=False),
        workload_hints=WorkloadHints(max(map(len, prompts)), output, len(prompts)),  # as in `generate_batch`
        timeout=5.0,
    ) as manager:
        yield WAYS + json.dumps(_ways(manager))
        for run in range(runs + 1):
            began = time.perf_counter()
            generated = _generate(manager, prompts, output)
            seconds = time.perf_counter() - began
            if generated != len(prompts) * output:  # transformers logs errors and returns partial results
                raise RuntimeError(f"transformers generated {generated} tokens of {len(prompts) * output}")
            if run > 0:
                yield f"{RATE}{generated / seconds}"


def _generate(manager: Any, prompts: list[list[int]], output: int) -> int:
    """Generate all answers and return their number of tokens, fewer if transformers ends early."""
    manager.add_requests(inputs=prompts, max_new_tokens=output)
    answers: list[Any] = []
    while len(answers) < len(prompts):
        if answer := manager.get_result(timeout=1.0):
            answers.append(answer)
        elif not manager.is_running():
            break
    return sum(len(answer.generated_tokens) for answer in answers)


def _ways(manager: Any) -> dict[str, Any]:
    """Return the methods that transformers chose. cuda_graphs: for prompts, and for decode-only steps."""
    chosen = manager.continuous_batching_config
    return {
        "attention": manager.model.config._attn_implementation,
        "cuda_graphs": chosen.use_cuda_graph,
        "async_batching": chosen.use_async_batching,
        "tokens_of_a_step": manager.batch_processor.cache.max_batch_tokens,
    }


def _model(shape: Shape, device: torch.device) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(shape.config()))
        config = AutoConfig.from_pretrained(folder)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def main() -> None:
    """Read a task from standard input and print a line per result."""
    task = json.loads(sys.stdin.read())
    shape, device = SHAPES[task.pop("shape")], torch.device(task.pop("device"))
    for line in _run_task(shape, device, **task):
        print(f"\n{line}", flush=True)


if __name__ == "__main__":
    main()
