"""Attention of one step over the paged cache.

Covers decode rows and prefill chunks of a flat batch, for every layer of a model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.execution.cache import KVCache
from engine.execution.inputs import ModelInputs
from kernels.interface import Kernels
from kernels.plans import DecodePlan


@dataclass(frozen=True)
class StepAttention:
    """Attention of one step: built once per step, called once per layer.

    The layer's keys and values are in the cache before the call. plans: by sliding window, precomputed by the kernels
    for all layers with that window.
    """

    inputs: ModelInputs
    cache: KVCache
    kernels: Kernels
    plans: Mapping[int, DecodePlan | None]

    @classmethod
    def begin(
        cls, inputs: ModelInputs, cache: KVCache, kernels: Kernels, query_heads: int, windows: Iterable[int]
    ) -> StepAttention:
        """Prepare a step. windows: those of the model's layers; 0 is full attention."""
        plans: dict[int, DecodePlan | None] = {}
        if inputs.num_decodes:
            tables = (inputs.decode_page_table, inputs.decode_context_lens)
            plans = {w: kernels.plan_decode(*tables, query_heads, cache.layers[0], w) for w in set(windows)}
        return cls(inputs, cache, kernels, plans)

    def __call__(self, layer: int, q: Tensor, scale: float, window: int) -> Tensor:
        """Attend with q[T, Hq, D] and return [T, Hq, D]."""
        decodes = self.inputs.num_decodes
        if self.inputs.tiles is not None:
            return self._mixed(self.inputs.tiles, layer, q, scale, window)
        if decodes == q.shape[0]:
            return self._decode(layer, q, scale, window)
        if decodes == 0:
            return self._prefill(layer, q, scale, window)
        parts = (self._decode(layer, q[:decodes], scale, window), self._prefill(layer, q[decodes:], scale, window))
        return torch.cat(parts)

    def _mixed(self, tiles: Tensor, layer: int, q: Tensor, scale: float, window: int) -> Tensor:
        """Attend in a recorded step with decode rows and prompt tiles.

        Each kind writes its own rows: prompt queries have no context as decode rows, and decode rows have no tile.
        """
        out, decodes = torch.empty_like(q), self.inputs.num_decodes
        self._decode(layer, q[:decodes], scale, window, out[:decodes])
        kv = self.cache.layers[layer]
        self.kernels.attend_tiles(q, kv, self.inputs.prefill_page_table, tiles, out, scale, window)
        return out

    def _decode(self, layer: int, q: Tensor, scale: float, window: int, out: Tensor | None = None) -> Tensor:
        return self.kernels.decode_attention(
            q,
            self.cache.layers[layer],
            self.inputs.decode_page_table,
            self.inputs.decode_context_lens,
            scale,
            window,
            self.plans[window],
            out,
        )

    def _prefill(self, layer: int, q: Tensor, scale: float, window: int) -> Tensor:
        return self.kernels.prefill_attention(
            q,
            self.cache.layers[layer],
            self.inputs.prefill_page_table,
            self.inputs.prefill_query_starts,
            self.inputs.prefill_context_lens,
            scale,
            window,
        )
