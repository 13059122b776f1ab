"""Forward pass through all layers, and a whole step, in one C++ call: see source/decoder.cpp and source/step.cpp."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernels.cpu import structs
from kernels.cpu.library import load
from kernels.cpu.linear import CpuLinear, PackedEmbedding
from kernels.cpu.structs import address
from kernels.decoder import (
    DecoderLayer,
    DecoderShape,
    DecoderWeights,
    Embedding,
    EmbeddingTable,
    Linear,
    RowMasks,
    StepInputs,
    StepResult,
)
from kernels.huge_pages import mmap_zeros
from kernels.paging import PagedKV
from kernels.slots import PromptChunk, SlotRecord, StepState

KV_DTYPES = (torch.float32, torch.bfloat16)  # supported dtypes of the KV cache


def supports_decoder(shape: DecoderShape, weights: DecoderWeights) -> bool:
    """Return whether C++ supports every part of this decoder."""
    linears = [one for layer in weights.layers for one in (layer.qkv, layer.out, layer.gate_up, layer.down)]
    fits = load().carousel_supports_attention(shape.head_dim, shape.num_heads // shape.num_kv_heads)
    return (
        bool(fits)
        and _is_readable(weights.embedding)
        and all(isinstance(linear, CpuLinear) for linear in (*linears, weights.head))
    )


def _is_readable(embedding: Embedding) -> bool:
    if isinstance(embedding, EmbeddingTable):
        return embedding.table.dtype in (torch.float32, torch.bfloat16)
    return isinstance(embedding, PackedEmbedding)


class CpuForward:
    """`kernels.decoder.ForwardPass` over weights that are all packed for these kernels."""

    def __init__(self, shape: DecoderShape, weights: DecoderWeights, allow_bf16_activations: bool) -> None:
        self._weights = weights  # keeps the addresses below valid
        self._decoder = _decoder(shape, weights, allow_bf16_activations)
        self._forward = load().carousel_forward
        self._scratch_bytes = load().carousel_scratch_bytes
        self._scratch = mmap_zeros((0,), torch.uint8)
        self._cache: tuple[PagedKV, ...] = ()
        self._cache_addresses = _addresses(())

    def __call__(self, inputs: StepInputs, cache: tuple[PagedKV, ...]) -> Tensor:
        """Return the hidden states [T, H] float32 after the last norm."""
        rows = inputs.token_ids.shape[0]
        out = torch.empty((rows, self._decoder.hidden))
        if (size := self._scratch_bytes(self._decoder, rows)) > self._scratch.shape[0]:
            self._scratch = mmap_zeros((size,), torch.uint8)
        if cache is not self._cache:
            self._cache, self._cache_addresses = cache, _addresses(cache)
        starts = (ctypes.c_int64 * len(inputs.prefill_query_starts))(*inputs.prefill_query_starts)
        contexts = (ctypes.c_int32 * len(inputs.prefill_context_lens))(*inputs.prefill_context_lens)
        decode_table, chunk_table = inputs.decode_page_table.contiguous(), inputs.prefill_page_table.contiguous()
        step = structs.Step(
            tokens=address(inputs.token_ids),
            positions=address(inputs.positions),
            slot_mapping=address(inputs.slot_mapping),
            rows=rows,
            decodes=inputs.num_decodes,
            decode_table=address(decode_table),
            decode_width=decode_table.shape[1],
            decode_contexts=address(inputs.decode_context_lens),
            chunk_table=address(chunk_table),
            chunk_width=chunk_table.shape[1],
            chunks=len(contexts),
            chunk_starts=ctypes.addressof(starts),
            chunk_contexts=ctypes.addressof(contexts),
            k=ctypes.addressof(self._cache_addresses[0]),
            v=ctypes.addressof(self._cache_addresses[1]),
            cache_is_bf16=cache[0].dtype == torch.bfloat16,
            page_size=cache[0].page_size,
            page_stride=cache[0].page_stride,
            scratch=address(self._scratch),
            out=address(out),
        )
        self._forward(self._decoder, step)
        return out


class CpuStep:
    """`kernels.decoder.StepPass` over packed weights. The C++ arguments are built once; scratch memory grows."""

    def __init__(
        self, shape: DecoderShape, weights: DecoderWeights, allow_bf16_activations: bool, state: StepState
    ) -> None:
        slots, cache = state.slots, state.cache
        _check(state)
        library = load()
        self._step, self._bytes = library.carousel_step, library.carousel_step_bytes
        self._owners = weights, state  # keeps the addresses below valid
        self._cache_addresses = _addresses(cache)
        self._decoder, self._head = _decoder(shape, weights, allow_bf16_activations), _linear(weights.head)
        self._slots = structs.Slots(
            tokens=slots.tokens.ctypes.data,
            max_tokens=slots.tokens.shape[1],
            page_table=slots.page_table.ctypes.data,
            max_pages=slots.page_table.shape[1],
            lengths=slots.lengths.ctypes.data,
            last_tokens=address(state.last_tokens),
            records=slots.records.ctypes.data,
        )
        num_slots = len(slots.lengths)
        self._decodes, self._chunks = (ctypes.c_int64 * num_slots)(), (structs.Chunk * num_slots)()
        self._has_nan = (ctypes.c_int64 * num_slots)()
        self._scratch = mmap_zeros((0,), torch.uint8)
        self._max_rows = self._max_sampled = 0  # capacity of the scratch memory, and of the next three
        self._ids, self._drafts, self._withheld = ((ctypes.c_int64 * 0)() for _ in range(3))
        self._work = structs.Work(
            decodes=ctypes.addressof(self._decodes),
            chunks=ctypes.addressof(self._chunks),
            k=ctypes.addressof(self._cache_addresses[0]),
            v=ctypes.addressof(self._cache_addresses[1]),
            cache_is_bf16=cache[0].dtype == torch.bfloat16,
            page_size=cache[0].page_size,
            page_stride=cache[0].page_stride,
            has_nan=ctypes.addressof(self._has_nan),
        )

    def __call__(
        self,
        decodes: Sequence[int],
        chunks: Sequence[PromptChunk],
        withheld: Sequence[int],
        masks: RowMasks | None = None,
    ) -> StepResult:
        """Run a step; see `kernels.decoder.StepPass`."""
        rows = sampled = len(decodes)
        drafts: list[int] = []
        self._decodes[:rows] = list(decodes)
        for i, chunk in enumerate(chunks):
            self._chunks[i] = structs.Chunk(chunk.slot, chunk.start, chunk.length, chunk.samples)
            rows += chunk.length
            sampled += chunk.samples
            drafts += chunk.drafts
        logits = torch.empty((len(withheld), self._head.outputs))
        if not rows:
            return StepResult([], [], logits)
        assert len(decodes) + len(chunks) <= len(self._decodes), "a slot occurs twice in the step"
        if rows > self._max_rows or sampled > self._max_sampled:
            self._grow_scratch(rows, sampled)
        self._drafts[: len(drafts)] = list(drafts)
        self._withheld[: len(withheld)] = list(withheld)
        self._work.num_decodes, self._work.num_chunks = len(decodes), len(chunks)
        self._work.num_withheld, self._work.logits = len(withheld), address(logits)
        self._work.num_masked = 0
        if masks is not None:
            assert masks.rows.dtype == np.int64 and masks.words.flags.c_contiguous
            self._work.masked, self._work.masks = masks.rows.ctypes.data, masks.words.ctypes.data
            self._work.num_masked = len(masks.rows)
        self._step(self._decoder, self._head, self._slots, self._work)
        return StepResult(self._ids[:sampled], [flag != 0 for flag in self._has_nan[: len(chunks)]], logits)

    def _grow_scratch(self, rows: int, sampled: int) -> None:
        """Grow the scratch memory to powers of two, so that not every new maximum needs fresh memory."""
        rows, sampled = max(rows, self._max_rows), max(sampled, self._max_sampled)
        rows, sampled = (1 << (count - 1).bit_length() if count else 0 for count in (rows, sampled))
        self._scratch = mmap_zeros((self._bytes(self._decoder, self._head, rows, sampled),), torch.uint8)
        self._work.scratch = address(self._scratch)
        self._ids, self._drafts, self._withheld = ((ctypes.c_int64 * sampled)() for _ in range(3))
        self._work.ids, self._work.drafts = ctypes.addressof(self._ids), ctypes.addressof(self._drafts)
        self._work.withheld = ctypes.addressof(self._withheld)
        self._max_rows, self._max_sampled = rows, sampled


def _check(state: StepState) -> None:
    """Assert the dtypes and layouts of the arrays, as C++ receives plain addresses."""
    slots = state.slots
    expected = (
        (slots.tokens, np.int64),
        (slots.lengths, np.int64),
        (slots.page_table, np.int32),
        (slots.records, SlotRecord),
    )
    for array, dtype in expected:
        assert array.dtype == dtype and array.flags.c_contiguous, dtype
    assert state.last_tokens.dtype == torch.int64 and state.last_tokens.is_contiguous()
    assert state.cache[0].dtype in KV_DTYPES and state.cache[0].k.device.type == "cpu"


def _decoder(shape: DecoderShape, weights: DecoderWeights, allow_bf16_activations: bool) -> structs.Decoder:
    """Return the C++ description of a decoder, valid as long as the weights live."""
    embedding = weights.embedding
    tokens: dict[str, Any]
    if isinstance(embedding, EmbeddingTable):
        tokens = {"embedding": address(embedding.table), "embedding_is_bf16": embedding.table.dtype == torch.bfloat16}
    else:
        assert isinstance(embedding, PackedEmbedding)
        tokens = {"packed_embedding": embedding.layer.struct}
    rotary = weights.cos_sin.shape[1]
    layers = (
        _layer(layer, window, rotary if is_rotated else 0)
        for layer, window, is_rotated in zip(weights.layers, shape.windows, shape.rotated, strict=True)
    )
    return structs.Decoder(
        layers=(structs.Layer * len(weights.layers))(*layers),
        num_layers=len(weights.layers),
        hidden=embedding.shape[1],
        final_norm=address(weights.final_norm),
        cos_sin=address(weights.cos_sin),
        query_heads=shape.num_heads,
        kv_heads=shape.num_kv_heads,
        dim=shape.head_dim,
        eps=shape.norm_eps,
        scale=shape.scale,
        embedding_multiplier=shape.embedding_multiplier,
        residual_multiplier=shape.residual_multiplier,
        logits_divisor=shape.logits_divisor,
        allow_bf16_activations=allow_bf16_activations,
        **tokens,
    )


def _addresses(cache: tuple[PagedKV, ...]) -> tuple[ctypes.Array[ctypes.c_void_p], ctypes.Array[ctypes.c_void_p]]:
    """Return the addresses of all layers' keys, and of their values."""
    pointers = ctypes.c_void_p * len(cache)
    return pointers(*(kv.k.data_ptr() for kv in cache)), pointers(*(kv.v.data_ptr() for kv in cache))


def _layer(layer: DecoderLayer, window: int, rotary: int) -> structs.Layer:
    return structs.Layer(
        input_norm=address(layer.input_norm),
        qkv=_linear(layer.qkv),
        q_norm=address(layer.q_norm),
        k_norm=address(layer.k_norm),
        out=_linear(layer.out),
        mlp_norm=address(layer.mlp_norm),
        gate_up=_linear(layer.gate_up),
        down=_linear(layer.down),
        window=window,
        rotary=rotary,
    )


def _linear(layer: Linear) -> structs.Linear:
    assert isinstance(layer, CpuLinear)
    return layer.struct
