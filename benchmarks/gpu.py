"""Engine performance on a GPU against the GPU's limits: every figure with its bound, measured in the same run.

The bounds come from two ceilings that are measured first: the rate of a large device-to-device copy (bytes read plus
bytes written) and that of a large bfloat16 matrix product. A decode step must at least read all weights once and the
keys and values of every row; a prompt must at least be multiplied with all weights. Weights are random, as only shapes
matter. Repeated measurements have median and range. results/gpu.json is rewritten after every section. A failing
section records its reason, and the others continue. If it crashed the device or the process, they continue in a new
process, which measures its ceilings again; a row's bounds come from the most recent ceilings.

    python -m benchmarks.gpu                        # results/gpu.json
    python -m benchmarks.gpu --seconds 120          # start nothing after two minutes; the default is 245 seconds
    python -m benchmarks.gpu --also-in some/folder  # copy the results there
    python -m benchmarks.gpu --only 'people|mixed'  # sections with matching names: results/gpu_only.json
    python -m benchmarks.gpu --device cpu           # run the code on tiny shapes; nothing is saved

Without a GPU, set TRITON_INTERPRET=1 so that Triton interprets its kernels.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks import gpu_transformers
from benchmarks.device import Device
from benchmarks.engines import Build, Engines
from benchmarks.gpu_engine import EngineMarks, make_request
from benchmarks.gpu_expected import expectations
from benchmarks.gpu_kernels import KernelMarks
from benchmarks.gpu_matrices import MatrixMarks
from benchmarks.results import save, spread
from benchmarks.sections import DEVICE_FAILED, Sections, in_processes
from benchmarks.shapes import LLAMA_1B, LLAMA_8B, QWEN_06B, TINY, Shape
from kernels.triton import pdl

# Rows and tokens in the context of each; sizes with more than MAX_KV_BYTES of keys and values are skipped.
Sizes = tuple[tuple[int, int], ...]
MARKED: Sizes = ((1, 512), (32, 512), (256, 512), (32, 2048), (64, 2048), (128, 2048), (256, 2048))
OTHERS: Sizes = ((8, 512), (64, 512), (128, 512), (1, 2048), (8, 2048))
LARGE: Sizes = ((1, 512), (32, 512), (32, 2048))
MAX_KV_BYTES = 40e9

PROMPTS = ((512, 32), (2048, 8))  # tokens of a prompt, number of simultaneous prompts

# Columns that describe the work of an engine; rows that agree in all of them can be compared.
KEY_COLUMNS = (
    "shape",
    "batch",
    "prompt",
    "top_p",
    "full_sampler_rows",
    "tokens",
    "prompts",
    "early_launch",
    "recorded",
)

# top_k, top_p, temperature, spread of the logits
SAMPLERS = ((0, 1.0, 0.0, 4.0), (0, 1.0, 0.6, 4.0), (0, 0.9, 0.6, 4.0), (50, 0.9, 0.6, 4.0), (0, 0.9, 0.6, 0.9))

STAGES, SPLITS, PROGRAMS = (3, 5), (256, 512), (6, 16, 64)  # variants of decode attention
# Variants of prefill attention: queries per tile, positions per block, warps, stages.
BLOCKS = (
    (64, 32, 4, 5), (64, 64, 4, 3), (64, 64, 4, 4), (64, 64, 4, 5), (64, 64, 8, 3),
    (128, 64, 8, 3), (128, 64, 8, 4), (128, 128, 8, 3),
)  # fmt: skip


class Marks:
    """All measurements on one device, as sections that are planned first and then run."""

    def __init__(self, device: Device, sections: Sections) -> None:
        self.device = device
        self.sections = sections
        self.of_kernels = KernelMarks(device, self._add)
        self.of_matrices = MatrixMarks(device, self._add)
        self.of_engines = EngineMarks(device, self._add_of_engine)
        self._engines = Engines(device, sections)
        self.planned: dict[str, Callable[[], None]] = {}

    def select(self, only: str) -> None:
        """Keep only planned sections with names that match the expression. Raises LookupError if none does."""
        found = {name: run for name, run in self.planned.items() if re.search(only, name)}
        if not found:
            raise LookupError(f"{only!r} matches none of these names:\n" + "\n".join(self.planned))
        self.planned = found

    def run(self) -> None:
        """Run all planned sections in order."""
        for name, run in self.planned.items():
            self.sections.run(name, run)
        self._engines.drop()

    def kernel(self, measure: Callable[..., None], shape: Shape, *sizes: Any) -> None:
        """Plan a section with a method of `of_kernels` or `of_matrices`.

        If it loses the device, all sections of this method and shape are given up. The engine is dropped first, because
        it would hold the memory that the section needs.
        """
        kernel = _name(measure, shape.name)

        def alone() -> None:
            self.sections.use_feature(kernel)
            self._engines.drop()
            measure(shape, *sizes)

        self._plan(_name(measure, shape.name, *sizes), alone)

    def engine(self, build: Build, measure: Callable[..., None], *sizes: Any, **more: Any) -> None:
        """Plan a section with a method of `of_engines`. Building the engine is a section of its own."""
        if f"engine {build}" not in self.planned:
            self._plan(f"engine {build}", partial(self._engine, build))
        name = _name(measure, build, *sizes, *(f"{key}={value}" for key, value in more.items()))
        self._plan(name, lambda: measure(self._engines.get(build), build.shape, *sizes, **more))

    def transformers(self, build: Build, sequences: int, prompt: int, output: int) -> None:
        """Plan a comparison with transformers' continuous batching, on the same shapes, prompts and lengths.

        This engine is dropped before transformers starts.
        """
        self._plan(f"transformers {build}", partial(self._transformers, build, sequences, prompt, output))

    def _engine(self, build: Build) -> None:
        began = time.perf_counter()
        info = self._engines.get(build).info
        self._add_of_engine("engine", build=str(build), seconds=time.perf_counter() - began, pages=info.num_pages)

    def _add_of_engine(self, what: str, **row: Any) -> None:
        """Add a row with the engine's actual configuration and, if it is batch-invariant, the cost of that."""
        row |= {"early_launch": self._engines.early_launch, "recorded": self._engines.recorded}
        if row.get("batch_invariant"):
            row |= self._cost(what, row)
        self._add(what, **row)

    def _add(self, what: str, **row: Any) -> None:
        """Add a row with its prediction and goal."""
        self.sections.add(what, **row, **expectations(what, row))

    def _cost(self, what: str, row: dict[str, Any]) -> dict[str, float]:
        """Return the time relative to the same row without batch invariance, if this run measured that."""
        for other in self.sections.rows:
            is_same = all(other.get(size) == row.get(size) for size in KEY_COLUMNS)
            if other["what"] == what and other["batch_invariant"] is False and is_same:
                return {"times_usual": row["ms"]["median"] / other["ms"]["median"]}
        return {}

    def _plan(self, name: str, run: Callable[[], None]) -> None:
        if name in self.planned:
            raise ValueError(f"Two sections have the name {name!r}.")
        self.planned[name] = run

    def _transformers(self, build: Build, sequences: int, prompt: int, output: int) -> None:
        shape = build.shape
        prompts = [make_request("", shape.vocab, prompt, output, i).prompt for i in range(sequences)]
        ours = self.of_engines.greedy_rates(self._engines.get(build), prompts, output, runs=3)
        sizes = {"shape": shape.name, "sequences": sequences, "prompt": prompt, "output": output}
        self._add_of_engine(
            "beside transformers", **sizes, tokens_per_second=spread(ours)
        )  # even if transformers fails
        self._engines.drop()
        theirs = gpu_transformers.measure(shape, self.device.device, prompts, output, runs=2)
        rates, times_that = spread(theirs.rates), median(ours) / median(theirs.rates)
        self._add("transformers", **sizes, **theirs.ways, tokens_per_second=rates, times_that=times_that)


