"""A forward pass through all layers in one call: see source/decoder.cpp."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from kernels.cpu import structs
from kernels.cpu.library import load
from kernels.cpu.linear import CpuLinear
from kernels.cpu.structs import address
from kernels.decoder import DecoderLayer, DecoderShape, DecoderWeights, Linear, StepInputs
from kernels.memory import own_pages


class CpuForward:
    """A `kernels.decoder.ForwardPass` over weights that are all laid out for these kernels."""

    def __init__(self, shape: DecoderShape, weights: DecoderWeights) -> None:
        self._shape, self._weights = shape, weights  # the addresses below are theirs
        self._layers = (structs.Layer * len(weights.layers))(
            *(_layer(layer, window) for layer, window in zip(weights.layers, shape.windows, strict=True))
        )
        self._decoder = structs.Decoder(
            layers=self._layers,
            num_layers=len(weights.layers),
            embedding=address(weights.embedding),
            embedding_is_bf16=weights.embedding.dtype == torch.bfloat16,
            hidden=weights.embedding.shape[1],
            final_norm=address(weights.final_norm),
            cos_sin=address(weights.cos_sin),
            query_heads=shape.num_heads,
            kv_heads=shape.num_kv_heads,
            dim=shape.head_dim,
            eps=shape.norm_eps,
            scale=shape.scale,
        )
        self._forward = load().carousel_forward
        self._scratch_bytes = load().carousel_scratch_bytes
        self._scratch = own_pages((0,), torch.uint8)
        self._cache: tuple[tuple[Tensor, ...], tuple[Tensor, ...]] = ((), ())  # keys and values of the layers
        self._places = _addresses(()), _addresses(())  # theirs

    @staticmethod
    def can_do(shape: DecoderShape, weights: DecoderWeights) -> bool:
        """Whether every part of this decoder is computed in C++."""
        linears = [one for layer in weights.layers for one in (layer.qkv, layer.out, layer.gate_up, layer.down)]
        fits = load().carousel_attention_fits(shape.head_dim, shape.num_heads // shape.num_kv_heads)
        narrow = weights.embedding.dtype in (torch.float32, torch.bfloat16)
        return bool(fits) and narrow and all(isinstance(linear, CpuLinear) for linear in linears)

    def __call__(self, inputs: StepInputs, k: tuple[Tensor, ...], v: tuple[Tensor, ...]) -> Tensor:
        """-> hidden states [T, H] float32 after the last norm."""
        rows = inputs.token_ids.shape[0]
        out = torch.empty((rows, self._decoder.hidden))
        if (size := self._scratch_bytes(self._decoder, rows)) > self._scratch.shape[0]:
            self._scratch = own_pages((size,), torch.uint8)
        if k is not self._cache[0] or v is not self._cache[1]:
            self._cache, self._places = (k, v), (_addresses(k), _addresses(v))
        starts = (ctypes.c_int64 * len(inputs.prefill_query_starts))(*inputs.prefill_query_starts)
        contexts = (ctypes.c_int32 * len(inputs.prefill_context_lens))(*inputs.prefill_context_lens)
        decode_table, chunk_table = inputs.decode_page_table.contiguous(), inputs.prefill_page_table.contiguous()
        step = structs.Step(
            tokens=address(inputs.token_ids),
            positions=address(inputs.positions),
            slots=address(inputs.slots),
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
            k=ctypes.addressof(self._places[0]),
            v=ctypes.addressof(self._places[1]),
            cache_is_bf16=k[0].dtype == torch.bfloat16,
            page_size=k[0].shape[2],
            page_stride=k[0].stride(0),
            scratch=address(self._scratch),
            out=address(out),
        )
        self._forward(self._decoder, step)
        return out


def _addresses(tensors: tuple[Tensor, ...]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))


def _layer(layer: DecoderLayer, window: int) -> structs.Layer:
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
    )


def _linear(layer: Linear) -> structs.Linear:
    assert isinstance(layer, CpuLinear)
    return layer.struct
