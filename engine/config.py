"""Configuration of one engine: frozen, resolved once."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from engine.errors import ConfigError
from engine.options import (
    FINITE_AMOUNT,
    POSITIVE_AMOUNT,
    POSITIVE_SECONDS,
    SHARE,
    SHARE_OR_ZERO,
    Option,
    at_least,
    at_most,
    declared_options,
)

# Bounds beyond any use, below which every size computed from them is valid for a tensor.
MAX_ROWS, MAX_BUDGET_TOKENS, MAX_THREADS, MAX_INT32 = 1 << 16, 1 << 24, 1 << 12, 2**31 - 1

DEFAULT_PAGE_SIZE = 32  # tokens
# Attention on a GPU reads 64 positions at a time; smaller pages need several lookups for each product.
DEFAULT_GPU_PAGE_SIZE = 64

# For EngineConfig.target_itl_*: 8 tokens a second exceed a fast reader's speed (docs/decisions/0029).
DEFAULT_TARGET_ITL_SECONDS = {
    "target_itl_interactive": 0.09,
    "target_itl_standard": 0.12,
    "target_itl_batch": 0.25,
}


COMPUTATION, MEMORY, SCHEDULING = "Computation", "Memory", "Scheduling"  # groups of options
EXPERIMENTS = "Experiments"  # those that serve comparisons; a server for people needs none of them

Dtype = Literal["auto", "float32", "bfloat16", "float16"]


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sizes and switches of one engine. `None`: chosen from the model and the machine at startup.

    `validate()` raises `ConfigError` with the option's name and its numbers.
    """

    model: str  # directory in Hugging Face layout
    host_memory_share: float = 1.0  # of the host memory that the options grant; less beside other engines
    device: Annotated[str, Option(COMPUTATION, "device: auto, cpu, cuda or cuda:N")] = "auto"
    dtype: Annotated[
        Dtype,
        Option(
            COMPUTATION,
            "data type of the computation; auto is the checkpoint's, or float32 if torch computes the model on a CPU",
        ),
    ] = "auto"
    kv_cache_dtype: Annotated[
        Dtype, Option(COMPUTATION, "data type of cached keys and values; auto is that of the weights in memory")
    ] = "auto"
    quantization: Annotated[
        Literal["none", "int8", "int4"],
        Option(
            COMPUTATION,
            "quantise the matrices of layers at load, in groups of 32 inputs; the output projection to int8",
        ),
    ] = "none"
    kernels: Annotated[
        Literal["auto", "torch"], Option(EXPERIMENTS, "torch uses no custom kernels, on any device, for comparison")
    ] = "auto"
    batch_invariant: Annotated[
        bool,
        Option(
            COMPUTATION,
            "on a GPU: the same text in every batch, bit for bit; slower; compiled CPU kernels always guarantee that",
        ),
    ] = False
    enforce_eager: Annotated[bool, Option(EXPERIMENTS, "on a GPU: no CUDA graphs: a faster start, slower tokens")] = (
        False
    )
    early_launch: Annotated[
        bool,
        Option(
            COMPUTATION,
            "on a GPU of compute capability 9 or 10: start kernels while the preceding one ends; if the first "
            "recording of a step fails with it, the server continues without",
        ),
    ] = True
    load_format: Annotated[Literal["safetensors", "dummy"], Option(EXPERIMENTS, "dummy creates random weights")] = (
        "safetensors"
    )
    threads: Annotated[
        int | None,
        Option(COMPUTATION, "CPU threads of the engine", "one per core", (at_least(1), at_most(MAX_THREADS))),
    ] = None
    max_num_seqs: Annotated[
        int, Option(MEMORY, "batch slots: sequences that run at once", bounds=(at_least(1), at_most(MAX_ROWS)))
    ] = 32
    max_model_len: Annotated[
        int | None,
        Option(MEMORY, "context length in tokens", "the checkpoint's", (at_least(1), at_most(MAX_INT32))),
    ] = None
    page_size: Annotated[
        int | None,
        Option(
            MEMORY,
            "tokens in a KV page",
            f"{DEFAULT_GPU_PAGE_SIZE} on a GPU, {DEFAULT_PAGE_SIZE} on a CPU",
            (at_least(1), at_most(MAX_ROWS)),
        ),
    ] = None
    num_pages: Annotated[
        int | None,
        Option(MEMORY, "number of KV pages", "from the available memory", (at_least(1), at_most(MAX_INT32))),
    ] = None
    memory_fraction: Annotated[
        float,
        Option(
            MEMORY,
            "share of memory to use: of a GPU's memory, for weights and KV; on a CPU of half of the free memory, for "
            "KV",
            bounds=(SHARE,),
            alias="gpu_memory_utilization",
        ),
    ] = 0.9
    swap_space: Annotated[
        float,
        Option(MEMORY, "GiB of host memory for preempted sequences; 0: always recompute", bounds=(FINITE_AMOUNT,)),
    ] = 1.0
    session_share: Annotated[
        float,
        Option(
            MEMORY,
            "share of the KV cache that conversations keep at most while they wait for the result of a tool, and at "
            "most between two messages; 0: the "
            "least recently used pages are evicted first",
            bounds=(SHARE_OR_ZERO,),
        ),
    ] = 0.5
    kv_disk: Annotated[
        str | None,
        Option(
            MEMORY,
            "folder to which the KV pages of conversations are also written, as soon as an answer ends, and from which "
            "they are read when the conversation goes on and memory has lost them, also after a restart",
            "none",
        ),
    ] = None
    kv_disk_size: Annotated[
        float,
        Option(
            MEMORY,
            "GiB that this folder takes at most; conversations that were not used for the longest time are dropped",
            bounds=(POSITIVE_AMOUNT,),
        ),
    ] = 10.0
    enable_prefix_caching: Annotated[bool, Option(EXPERIMENTS, "keep and reuse the KV cache of shared prefixes")] = True
    speculation: Annotated[
        Literal["auto", "off"],
        Option(
            COMPUTATION,
            "auto guesses tokens that repeat the text so far and checks several in a step where that is faster; "
            "the text is the same",
        ),
    ] = "auto"
    scheduling_policy: Annotated[
        Literal["carousel", "orca", "vllm", "sglang", "fastserve"],
        Option(EXPERIMENTS, "policy of service order and preemption; the others are for comparison"),
    ] = "carousel"
    # Longest fluent time between tokens; limits steps with prompts (docs/decisions/0029).
    target_itl_interactive: Annotated[
        float | None,
        Option(
            SCHEDULING,
            "maximum time between two tokens of a running interactive answer, in seconds, while prompts are prefilled; "
            "beside a single prompt two thirds of it; higher values give earlier first tokens under load, lower values "
            "smoother answers",
            str(DEFAULT_TARGET_ITL_SECONDS["target_itl_interactive"]),
            (POSITIVE_SECONDS,),
        ),
    ] = None
    target_itl_standard: Annotated[
        float | None,
        Option(
            SCHEDULING,
            "the same for standard answers",
            str(DEFAULT_TARGET_ITL_SECONDS["target_itl_standard"]),
            (POSITIVE_SECONDS,),
        ),
    ] = None
    target_itl_batch: Annotated[
        float | None,
        Option(
            SCHEDULING,
            "the same for batch answers",
            str(DEFAULT_TARGET_ITL_SECONDS["target_itl_batch"]),
            (POSITIVE_SECONDS,),
        ),
    ] = None
    step_time: Annotated[
        float | None,
        Option(
            EXPERIMENTS,
            "fixed seconds of a step for prompts, in place of the ITL targets",
            "from the ITL targets",
            (POSITIVE_SECONDS,),
        ),
    ] = None
    max_num_batched_tokens: Annotated[
        int | None,
        Option(
            EXPERIMENTS,
            "token budget of a step",
            "as many as --step-time allows",
            (at_least(1), at_most(MAX_BUDGET_TOKENS)),
        ),
    ] = None
    prefill_chunk: Annotated[
        int | None,
        Option(
            EXPERIMENTS,
            "maximum prompt tokens of one sequence in one step",
            "the rest of the step's budget",
            (at_least(1), at_most(MAX_BUDGET_TOKENS)),
        ),
    ] = None
    # Guarantees for sequences that are not first in the queue; see engine/scheduling/policies/carousel.py.
    max_wait_standard: Annotated[
        float,
        Option(SCHEDULING, "seconds after which a waiting standard request is overdue", bounds=(at_least(0),)),
    ] = 30.0
    max_wait_batch: Annotated[
        float, Option(SCHEDULING, "seconds after which a waiting batch request is overdue", bounds=(at_least(0),))
    ] = 120.0
    max_step_slowdown: Annotated[
        float,
        Option(
            SCHEDULING,
            "maximum factor by which piggybacked batch work may lengthen a step with interactive requests; "
            "1: hardly any batch work joins; inf: all of it",
            bounds=(at_least(1),),
        ),
    ] = 2.0
    min_share: Annotated[
        int,
        Option(
            SCHEDULING,
            "tokens that a resumed request may generate before it is preempted again",
            bounds=(at_least(1), at_most(MAX_INT32)),
        ),
    ] = 64
    batching: Annotated[
        Literal["continuous", "static", "dynamic"],
        Option(EXPERIMENTS, "static and dynamic form complete batches, for comparison"),
    ] = "continuous"
    batch_size: Annotated[
        int | None,
        Option(EXPERIMENTS, "static, dynamic: requests of a complete batch", "all slots", (at_least(1),)),
    ] = None
    batch_timeout: Annotated[
        float,
        Option(
            EXPERIMENTS,
            "static, dynamic: seconds after which an incomplete batch starts",
            bounds=(at_least(0),),
        ),
    ] = 0.0

    def validate(self) -> EngineConfig:
        """Return self; raise `ConfigError` for the first value that cannot be honoured."""
        for option in declared_options(type(self)):
            value = None if option.alias_of else getattr(self, option.key)
            if value is not None and (violation := option.violation(value)):
                raise ConfigError(violation)
        if self.max_num_batched_tokens is not None and self.max_num_batched_tokens <= self.max_num_seqs:
            # One token for each decoding slot and at least one prompt token; otherwise a new request could wait for
            # ever.
            raise ConfigError(
                f"max_num_batched_tokens must exceed max_num_seqs ({self.max_num_seqs}), "
                f"got {self.max_num_batched_tokens}"
            )
        self._check_targets()
        self._check_disk()
        if self.batch_size is not None and self.batch_size > self.max_num_seqs:
            raise ConfigError(f"batch_size must be at most max_num_seqs ({self.max_num_seqs}), got {self.batch_size}")
        if self.batching == "continuous" and (self.batch_size is not None or self.batch_timeout):
            name = "batch_timeout" if self.batch_size is None else "batch_size"
            raise ConfigError(f"{name} requires batching static or dynamic, got {self.batching}; leave {name} out")
        if self.batch_timeout == float("inf"):
            raise ConfigError("batch_timeout must be finite, got inf: an incomplete batch would never start")
        return self

    @property
    def tokens_per_page(self) -> int:
        """Return `page_size`, by default that of a CPU; `engine.build` fills in that of a GPU."""
        return self.page_size or DEFAULT_PAGE_SIZE

    def target_itl(self, name: str) -> float:
        """Return the target of the field `name` in seconds, or its default."""
        target: float | None = getattr(self, name)
        return DEFAULT_TARGET_ITL_SECONDS[name] if target is None else target

    def _check_disk(self) -> None:
        """Refuse a folder to which nothing would be written."""
        if self.kv_disk is None:
            return
        for name, needs in (
            ("swap_space", "above 0: pages are written from host memory"),
            ("session_share", "above 0: only pages of conversations are written"),
            ("enable_prefix_caching", "on: pages are found by their prefix"),
        ):
            if not getattr(self, name):
                raise ConfigError(f"kv_disk requires {name} {needs}; leave one out")

    def _check_targets(self) -> None:
        """Refuse targets that another option would override."""
        for name in DEFAULT_TARGET_ITL_SECONDS:
            if getattr(self, name) is None:
                continue
            for fixed in ("step_time", "max_num_batched_tokens"):
                if getattr(self, fixed) is not None:
                    raise ConfigError(f"{name} cannot be combined with {fixed}, which fixes the budget; leave one out")
            if self.scheduling_policy != "carousel":
                raise ConfigError(
                    f"{name} requires scheduling_policy carousel, got {self.scheduling_policy}; leave {name} out"
                )