def _name(measure: Callable[..., None], *sizes: object) -> str:
    return " ".join(map(str, (measure.__name__, *sizes)))


def on_gpu(marks: Marks, early_launch: bool = True, with_transformers: bool = True) -> None:
    """Plan the sections of a GPU run, the most important first, because time may run out.

    First the marks of Llama, the effects of batch invariance and early launch on them, and the marks of Qwen; each
    engine is built once for these. Then sections that explain the marks, and finally the profiler, which stays loaded
    in the process.
    """
    llama, qwen, large = (Build(shape, early_launch=early_launch) for shape in (LLAMA_1B, QWEN_06B, LLAMA_8B))
    in_turn = replace(llama, early_launch=False)
    attention_of(marks, llama.shape, MARKED)
    steps_of(marks, llama, MARKED)
    marks_of(marks, llama)
    if with_transformers:
        marks.transformers(llama, 64, 512, 128)
    interactive_requests(marks, replace(llama, budget=None))
    invariant_of(marks, replace(llama, batch_invariant=True))
    if early_launch:
        steps_of(marks, in_turn, ((1, 512), (32, 512)))
    marks_of(marks, qwen)
    steps_of(marks, qwen, MARKED)
    attention_of(marks, qwen.shape, MARKED)
    steps_of(marks, large, LARGE)

    variants_of(marks, llama.shape)
    kernels_of(marks, llama.shape)
    attention_of(marks, llama.shape, OTHERS)
    more_of(marks, llama)
    interactive_requests(marks, replace(qwen, budget=None))
    attention_of(marks, qwen.shape, OTHERS)
    more_of(marks, qwen)
    variants_of(marks, qwen.shape)
    kernels_of(marks, qwen.shape)
    for batch in (1, 32, 256):
        marks.engine(in_turn, marks.of_engines.kernels_of_a_step, batch, 512)


