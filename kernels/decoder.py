"""Parameters and shape of a decoder, for back ends that compute all layers in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.paging import PagedKV
from kernels.slots import PromptChunk

Linear = Callable[[Tensor], Tensor]  # x[T, K] -> x @ weight.T + bias [T, N]; owns its weight


class Embedding(Protocol):
    """Vectors of all tokens, from which the rows of a step are looked up."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Return (V, H)."""

    def lookup(self, token_ids: Tensor) -> Tensor:
        """Return rows [T, H] for token_ids[T] int64."""


@dataclass(frozen=True)
class EmbeddingTable:
    """Embedding that is stored row by row. table: [V, H], contiguous; back ends in other languages read its memory."""

    table: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.table.shape)

    def lookup(self, token_ids: Tensor) -> Tensor:
        return self.table.index_select(0, token_ids)


@dataclass(frozen=True)
class DecoderLayer:
    """Parameters of one layer. Norms are [H]; q_norm and k_norm are [D] or None."""

    input_norm: Tensor
    qkv: Linear  # H -> (Hq + 2 Hkv) * D
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Linear  # Hq * D -> H
    mlp_norm: Tensor
    gate_up: Linear  # H -> 2 I
    down: Linear  # I -> H


@dataclass(frozen=True)
class DecoderWeights:
    """All parameters of a decoder.

    cos_sin: [max position, R] float32, for the first R dimensions of a head. head: H -> V.
    checkpoint_dtype: of the checkpoint's values, or that of the computation where the kernels cannot hold these;
    bfloat16 if some are quantised.
    """

    embedding: Embedding
    layers: tuple[DecoderLayer, ...]
    final_norm: Tensor
    head: Linear
    cos_sin: Tensor
    num_parameters: int
    checkpoint_dtype: torch.dtype


@dataclass(frozen=True)
class DecoderShape:
    """Hyperparameters that the weights do not determine.

    windows: attention window per layer, 0 for full attention. rotated: per layer, whether it has rotary embedding.
    embedding_multiplier: of looked-up vectors. residual_multiplier: of the outputs of attention and of the feed-forward
    layer. logits_divisor: of the output projection's results.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    scale: float
    windows: tuple[int, ...]
    rotated: tuple[bool, ...]
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logits_divisor: float = 1.0


class StepInputs(Protocol):
    """Inputs of a forward pass; documented in `engine.execution.inputs.ModelInputs`."""

    @property
    def token_ids(self) -> Tensor: ...
    @property
    def positions(self) -> Tensor: ...
    @property
    def slot_mapping(self) -> Tensor: ...
    @property
    def num_decodes(self) -> int: ...
    @property
    def decode_page_table(self) -> Tensor: ...
    @property
    def decode_context_lens(self) -> Tensor: ...
    @property
    def prefill_page_table(self) -> Tensor: ...
    @property
    def prefill_query_starts(self) -> tuple[int, ...]: ...
    @property
    def prefill_context_lens(self) -> tuple[int, ...]: ...


# (step, keys and values of each layer) -> hidden states [T, H] after the last norm
ForwardPass = Callable[[StepInputs, tuple[PagedKV, ...]], Tensor]


@dataclass(frozen=True, slots=True)
class RowMasks:
    """Tokens that some rows of a step may sample.

    rows: [N] int64, indices into the tokens of the step's result. words: [N, ceil(V / 32)] int32, contiguous; bit
    i % 32 of word i // 32 is set if token i is allowed, at least one of each row.
    """

    rows: NDArray[np.int64]
    words: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class StepResult:
    """Result of a fused step.

    token_ids: of each decoded slot, then of the sampled rows of each chunk. A row with a NaN yields token -1; its slot
    stores token 0 instead, which is a valid embedding index. Of a chunk with drafts the first token counts, and each
    next one if the draft that its row has read equals the token before it; if its first one is -1, its slot is
    unchanged and has to be computed without drafts, one of which may have the NaN. has_nan: of each chunk, whether its
    hidden states contain a NaN; False for a chunk with drafts.
    logits: [N, V] float32 of the withheld rows, which have token 0 and unchanged slots.
    """

    token_ids: list[int]
    has_nan: list[bool]
    logits: Tensor


# (slots to decode, prompt chunks, withheld rows, masks) -> result. A slot occurs at most once. Withheld rows are
# indices into the result's tokens, ascending; the caller samples these rows from their logits. None of them is masked.
StepPass = Callable[[Sequence[int], Sequence[PromptChunk], Sequence[int], RowMasks | None], StepResult]
