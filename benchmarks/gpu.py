"""The engine on a GPU against what that GPU can do: every figure beside its bound, measured in the same run.

The bounds come from two ceilings that are measured first, the rate of a large device-to-device copy (bytes read plus
bytes written) and that of a large bfloat16 matrix product. A decode step must at least read all weights once and the
keys and values of every row; a prompt must at least be multiplied with all weights. Weights are random: shapes decide.

    python -m benchmarks.gpu                 # about five minutes; results/gpu.json
    python -m benchmarks.gpu --device cpu    # the same code on tiny shapes, to see that it runs
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.results import save
from engine.build import build_engine
from engine.config import EngineConfig
from engine.engine import Engine
from engine.execution.cache import KVCache
from engine.types import Mechanism, Request, SamplingParams, ServiceClass, TokenEvent
from kernels.interface import Kernels, load


@dataclass(frozen=True)
class Shape:
    """A decoder's size."""

    name: str
    family: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int

    @property
    def linear_weights(self) -> int:
        """Weights that every token is multiplied with, the output head excluded."""
        attention = self.hidden * (2 * self.heads + 2 * self.kv_heads) * self.head_dim
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def head_weights(self) -> int:
        return self.vocab * self.hidden

    @property
    def kv_bytes(self) -> int:
        """Of one token, in bfloat16."""
        return 2 * 2 * self.layers * self.kv_heads * self.head_dim

    def config(self) -> dict[str, Any]:
        """config.json; embeddings are tied."""
        return {
            "architectures": [f"{self.family}ForCausalLM"],
            "model_type": self.family.lower(),
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.intermediate,
            "vocab_size": self.vocab,
            "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0,
            "tie_word_embeddings": True,
            "hidden_act": "silu",
            "torch_dtype": "bfloat16",
        }


LLAMA_1B = Shape("Llama-3.2-1B", "Llama", 2048, 16, 32, 8, 64, 8192, 128256)
QWEN_06B = Shape("Qwen3-0.6B", "Qwen3", 1024, 28, 16, 8, 128, 3072, 151936)
TINY = Shape("tiny", "Qwen3", 64, 2, 4, 2, 16, 128, 512)


@dataclass(frozen=True)
class Ceilings:
    """What the device did in this run."""

    bytes_per_second: float
    flops_per_second: float
    host_bytes_per_second: float  # from pinned host memory


