"""Models of transformers with paged attention in place of their own.

transformers lets an attention function be registered by name, and passes it the keyword arguments of a model's call.
Each forward pass therefore carries its own `PagedStep`, and a flat batch of many sequences runs as one row of tokens
with explicit positions. `fallback` loads these models.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from engine.execution.cache import CacheSpec, KVCache
from engine.execution.inputs import ModelInputs
from engine.execution.models.attention import StepAttention
from engine.execution.models.errors import ModelConfigError, ModelError
from kernels.decoder import StepPass
from kernels.interface import Kernels
from kernels.slots import StepState

ATTENTION = "carousel_paged"
STEP_ARGUMENT = "carousel_step"  # keyword argument that is passed through a model's forward to the attention function


class Step(Protocol):
    """Step-specific part of the attention function."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int) -> Tensor:
        """Attend with q[T, Hq, D], k[T, Hkv, D], v[T, Hkv, D] and return [T, Hq, D]."""


@dataclass(frozen=True)
class PagedStep:
    """Step over the paged cache."""

    attention: StepAttention
    on_layer: Callable[[], None]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int) -> Tensor:
        """Write keys and values to the cache, through which the rows of a chunk attend to each other, then attend."""
        self.on_layer()
        slot_mapping = self.attention.inputs.slot_mapping
        self.attention.kernels.write_cache(k, v, slot_mapping, self.attention.cache.layers[layer])
        return self.attention(layer, q, scale, window)


@dataclass(frozen=True)
class AttentionShape:
    """Attention shape of a model's layers, found by a test run. windows: per layer, 0 for full attention."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    windows: tuple[int, ...]


def paged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface: query [1, Hq, T, D], key and value [1, Hkv, T, D] -> [1, T, Hq, D]."""
    for name in ("softcap", "s_aux", "position_bias"):
        if kwargs.get(name) is not None:
            raise ModelError(f"{type(module).__name__} attends with {name}, which paged attention does not support")
    layer: Any = module.layer_idx
    step: Step = kwargs[STEP_ARGUMENT]
    q, k, v = (x[0].transpose(0, 1).contiguous() for x in (query, key, value))
    scale = scaling if scaling is not None else q.shape[-1] ** -0.5
    return step.attend(int(layer), q, k, v, scale, sliding_window or 0).unsqueeze(0), None


class TransformersModel:
    """Implementation of `engine.execution.models.interface.Model` around a model of transformers."""

    def __init__(
        self,
        causal_lm: Any,
        shape: AttentionShape,
        num_parameters: int,
        on_layer: Callable[[], None] = lambda: None,
    ) -> None:
        """Wrap `causal_lm`; `on_layer` is called for each layer of a forward pass."""
        self._on_layer = on_layer
        config = causal_lm.config.get_text_config()
        self._body = causal_lm.get_decoder()
        self._head = causal_lm.get_output_embeddings()
        self._shape = shape
        self._logit_divisor = float(getattr(config, "logits_scaling", None) or 1.0)  # Granite's mixtures of experts
        self._factor = float(getattr(config, "logit_scale", None) or 1.0)  # Cohere
        self._cap = float(getattr(config, "final_logit_softcapping", None) or 0.0)  # NanoChat
        self.is_native = False
        self.variant = ""
        self.num_parameters = num_parameters
        self.vocab_size = int(config.vocab_size)
        self.max_position = _max_position(config)
        self.dtype: torch.dtype = causal_lm.dtype
        self.weights_dtype = self.dtype
        self.device: torch.device = causal_lm.device

    def cache_spec(self) -> CacheSpec:
        shape = self._shape
        return CacheSpec.uniform(shape.num_layers, shape.num_kv_heads, shape.head_dim, shape.windows)

    def default_cache_dtype(self) -> torch.dtype:
        return self.dtype

    @property
    def num_heads(self) -> int:
        return self._shape.num_heads

    @property
    def windows(self) -> tuple[int, ...]:
        """Return the sliding window of each layer, 0 for full attention."""
        return self._shape.windows

    @torch.inference_mode()
    def forward(self, inputs: ModelInputs, cache: KVCache, kernels: Kernels) -> Tensor:
        """Return hidden states [T, H] after the last norm."""
        attention = StepAttention.begin(inputs, cache, kernels, self._shape.num_heads, self._shape.windows)
        return run_body(self._body, inputs.token_ids, inputs.positions, PagedStep(attention, self._on_layer))

    @torch.inference_mode()
    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Return logits [R, V] float32 for hidden[R, H]."""
        logits: Tensor = self._head(hidden)
        logits = logits.to(torch.float32).mul_(self._factor).div_(self._logit_divisor)
        return logits.div_(self._cap).tanh_().mul_(self._cap) if self._cap else logits

    def prepare_step(self, state: StepState, kernels: Kernels) -> StepPass | None:
        return None


def run_body(body: Any, token_ids: Tensor, positions: Tensor, step: Step) -> Tensor:
    """Return the last hidden states [T, H] for token_ids[T] and positions[T]; `step` computes attention."""
    arguments: dict[str, Any] = {STEP_ARGUMENT: step}
    out = body(input_ids=token_ids[None], position_ids=positions[None], use_cache=False, **arguments)
    hidden: Tensor = out.last_hidden_state[0]
    return hidden


def _max_position(config: Any) -> int:
    limit = getattr(config, "max_position_embeddings", None)
    if not isinstance(limit, int) or limit <= 0:
        raise ModelConfigError("max_position_embeddings", limit, "must be a positive integer")
    return limit
