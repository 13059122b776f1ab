"""A decoder's parameters and shape, for back ends that compute all of its layers in one go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from kernels.slots import PromptChunk

Linear = Callable[[Tensor], Tensor]  # x[T, K] -> x @ weight.T + bias, [T, N]; owns its weight


@dataclass(frozen=True)
class DecoderLayer:
    """The parameters of one layer. Norms: [H], q_norm and k_norm: [D] or None."""

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
    """All parameters. embedding: [V, H], in the model's dtype or as the checkpoint has it. cos_sin: [max position, D]
    float32. head: H -> V."""

    embedding: Tensor
    layers: tuple[DecoderLayer, ...]
    final_norm: Tensor
    head: Linear
    cos_sin: Tensor
    num_parameters: int


@dataclass(frozen=True)
class DecoderShape:
    """What the weights do not tell. windows: per layer, 0 for full attention."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    scale: float
    windows: tuple[int, ...]


class StepInputs(Protocol):
    """What a forward pass reads of a step; `engine.execution.inputs.ModelInputs` says what it means."""

    @property
    def token_ids(self) -> Tensor: ...
    @property
    def positions(self) -> Tensor: ...
    @property
    def slots(self) -> Tensor: ...
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


# (step, keys and values: per layer [N, Hkv, S, D]) -> hidden states [T, H] after the last norm
ForwardPass = Callable[[StepInputs, tuple[Tensor, ...], tuple[Tensor, ...]], Tensor]

# (slots whose last token goes through the decoder, chunks of prompts; a slot at most once) -> a token for each of these
# slots, then for each chunk that samples, and of each chunk whether it has a NaN in it. A row with a NaN has token -1.
# The slots have these tokens then; for a -1 a 0, so that it can be looked up.
StepPass = Callable[[Sequence[int], Sequence[PromptChunk]], tuple[list[int], list[bool]]]
