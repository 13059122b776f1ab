"""The operations a back end offers, and `load`, which picks one for a device.

Letters in shapes: T tokens, H hidden size, Hq query heads, Hkv key/value heads, D head size, N pages, S positions in
a page, B decode rows, C prefill chunks, P width of a page table, R rows of logits, V vocabulary.

The cache of one layer is two tensors [N, Hkv, S, D], alike in their strides, each page in one piece (`kernels.paging`),
in the activations' dtype or in another one that `Kernels.keeps`. A slot is a position in the cache:
`page * S + offset`.
"""

from __future__ import annotations

import logging
from typing import Literal, Protocol

import torch
from torch import Tensor

from kernels.decoder import DecoderShape, DecoderWeights, ForwardPass, Linear, StepPass
from kernels.plans import DecodePlan, RopePlan
from kernels.slots import PromptRows, SlotTensors, StepRows, StepState

log = logging.getLogger("carousel.kernels")

Choice = Literal["auto", "torch"]


class Kernels(Protocol):
    """What all back ends do. Tensors are contiguous unless said otherwise; outputs have the dtype of their first
    input.
    """

    @property
    def tolerates_neighbours(self) -> bool:
        """Whether a core that somebody else uses costs no more than its share."""

    def set_threads(self, threads: int) -> None:
        """How many CPU threads compute, the caller's included."""

    def count_tasks(self, counter: int | None) -> None:
        """Add to the uint64 at the address `counter` while an operation runs for long, so that a watchdog sees progress
        inside a step; the memory must live until the next call. None: do not. Operations that return at once, or
        that this back end cannot divide, need not count."""

    def use_early_launch(self, allowed: bool) -> bool:
        """Permit or forbid early launch (`kernels.early`); return whether kernels use it from now on. Kernels that are
        recorded already keep theirs."""

    def activations(self, dtype: torch.dtype) -> torch.dtype:
        """What a decoder's activations are in where `dtype` is asked for."""

    def holds(self, stored: torch.dtype, dtype: torch.dtype) -> torch.dtype:
        """What a matrix that is stored in one dtype is kept in where another is asked for; `pack_linear` takes it."""

    def keeps(self, dtype: torch.dtype, query_heads: int, kv_heads: int, head_dim: int) -> bool:
        """Whether keys and values of such heads may be kept in another dtype than the activations'."""

    def max_head_dim(self, dtype: torch.dtype, device: torch.device) -> int | None:
        """Return the largest heads that attention computes on the device; None: any."""

    def pack_linear(self, weight: Tensor, bias: Tensor | None) -> Linear:
        """weight[N, K], bias[N] or None -> a layer that keeps nothing of `weight` where it lays it out anew."""

    def prepare_decoder(self, shape: DecoderShape, weights: DecoderWeights) -> ForwardPass | None:
        """All layers in one go, with the bits of the operations one by one. None: only one by one."""

    def prepare_step(self, shape: DecoderShape, weights: DecoderWeights, state: StepState) -> StepPass | None:
        """All of a step in one go, from tokens to `sample`d ones and the slots' new state; the bits are the same. None:
        only one by one."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x[T, H], weight[H] -> [T, H]: x / sqrt(mean(x^2) + eps) * weight, accumulated in float32."""

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """gate_up[T, 2I] -> [T, I]: silu(first half) * second half."""

    def norm_linear(self, x: Tensor, norm: Tensor, eps: float, layer: Linear) -> Tensor:
        """x[T, K], norm[K] -> layer(rms_norm(x)), [T, N]. The layer is one of this back end's."""

    def norm_gated_linear(self, x: Tensor, norm: Tensor, eps: float, layer: Linear) -> Tensor:
        """x[T, K], norm[K] -> silu_mul(layer(rms_norm(x))), half of the layer's outputs: [T, N / 2]."""

    def add_linear(self, x: Tensor, layer: Linear, residual: Tensor) -> None:
        """x[T, K], residual[T, N] += layer(x)."""

    def plan_rope(self, cos_sin: Tensor, positions: Tensor, slots: Tensor, k_cache: Tensor) -> RopePlan | None:
        """What `rope_and_cache` can compute once a step for all layers. None: nothing worth computing ahead."""

    def rope_and_cache(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cos_sin: Tensor,
        positions: Tensor,
        slots: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        q_norm: Tensor | None,
        k_norm: Tensor | None,
        eps: float,
        plan: RopePlan | None = None,
    ) -> Tensor:
        """Rotate q and k, write k and v to the cache, return the rotated q [T, Hq, D].

        q[T, Hq, D], k[T, Hkv, D] and v[T, Hkv, D] may be strided over T (views of one fused projection).
        cos_sin[max_pos, D] float32: first half cosines, second half sines, in the "rotate half" convention.
        positions[T] int64. slots[T] int64, -1: do not write.
        q_norm[D] and k_norm[D]: RMSNorm weights applied to each head before the rotation (Qwen3), or None.
        """

    def write_cache(self, k: Tensor, v: Tensor, slots: Tensor, k_cache: Tensor, v_cache: Tensor) -> None:
        """k[T, Hkv, D] and v[T, Hkv, D] into their slots[T] int64; -1: do not write."""

    def plan_decode(
        self, page_table: Tensor, context_lens: Tensor, query_heads: int, k_cache: Tensor, window: int
    ) -> DecodePlan | None:
        """What `decode_attention` can compute once a step for all layers of one window. None: nothing."""

    def decode_attention(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        page_table: Tensor,
        context_lens: Tensor,
        scale: float,
        window: int,
        plan: DecodePlan | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """One query per sequence: q[B, Hq, D], page_table[B, P] int32, context_lens[B] int32 (own token included) ->
        [B, Hq, D], or written to `out`.

        window: 0, or how many last positions (own included) are attended to. Entries of `page_table` behind the pages
        that hold a row's context are not looked at. For a row without context nothing is written.
        """

    def prefill_attention(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        page_table: Tensor,
        query_starts: tuple[int, ...],
        context_lens: tuple[int, ...],
        scale: float,
        window: int,
    ) -> Tensor:
        """Causal attention of C chunks whose keys and values are in the cache already: q[T, Hq, D] -> [T, Hq, D].

        page_table[C, P] int32. query_starts: C + 1 offsets into T. context_lens: for each chunk the tokens of its
        sequence up to and with this chunk, so the first query of chunk c stands at position context_lens[c] - (its
        number of queries).
        """

    def attend_tiles(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        page_table: Tensor,
        tiles: Tensor,
        out: Tensor,
        scale: float,
        window: int,
    ) -> None:
        """`prefill_attention` of queries that a table on the device names: tiles[tiles, 4] int32 as
        `kernels.query_tiles` has them, some of no queries. q[T, Hq, D], page_table[C, P] int32. Writes their rows of
        out[T, Hq, D], the same bits whatever the tiles, and no other."""

    def sample(
        self,
        logits: Tensor,
        temperature: Tensor,
        top_k: Tensor,
        top_p: Tensor,
        min_p: Tensor,
        seed: Tensor,
        position: Tensor,
        choice: Tensor,
    ) -> Tensor:
        """logits[R, V] any float -> ids[R] int64, as of the same numbers in float32; `kernels.reference.sample.BROKEN`
        for a row that has a NaN. Rows do not influence each other and there is no generator state.

        temperature[R] float32, below 1e-5: the largest logit, the lowest id among equals. top_k[R] int32, 0: off.
        top_p[R] float32, 1: off. min_p[R] float32, 0: off. seed[R], position[R], choice[R] int64 determine the noise
        of a row.

        Filters, in vLLM's order, on logits / temperature: min_p keeps tokens with at least min_p times the largest
        probability; top_k keeps the k largest; top_p keeps the smallest set of largest tokens whose renormalised
        probability reaches top_p. Tokens equal to the smallest kept one are all kept. Then argmax(kept + Gumbel
        noise), see `kernels.reference.noise`.
        """

    def gather_slots(
        self, slots: SlotTensors, which: Tensor, prompts: PromptRows | None, width: int, page_size: int
    ) -> StepRows:
        """What a step with rows of the slots which[B] int64 reads of them, their page tables cut to `width` pages,
        which hold the contexts of all. prompts: which rows are not their slots' last tokens."""

    def sample_slots(self, logits: Tensor, slots: SlotTensors, which: Tensor, ids: Tensor, filtered: bool) -> None:
        """`sample` of logits[B, V] with the parameters of the slots which[B] int64, their lengths as positions. Writes
        ids[B] int64 and, but for nobody's, each slot's last token and length; a broken row's slot gets token 0, so that
        it can be looked up. filtered: False promises that none of the slots has a filter."""

    def log_probs(self, logits: Tensor, chosen: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """logits[R, V] any float, chosen[R] int64 -> (chosen_logprob[R], top_ids[R, k], top_logprobs[R, k]), in
        float32.
        """


def load(
    device: torch.device,
    dtype: torch.dtype | None = None,
    choice: Choice = "auto",
    batch_invariant: bool = False,
    may_round: bool = False,
) -> Kernels:
    """The fastest back end for `device` where `dtype` is asked for (None: not known): Triton on a CUDA device, C++ for
    float32 and bfloat16 on a CPU where it can be compiled, else the torch references, which `choice` can also ask for.

    batch_invariant: one that gives a row the same bits in every batch. Raises `ValueError` where there is none; all are
    in float32 on a CPU. may_round: in float32 on a CPU, whether what weights, keys and values in bfloat16 are
    multiplied with may be rounded to it, as if `dtype` were that.
    """
    from kernels.reference.backend import ReferenceKernels

    if device.type == "cuda":
        if batch_invariant and choice == "torch":
            raise ValueError("on a GPU torch's kernels are not batch-invariant")
        if choice == "torch":
            return ReferenceKernels()
        if batch_invariant:
            from kernels.invariant import InvariantKernels

            return InvariantKernels()
        from kernels.backend import TritonKernels

        return TritonKernels()
    if choice != "torch" and dtype in (torch.float32, torch.bfloat16):
        from kernels.cpu.library import CannotCompile

        try:
            from kernels.cpu.backend import CpuKernels

            return CpuKernels(may_round or dtype == torch.bfloat16)
        except CannotCompile as error:
            log.warning("the CPU kernels cannot be used, so torch computes, which is slower: %s", error)
    if batch_invariant and dtype != torch.float32:
        raise ValueError("on a CPU torch's kernels are batch-invariant in float32 only")
    return ReferenceKernels()