def attention_of(marks: Marks, shape: Shape, sizes: Sizes) -> None:
    """Plan attention of decode steps."""
    for batch, context in _that_fit(shape, sizes):
        marks.kernel(marks.of_kernels.decode_attention, shape, batch, context, 64)


def kernels_of(marks: Marks, shape: Shape) -> None:
    """Plan the other kernels."""
    for rows in (1, 4, 8):
        marks.kernel(marks.of_matrices.against_library, shape, rows)
    for rows in (1, 32, 256, 2048):
        marks.kernel(marks.of_kernels.elementwise, shape, rows)
    for rows in (1, 32, 256):
        for settings in SAMPLERS:
            marks.kernel(marks.of_kernels.sampler, shape, rows, *settings)


def variants_of(marks: Marks, shape: Shape) -> None:
    """Plan variants of attention that might be faster."""
    for page_size in (16, 32):
        marks.kernel(marks.of_kernels.decode_attention, shape, 32, 2048, page_size)
    for stages, split in product(STAGES, SPLITS):
        marks.kernel(marks.of_kernels.decode_attention_as, shape, 32, 2048, 64, stages, split)
    for split, programs in product(SPLITS, PROGRAMS):
        marks.kernel(marks.of_kernels.decode_attention_mixed, shape, 128, 2048, 64, split, programs)
    marks.kernel(marks.of_kernels.prefill_attention, shape, 2048, 64)
    for variant in BLOCKS:
        marks.kernel(marks.of_kernels.prefill_attention_as, shape, 2048, 64, *variant)


def steps_of(marks: Marks, build: Build, sizes: Sizes) -> None:
    """Plan decode steps of full batches and, for the shortest contexts, replays without the host."""
    for batch, context in _that_fit(build.shape, sizes):
        marks.engine(build, marks.of_engines.decode_step, batch, context, 50)
    for batch, context in sizes:
        if context == 512:
            marks.engine(build, marks.of_engines.recorded_step, batch, context)


def marks_of(marks: Marks, build: Build) -> None:
    """Plan prompts alone, and prompts and answers together."""
    for tokens, prompts in PROMPTS:
        marks.engine(build, marks.of_engines.lone_prompt, tokens, 8)
        marks.engine(build, marks.of_engines.prefill, tokens, prompts)
    marks.engine(build, marks.of_engines.mixed, 256, 100, 1024, 2)


def interactive_requests(marks: Marks, build: Build) -> None:
    """Plan latencies of interactive requests, and a mixed load, with the engine's own token budget."""
    for prompt in (512, 2048):
        marks.engine(build, marks.of_engines.people, prompt, 64, 20, (512, 2048))
    marks.engine(build, marks.of_engines.mixed, 256, 100, 1024, 1)


def invariant_of(marks: Marks, build: Build) -> None:
    """Plan the cost of batch invariance, on the same sizes as without it."""
    for batch in (1, 32, 256):
        marks.engine(build, marks.of_engines.decode_step, batch, 512, 50)
    for tokens, prompts in PROMPTS:
        marks.engine(build, marks.of_engines.prefill, tokens, prompts)


def more_of(marks: Marks, build: Build) -> None:
    """Plan sections that explain an engine's marks.

    Other sizes, samplers, prompts piggybacked on decode steps, swapping of pages, and steps that are decided at once.
    """
    steps_of(marks, build, OTHERS)
    for batch in (1, 32, 256):
        marks.engine(build, marks.of_engines.decode_step, batch, 512, 20, top_p=0.9)
        marks.engine(build, marks.of_engines.decode_step, batch, 512, 20, full_sampler_rows=1)
    for batch, prompt in product((1, 256), (128, 512)):
        marks.engine(build, marks.of_engines.recorded_step, batch, 512, prompt)
    marks.engine(build, marks.of_engines.swapping, 32, 2048, 100)
    marks.engine(build, marks.of_engines.mixed, 256, 100, 1024, 1, decided="at once")


