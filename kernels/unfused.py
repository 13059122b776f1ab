"""Unfused defaults of a back end: norm, product, gate and residual addition as separate operations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernels.decoder import DecoderShape, DecoderWeights, Embedding, EmbeddingTable, ForwardPass, Linear, StepPass
from kernels.quantization import LinearWeight, dense_weight
from kernels.slots import SamplingTensors, SeenTokens, SlotMasks, StepState

if TYPE_CHECKING:
    from kernels.interface import Kernels


class UnfusedKernels:
    """Defaults for back ends without fused operations; see `kernels.interface.Kernels`."""

    def count_progress(self, counter: int | None) -> None:
        """Do nothing: a step calls these operations one by one, so each is short."""

    def use_early_launch(self, allowed: bool) -> bool:
        return False

    def max_head_dim(self, dtype: torch.dtype, device: torch.device) -> int | None:
        return None

    def pack_head(self: Kernels, weight: LinearWeight, bias: Tensor | None) -> Linear:
        return self.pack_linear(weight, bias)

    def pack_embedding(self, weight: LinearWeight) -> Embedding:
        return EmbeddingTable(dense_weight(weight))

    def pack_tied_embedding(self: Kernels, weight: LinearWeight) -> tuple[Embedding, Linear]:
        table = dense_weight(weight)
        return EmbeddingTable(table), self.pack_head(table, None)

    def norm_linear(self: Kernels, x: Tensor, norm: Tensor, eps: float, layer: Linear) -> Tensor:
        return layer(self.rms_norm(x, norm, eps))

    def norm_gated_linear(self: Kernels, x: Tensor, norm: Tensor, eps: float, layer: Linear) -> Tensor:
        return self.silu_mul(self.norm_linear(x, norm, eps, layer))

    def add_linear(self: Kernels, x: Tensor, layer: Linear, residual: Tensor, multiplier: float = 1.0) -> None:
        residual.add_(layer(x) if multiplier == 1.0 else layer(x) * multiplier)

    def penalize(
        self, logits: Tensor, rows: Tensor, slot_ids: Tensor, seen: SeenTokens, sampling: SamplingTensors
    ) -> None:
        counts, penalised = seen.counts[slot_ids], logits[rows]
        names = ("repetition_penalty", "frequency_penalty", "presence_penalty")
        factor, frequency, presence = (sampling.field(name).unsqueeze(1) for name in names)
        scaled = torch.where(penalised > 0, penalised / factor, penalised * factor)
        penalised = torch.where((counts > 0) | seen.in_prompt[slot_ids], scaled, penalised)
        penalised -= frequency * counts
        penalised -= presence * (counts > 0)
        logits.index_copy_(0, rows, penalised)

    def mask_logits(self, logits: Tensor, rows: Tensor, masks: Tensor) -> Tensor:
        masked = logits[rows].masked_fill_(~_allowed(masks, logits.shape[1]), -torch.inf)
        is_empty = masked.amax(dim=1) == -torch.inf
        masked.masked_fill_(is_empty.unsqueeze(1), 0.0)
        logits.index_copy_(0, rows, masked)
        return is_empty

    def mask_slots(self, logits: Tensor, masks: SlotMasks, slot_ids: Tensor) -> None:
        allowed = _allowed(masks.words[slot_ids], logits.shape[1])
        is_masked = masks.is_masked[slot_ids].bool().unsqueeze(1)
        logits.masked_fill_(is_masked & ~allowed, -torch.inf)

    def prepare_decoder(self, shape: DecoderShape, weights: DecoderWeights) -> ForwardPass | None:
        return None

    def prepare_step(self, shape: DecoderShape, weights: DecoderWeights, state: StepState) -> StepPass | None:
        return None


def _allowed(words: Tensor, vocab_size: int) -> Tensor:
    """Return the bits of words[N, ceil(V / 32)] int32 as [N, V] bool."""
    bits = torch.arange(32, dtype=torch.int32, device=words.device)
    return ((words.unsqueeze(2) >> bits) & 1).flatten(1)[:, :vocab_size].bool()
