"""Single kernels on a device against its ceilings: attention, elementwise kernels, the sampler."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks.device import Device
from benchmarks.results import microseconds
from benchmarks.sampling import parameters
from benchmarks.shapes import Shape
from engine.execution.cache import CacheSpec, KVCache
from kernels import query_tiles
from kernels.paging import PagedKV
from kernels.triton import decode_attention, decode_tasks, prefill_attention

CALLS = 20  # calls with separate inputs, for short kernels


class KernelMarks:
    """Measurements of kernels; adds a row for each kernel and size."""

    def __init__(self, device: Device, add: Callable[..., None]) -> None:
        """add: called with the kind of a row and its columns."""
        self._on = device
        self._add = add

    def decode_attention(self, shape: Shape, batch: int, context: int, page_size: int, **more: int) -> None:
        """Measure one layer's share of all layers, recorded as one graph.

        Each layer has its own keys and values, which are not cached when it reads them; the bound is reading them once.
        more: additional columns.
        """
        lengths = torch.full((batch,), context, dtype=torch.int32, device=self._on.device)
        sizes = {"shape": shape.name, "batch": batch, "context": context, "page_size": page_size}
        self._decode_attention("decode attention", shape, lengths, context, page_size, sizes | more)

    def decode_attention_mixed(
        self, shape: Shape, batch: int, longest: int, page_size: int, split: int, programs: int
    ) -> None:
        """Measure decode attention with contexts of all lengths up to the longest, and other splits and programs."""
        lengths = torch.linspace(1, longest, batch, device=self._on.device).to(torch.int32)
        lengths = lengths[torch.randperm(batch, device=self._on.device)]
        sizes = {"shape": shape.name, "batch": batch, "longest": longest, "page_size": page_size}
        with (
            patch.object(decode_tasks, "SPLIT_POSITIONS", split),
            patch.object(decode_attention, "PROGRAMS_PER_MULTIPROCESSOR", programs),
        ):
            columns = sizes | {"split": split, "programs": programs}
            self._decode_attention("decode attention, mixed", shape, lengths, longest, page_size, columns)

    def _decode_attention(
        self, what: str, shape: Shape, lengths: Tensor, longest: int, page_size: int, columns: dict[str, Any]
    ) -> None:
        batch = len(lengths)
        cache = self._cache(shape, batch * -(-longest // page_size), page_size)
        table = self._pages(cache).view(batch, -1)
        q = self._random(batch, shape.heads, shape.head_dim)
        kernels = self._on.kernels
        plan = kernels.plan_decode(table, lengths, shape.heads, cache.layers[0], 0)

        def layer(kv: PagedKV) -> Callable[[], Tensor]:
            return lambda: kernels.decode_attention(q, kv, table, lengths, 0.1, 0, plan)

        # As one graph: events around a single launch include 3 to 5 us of launch overhead that recorded steps avoid.
        times = self._on.times(*map(layer, cache.layers), share=True)
        moved = 2 * 2 * int(lengths.sum()) * shape.kv_heads * shape.head_dim
        self._add_memory_bound(what, times, moved, **columns)

    def decode_attention_as(
        self, shape: Shape, batch: int, context: int, page_size: int, stages: int, split: int
    ) -> None:
        """Measure `decode_attention` with other stages and splits."""
        with patch.object(decode_tasks, "SPLIT_POSITIONS", split), patch.object(decode_attention, "NUM_STAGES", stages):
            self.decode_attention(shape, batch, context, page_size, stages=stages, split=split)

    def prefill_attention(self, shape: Shape, tokens: int, page_size: int, **more: int) -> None:
        """Measure one layer on one whole prompt.

        The bound is half of the matrix products of full attention. more: additional columns.
        """
        cache = self._cache(shape, -(-tokens // page_size), page_size)
        table = self._pages(cache).view(1, -1)
        q = self._random(tokens, shape.heads, shape.head_dim)
        args = (q, cache.layers[0], table, (0, tokens), (tokens,), 0.1, 0)
        times = self._on.times(lambda: self._on.kernels.prefill_attention(*args))
        flops = 2 * tokens * tokens * shape.heads * shape.head_dim
        self._add(
            "prefill attention", shape=shape.name, tokens=tokens, page_size=page_size, **more, us=microseconds(times),
            of_matmul_rate=flops / median(times) / self._on.ceilings.flops_per_second,
        )  # fmt: skip

    def prefill_attention_as(
        self, shape: Shape, tokens: int, page_size: int, queries: int, block: int, warps: int, stages: int
    ) -> None:
        """Measure `prefill_attention` with other tiles of queries, blocks of positions, warps and stages."""
        program = prefill_attention.LaunchParameters(block, warps, stages)
        columns = {"queries": queries, "block": block, "warps": warps, "stages": stages}
        with ExitStack() as stack:
            for module in (query_tiles, prefill_attention):
                stack.enter_context(patch.object(module, "MAX_TILE_QUERIES", queries))
            stack.enter_context(patch.object(prefill_attention, "launch_parameters", lambda *args: program))
            stack.callback(prefill_attention._tiles.cache_clear)
            prefill_attention._tiles.cache_clear()
            self.prefill_attention(shape, tokens, page_size, **columns)

    def elementwise(self, shape: Shape, rows: int) -> None:
        """Measure the two memory-bound kernels between the matrix products of many rows."""
        weight = torch.ones(shape.hidden, device=self._on.device, dtype=torch.bfloat16)

        def norm() -> Callable[[], object]:
            x = self._random(rows, shape.hidden)
            return lambda: self._on.kernels.rms_norm(x, weight, 1e-5)

        def gate() -> Callable[[], object]:
            gate_up = self._random(rows, 2 * shape.intermediate)
            return lambda: self._on.kernels.silu_mul(gate_up)

        times = self._on.times(*(norm() for _ in range(CALLS)))
        self._add_memory_bound("rms_norm", times, 2 * rows * shape.hidden * 2, shape=shape.name, rows=rows)
        times = self._on.times(*(gate() for _ in range(CALLS)))
        self._add_memory_bound("silu_mul", times, 2 * rows * shape.intermediate * 3, shape=shape.name, rows=rows)

    def sampler(
        self, shape: Shape, rows: int, top_k: int, top_p: float, temperature: float, spread: float = 4.0
    ) -> None:
        """Measure the sampler. The bound is reading the logits once.

        spread: standard deviation of the logits. With random model weights it is 0.9, and nearly all tokens are likely
        enough to be counted by filters.
        """

        sampling = parameters(rows, {"temperature": temperature, "top_k": top_k, "top_p": top_p}).to(self._on.device)

        def call() -> Callable[[], Tensor]:
            logits = spread * self._random(rows, shape.vocab)
            return lambda: self._on.kernels.sample(logits, sampling)

        settings = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "spread": spread}
        # As one graph: filters take more launches than the host can issue before the first one starts.
        times = self._on.times(*(call() for _ in range(CALLS)), share=True)
        self._add_memory_bound("sample", times, rows * shape.logit_bytes, shape=shape.name, rows=rows, **settings)

    def _add_memory_bound(self, what: str, times: list[float], moved: int, **sizes: Any) -> None:
        """Add a row with the share of the copy rate. moved: bytes that one call must read or write."""
        of_copy_rate = moved / median(times) / self._on.ceilings.bytes_per_second
        self._add(what, **sizes, us=microseconds(times), of_copy_rate=of_copy_rate)

    def _cache(self, shape: Shape, pages: int, page_size: int) -> KVCache:
        """Return random keys and values of all layers; the layers' pages are interleaved in memory."""
        spec = CacheSpec.uniform(shape.layers, shape.kv_heads, shape.head_dim)
        cache = KVCache.allocate(pages, page_size, spec, torch.bfloat16, self._on.device)
        cache.data.normal_()
        return cache

    def _pages(self, cache: KVCache) -> Tensor:
        """Return all pages in random order."""
        return torch.randperm(cache.num_pages, device=self._on.device).to(torch.int32)

    def _random(self, *shape: int) -> Tensor:
        return torch.randn(shape, device=self._on.device).to(torch.bfloat16)