class Bench:
    """One device, its kernels and its ceilings; collects rows."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.on_gpu = device.type == "cuda"
        self.kernels: Kernels = load(device)
        self.rows: list[dict[str, Any]] = []
        self.ceilings = self._measure_ceilings()

    def seconds(self, run: Callable[[], object], repeats: int = 20) -> float:
        """Median time of `run` on the device, after a warm-up, with the L2 cache flushed before each."""
        for _ in range(3):
            run()
        if not self.on_gpu:
            began = time.perf_counter()
            run()
            return time.perf_counter() - began
        flush = torch.empty(256 << 20, dtype=torch.int8, device=self.device)
        times = []
        for _ in range(repeats):
            flush.zero_()
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            run()
            end.record()
            torch.cuda.synchronize(self.device)
            times.append(start.elapsed_time(end) / 1000)
        return statistics.median(times)

    def add(self, what: str, **row: Any) -> None:
        """Keep and print one row."""
        self.rows.append({"what": what, **row})
        shown = "  ".join(
            f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()
        )
        print(f"{what:18} {shown}", flush=True)

    def _measure_ceilings(self) -> Ceilings:
        size, side = (4 << 30, 8192) if self.on_gpu else (1 << 24, 256)
        source = torch.randint(-100, 100, (size,), dtype=torch.int8, device=self.device)
        target = torch.empty_like(source)
        copy = 2 * size / self.seconds(lambda: target.copy_(source))
        a, b = (torch.randn((side, side), device=self.device).to(torch.bfloat16) for _ in range(2))
        rate = 2 * side**3 / self.seconds(lambda: a @ b)
        pinned = torch.empty(size // 16, dtype=torch.int8, pin_memory=self.on_gpu)
        there = source[: size // 16]
        return Ceilings(copy, rate, len(pinned) / self.seconds(lambda: there.copy_(pinned, non_blocking=True)))

    # Kernels ------------------------------------------------------------------------------------------------------

    def decode_attention(self, shape: Shape, batch: int, context: int, page_size: int) -> None:
        """One layer; the bound is reading the keys and values once."""
        pages = -(-context // page_size)
        k_cache, v_cache = self._one_layer(shape, batch * pages, page_size)
        table = torch.randperm(batch * pages, device=self.device).to(torch.int32).view(batch, pages)
        lengths = torch.full((batch,), context, dtype=torch.int32, device=self.device)
        q = torch.randn((batch, shape.heads, shape.head_dim), device=self.device).to(torch.bfloat16)
        plan = self.kernels.plan_decode(table, lengths, shape.heads, k_cache, 0)
        seconds = self.seconds(lambda: self.kernels.decode_attention(q, k_cache, v_cache, table, lengths, 0.1, 0, plan))
        moved = 2 * 2 * batch * context * shape.kv_heads * shape.head_dim
        self.add(
            "decode attention", shape=shape.name, batch=batch, context=context, page_size=page_size,
            us=1e6 * seconds, of_copy_rate=moved / seconds / self.ceilings.bytes_per_second,
        )  # fmt: skip

    def prefill_attention(self, shape: Shape, tokens: int, page_size: int) -> None:
        """One layer, one whole prompt; the bound is half of a full attention's matrix products."""
        pages = -(-tokens // page_size)
        k_cache, v_cache = self._one_layer(shape, pages, page_size)
        table = torch.randperm(pages, device=self.device).to(torch.int32).view(1, pages)
        q = torch.randn((tokens, shape.heads, shape.head_dim), device=self.device).to(torch.bfloat16)
        seconds = self.seconds(
            lambda: self.kernels.prefill_attention(q, k_cache, v_cache, table, (0, tokens), (tokens,), 0.1, 0)
        )
        flops = 2 * tokens * tokens * shape.heads * shape.head_dim
        self.add(
            "prefill attention", shape=shape.name, tokens=tokens, us=1e6 * seconds,
            of_matmul_rate=flops / seconds / self.ceilings.flops_per_second,
        )  # fmt: skip

    def _one_layer(self, shape: Shape, pages: int, page_size: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer as they lie in a whole cache, between those of the others."""
        cache = KVCache.allocate(
            pages, page_size, shape.layers, shape.kv_heads, shape.head_dim, torch.bfloat16, self.device
        )
        layer = shape.layers // 2
        return cache.k[layer].normal_(), cache.v[layer].normal_()

    def elementwise(self, shape: Shape, rows: int) -> None:
        """The two memory-bound kernels between the matrix products."""
        x, residual = (torch.randn((rows, shape.hidden), device=self.device).to(torch.bfloat16) for _ in range(2))
        weight = torch.ones(shape.hidden, device=self.device, dtype=torch.bfloat16)
        seconds = self.seconds(lambda: self.kernels.add_rms_norm(x, residual, weight, 1e-5))
        moved = 2 * rows * shape.hidden * 4
        self.add("add_rms_norm", shape=shape.name, rows=rows, us=1e6 * seconds,
                 of_copy_rate=moved / seconds / self.ceilings.bytes_per_second)  # fmt: skip
        gate_up = torch.randn((rows, 2 * shape.intermediate), device=self.device).to(torch.bfloat16)
        seconds = self.seconds(lambda: self.kernels.silu_mul(gate_up))
        moved = 2 * rows * shape.intermediate * 3
        self.add("silu_mul", shape=shape.name, rows=rows, us=1e6 * seconds,
                 of_copy_rate=moved / seconds / self.ceilings.bytes_per_second)  # fmt: skip

    def sampler(self, shape: Shape, rows: int, top_k: int, top_p: float, temperature: float) -> None:
        """The bound is reading the logits once."""
        logits = torch.randn((rows, shape.vocab), device=self.device) * 4

        def column(value: float, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.full((rows,), value, device=self.device, dtype=dtype)

        ints = (column(0, torch.int64), column(7, torch.int64), column(0, torch.int64))
        filters = (column(temperature), column(top_k, torch.int32), column(top_p), column(0.0))
        seconds = self.seconds(lambda: self.kernels.sample(logits, *filters, *ints))
        self.add(
            "sample", shape=shape.name, rows=rows, temperature=temperature, top_k=top_k, top_p=top_p, us=1e6 * seconds,
            of_copy_rate=4 * rows * shape.vocab / seconds / self.ceilings.bytes_per_second,
        )  # fmt: skip

    # The whole engine ---------------------------------------------------------------------------------------------

    def engine(self, shape: Shape, slots: int, budget: int, page_size: int, batch_invariant: bool = False) -> Engine:
        """Random weights of `shape`, bfloat16."""
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(shape.config()))
            return build_engine(
                EngineConfig(
                    model=folder,
                    load_format="dummy",
                    device=str(self.device),
                    dtype="bfloat16" if self.on_gpu else "float32",
                    max_num_seqs=slots,
                    max_num_batched_tokens=budget,
                    max_model_len=4096,
                    page_size=page_size,
                    swap_space=1.0,
                    enable_prefix_caching=False,
                    batch_invariant=batch_invariant,
                )
            )

    def decode_step(self, engine: Engine, shape: Shape, batch: int, context: int, steps: int) -> None:
        """All rows decode at about `context`; the bound reads weights and KV once and writes and reads the logits."""
        for row in range(batch):
            engine.submit(_request(f"{batch}-{context}-{row}", shape.vocab, context, steps + 8, row))
        while engine.load().decode_rows < batch:
            engine.step()
        times = []
        while engine.has_work and len(times) < steps:
            began = time.perf_counter()
            engine.step()
            times.append(time.perf_counter() - began)
        while engine.has_work:
            engine.step()
        seconds = statistics.median(times)
        moved = 2 * (shape.linear_weights + shape.head_weights) + batch * context * shape.kv_bytes
        bound = (moved + 8 * batch * shape.vocab) / self.ceilings.bytes_per_second
        self.add(
            "decode step", shape=shape.name, batch_invariant=engine.config.batch_invariant, batch=batch,
            context=context, ms=1000 * seconds, bound_ms=1000 * bound,
            of_bound=bound / seconds, tokens_per_second=batch / seconds,
        )  # fmt: skip

    def swapping(self, engine: Engine, shape: Shape, batch: int, context: int, steps: int) -> None:
        """Decode steps of `batch` rows undisturbed, and with one row swapped out in every fourth, which comes back in
        the step after: what a step takes longer, against what its copies take by themselves."""
        for row in range(batch):
            engine.submit(_request(f"s{batch}-{context}-{row}", shape.vocab, context, 3 * steps, row))
        while engine.load().decode_rows < batch:
            engine.step()
        means, before = [], engine.load().counters.swapped_tokens
        for disturbed in (False, True):
            began = time.perf_counter()
            for step in range(steps):
                if disturbed and step % 4 == 0:
                    engine.scheduler.pause(engine.scheduler.running[-1], time.monotonic(), mechanism=Mechanism.SWAP)
                engine.step()
            means.append((time.perf_counter() - began) / steps)
        moved = 2 * (engine.load().counters.swapped_tokens - before) * shape.kv_bytes
        for row in range(batch):
            engine.abort(f"s{batch}-{context}-{row}")
        while engine.has_work:
            engine.step()
        copies = moved / steps / self.ceilings.host_bytes_per_second
        self.add(
            "swapping", shape=shape.name, batch=batch, context=context, quiet_ms=1000 * means[0],
            disturbed_ms=1000 * means[1], copies_ms=1000 * copies,
        )  # fmt: skip

    def prefill(self, engine: Engine, shape: Shape, tokens: int, prompts: int) -> None:
        """Prompts back to back, one token each; the bound multiplies them with all weights and attends causally."""
        for i in range(-1, prompts):
            if i == 0:
                began = time.perf_counter()
            engine.submit(_request(f"p{tokens}-{i}", shape.vocab, tokens, 1, i + 1))
            while engine.has_work:
                engine.step()
        seconds = (time.perf_counter() - began) / prompts
        attention = 2 * tokens * tokens * shape.layers * shape.heads * shape.head_dim
        flops = 2 * shape.linear_weights * tokens + 2 * shape.head_weights + attention
        self.add(
            "prefill", shape=shape.name, batch_invariant=engine.config.batch_invariant, tokens=tokens,
            ms=1000 * seconds, tokens_per_second=tokens / seconds,
            of_matmul_rate=flops / seconds / self.ceilings.flops_per_second,
        )  # fmt: skip

    def mixed(self, engine: Engine, shape: Shape, sequences: int, shortest: int, longest: int) -> None:
        """The usual small-engine benchmark: `sequences` at once, lengths of prompt and output uniform, seed 0. The
        bound multiplies every prompt, reads each row's KV at each of its steps, and the weights as often as the
        longest output has tokens."""
        draw = random.Random(0)
        prompted, generated, longest_output, moved = 0, 0, 0, 0.0
        for i in range(sequences):
            prompt, output = draw.randint(shortest, longest), draw.randint(shortest, longest)
            prompted, generated, longest_output = prompted + prompt, generated + output, max(longest_output, output)
            moved += output * ((prompt + output / 2) * shape.kv_bytes + 8 * shape.vocab)
            engine.submit(_request(f"m{i}", shape.vocab, prompt, output, i))
        moved += 2 * longest_output * (shape.linear_weights + shape.head_weights)
        bound = moved / self.ceilings.bytes_per_second
        bound += 2 * shape.linear_weights * prompted / self.ceilings.flops_per_second
        before = engine.load().counters.steps
        began = time.perf_counter()
        while engine.has_work:
            engine.step()
        seconds = time.perf_counter() - began
        steps = engine.load().counters.steps - before
        self.add(
            "mixed", shape=shape.name, sequences=sequences, output_tokens=generated, seconds=seconds, steps=steps,
            tokens_per_second=generated / seconds, of_bound=bound / seconds,
        )  # fmt: skip

    def people(self, engine: Engine, shape: Shape, prompt: int, output: int, asks: int, bulk: tuple[int, int]) -> None:
        """One person after another asks, first of an idle engine and then of one whose slots are all taken by bulk
        work with as much again waiting. bulk: tokens of prompt and output of each bulk request."""
        idle = [self._ask(engine, shape, prompt, output, f"idle{i}") for i in range(asks + 1)][1:]  # the first warms up
        names = [f"bulk{i}" for i in range(2 * engine.info.max_num_seqs)]
        for i, name in enumerate(names):
            engine.submit(_request(name, shape.vocab, *bulk, i, ServiceClass.BATCH))
        while engine.load().decode_rows < engine.info.max_num_seqs:
            engine.step()
        loaded = [self._ask(engine, shape, prompt, output, f"loaded{i}") for i in range(asks)]
        saturated = engine.load().waiting[ServiceClass.BATCH] > 0
        for name in names:
            engine.abort(name)
        while engine.has_work:
            engine.step()
        row: dict[str, Any] = {}
        for state, answers in (("idle", idle), ("loaded", loaded)):
            gaps = sorted(gap for _, gaps in answers for gap in gaps)
            row[f"{state}_ttft_ms"] = 1000 * statistics.median(ttft for ttft, _ in answers)
            row[f"{state}_itl_p50_ms"] = 1000 * statistics.median(gaps)
            row[f"{state}_itl_p99_ms"] = 1000 * gaps[int(0.99 * len(gaps))]
        self.add(
            "people", shape=shape.name, prompt=prompt, slots=engine.info.max_num_seqs, saturated=saturated, **row,
            ttft_ratio=row["loaded_ttft_ms"] / row["idle_ttft_ms"],
            itl_p99_over_p50=row["loaded_itl_p99_ms"] / row["loaded_itl_p50_ms"],
        )  # fmt: skip

    def _ask(self, engine: Engine, shape: Shape, prompt: int, output: int, name: str) -> tuple[float, list[float]]:
        """Seconds to the first token of an interactive request, and between its tokens."""
        engine.submit(_request(name, shape.vocab, prompt, output, len(name), ServiceClass.INTERACTIVE))
        moments = [time.perf_counter()]
        while len(moments) <= output:
            events = engine.step()
            now = time.perf_counter()
            moments += [now for event in events if isinstance(event, TokenEvent) and event.request_id == name]
        gaps = [after - before for before, after in pairwise(moments)]
        return gaps[0], gaps[1:]

    def against_transformers(self, engine: Engine, shape: Shape, sequences: int, prompt: int, output: int) -> None:
        """The same shapes, prompts and lengths through transformers' continuous batching, and through this engine."""
        prompts = [_request("", shape.vocab, prompt, output, i).prompt for i in range(sequences)]
        began = time.perf_counter()
        for i, tokens in enumerate(prompts):
            sampling = SamplingParams(max_tokens=output, temperature=0.0)
            engine.submit(Request(id=f"t{i}", prompt=tokens, sampling=sampling))
        while engine.has_work:
            engine.step()
        ours = sequences * output / (time.perf_counter() - began)
        theirs = _transformers_rate(shape, self.device, [list(tokens) for tokens in prompts], output)
        self.add(
            "transformers", shape=shape.name, sequences=sequences, prompt=prompt, output=output,
            tokens_per_second=ours, theirs=theirs, ratio=ours / theirs,
        )  # fmt: skip


def _transformers_rate(shape: Shape, device: torch.device, prompts: list[list[int]], output: int) -> float:
    """Output tokens a second of transformers' continuous batching, as it comes, the second time."""
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(shape.config()))
        config = AutoConfig.from_pretrained(folder)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    # A token that is never drawn ends a text, so that every text has its full length.
    settings = GenerationConfig(max_new_tokens=output, do_sample=False, eos_token_id=-1, pad_token_id=0)
    for _ in range(2):
        began = time.perf_counter()
        answers = model.generate_batch(prompts, generation_config=settings, persistent_manager=True)
        seconds = time.perf_counter() - began
    return sum(len(answer.generated_tokens) for answer in answers.values()) / seconds


def _request(
    name: str, vocab: int, prompt: int, output: int, seed: int, service_class: ServiceClass = ServiceClass.STANDARD
) -> Request:
    draw = random.Random(seed)
    tokens = tuple(draw.randrange(vocab) for _ in range(prompt))
    sampling = SamplingParams(max_tokens=output, temperature=0.6, seed=seed)
    return Request(id=name, prompt=tokens, sampling=sampling, service_class=service_class)


def on_gpu(bench: Bench) -> None:
    """The marks of the project."""
    for shape in (LLAMA_1B, QWEN_06B):
        for batch, context in ((1, 2048), (8, 2048), (32, 512), (32, 2048), (128, 2048), (256, 1024)):
            bench.decode_attention(shape, batch, context, page_size=64)
        bench.decode_attention(shape, 32, 2048, page_size=16)
        bench.prefill_attention(shape, 2048, page_size=64)
        for rows in (1, 32, 256, 2048):
            bench.elementwise(shape, rows)
        for rows in (1, 32, 256):
            bench.sampler(shape, rows, 0, 1.0, 0.0)
            bench.sampler(shape, rows, 0, 1.0, 0.6)
            bench.sampler(shape, rows, 50, 0.9, 0.6)
        engine = bench.engine(shape, slots=256, budget=8192, page_size=64)
        for batch, context in ((1, 512), (8, 512), (32, 512), (32, 2048), (128, 512), (256, 512)):
            bench.decode_step(engine, shape, batch, context, steps=50)
        bench.swapping(engine, shape, 32, 2048, steps=100)
        for tokens in (512, 2048):
            bench.prefill(engine, shape, tokens, prompts=8)
        bench.mixed(engine, shape, 256, 100, 1024)
        bench.people(engine, shape, 2048, 64, asks=10, bulk=(512, 2048))
        if shape is LLAMA_1B:
            bench.against_transformers(engine, shape, 64, 512, 256)
        del engine
        torch.cuda.empty_cache()
    engine = bench.engine(LLAMA_1B, slots=256, budget=8192, page_size=64, batch_invariant=True)
    for batch in (1, 32, 256):
        bench.decode_step(engine, LLAMA_1B, batch, 512, steps=30)
    bench.prefill(engine, LLAMA_1B, 2048, prompts=4)


def on_cpu(bench: Bench) -> None:
    """Every line once, on shapes that say nothing."""
    bench.decode_attention(TINY, 3, 70, page_size=16)
    bench.prefill_attention(TINY, 40, page_size=16)
    bench.elementwise(TINY, 3)
    bench.sampler(TINY, 3, 50, 0.9, 0.6)
    engine = bench.engine(TINY, slots=8, budget=256, page_size=16)
    bench.decode_step(engine, TINY, 3, 70, steps=5)
    bench.swapping(engine, TINY, 3, 70, steps=8)
    bench.prefill(engine, TINY, 100, prompts=2)
    bench.mixed(engine, TINY, 12, 10, 40)
    bench.people(engine, TINY, 100, 10, asks=3, bulk=(20, 400))
    bench.against_transformers(engine, TINY, 4, 20, 10)


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    bench = Bench(torch.device(options.device))
    ceilings = {
        "copy_bytes_per_second": bench.ceilings.bytes_per_second,
        "bf16_flops_per_second": bench.ceilings.flops_per_second,
        "host_bytes_per_second": bench.ceilings.host_bytes_per_second,
    }
    print(ceilings, flush=True)
    if not bench.on_gpu:
        on_cpu(bench)
        return
    on_gpu(bench)
    properties = torch.cuda.get_device_properties(bench.device)
    settings = {"device": properties.name, "multiprocessors": properties.multi_processor_count, "dtype": "bfloat16"}
    print("kept in", save("gpu", settings, bench.rows, ceilings))


if __name__ == "__main__":
    main()
