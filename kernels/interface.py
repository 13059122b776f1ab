"""Interface of the back ends; `kernels.load` picks one for a device.

Letters in shapes: T tokens, H hidden size, Hq query heads, Hkv key/value heads, D head size, N pages, S positions in
a page, B decode rows, C prefill chunks, P width of a page table, R rows of logits, V vocabulary.

The cache of one layer, `kernels.paging.PagedKV`, is in the activations' dtype or in another one for which
`Kernels.supports_kv_dtype` returns True. A slot mapping [T] holds positions in the cache, `page * S + offset`. A slot
is a batch slot.
"""

from __future__ import annotations

from typing import Literal, Protocol

import torch
from torch import Tensor

from kernels.decoder import DecoderShape, DecoderWeights, Embedding, ForwardPass, Linear, StepPass
from kernels.paging import PagedKV
from kernels.plans import DecodePlan, RopeInputs, RopePlan
from kernels.quantization import LinearWeight
from kernels.slots import (
    DraftRows,
    PromptRows,
    SamplingTensors,
    SeenTokens,
    SlotMasks,
    SlotTensors,
    StepRows,
    StepState,
)

BackendChoice = Literal["auto", "torch"]


class Kernels(Protocol):
    """Operations of a back end.

    Tensors are contiguous unless stated otherwise; outputs have the dtype of their first input.
    """

    @property
    def robust_to_noisy_cores(self) -> bool:
        """Return whether a core shared with another process slows a step by no more than that core's share."""

    @property
    def multiplies_quantized(self) -> bool:
        """Return whether `pack_linear` keeps quantised matrices as they are stored."""

    def set_threads(self, threads: int) -> None:
        """Set the number of CPU threads that compute, including the caller's."""

    def count_progress(self, counter: int | None) -> None:
        """Increment the uint64 at address `counter` during long operations, so that a watchdog sees progress in a step.

        The memory must stay valid until the next call. None disables counting. Operations that return at once, or that
        this back end cannot divide, need not count.
        """

    def use_early_launch(self, allowed: bool) -> bool:
        """Permit or forbid early launch (`kernels.triton.pdl`); return whether kernels use it from now on.

        Kernels that are already recorded do not change.
        """

    def activation_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Return the dtype of a decoder's activations if `dtype` is requested."""

    def weight_dtype(self, stored: torch.dtype, dtype: torch.dtype) -> torch.dtype:
        """Return the dtype in which to pass a matrix to `pack_linear`, given its stored and the requested dtype."""

    def supports_kv_dtype(self, dtype: torch.dtype, query_heads: int, kv_heads: int, head_dim: int) -> bool:
        """Return whether the cache of such heads may be in `dtype` even if activations have another dtype."""

    def max_head_dim(self, dtype: torch.dtype, device: torch.device) -> int | None:
        """Return the largest head size that attention supports on the device; None: no limit."""

    def pack_linear(self, weight: LinearWeight, bias: Tensor | None) -> Linear:
        """Return a layer of weight[N, K] and bias[N] or None; a back end that repacks `weight` keeps no reference.

        weight: a matrix, or matrices that are stacked by outputs. Compiled CPU kernels compute with quantised ones as
        they are stored, if the layout exists; everything else converts a stack to the dtype of the activations.
        """

    def pack_head(self, weight: LinearWeight, bias: Tensor | None) -> Linear:
        """Return `pack_linear` of the output projection, which quantisation at load leaves at 8 bits or more."""

    def pack_embedding(self, weight: LinearWeight) -> Embedding:
        """Return a lookup of the rows of weight[V, H], quantised ones if this back end computes with such ones."""

    def pack_tied_embedding(self, weight: LinearWeight) -> tuple[Embedding, Linear]:
        """Return `pack_embedding` and `pack_head` of one weight, in the same memory if the back end can."""

    def prepare_decoder(self, shape: DecoderShape, weights: DecoderWeights) -> ForwardPass | None:
        """Return a function that computes all layers in one call, bitwise equal to the single operations.

        None if the back end has only the single operations.
        """

    def prepare_step(self, shape: DecoderShape, weights: DecoderWeights, state: StepState) -> StepPass | None:
        """Return a function that runs a whole step in one call, from input tokens to sampled ones and new slot state.

        It is bitwise equal to the single operations. None if the back end has only those.
        """

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Compute x / sqrt(mean(x^2) + eps) * weight, accumulated in float32: x[T, H], weight[H] -> [T, H]."""

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """Compute silu(first half) * second half: gate_up[T, 2I] -> [T, I]."""

    def norm_linear(self, x: Tensor, norm: Tensor, eps: float, layer: Linear) -> Tensor:
        """Compute layer(rms_norm(x)): x[T, K], norm[K] -> [T, N]. The layer must be packed by this back end."""

    def norm_gated_linear(self, x: Tensor, norm: Tensor, eps: float, layer: Linear) -> Tensor:
        """Compute silu_mul(layer(rms_norm(x))): x[T, K], norm[K] -> [T, N / 2], half of the layer's outputs."""

    def add_linear(self, x: Tensor, layer: Linear, residual: Tensor, multiplier: float = 1.0) -> None:
        """Add layer(x) * multiplier to residual: x[T, K], residual[T, N]."""

    def plan_rope(self, cos_sin: Tensor, positions: Tensor, slot_mapping: Tensor, kv: PagedKV) -> RopePlan | None:
        """Return the part of `rope_and_cache` that all layers share in a step. None if there is none."""

    def rope_and_cache(self, q: Tensor, k: Tensor, v: Tensor, kv: PagedKV, rope: RopeInputs) -> Tensor:
        """Rotate q and k, write k and v to the cache, return the rotated q [T, Hq, D].

        q[T, Hq, D], k[T, Hkv, D] and v[T, Hkv, D] may be strided over T (views of one fused projection).
        """

    def write_cache(self, k: Tensor, v: Tensor, slot_mapping: Tensor, kv: PagedKV) -> None:
        """Write k[T, Hkv, D] and v[T, Hkv, D] to the cache positions slot_mapping[T] int64; -1 skips a token."""

    def plan_decode(
        self, page_table: Tensor, context_lens: Tensor, query_heads: int, kv: PagedKV, window: int
    ) -> DecodePlan | None:
        """Return the part of `decode_attention` that layers of one window share in a step. None if there is none."""

    def decode_attention(
        self,
        q: Tensor,
        kv: PagedKV,
        page_table: Tensor,
        context_lens: Tensor,
        scale: float,
        window: int,
        plan: DecodePlan | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """Attend from one query per sequence over its paged context.

        q[B, Hq, D], page_table[B, P] int32, context_lens[B] int32 (including the own token) -> [B, Hq, D], or written
        to `out`. window: number of last positions (including the own) that are attended to, 0 for all. Entries of
        `page_table` past a row's context are ignored. Rows without context are not written.
        """

    def prefill_attention(
        self,
        q: Tensor,
        kv: PagedKV,
        page_table: Tensor,
        query_starts: tuple[int, ...],
        context_lens: tuple[int, ...],
        scale: float,
        window: int,
    ) -> Tensor:
        """Attend causally from C chunks; their keys and values are already cached: q[T, Hq, D] -> [T, Hq, D].

        page_table[C, P] int32. query_starts: C + 1 offsets into T. context_lens: per chunk, the tokens of its sequence
        up to the end of this chunk, so the first query of chunk c is at position context_lens[c] - (its number of
        queries).
        """

    def attend_tiles(
        self,
        q: Tensor,
        kv: PagedKV,
        page_table: Tensor,
        tiles: Tensor,
        out: Tensor,
        scale: float,
        window: int,
    ) -> None:
        """Compute `prefill_attention` for the queries listed in a table on the device.

        tiles[tiles, 4] int32 as in `kernels.query_tiles`; tiles without queries are skipped. q[T, Hq, D],
        page_table[C, P] int32. Writes only the listed rows of out[T, Hq, D]; bits do not depend on the tiling.
        """

    def penalize(
        self, logits: Tensor, rows: Tensor, slot_ids: Tensor, seen: SeenTokens, sampling: SamplingTensors
    ) -> None:
        """Penalise seen tokens in place: in rows[N] int64 of logits[R, V] float32, contiguous, the tokens that texts
        of the slots slot_ids[N] int64 have.

        sampling: of the N rows. A seen token's logit is divided by `repetition_penalty` if it is positive, else
        multiplied by it (Keskar et al., "CTRL", 2019). `frequency_penalty` times its count, and `presence_penalty` if
        it was generated, are subtracted (as OpenAI's API defines them). Bits of a row do not depend on others.
        """

    def mask_logits(self, logits: Tensor, rows: Tensor, masks: Tensor) -> Tensor:
        """Forbid tokens in place: in rows[N] int64 of logits[R, V] float32, contiguous, the others become -inf.

        masks: [N, ceil(V / 32)] int32; bit i % 32 of word i // 32 is set if token i is allowed. Returns whether a row
        has no token left, [N] bool; such a row gets zeros, so that sampling from it is defined.
        """

    def sample(self, logits: Tensor, sampling: SamplingTensors) -> Tensor:
        """Sample a token per row: logits[R, V] any float (converted to float32) -> ids[R] int64.

        Rows are independent and there is no generator state. A row with a NaN yields -1
        (`kernels.reference.sample.NAN_TOKEN`).

        With a temperature below 1e-5: the largest logit, the lowest id among equals. Seed, position and choice
        determine the noise of a row. Other fields of the records are not read.

        The result is argmax(kept + Gumbel noise) over the logits / temperature that the filters keep, see
        `kernels.reference.sample.filter_threshold` and `kernels.reference.noise`.
        """

    def draft_slots(
        self, slots: SlotTensors, slot_ids: Tensor, limits: Tensor, drafts: Tensor, matches: Tensor
    ) -> None:
        """Look up drafts for the batch slots slot_ids[S] int64 in their own tokens, which must be kept.

        The drafts of a slot are the up to limits[S] int64 tokens that followed the place with the longest match, of
        several the latest. The match of a place before the last token is the number of equal tokens that end there and
        at the last token, at most 16, at least 2. Beyond the end of the text the period goes on. Writes drafts[S, D]
        int64, filled with `kernels.slots.NO_DRAFT_TOKEN`, and matches[S] int32, the length of the match, 0 without
        drafts. Padding and slots with more than L tokens have none. The launches depend on shapes only.
        """

    def gather_slots(
        self, slots: SlotTensors, slot_ids: Tensor, given: PromptRows | DraftRows | None, width: int, page_size: int
    ) -> StepRows:
        """Return the model inputs of a step with one row for each of the batch slots slot_ids[B] int64.

        width: pages per row of the returned page table, enough for every context. given: rows that read prompt tokens
        or drafts instead of their slots' last tokens.
        """

    def mask_slots(self, logits: Tensor, masks: SlotMasks, slot_ids: Tensor) -> None:
        """Forbid tokens in place: the others become -inf in the rows of logits[B, V] (any float, contiguous) whose
        slots, slot_ids[B] int64, are masked.
        """

    def sample_slots(
        self,
        logits: Tensor,
        slots: SlotTensors,
        slot_ids: Tensor,
        ids: Tensor,
        filtered: bool,
        drafts: DraftRows | None = None,
    ) -> None:
        """`sample` logits[B, V] with the parameters of the batch slots slot_ids[B] int64, using lengths as positions.

        Writes ids[B] int64 and each slot's last token, length and, if these are kept, tokens, except for padding rows.
        The slot of a row with a NaN gets token 0, which is a valid embedding index. filtered: False guarantees that no
        slot has a filter. drafts: of slots with several rows; a slot advances by the tokens that
        `kernels.reference.accept` counts.
        """

    def log_probs(self, logits: Tensor, chosen: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return log probabilities of the chosen and of the k most likely tokens, in float32.

        logits[R, V] any float, chosen[R] int64 -> (chosen_logprob[R], top_ids[R, k], top_logprobs[R, k]).
        """
