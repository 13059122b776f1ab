"""Time of paged attention on a CPU: decode steps and prompt chunks, with the shape of a 115M-parameter Llama.

All layers in sequence, pages in random order. `cold`: as in a step, where keys and values were last read a step ago.
`hot`: every page of every layer is the same one, so that nothing waits for memory. `rounded`: `cold` with operands that
may be rounded to bfloat16, as some processors do for far positions. `read`: sum of the same bytes; if it is close to
`cold`, memory is the limit.

    python -m benchmarks.cpu_attention       # 5 interleaved runs
"""

from __future__ import annotations

import argparse
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.results import save, spread
from benchmarks.timing import milliseconds
from kernels.cpu.backend import CpuKernels
from kernels.huge_pages import mmap_zeros
from kernels.paging import PagedKV

LAYERS, HEADS, KV_HEADS, DIM, PAGE = 30, 9, 3, 64, 32
SECONDS = 0.3  # per measurement


@dataclass(frozen=True)
class Load:
    """`sequences` sequences of `context` positions each, the last `queries` of which are queries."""

    sequences: int
    context: int
    queries: int = 1

    def __str__(self) -> str:
        kind = "decode" if self.queries == 1 else f"prompts of {self.queries} tokens"
        return f"{self.sequences} x {self.context} positions, {kind}"

    @property
    def megabytes(self) -> float:
        """Return the megabytes of keys and values in all layers."""
        return self.sequences * self.context * KV_HEADS * DIM * 2 * 2 * LAYERS / 1e6


LOADS = (
    Load(32, 94),
    Load(96, 94),
    Load(40, 230),
    Load(8, 1000),
    Load(4, 3000),
    Load(8, 64, 64),
    Load(1, 256, 256),
    Load(1, 1000, 64),
    Load(1, 1900, 512),
)


class Pages:
    """Filled cache [pages, layers, 2, kv heads, page size, dim] bfloat16, in the engine's layout."""

    def __init__(self, load: Load) -> None:
        each = -(-load.context // PAGE)
        pages = list(range(each * load.sequences))
        random.Random(0).shuffle(pages)
        self.table = torch.tensor(pages, dtype=torch.int32).view(load.sequences, each)
        self.memory = mmap_zeros((len(pages), LAYERS, 2, KV_HEADS, PAGE, DIM), torch.bfloat16)
        self.memory[:] = torch.randn(KV_HEADS, PAGE, DIM, generator=torch.Generator().manual_seed(0))

    def layer(self, index: int) -> PagedKV:
        """Return a layer's keys and values."""
        return PagedKV(self.memory[:, index, 0], self.memory[:, index, 1])

    def read(self) -> None:
        """Read the whole cache."""
        self.memory.view(torch.int64).sum()


def attention(kernels: CpuKernels, load: Load, pages: Pages, *, is_hot: bool) -> Callable[[], None]:
    """Return a function that computes attention of all layers of one step."""
    table = torch.zeros_like(pages.table) if is_hot else pages.table
    q = torch.randn(load.sequences * load.queries, HEADS, DIM, generator=torch.Generator().manual_seed(1))
    contexts = (load.context,) * load.sequences
    lens, starts = torch.tensor(contexts, dtype=torch.int32), tuple(range(0, len(q) + 1, load.queries))

    def step() -> None:
        for index in range(LAYERS):
            kv = pages.layer(0 if is_hot else index)
            if load.queries == 1:
                kernels.decode_attention(q, kv, table, lens, DIM**-0.5, 0)
            else:
                kernels.prefill_attention(q, kv, table, starts, contexts, DIM**-0.5, 0)

    return step


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    threads = os.cpu_count() or 1
    kernels, rounding = CpuKernels(), CpuKernels(allow_bf16_activations=True)
    kernels.set_threads(threads)
    torch.set_num_threads(threads)
    rows: list[dict[str, Any]] = []
    with torch.inference_mode():
        for run in range(options.runs):
            for load in LOADS:
                pages = Pages(load)
                took = {
                    "cold": milliseconds(attention(kernels, load, pages, is_hot=False), SECONDS),
                    "hot": milliseconds(attention(kernels, load, pages, is_hot=True), SECONDS),
                    "rounded": milliseconds(attention(rounding, load, pages, is_hot=False), SECONDS),
                    "read": milliseconds(pages.read, SECONDS),
                }
                rows.append({"run": run, "load": str(load), "megabytes": load.megabytes, "milliseconds": took})
    summary: dict[str, Any] = {}
    for load in LOADS:
        same = [row["milliseconds"] for row in rows if row["load"] == str(load)]
        summary[str(load)] = {name: spread([took[name] for took in same]) for name in same[0]}
        cells = [f"{name} {times['median']:.1f} ms" for name, times in summary[str(load)].items()]
        print(f"{load}, {load.megabytes:.0f} MB: " + ", ".join(cells))
    print("Saved to", save("cpu_attention", vars(options), rows, summary))


if __name__ == "__main__":
    main()
