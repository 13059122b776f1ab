"""ctypes mirrors of the structures in `source`, field by field."""

from __future__ import annotations

import ctypes
import enum
from typing import Any

_int, _float, _pointer = ctypes.c_int64, ctypes.c_float, ctypes.c_void_p


PANEL = 32  # outputs that are computed together (source/panel.h)


class Layout(enum.IntEnum):
    """Layout of a packed weight (source/linear.h)."""

    FLOAT_PANELS = 0
    BFLOAT16_PANELS = 1
    BFLOAT16_TILES = 2
    BFLOAT16_PAIRS = 3
    QUANTIZED = 4
    FLOAT8_PANELS = 5


class Linear(ctypes.Structure):
    """Packed linear layer (source/linear.h)."""

    _fields_ = (
        *((name, _pointer) for name in ("packed", "bias")),
        *((name, _int) for name in ("outputs", "inputs", "layout", "parts", "group")),
    )


class QuantSegment(ctypes.Structure):
    """Outputs of one quantised format (source/quantized.h)."""

    _fields_ = (
        ("packed", _pointer),
        *((name, _int) for name in ("end", "bits", "offset", "group", "shared")),
        *((name, _int) for name in ("is_float16", "has_minimums", "has_integer_scales", "has_zeros", "has_table")),
        ("table", ctypes.c_uint8 * 16),
    )


class Planes(ctypes.Structure):
    """Parts of a quantised matrix (source/quantized.h)."""

    _fields_ = tuple(
        (name, _pointer) for name in ("codes", "scales", "minimums", "group_scales", "group_minimums", "zeros")
    )


class Rope(ctypes.Structure):
    """Arguments of rotary embedding and cache writes (source/elementwise.h)."""

    _fields_ = (
        *((name, _pointer) for name in ("q", "k", "v")),
        *((name, _int) for name in ("q_stride", "k_stride", "v_stride")),
        *((name, _pointer) for name in ("cos_sin", "k_cache", "v_cache", "q_norm", "k_norm")),
        ("eps", _float),
        *((name, _int) for name in ("query_heads", "kv_heads", "dim", "rotary")),
        *((name, _int) for name in ("page_size", "page_stride", "is_bf16")),
    )


class Attention(ctypes.Structure):
    """Arguments of attention (source/attention.h)."""

    _fields_ = (
        *((name, _pointer) for name in ("q", "k", "v", "page_table")),
        *((name, _int) for name in ("width", "chunks", "first")),
        *((name, _pointer) for name in ("query_starts", "context_lens")),
        *((name, _int) for name in ("query_heads", "kv_heads", "dim", "page_size", "page_stride", "window", "is_bf16")),
        ("scale", _float),
        ("allow_bf16_activations", _int),
    )


class Masking(ctypes.Structure):
    """Arguments of masking (source/mask.h)."""

    _fields_ = (
        *((name, _pointer) for name in ("logits", "rows", "masks", "is_empty")),
        *((name, _int) for name in ("count", "vocabulary")),
    )


class Penalties(ctypes.Structure):
    """Arguments of penalties (source/penalties.h)."""

    _fields_ = (
        *((name, _pointer) for name in ("logits", "rows", "slots", "counts", "in_prompt", "records")),
        *((name, _int) for name in ("count", "vocabulary")),
    )


class Sampling(ctypes.Structure):
    """Arguments of sampling (source/sample.h)."""

    _fields_ = (
        ("logits", _pointer),
        *((name, _int) for name in ("rows", "vocabulary")),
        *((name, _pointer) for name in ("records", "positions", "ids")),
    )


class Layer(ctypes.Structure):
    """Decoder layer (source/decoder.h)."""

    _fields_ = (
        ("input_norm", _pointer),
        ("qkv", Linear),
        ("q_norm", _pointer),
        ("k_norm", _pointer),
        ("out", Linear),
        ("mlp_norm", _pointer),
        ("gate_up", Linear),
        ("down", Linear),
        ("window", _int),
        ("rotary", _int),
    )


class Decoder(ctypes.Structure):
    """Decoder (source/decoder.h)."""

    _fields_ = (
        ("layers", ctypes.POINTER(Layer)),
        ("num_layers", _int),
        ("embedding", _pointer),
        ("embedding_is_bf16", _int),
        ("packed_embedding", Linear),
        ("hidden", _int),
        ("final_norm", _pointer),
        ("cos_sin", _pointer),
        *((name, _int) for name in ("query_heads", "kv_heads", "dim")),
        *((name, _float) for name in ("eps", "scale", "embedding_multiplier", "residual_multiplier", "logits_divisor")),
        ("allow_bf16_activations", _int),
    )


class Step(ctypes.Structure):
    """Inputs of one forward pass (source/decoder.h)."""

    _fields_ = (
        *((name, _pointer) for name in ("tokens", "positions", "slot_mapping")),
        *((name, _int) for name in ("rows", "decodes")),
        ("decode_table", _pointer),
        ("decode_width", _int),
        ("decode_contexts", _pointer),
        ("chunk_table", _pointer),
        ("chunk_width", _int),
        ("chunks", _int),
        *((name, _pointer) for name in ("chunk_starts", "chunk_contexts", "k", "v")),
        *((name, _int) for name in ("cache_is_bf16", "page_size", "page_stride")),
        *((name, _pointer) for name in ("scratch", "out")),
    )


class Slots(ctypes.Structure):
    """Batch slots (source/step.h)."""

    _fields_ = (
        ("tokens", _pointer),
        ("max_tokens", _int),
        ("page_table", _pointer),
        ("max_pages", _int),
        *((name, _pointer) for name in ("lengths", "last_tokens", "records")),
    )


class Chunk(ctypes.Structure):
    """Prefill chunk (source/step.h)."""

    _fields_ = tuple((name, _int) for name in ("slot", "start", "length", "samples"))


class Work(ctypes.Structure):
    """Contents of one step (source/step.h)."""

    _fields_ = (
        ("decodes", _pointer),
        ("num_decodes", _int),
        ("chunks", _pointer),
        ("num_chunks", _int),
        ("drafts", _pointer),
        ("withheld", _pointer),
        ("num_withheld", _int),
        *((name, _pointer) for name in ("masked", "masks")),
        ("num_masked", _int),
        *((name, _pointer) for name in ("k", "v")),
        *((name, _int) for name in ("cache_is_bf16", "page_size", "page_stride")),
        *((name, _pointer) for name in ("scratch", "ids", "logits", "has_nan")),
    )


def address(tensor: Any) -> int | None:
    """Return the address of a tensor's first element, or None for None."""
    return None if tensor is None else tensor.data_ptr()
