"""Compile all Triton kernels that an engine of a shape launches in bfloat16 into Triton's disk cache, without a GPU.

Runs the engine's warm-up and recorded steps with every launch replaced by its compilation for compute capability 9.0.
Shapes are compiled in parallel, one process each; on a machine with a GPU this can run in parallel with other work.

    python -m benchmarks.gpu_precompile Llama-3.2-1B Qwen3-0.6B
    python -m benchmarks.gpu_precompile Llama-3.2-1B --no-early-launch
    python -m benchmarks.gpu_precompile Llama-3.2-1B --batch-invariant
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from benchmarks.shapes import SHAPES, Shape
from engine.config import EngineConfig
from engine.execution.cache import KVCache
from engine.execution.models import load_model
from engine.execution.runner import ModelRunner
from engine.model_files.open_model import open_model
from engine.warm_up import warm_up
from kernels.triton import decode_attention, pdl, prefill_attention
from kernels.triton.backend import TritonKernels
from kernels.triton.device_limits import SHARED_BYTES
from kernels.triton.invariant import InvariantKernels

CAPABILITY = 90  # compute capability times ten
EARLY_CAPABILITIES = (90, 100)
MULTIPROCESSORS = 132  # of an H100
PAGES, SLOTS, CONTEXT = 80, 16, 4096  # arbitrary: kernels are not specialised for any of these


class Chip:
    """Triton driver of a device for which kernels are only compiled."""

    def __init__(self, capability: int) -> None:
        self._capability = capability
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_device(self) -> int:
        return self._capability  # Triton caches compiled kernels by device, regardless of its target

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


@contextmanager
def compiling(capability: int, early_launch: bool) -> Iterator[dict[str, Any]]:
    """Replace launches by compilations, and torch's products by zeros; yield compiled kernels by their hashes."""
    driver.set_active(Chip(capability))
    seen: dict[str, Any] = {}
    run = JITFunction.run

    def compile_only(self: JITFunction, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        compiled = run(self, *args, grid=grid, warmup=True, **kwargs)
        seen[compiled.hash] = compiled
        return compiled

    def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return torch.zeros((*x.shape[:-1], weight.shape[0]), dtype=x.dtype)

    with ExitStack() as stack:
        for target, name, value in (
            (pdl, "supports_pdl", lambda device: early_launch),
            (JITFunction, "run", compile_only),
            (torch.nn.functional, "linear", product),
            (torch, "addmm", lambda residual, x, weight, out=None: out),
            (decode_attention, "multiprocessors", lambda device: MULTIPROCESSORS),
            (decode_attention, "shared_bytes", lambda device: SHARED_BYTES[capability]),
            (prefill_attention, "shared_bytes", lambda device: SHARED_BYTES[capability]),
            (torch, "empty", torch.zeros),  # nothing is computed, so token IDs must not be uninitialised memory
            (torch, "empty_like", torch.zeros_like),
        ):
            stack.enter_context(patch.object(target, name, value))
        yield seen


def compile_shape(
    shape: Shape,
    page_size: int,
    early_launch: bool = True,
    batch_invariant: bool = False,
    capability: int = CAPABILITY,
) -> list[Any]:
    """Compile and return the kernels of one layer, the sampler and the head."""
    device = torch.device("cpu")
    kernels = InvariantKernels() if batch_invariant else TritonKernels()
    with (
        compiling(capability, early_launch and capability in EARLY_CAPABILITIES) as seen,
        tempfile.TemporaryDirectory() as name,
    ):
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(replace(shape, layers=1).config()))
        model = load_model(
            open_model(folder),
            dtype=torch.bfloat16,
            device=device,
            progress=_ignore,
            load_format="dummy",
            kernels=kernels,
        )
        cache = KVCache.allocate(PAGES, page_size, model.cache_spec(), torch.bfloat16, device, host_pages=4)
        runner = ModelRunner(model, cache, kernels, SLOTS, CONTEXT, _run_twice)
        runner.record(_ignore)
        warm_up(EngineConfig(model="", page_size=page_size, max_num_seqs=SLOTS), runner, PAGES, 4, CONTEXT)
    return list(seen.values())


def _ignore(done: int, total: int) -> None:
    """Ignore progress."""


def _run_twice(step: Callable[[], None]) -> Callable[[], None]:
    """Replace a recording: run the step now and return it for the replay."""
    step()
    return step


def main() -> int:
    """Compile one shape in this process, or several in a process each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="+", choices=SHAPES)
    parser.add_argument("--no-early-launch", action="store_true")
    parser.add_argument("--batch-invariant", action="store_true")
    parser.add_argument("--page-size", type=int, default=64)
    options = parser.parse_args()
    if len(options.shapes) == 1:
        began = time.monotonic()
        shape = SHAPES[options.shapes[0]]
        early_launch = not options.no_early_launch
        compiled = compile_shape(shape, options.page_size, early_launch, options.batch_invariant)
        print(f"{shape.name}: {len(compiled)} kernels in {time.monotonic() - began:.0f} s", flush=True)
        return 0
    flags = [one for one in sys.argv[1:] if one not in options.shapes]
    command = [sys.executable, "-m", "benchmarks.gpu_precompile", *flags]
    started = [subprocess.Popen([*command, shape]) for shape in options.shapes]
    return max(process.wait() for process in started)


if __name__ == "__main__":
    sys.exit(main())