def _that_fit(shape: Shape, sizes: Sizes) -> list[tuple[int, int]]:
    return [(batch, context) for batch, context in sizes if batch * context * shape.kv_bytes <= MAX_KV_BYTES]


def on_cpu(marks: Marks, with_transformers: bool = True) -> None:
    """Plan every kind of row once, on a tiny shape without meaningful figures; steps are not recorded on a CPU."""
    marks.kernel(marks.of_kernels.decode_attention, TINY, 3, 70, 16)
    marks.kernel(marks.of_kernels.decode_attention_as, TINY, 3, 70, 16, 2, 128)
    marks.kernel(marks.of_kernels.decode_attention_mixed, TINY, 3, 70, 16, 128, 4)
    marks.kernel(marks.of_kernels.prefill_attention, TINY, 40, 16)
    marks.kernel(marks.of_kernels.prefill_attention_as, TINY, 40, 16, 128, 32, 4, 2)
    marks.kernel(marks.of_matrices.against_library, TINY, 3)
    marks.kernel(marks.of_kernels.elementwise, TINY, 3)
    marks.kernel(marks.of_kernels.sampler, TINY, 3, 50, 0.9, 0.6)
    build = Build(TINY, slots=8, budget=256, page_size=16)
    marks.engine(build, marks.of_engines.decode_step, 3, 70, 5, top_p=0.9)
    marks.engine(build, marks.of_engines.decode_step, 3, 70, 5, full_sampler_rows=1)
    marks.engine(build, marks.of_engines.swapping, 3, 70, 8)
    marks.engine(build, marks.of_engines.lone_prompt, 100, 2)
    marks.engine(build, marks.of_engines.prefill, 100, 2)
    marks.engine(build, marks.of_engines.mixed, 12, 10, 40, 2)
    marks.engine(build, marks.of_engines.mixed, 12, 10, 40, 1, decided="at once")
    marks.engine(replace(build, budget=None), marks.of_engines.people, 100, 10, 3, (20, 400))
    if with_transformers:
        marks.transformers(build, 4, 20, 10)
    marks.engine(replace(build, early_launch=False), marks.of_engines.kernels_of_a_step, 3, 70)


def keep(device: Device, also_in: Path | None, only: str, sections: Sections) -> None:
    """Save the results so far. A selection (`only`) does not replace the results of a full run."""
    properties = torch.cuda.get_device_properties(device.device)
    settings = {"device": properties.name, "multiprocessors": properties.multi_processor_count, "dtype": "bfloat16"}
    summary = {name: getattr(sections, name) for name in ("failed", "given_up", "left_out")}
    if only:
        path = save("gpu_only", settings | {"only": only}, sections.rows, summary)
    else:
        path = save("gpu", settings, sections.rows, summary)
    if also_in is not None:
        shutil.copy(path, also_in)


def main() -> int:
    """Measure, print and save. Return 1 if a section failed, DEVICE_FAILED if the device did."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=245.0)
    parser.add_argument("--also-in", type=Path)
    parser.add_argument("--only", metavar="REGEX", default="")
    parser.add_argument("--no-early-launch", action="store_true")
    parser.add_argument("--no-transformers", action="store_true")
    parser.add_argument("--record", type=Path, help=argparse.SUPPRESS)  # set by `in_processes`
    options = parser.parse_args()
    target = torch.device(options.device)
    if target.type == "cuda":
        if not torch.cuda.is_available():
            parser.error("torch finds no CUDA device; use --device cpu to test the code without one")
        if options.record is None:
            return in_processes([sys.executable, "-m", "benchmarks.gpu", *sys.argv[1:]], options.seconds)
    if options.also_in:
        options.also_in.mkdir(parents=True, exist_ok=True)
    device = Device(target)
    kept = partial(keep, device, options.also_in, options.only) if device.on_gpu else lambda sections: None
    sections = Sections(kept, options.seconds, works=device.works, record=options.record)
    marks = Marks(device, sections)
    pdl.PDL_SWITCH.is_on = not options.no_early_launch
    if device.on_gpu:
        on_gpu(marks, not options.no_early_launch, not options.no_transformers)
    else:
        on_cpu(marks, not options.no_transformers)
    try:
        marks.select(options.only)
    except (re.error, LookupError) as error:
        parser.error(f"--only: {error}")
    sections.add("ceilings", **asdict(device.ceilings))
    marks.run()
    print("failed:", sections.failed or "nothing")
    print("given up:", sections.given_up or "nothing")
    print("left out:", sections.left_out or "nothing")
    if sections.ended_by is not None:
        return DEVICE_FAILED
    return 1 if sections.failed or sections.given_up else 0


if __name__ == "__main__":
    sys.exit(main())
