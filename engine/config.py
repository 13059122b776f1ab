"""Configuration of one engine: frozen, resolved once."""

from __future__ import annotations

from typing import Literal

import msgspec

from engine.errors import ConfigError

# Bounds beyond any use, below which every size computed from them is valid for a tensor.
MAX_VALUES = {
    "max_num_seqs": 1 << 16,
    "page_size": 1 << 16,
    "num_pages": 2**31 - 1,
    "max_model_len": 2**31 - 1,
    "max_num_batched_tokens": 1 << 24,
    "prefill_chunk": 1 << 24,
    "threads": 1 << 12,
    "min_share": 2**31 - 1,
}

DEFAULT_PAGE_SIZE = 32  # tokens
# Attention on a GPU reads 64 positions at a time; smaller pages need several lookups for each product.
DEFAULT_GPU_PAGE_SIZE = 64

# For EngineConfig.target_itl_*: 8 tokens a second exceed a fast reader's speed (docs/decisions/0029).
DEFAULT_TARGET_ITL_SECONDS = {
    "target_itl_interactive": 0.09,
    "target_itl_standard": 0.12,
    "target_itl_batch": 0.25,
}


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sizes and switches of one engine. `None`: chosen from the model and the machine at startup.

    `validate()` raises `ConfigError` with the option's name and its numbers.
    """

    model: str  # directory in Hugging Face layout
    device: str = "auto"  # auto | cpu | cuda | cuda:N
    dtype: str = "auto"  # auto | float32 | bfloat16 | float16; auto: the checkpoint's, with torch on a CPU float32
    kv_cache_dtype: str = "auto"  # same values; auto: that of the weights in memory
    # "torch" selects the reference kernels, on any device, for comparison and debugging.
    kernels: Literal["auto", "torch"] = "auto"
    batch_invariant: bool = False  # output has the same bits in every batch; compiled CPU kernels always guarantee that
    enforce_eager: bool = False  # on a GPU: launch decode steps operation by operation, not as CUDA graphs
    early_launch: bool = True  # on a GPU that can: a kernel begins while its predecessor ends (`kernels.triton.pdl`)
    load_format: Literal["safetensors", "dummy"] = "safetensors"
    max_model_len: int | None = None  # tokens; None = the checkpoint's
    max_num_seqs: int = 32  # slots
    max_num_batched_tokens: int | None = None  # token budget of one step; None = as many as are read in `step_time`
    step_time: float | None = None  # seconds for prompts in a step; None = three decode steps, 0.005 to 0.03
    prefill_chunk: int | None = None  # maximum prompt tokens of one sequence in one step; None = the rest of the budget
    page_size: int | None = None  # tokens; None = DEFAULT_GPU_PAGE_SIZE on a GPU, else DEFAULT_PAGE_SIZE
    num_pages: int | None = None  # None = sized from memory
    memory_fraction: float = 0.9  # of a GPU's memory, for weights and KV; on a CPU of half of the free memory, for KV
    swap_space: float = 1.0  # GiB of host memory for preempted sequences; 0 = always recompute
    enable_prefix_caching: bool = True
    batching: Literal["continuous", "static", "dynamic"] = "continuous"
    batch_size: int | None = None  # static, dynamic: size of a complete batch; None = all slots
    batch_timeout: float = 0.0  # static, dynamic: seconds after which an incomplete batch starts
    scheduling_policy: Literal["carousel", "orca", "vllm", "sglang", "fastserve"] = "carousel"
    threads: int | None = None  # CPU threads of one step; None = one for each core
    # Guarantees for sequences that are not first in the queue; see engine/scheduling/policies/carousel.py.
    max_wait_standard: float = 30.0  # seconds
    max_wait_batch: float = 120.0  # seconds
    max_step_slowdown: float = 2.0  # maximum slowdown of a step by piggybacked lower classes, as a factor
    # Longest fluent time between tokens, in seconds; limits steps with prompts (docs/decisions/0029).
    target_itl_interactive: float | None = None  # None = DEFAULT_TARGET_ITL_SECONDS
    target_itl_standard: float | None = None
    target_itl_batch: float | None = None
    min_share: int = 64  # tokens that a resumed sequence may generate before it is preempted again

    def validate(self) -> EngineConfig:
        """Return self; raise `ConfigError` for the first value that cannot be honoured."""
        positive = {
            "max_num_seqs": self.max_num_seqs,
            "min_share": self.min_share,
        }
        for name, value in positive.items():
            if value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")
        for name, limit in MAX_VALUES.items():
            if (getattr(self, name) or 0) > limit:
                raise ConfigError(f"{name} must be at most {limit}, got {getattr(self, name)}")
        for name, optional in (
            ("max_num_batched_tokens", self.max_num_batched_tokens),
            ("max_model_len", self.max_model_len),
            ("prefill_chunk", self.prefill_chunk),
            ("num_pages", self.num_pages),
            ("page_size", self.page_size),
            ("threads", self.threads),
            ("batch_size", self.batch_size),
        ):
            if optional is not None and optional < 1:
                raise ConfigError(f"{name} must be at least 1, got {optional}")
        if self.max_num_batched_tokens is not None and self.max_num_batched_tokens <= self.max_num_seqs:
            # One token for each decoding slot and at least one prompt token; otherwise a new request could wait for
            # ever.
            raise ConfigError(
                f"max_num_batched_tokens must exceed max_num_seqs ({self.max_num_seqs}), "
                f"got {self.max_num_batched_tokens}"
            )
        if not 0.0 < self.memory_fraction <= 1.0:
            raise ConfigError(f"memory_fraction must be above 0 and at most 1, got {self.memory_fraction}")
        if not 0 <= self.swap_space < float("inf"):  # refuses NaN too
            raise ConfigError(f"swap_space must be at least 0 and finite, got {self.swap_space}")
        if self.step_time is not None and not 0 < self.step_time < float("inf"):
            raise ConfigError(f"step_time must be a positive number of seconds, got {self.step_time}")
        self._check_targets()
        if not self.max_step_slowdown >= 1:  # refuses NaN too; infinity: lower classes piggyback at any cost
            raise ConfigError(f"stretch must be at least 1, got {self.max_step_slowdown}")
        if self.batch_size is not None and self.batch_size > self.max_num_seqs:
            raise ConfigError(f"batch_size must be at most max_num_seqs ({self.max_num_seqs}), got {self.batch_size}")
        if self.batching == "continuous" and (self.batch_size is not None or self.batch_timeout):
            name = "batch_timeout" if self.batch_size is None else "batch_size"
            raise ConfigError(f"{name} requires batching static or dynamic, got {self.batching}; leave {name} out")
        for name, seconds in (
            ("max_wait_standard", self.max_wait_standard),
            ("max_wait_batch", self.max_wait_batch),
            ("batch_timeout", self.batch_timeout),
        ):
            if not seconds >= 0:  # refuses NaN too; infinity means never
                raise ConfigError(f"{name} must be at least 0, got {seconds}")
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

    def _check_targets(self) -> None:
        """Refuse targets that are not positive numbers, and targets that another option would override."""
        for name in DEFAULT_TARGET_ITL_SECONDS:
            if getattr(self, name) is None:
                continue
            if not 0 < self.target_itl(name) < float("inf"):  # refuses NaN too
                raise ConfigError(f"{name} must be a positive number of seconds, got {getattr(self, name)}")
            for fixed in ("step_time", "max_num_batched_tokens"):
                if getattr(self, fixed) is not None:
                    raise ConfigError(f"{name} cannot be combined with {fixed}, which fixes the budget; leave one out")
            if self.scheduling_policy != "carousel":
                raise ConfigError(
                    f"{name} requires scheduling_policy carousel, got {self.scheduling_policy}; leave {name} out"
                )
