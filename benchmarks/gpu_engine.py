"""Whole engine on a device against its ceilings: decode steps, prompts, mixed loads, and interactive latencies."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from statistics import mean, median
from typing import Any

import numpy as np
import torch
from msgspec import structs
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks.device import Device
from benchmarks.results import spread
from benchmarks.shapes import Shape
from engine.engine import Engine
from engine.execution.graphs import PromptTokens
from engine.types import Event, PreemptionMode, Request, SamplingParams, ServiceClass, TokenEvent
from kernels.query_tiles import query_tiles

MAX_STEPS = 20_000  # several times more than any measurement here takes; beyond that the engine is stuck
SETTLING_STEPS = 3  # after the last prompt, part of which may still be in flight
ARRIVAL_SECONDS = 0.05  # range of random arrival times, several steps
SPARE_TOKENS = 256  # maximum number that the first row generates until the last one is admitted

Answer = tuple[float, list[float]]  # seconds to first token, seconds between tokens


class EngineMarks:
    """Measurements of engines; adds rows. Engines are idle before and after each measurement."""

    def __init__(self, device: Device, add: Callable[..., None]) -> None:
        """add: called with the kind of a row and its columns."""
        self._on = device
        self._add = add

    def decode_step(
        self,
        engine: Engine,
        shape: Shape,
        batch: int,
        context: int,
        steps: int,
        runs: int = 5,
        top_p: float = 1.0,
        full_sampler_rows: int = 0,
    ) -> None:
        """Measure `runs` times `steps` decode steps of `batch` rows, starting at about `context` tokens.

        The bound reads the weights and the rows' current keys and values once, and writes and reads the logits.
        full_sampler_rows: number of rows with a penalty and log probabilities.
        """
        names = _decoding(engine, shape, batch, context, runs * steps, top_p, full_sampler_rows)
        seconds, contexts = [], []
        for _ in range(runs):
            before, began = _context(engine), time.perf_counter()
            for _ in range(steps):
                step_in_time(engine)
            seconds.append((time.perf_counter() - began) / steps)
            contexts.append((before + _context(engine)) / 2)
        if _rows(engine) < batch:
            raise RuntimeError(f"only {_rows(engine)} of {batch} rows are left after {runs * steps} steps")
        _stop(engine, names)
        bounds = [shape.decode_bytes(batch, held) / self._on.ceilings.bytes_per_second for held in contexts]
        self._add(
            "decode step", **_which(engine, shape), batch=batch, prompt=context, context=mean(contexts) / batch,
            top_p=top_p, full_sampler_rows=full_sampler_rows,
            ms=spread([1000 * one for one in seconds]), bound_ms=1000 * median(bounds),
            of_bound=spread([bound / one for bound, one in zip(bounds, seconds, strict=True)]),
            tokens_per_second=spread([batch / one for one in seconds]),
        )  # fmt: skip

    def recorded_step(
        self, engine: Engine, shape: Shape, rows: int, context: int, prompt: int = 0, replays: int = 50
    ) -> None:
        """Replay a recorded step with padding rows only: device time without waiting for the host and without KV reads.

        prompt: number of prompt tokens piggybacked on the step. The bound is that of a step without keys and values:
        the larger of reading the weights and of the multiplications.
        """
        graphs = engine._runner._graphs
        if graphs is None:
            raise RuntimeError("this engine records no steps")
        padding, prompt_tokens = np.full(rows, graphs.slots.padding_slot, np.int64), None
        if prompt:
            positions, zeros = np.arange(prompt), np.zeros(prompt, np.int64)
            tiles = query_tiles([(rows, rows, prompt, 0)])
            prompt_tokens = PromptTokens(zeros + graphs.slots.padding_slot, positions, zeros, tiles)
        found = graphs.find(rows + prompt, context, False, len(prompt_tokens.tiles) if prompt_tokens else 0)

        def replay() -> None:
            for _ in range(replays):
                graphs.run(found, padding, prompt_tokens, None)

        with torch.inference_mode():
            replay()
            times = [self._on.elapsed(replay) / replays for _ in range(5)]
        ceilings, flops = self._on.ceilings, 2 * (rows + prompt) * shape.linear_weights + 2 * rows * shape.head_weights
        bound = max(shape.decode_bytes(rows, 0.0) / ceilings.bytes_per_second, flops / ceilings.flops_per_second)
        self._add(
            "recorded step", **_which(engine, shape), rows=rows, prompt=prompt, width_for=context,
            ms=spread([1000 * seconds for seconds in times]), bound_ms=1000 * bound, of_bound=bound / median(times),
        )  # fmt: skip

    def kernels_of_a_step(
        self, engine: Engine, shape: Shape, batch: int, context: int, steps: int = 10, most: int = 15
    ) -> None:
        """Profile `steps` decode steps: add a row for all kernels together and for each of the `most` slowest.

        torch's profiler makes each kernel a little slower. It counts a kernel from the start of its programs, so with
        early launch it would include part of the previous one; use an engine without early launch.
        """
        names = _decoding(engine, shape, batch, context, steps, 1.0)
        kind = DeviceType.CUDA if self._on.on_gpu else DeviceType.CPU
        activity = ProfilerActivity.CUDA if self._on.on_gpu else ProfilerActivity.CPU
        with profile(activities=[activity]) as seen:
            for _ in range(steps):
                engine.step()
        _stop(engine, names)
        spent = [
            (entry.self_device_time_total if self._on.on_gpu else entry.self_cpu_time_total, entry.count, entry.key)
            for entry in seen.key_averages()
            if entry.device_type == kind
        ]
        spent.sort(reverse=True)
        sizes = {"shape": shape.name, "batch": batch, "context": context}
        total = sum(us for us, _, _ in spent) / steps
        self._add("profile", **sizes, us_per_step=total, kernels_per_step=sum(count for _, count, _ in spent) / steps)
        for us, count, name in spent[:most]:
            self._add("kernel", **sizes, us_per_step=us / steps, calls_per_step=count / steps, name=name[:80])

    def swapping(self, engine: Engine, shape: Shape, batch: int, context: int, steps: int) -> None:
        """Measure decode steps of `batch` rows undisturbed, and with one row swapped out in every fourth step.

        The row is swapped in again in the next step. Compares the additional step time with the time of the copies
        alone.
        """
        names = _decoding(engine, shape, batch, context, 2 * steps, 1.0)
        means, before = [], engine.load().counters.swapped_tokens
        for disturbed in (False, True):
            began = time.perf_counter()
            for step in range(steps):
                if disturbed and step % 4 == 0:
                    engine.scheduler.preempt(
                        engine.scheduler.running[-1], time.monotonic(), mechanism=PreemptionMode.SWAP
                    )
                step_in_time(engine)
            means.append((time.perf_counter() - began) / steps)
        moved = 2 * (engine.load().counters.swapped_tokens - before) * shape.kv_bytes
        _stop(engine, names)
        copies = moved / steps / self._on.ceilings.host_bytes_per_second
        self._add(
            "swapping", shape=shape.name, batch=batch, context=context, quiet_ms=1000 * means[0],
            disturbed_ms=1000 * means[1], copies_ms=1000 * copies,
        )  # fmt: skip

    def lone_prompt(self, engine: Engine, shape: Shape, tokens: int, prompts: int) -> None:
        """Measure the time to first token of one prompt after another on an idle engine."""
        seconds = []
        for request in _requests(shape, prompts + 1, tokens, 1, "lone"):
            began = time.perf_counter()
            engine.submit(request)
            drain(engine)
            seconds.append(time.perf_counter() - began)
        self._add_prefill("lone prompt", engine, shape, tokens, 1, seconds[1:])  # the first is a warm-up

    def prefill(self, engine: Engine, shape: Shape, tokens: int, prompts: int, runs: int = 5) -> None:
        """Measure prefill of `prompts` simultaneous prompts, more than fit in one step, with one output token each."""
        seconds = []
        for run in range(runs + 1):
            requests = _requests(shape, prompts, tokens, 1, f"backlog{run}")
            began = time.perf_counter()
            for request in requests:
                engine.submit(request)
            drain(engine)
            seconds.append((time.perf_counter() - began) / prompts)
        self._add_prefill("prefill", engine, shape, tokens, prompts, seconds[1:])

    def _add_prefill(
        self, what: str, engine: Engine, shape: Shape, tokens: int, prompts: int, seconds: Sequence[float]
    ) -> None:
        """Add a row. seconds: time per prompt, for each run. The bound is all products and causal attention."""
        rate = shape.prefill_flops(tokens) / self._on.ceilings.flops_per_second
        self._add(
            what, **_which(engine, shape), tokens=tokens, prompts=prompts,
            ms=spread([1000 * one for one in seconds]),
            tokens_per_second=spread([tokens / one for one in seconds]),
            of_matmul_rate=spread([rate / one for one in seconds]),
        )  # fmt: skip

    def mixed(
        self,
        engine: Engine,
        shape: Shape,
        sequences: int,
        shortest: int,
        longest: int,
        runs: int,
        decided: str = "late",
    ) -> None:
        """Measure the usual small-engine benchmark: `sequences` at once, uniform prompt and output lengths, seed 0.

        The bound multiplies every prompt, reads each row's KV at each of its steps, and reads the weights once per
        token of the longest output. decided: when steps are decided, as late as the device allows ("late") or
        "at once".
        """
        step = WHEN_DECIDED[decided]
        draw = random.Random(0)
        lengths = [(draw.randint(shortest, longest), draw.randint(shortest, longest)) for _ in range(sequences)]
        generated = sum(output for _, output in lengths)
        moved = sum(output * (prompt + output / 2) for prompt, output in lengths) * shape.kv_bytes
        moved += 2 * generated * shape.logit_bytes
        moved += 2 * max(output for _, output in lengths) * (shape.linear_weights + shape.head_weights)
        bound = moved / self._on.ceilings.bytes_per_second
        bound += 2 * shape.linear_weights * sum(prompt for prompt, _ in lengths) / self._on.ceilings.flops_per_second
        seconds = []
        for run in range(runs):
            requests = [
                make_request(f"m{run}-{i}", shape.vocab, *lengths[i], run * sequences + i) for i in range(sequences)
            ]
            began = time.perf_counter()
            for request in requests:
                engine.submit(request)
            drain(engine, step)
            seconds.append(time.perf_counter() - began)
        self._add(
            "mixed", shape=shape.name, budget=engine.config.max_num_batched_tokens, decided=decided,
            sequences=sequences, output_tokens=generated,
            seconds=spread(seconds), tokens_per_second=spread([generated / one for one in seconds]),
            of_bound=spread([bound / one for one in seconds]),
        )  # fmt: skip

    def people(self, engine: Engine, shape: Shape, prompt: int, output: int, asks: int, bulk: tuple[int, int]) -> None:
        """Measure interactive requests one after another, at random times within a step.

        First on an idle engine, then with all slots occupied by bulk requests and as many waiting. bulk: prompt and
        output tokens of each bulk request.
        """
        slots = engine.info.max_num_seqs
        idle = [_ask(engine, shape, prompt, output, f"idle{i}") for i in range(asks + 1)][1:]  # the first is a warm-up
        backlog = _requests(shape, 2 * slots, *bulk, "bulk", service_class=ServiceClass.BATCH)
        for request in backlog:
            engine.submit(request)
        step_until(engine, lambda: _rows(engine) == slots)
        loaded = [_ask(engine, shape, prompt, output, f"loaded{i}") for i in range(asks)]
        saturated = engine.load().waiting[ServiceClass.BATCH] > 0
        _stop(engine, [request.id for request in backlog])
        row = _felt("idle", idle) | _felt("loaded", loaded)
        self._add(
            "people", shape=shape.name, prompt=prompt, slots=slots, saturated=saturated, **row,
            ttft_ratio=row["loaded_ttft_ms"]["median"] / row["idle_ttft_ms"]["median"],
            itl_p99_ratio=row["loaded_itl_p99_ms"] / row["idle_itl_p99_ms"],
        )  # fmt: skip

    def greedy_rates(self, engine: Engine, prompts: Sequence[tuple[int, ...]], output: int, runs: int) -> list[float]:
        """Return output tokens per second of all prompts at once, for each run except a warm-up."""
        rates = []
        for run in range(runs + 1):
            began = time.perf_counter()
            for i, tokens in enumerate(prompts):
                sampling = SamplingParams(max_tokens=output, temperature=0.0)
                engine.submit(Request(id=f"g{run}-{i}", prompt=tokens, sampling=sampling))
            drain(engine)
            rates.append(len(prompts) * output / (time.perf_counter() - began))
        return rates[1:]


def make_request(
    name: str,
    vocab: int,
    prompt: int,
    output: int,
    seed: int,
    service_class: ServiceClass = ServiceClass.STANDARD,
    top_p: float = 1.0,
) -> Request:
    """Return a request with a prompt of random tokens."""
    tokens = tuple(random.Random(seed).choices(range(vocab), k=prompt))
    sampling = SamplingParams(max_tokens=output, temperature=0.6, top_p=top_p, seed=seed)
    return Request(id=name, prompt=tokens, sampling=sampling, service_class=service_class)


def step_in_time(engine: Engine) -> list[Event]:
    """Run the next step at the time at which the engine wants to decide it."""
    if seconds := engine.seconds_to_step():
        time.sleep(seconds)
    return engine.step()


WHEN_DECIDED = {"late": step_in_time, "at once": Engine.step}


def stepped(engine: Engine, step: Callable[[Engine], list[Event]] = step_in_time) -> Iterator[list[Event]]:
    """Yield the events of one step after another. Raises RuntimeError after MOST_STEPS steps."""
    for _ in range(MAX_STEPS):
        yield step(engine)
    load = engine.load()
    raise RuntimeError(
        f"{MAX_STEPS} steps were not enough: by class, {load.running} running, {load.waiting} waiting, {load.paused} "
        f"paused; the last step had {load.decode_rows} rows, {load.pages.free} of {load.pages.total} pages are free"
    )


def step_until(engine: Engine, done: Callable[[], bool], step: Callable[[Engine], list[Event]] = step_in_time) -> None:
    """Step until `done` returns true. Raises RuntimeError as `stepped` does."""
    steps = stepped(engine, step)
    while not done():
        next(steps)


def drain(engine: Engine, step: Callable[[Engine], list[Event]] = step_in_time) -> None:
    """Step until no request is left."""
    step_until(engine, lambda: not engine.has_work, step)


def _requests(shape: Shape, count: int, prompt: int, output: int, name: str, **more: Any) -> list[Request]:
    return [make_request(f"{name}-{i}", shape.vocab, prompt, output, i, **more) for i in range(count)]


def _decoding(
    engine: Engine, shape: Shape, batch: int, context: int, steps: int, top_p: float, full_sampler_rows: int = 0
) -> list[str]:
    """Step until `batch` rows decode, with at least `steps` steps to go, and return their names."""
    requests = _requests(shape, batch, context, steps + SPARE_TOKENS, "row", top_p=top_p)
    more = {"repetition_penalty": 1.1, "logprobs": 1}
    for request in requests[:full_sampler_rows]:
        engine.submit(structs.replace(request, sampling=structs.replace(request.sampling, **more)))
    for request in requests[full_sampler_rows:]:
        engine.submit(request)
    step_until(engine, lambda: _rows(engine) == batch)
    for _ in range(SETTLING_STEPS):
        engine.step()
    return [request.id for request in requests]


def _stop(engine: Engine, names: Sequence[str]) -> None:
    for name in names:
        engine.abort(name)
    drain(engine)


def _rows(engine: Engine) -> int:
    """Return the number of sequences past their prompts."""
    return sum(sequence.num_tokens > sequence.prompt_len for sequence in engine.scheduler.running)


def _context(engine: Engine) -> int:
    """Return the number of tokens of all running sequences."""
    return sum(sequence.num_tokens for sequence in engine.scheduler.running)


def _which(engine: Engine, shape: Shape) -> dict[str, Any]:
    return {"shape": shape.name, "batch_invariant": engine.config.batch_invariant}


def _ask(engine: Engine, shape: Shape, prompt: int, output: int, name: str) -> Answer:
    """Serve an interactive request to its end and return its latencies.

    It arrives at a random time within a step, like a message that waits in a socket until it is read.
    """
    request = make_request(name, shape.vocab, prompt, output, len(name), ServiceClass.INTERACTIVE)
    moments = [time.perf_counter() + random.Random(name).uniform(0.0, ARRIVAL_SECONDS)]
    while (left := moments[0] - time.perf_counter()) > 0:
        delay = engine.seconds_to_step()
        if delay == 0.0:
            engine.step()
        else:
            time.sleep(left if delay is None else min(left, delay))
    engine.submit(request)
    for events in stepped(engine):
        now = time.perf_counter()
        moments += [now for event in events if isinstance(event, TokenEvent) and event.request_id == name]
        if len(moments) > output:
            break
    first, *gaps = (after - before for before, after in pairwise(moments))
    return first, gaps


def _felt(state: str, answers: Sequence[Answer]) -> dict[str, Any]:
    """Return the latency columns of the answers in one state."""
    gaps = sorted(1000 * gap for _, gaps in answers for gap in gaps)
    return {
        f"{state}_ttft_ms": spread([1000 * first for first, _ in answers]),
        f"{state}_itl_p50_ms": median(gaps),
        f"{state}_itl_p99_ms": gaps[int(0.99 * len(gaps))],
        f"{state}_largest_gap_ms": gaps[-1],
    }
