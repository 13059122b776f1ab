"""Warm-up of the code that serves requests, and measurement of what steps cost, for the scheduler."""

from __future__ import annotations

import time
from dataclasses import replace

from engine.config import EngineConfig
from engine.execution.models.interface import Model
from engine.execution.runner import ModelRunner
from engine.scheduling.batch import Batch, Chunk, Join
from engine.scheduling.costs import Costs
from engine.types import SamplingParams


def warm_up(config: EngineConfig, runner: ModelRunner, num_pages: int, host_pages: int, max_len: int) -> Costs:
    """Warm up the code that serves requests, and measure the costs of steps with plain sampling.

    Runs a prompt chunk and some decodes. The pages used are free again afterwards.
    """
    max_length = 2048 if runner.runs_ahead else 128  # less does not fill a GPU
    length = min(max_length, max_len - 4, num_pages * config.tokens_per_page - 4)
    if length < 2:
        return Costs(swap_pages_per_second=1e4, prefill_tokens_per_second=1e3)
    pages = tuple(range(-(-(length + 4) // config.tokens_per_page)))
    plain = SamplingParams(max_tokens=4, temperature=0.7)
    join = Join(0, tuple(i % 7 for i in range(length)), length, 0, plain, pages)
    filtered = replace(join, sampling=SamplingParams(max_tokens=4, temperature=0.7, top_p=0.9, logprobs=1))
    # Edited logits are sampled in float32, by other kernels.
    edits = SamplingParams(max_tokens=4, min_tokens=4, stop_token_ids=(0,), temperature=0.7, top_p=0.9, logprobs=1)
    edited = replace(join, sampling=edits)
    chunk, decode = Chunk(0, 0, length, True), Batch(step=0, decodes=(0,))
    runner.launch(Batch(step=0, joins=(filtered,), chunks=(chunk,)))()
    for variant in (filtered, edited):
        runner.launch(Batch(step=0, joins=(variant,)))()
        runner.launch(decode)()
    plain_chunk = Batch(step=0, joins=(join,), chunks=(chunk,))
    runner.launch(plain_chunk)()  # plain sampling may use other kernels
    began = time.perf_counter()
    runner.launch(plain_chunk)()
    seconds = time.perf_counter() - began
    single_seconds = _fastest(runner, decode)
    rows = min(8, config.max_num_seqs)  # copies of the first, which write the same values into the same pages
    joins = tuple(replace(join, slot=slot) for slot in range(rows))
    runner.launch(Batch(step=0, joins=joins))()
    multiple_seconds = _fastest(runner, Batch(step=0, decodes=tuple(range(rows))))
    swapped = tuple((page, page) for page in pages[:host_pages])
    swap_seconds = 0.0
    for _ in range(2):  # the first round touches fresh memory
        began = time.perf_counter()
        runner.launch(Batch(step=0, swap_out=swapped, swap_in=swapped))()
        runner.launch(Batch(step=0))()  # the pages are back in the next step
        swap_seconds = time.perf_counter() - began
    pages_per_second = 2 * len(swapped) / max(swap_seconds, 1e-9) if swapped else 1.0
    return Costs(
        swap_pages_per_second=pages_per_second,
        prefill_tokens_per_second=length / max(seconds, 1e-9),
        decode_seconds=single_seconds,
        row_seconds=max(0.0, multiple_seconds - single_seconds) / max(1, rows - 1),
        recorded_tokens=runner.recorded_tokens,
    )


def attention_ratio(model: Model) -> float:
    """Return the operations for one earlier position that a token attends to, of those for the token's matrices."""
    widths = sum(group.layers * group.head_dim for group in model.cache_spec().groups)
    return 2 * widths * model.num_heads / model.num_parameters


def _fastest(runner: ModelRunner, batch: Batch) -> float:
    """Return the seconds of the fastest of three launches."""
    times = []
    for _ in range(3):
        began = time.perf_counter()
        runner.launch(batch)()
        times.append(time.perf_counter() - began)
    return min(times)
