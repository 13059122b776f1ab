"""transformers' continuous batching on a device, in a process of its own: its memory is free before and after, and it
ends, whatever it hangs in. Reads a task as JSON; `rates` writes it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.shapes import SHAPES, Shape

RATE = "tokens a second: "


def rates(
    shape: Shape,
    device: torch.device,
    prompts: Sequence[tuple[int, ...]],
    output: int,
    runs: int,
    timeout: float = 70.0,
) -> list[float]:
    """Output tokens a second, run by run, of as many runs as end within `timeout` seconds. Raises
    subprocess.TimeoutExpired where none does, RuntimeError where the process failed."""
    task = {"shape": shape.name, "device": str(device), "prompts": prompts, "output": output, "runs": runs}
    command = [sys.executable, "-m", "benchmarks.gpu_transformers"]
    try:
        ended = subprocess.run(
            command, input=json.dumps(task).encode(), stdout=subprocess.PIPE, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired as late:
        if found := _read(late.stdout):
            return found
        raise
    if ended.returncode:
        raise RuntimeError(f"transformers ended with status {ended.returncode}")
    return _read(ended.stdout)


def _read(told: bytes | None) -> list[float]:
    """Of a process's output the whole lines that are rates; transformers has a say there too."""
    *lines, _ = (told or b"").decode(errors="replace").split("\n")
    return [float(line.removeprefix(RATE)) for line in lines if line.startswith(RATE)]


def _measured(shape: Shape, device: torch.device, prompts: list[list[int]], output: int, runs: int) -> Iterator[float]:
    """In this process, each when it is known. The first run warms up."""
    from transformers import GenerationConfig

    model = _model(shape, device)
    # A token that is never drawn ends a text, so that every text has its full length.
    settings = GenerationConfig(max_new_tokens=output, do_sample=False, eos_token_id=-1, pad_token_id=0)
    for run in range(runs + 1):
        began = time.perf_counter()
        # Kept from run to run: what it records at its start is no part of what it does.
        answers = model.generate_batch(prompts, generation_config=settings, persistent_manager=True)
        seconds = time.perf_counter() - began
        generated = sum(len(answer.generated_tokens) for answer in answers.values())
        if generated != len(prompts) * output:  # it logs what went wrong, and returns what it has
            raise RuntimeError(f"transformers generated {generated} tokens of {len(prompts) * output}")
        if run > 0:
            yield generated / seconds


def _model(shape: Shape, device: torch.device) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(shape.config()))
        config = AutoConfig.from_pretrained(folder)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def main() -> None:
    """One task from standard input, a line for each rate."""
    task = json.loads(sys.stdin.read())
    shape, device = SHAPES[task.pop("shape")], torch.device(task.pop("device"))
    for rate in _measured(shape, device, **task):
        print(f"\n{RATE}{rate}", flush=True)


if __name__ == "__main__":
    main()
