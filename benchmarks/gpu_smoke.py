"""Smoke test for a GPU: its copy rate, and a separate check of each mechanism that only a device can verify.

Prints one line per check; a failure does not stop the following checks.

    python -m benchmarks.gpu_smoke
    python -m benchmarks.gpu_smoke --device cpu   # tests this script only; set TRITON_INTERPRET=1
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from unittest.mock import patch

import torch
import triton
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from engine.execution.graphs import record
from kernels.paging import PagedKV
from kernels.plans import SplitDecodePlan
from kernels.triton import pdl
from kernels.triton.backend import TritonKernels
from kernels.triton.skinny_gemm import DenseLinear

EPS = 1e-5
LAYERS = 8  # layers per recording
REPEATS = 300  # of attention with splits that are combined by the last program


class Smoke:
    """Checks, each of which returns its line."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.on_gpu = device.type == "cuda"
        self.dtype = torch.bfloat16 if self.on_gpu else torch.float32  # the interpreter lacks bfloat16 products

    def versions(self) -> str:
        """Return the versions of software and device."""
        name = torch.cuda.get_device_name(self.device) if self.on_gpu else "cpu"
        python = sys.version.split()[0]
        return (
            f"torch {torch.__version__}, triton {triton.__version__}, python {python}, {name}, {os.cpu_count()} cores"
        )

    def copy_rate(self) -> str:
        """Return the rate of a large copy on the device, bytes read plus bytes written."""
        size = 4 << 30 if self.on_gpu else 1 << 20
        source = torch.randint(-9, 9, (size,), dtype=torch.int8, device=self.device)
        target = torch.empty_like(source)
        return f"{2 * size / self._seconds(lambda: target.copy_(source)) / 1e12:.2f} TB/s"

    def early_launch(self) -> str:
        """Compare a layer's matrices, recorded, with and without early launch of its four kernels."""
        eager, recorded, seconds, size = self._layer(begins_early=True)
        late, _, late_seconds, _ = self._layer(begins_early=False)
        same_recorded, same_late = torch.equal(eager, recorded), torch.equal(eager, late)
        if not (same_recorded and same_late):
            raise RuntimeError(
                f"results differ; recorded equals eager: {same_recorded}, early launch equals late: {same_late}"
            )
        rates = (size / max(one, 1e-9) / 1e12 for one in (seconds, late_seconds))
        return (
            f"a layer's matrices in {1e6 * seconds:.1f} us, without early launch {1e6 * late_seconds:.1f} us: "
            f"{next(rates):.2f} and {next(rates):.2f} TB/s, partly from the L2 cache"
        )

    def check_split_counters(self) -> str:
        """Repeat decode attention with splits that are combined by the last program to finish."""
        kernels = TritonKernels()
        rows, heads, kv_heads, dim, page, context = (4, 32, 8, 64, 64, 2048) if self.on_gpu else (2, 4, 2, 16, 16, 80)
        pages = -(-context // page)
        keys, values = (self._random(rows * pages, kv_heads, page, dim) for _ in range(2))
        kv, q = PagedKV(keys, values), self._random(rows, heads, dim)
        table = torch.randperm(rows * pages, device=self.device).to(torch.int32).view(rows, pages)
        lengths = torch.full((rows,), context, dtype=torch.int32, device=self.device)
        plan = kernels.plan_decode(table, lengths, heads, kv, 0)
        assert isinstance(plan, SplitDecodePlan)

        def attend() -> Tensor:
            return kernels.decode_attention(q, kv, table, lengths, 0.1, 0, plan)

        first, count = attend().clone(), REPEATS if self.on_gpu else 2
        different = sum(not torch.equal(attend(), first) for _ in range(count))
        left = int(plan.arrived.abs().max())
        error = self._attention_error(first, q, keys, values, table, context)
        if different or left or not error < 0.02:
            raise RuntimeError(f"{different} of {count} differ, counters at {left}, relative error {error:.1e}")
        return f"{count} equal, counters at zero, relative error {error:.1e}"

    def kernels_of_a_replay(self) -> str:
        """Return the kernels of a replay, which may include others than the recorded ones, such as generator fills."""
        if not self.on_gpu:
            return "requires a GPU"
        graph, x = torch.cuda.CUDAGraph(), torch.zeros(8, device=self.device)
        with torch.cuda.graph(graph):
            x += 1
        graph.replay()
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            graph.replay()
            torch.cuda.synchronize()
        return "; ".join(f"{event.count} x {event.key[:60]}" for event in profiled.key_averages())

    def _layer(self, begins_early: bool) -> tuple[Tensor, Tensor, float, int]:
        """Return eager and recorded result, seconds of a recorded layer, and bytes of its matrices."""
        hidden, queries, inner = (2048, 3072, 8192) if self.on_gpu else (64, 96, 128)
        generator = torch.Generator(self.device).manual_seed(1)

        def random(*shape: int) -> Tensor:
            return (torch.randn(shape, device=self.device, generator=generator) * 0.05).to(self.dtype)

        shapes = ((queries, hidden), (hidden, queries), (2 * inner, hidden), (hidden, inner))
        qkv, out, gate_up, down = layers = [DenseLinear(random(*shape), None) for shape in shapes]
        x, norm = random(1, hidden), torch.ones(hidden, device=self.device, dtype=self.dtype)

        def step() -> Tensor:
            y = x.clone()
            out.add_skinny(qkv.multiply_skinny(y, norm, EPS), y)
            down.add_skinny(gate_up.multiply_skinny(y, norm, EPS, gated=True), y)
            return y

        size = sum(layer.weight.numel() * layer.weight.element_size() for layer in layers)
        with nullcontext() if begins_early else patch.object(pdl, "PDL_SWITCH", pdl.PdlSwitch(is_on=False)):
            eager = step()
            if not self.on_gpu:
                return eager, eager, 0.0, size
            recorded: list[Tensor] = []
            stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                step()
            torch.cuda.synchronize()
            pool = torch.cuda.graph_pool_handle()
            replay = record(lambda: recorded.extend(step() for _ in range(LAYERS)), stream, pool)
            seconds = self._seconds(replay) / LAYERS
        return eager, recorded[-1], seconds, size

    def _attention_error(
        self, result: Tensor, q: Tensor, keys: Tensor, values: Tensor, table: Tensor, context: int
    ) -> float:
        """Return the relative error against float64."""
        rows, heads, dim = q.shape
        kv_heads = keys.shape[1]

        def gathered(cache: Tensor) -> Tensor:
            pages = cache[table.long()].transpose(2, 3).reshape(rows, -1, kv_heads, dim)
            return pages[:, :context].double().repeat_interleave(heads // kv_heads, 2)

        weights = torch.softmax(torch.einsum("bhd,bchd->bhc", q.double(), gathered(keys)) * 0.1, -1)
        expected = torch.einsum("bhc,bchd->bhd", weights, gathered(values))
        return float((result.double() - expected).norm() / expected.norm())

    def _random(self, *shape: int) -> Tensor:
        return torch.randn(shape, device=self.device).to(self.dtype)

    def _seconds(self, call: Callable[[], object], count: int = 20) -> float:
        """Return the mean seconds of a call, after a warm-up."""
        count = count if self.on_gpu else 1
        call()
        self._wait()
        began = time.perf_counter()
        for _ in range(count):
            call()
        self._wait()
        return (time.perf_counter() - began) / count

    def _wait(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()


def main() -> int:
    """Run all checks; return 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--no-early-launch", action="store_true", help="skip the check of early launch")
    options = parser.parse_args()
    smoke = Smoke(torch.device(options.device))
    checks = [smoke.versions, smoke.copy_rate, smoke.check_split_counters, smoke.kernels_of_a_replay]
    if not options.no_early_launch:
        checks.append(smoke.early_launch)  # last, because a fault there may crash the device
    failed = 0
    for check in checks:
        began = time.perf_counter()
        try:
            line = check()
        except Exception as error:
            failed += 1
            line = f"FAILED, {type(error).__name__}: {str(error)[:300]}"
            traceback.print_exc()
        print(f"{check.__name__}: {line} ({time.perf_counter() - began:.1f} s)", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
