"""Decoder of all families of `families.py`: one forward pass over a flat batch, controlled by a config.

Interprets these checkpoints like transformers. The query, key and value projections are fused into one matrix, and the
two input projections of the feed-forward layer into another.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from engine.execution.cache import CacheSpec, KVCache
from engine.execution.inputs import ModelInputs
from engine.execution.models.attention import StepAttention
from engine.execution.models.config import DecoderConfig
from kernels.decoder import DecoderLayer, DecoderShape, DecoderWeights, ForwardPass, StepPass
from kernels.interface import Kernels
from kernels.plans import RopeInputs, RopePlan
from kernels.slots import StepState


class Decoder:
    """Implementation of `engine.execution.models.interface.Model` with this project's kernels."""

    def __init__(
        self, config: DecoderConfig, weights: DecoderWeights, on_layer: Callable[[], None] = lambda: None
    ) -> None:
        """Use `weights`; `on_layer` is called for each layer that is computed operation by operation."""
        self.config = config
        self._on_layer = on_layer
        self._weights = weights
        # By whether a layer has rotary embedding; one without columns rotates nothing.
        self._tables = {True: weights.cos_sin, False: weights.cos_sin[:, :0]}
        self._kernels: Kernels | None = None  # the kernels that prepared `_fused_forward`
        self._fused_forward: ForwardPass | None = None

    @property
    def is_native(self) -> bool:
        return True

    @property
    def variant(self) -> str:
        rope = self.config.rope
        return ("long factors" if rope.is_long else "short factors") if rope.kind == "longrope" else ""

    @property
    def num_parameters(self) -> int:
        return self._weights.num_parameters

    @property
    def num_heads(self) -> int:
        return self.config.num_heads

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def max_position(self) -> int:
        return self.config.max_position

    @property
    def dtype(self) -> torch.dtype:
        return self._weights.final_norm.dtype

    @property
    def weights_dtype(self) -> torch.dtype:
        return self._weights.checkpoint_dtype

    def cache_spec(self) -> CacheSpec:
        c = self.config
        return CacheSpec.uniform(c.num_layers, c.num_kv_heads, c.head_dim, c.windows)

    def default_cache_dtype(self) -> torch.dtype:
        """Return the dtype in which the kernels hold a plain matrix of the checkpoint.

        It is stored on its own, because the matrices in memory may be quantised.
        """
        return self._weights.checkpoint_dtype

    @property
    def device(self) -> torch.device:
        return self._weights.final_norm.device

    @property
    def _shape(self) -> DecoderShape:
        c = self.config
        return DecoderShape(
            num_heads=c.num_heads,
            num_kv_heads=c.num_kv_heads,
            head_dim=c.head_dim,
            norm_eps=c.norm_eps,
            scale=c.scale,
            windows=c.windows,
            rotated=c.rotated,
            embedding_multiplier=c.embedding_multiplier,
            residual_multiplier=c.residual_multiplier,
            logits_divisor=c.logits_divisor,
        )

    @torch.inference_mode()
    def forward(self, inputs: ModelInputs, cache: KVCache, kernels: Kernels) -> Tensor:
        """Return hidden states [T, H] after the last norm."""
        config, weights = self.config, self._weights
        if kernels is not self._kernels:
            self._kernels, self._fused_forward = kernels, kernels.prepare_decoder(self._shape, weights)
        if self._fused_forward is not None and inputs.tiles is None:  # does not support tiles, which recordings have
            return self._fused_forward(inputs, cache.layers)
        attention = StepAttention.begin(inputs, cache, kernels, config.num_heads, config.windows)
        ropes = {
            is_rotated: kernels.plan_rope(
                self._tables[is_rotated], inputs.positions, inputs.slot_mapping, cache.layers[0]
            )
            for is_rotated in set(config.rotated)
        }
        residual = weights.embedding.lookup(inputs.token_ids).to(self.dtype)
        if config.embedding_multiplier != 1.0:
            residual = residual * config.embedding_multiplier
        for index, layer in enumerate(weights.layers):
            qkv = kernels.norm_linear(residual, layer.input_norm, config.norm_eps, layer.qkv)
            attended = self._attend(index, layer, qkv, attention, ropes[config.rotated[index]])
            kernels.add_linear(attended, layer.out, residual, config.residual_multiplier)
            gated = kernels.norm_gated_linear(residual, layer.mlp_norm, config.norm_eps, layer.gate_up)
            kernels.add_linear(gated, layer.down, residual, config.residual_multiplier)
            self._on_layer()
        return kernels.rms_norm(residual, weights.final_norm, config.norm_eps)

    @torch.inference_mode()
    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Return logits [R, V] for hidden[R, H], in the same dtype."""
        logits = self._weights.head(hidden)
        return logits if self.config.logits_divisor == 1.0 else logits / self.config.logits_divisor

    def prepare_step(self, state: StepState, kernels: Kernels) -> StepPass | None:
        return kernels.prepare_step(self._shape, self._weights, state)

    def _attend(
        self, index: int, layer: DecoderLayer, qkv: Tensor, attention: StepAttention, plan: RopePlan | None
    ) -> Tensor:
        """Write the rows' keys and values to the cache and return the attention output [T, Hq * D].

        qkv: [T, (Hq + 2 Hkv) * D].
        """
        config, inputs, cache = self.config, attention.inputs, attention.cache
        q_end, k_end = config.num_heads, config.num_heads + config.num_kv_heads
        tokens = (self._tables[config.rotated[index]], inputs.positions, inputs.slot_mapping)
        rope = RopeInputs(*tokens, layer.q_norm, layer.k_norm, config.norm_eps, plan)
        qkv = qkv.view(qkv.shape[0], -1, config.head_dim)
        q = attention.kernels.rope_and_cache(
            qkv[:, :q_end],
            qkv[:, q_end:k_end],
            qkv[:, k_end:],
            cache.layers[index],
            rope,
        )
        return attention(index, q, config.scale, config.windows[index]).view(q.shape[0], -1)
