"""Tensors of a GGUF file in torch: quantised matrices as their codes and scales, others as they are stored.

The layouts of the blocks are those of ggml-common.h of llama.cpp. Nothing is rounded: `StoredMatrix.dequantize()` has
the bits of llama.cpp's own float32 formula, for all types.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from engine.model_files.gguf import read_rows
from engine.model_files.gguf_header import TensorInfo
from kernels.quantization import PLANES, QuantScheme, StoredMatrix, dequantize_into

IQ4_TABLE = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
MXFP4_TABLE = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # twice the values, with half the scale
PLAIN_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Content of n blocks: fields as of `StoredMatrix`, with n rows."""

    codes: Tensor
    scales: Tensor
    minimums: Tensor | None = None
    group_scales: Tensor | None = None
    group_minimums: Tensor | None = None

    def planes(self) -> dict[str, Tensor]:
        """Return the tensors that are present, by field."""
        return {name: plane for name in PLANES if (plane := getattr(self, name, None)) is not None}


@dataclass(frozen=True, slots=True)
class _Format:
    """Type of quantised blocks. unpack: from uint8 [n, bytes of a block]."""

    scheme: QuantScheme
    unpack: Callable[[Tensor], _Blocks]


@dataclass(frozen=True, slots=True)
class GGUFMatrix:
    """Quantised matrix in a file. heads: number of heads whose rows are put in halves; None: of none."""

    info: TensorInfo
    format: _Format
    heads: int | None = None

    @property
    def scheme(self) -> QuantScheme:
        return self.format.scheme

    @property
    def shape(self) -> tuple[int, int]:
        """Return the numbers of outputs and inputs."""
        return self.info.rows, self.info.shape[-1]

    def rows(self, first: int, last: int) -> StoredMatrix:
        """Read the rows first..last-1. Raises ModelFileError if the file was changed."""
        if self.heads is None:
            return self._stored(first, last)
        size = self.info.rows // self.heads
        begin, end = first // size, -(-last // size)  # heads
        heads = self._stored(begin * size, end * size)
        planes = {name: in_halves(plane, end - begin) for name, plane in heads.planes().items()}
        return StoredMatrix(self.scheme, **planes).rows(first - begin * size, last - begin * size)

    def _stored(self, first: int, last: int) -> StoredMatrix:
        blocks = self.format.unpack(_read(self.info, first, last).view(-1, self.info.type.size))
        planes = {name: plane.reshape(last - first, -1) for name, plane in blocks.planes().items()}
        return StoredMatrix(self.scheme, **planes)


def quantized_matrix(info: TensorInfo, heads: int | None = None) -> GGUFMatrix:
    """Return a quantised matrix. heads: number of heads whose rows are put in halves, see `in_halves`.

    Raises ModelFileError for a tensor that is not a matrix, or of a type whose codes have no scheme.
    """
    known = FORMATS.get(info.type.name)
    if known is None:
        raise info.error(_unsupported(info))
    if len(info.shape) != 2:
        raise info.error(f"has shape {info.shape}, but a quantised tensor must be a matrix; convert the model again")
    return GGUFMatrix(info, known, heads)


def plain_tensor(info: TensorInfo) -> Tensor:
    """Read a tensor of type F32, F16 or BF16 in this type. Raises ModelFileError for another one."""
    dtype = PLAIN_DTYPES.get(info.type.name)
    if dtype is None:
        raise info.error(f"has type {info.type.name}, but must be {', '.join(PLAIN_DTYPES)}; convert the model again")
    return _read(info, 0, info.rows).view(dtype).view(info.shape)


def dequantized(info: TensorInfo) -> Tensor:
    """Read a tensor as bfloat16, of any supported type. Raises ModelFileError for another one."""
    if info.type.name in PLAIN_DTYPES:
        return plain_tensor(info).to(torch.bfloat16)
    known = FORMATS.get(info.type.name) or DEQUANTIZED_FORMATS.get(info.type.name)
    if known is None:
        raise info.error(_unsupported(info))
    out = torch.empty(info.shape, dtype=torch.bfloat16)
    dequantize_into(GGUFMatrix(info, known), out.view(info.rows, -1))
    return out


def has_codes(info: TensorInfo) -> bool:
    """Return whether `quantized_matrix` knows the type of this tensor."""
    return info.type.name in FORMATS


def in_halves(rows: Tensor, num_heads: int) -> Tensor:
    """Return `rows` [heads x head size, ...] with the even rows of each head before the odd ones.

    The rotation of GGUF's Llama is over neighbouring dimensions of a head, that of a checkpoint over its two halves.
    """
    return rows.reshape(num_heads, -1, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def magnitude_bound(weights: StoredMatrix | Tensor) -> float:
    """Return an upper bound of the absolute values, from the scales alone; NaN or infinity if a value may be.

    For a plain tensor it is the largest absolute value. An integer has at most the magnitude of the scheme's codes.
    """
    if isinstance(weights, Tensor):
        return float(weights.abs().amax()) if weights.numel() else 0.0
    scheme, minimums = weights.scheme, weights.effective_minimums()
    values = scheme.table or (0, (1 << scheme.bits) - 1)
    offsets = (scheme.offset,) if weights.zeros is None else (0, int(weights.zeros.max()))
    most = max(abs(value - offset) for value in values for offset in offsets)
    bounds = weights.effective_scales().abs() * most
    return float((bounds if minimums is None else bounds + minimums.abs()).amax())


def check_finite(info: TensorInfo, weights: StoredMatrix | Tensor) -> None:
    """Raise ModelFileError if `weights`, which are those of `info`, have a value or scale of NaN or infinity."""
    if not math.isfinite(magnitude_bound(weights)):
        raise info.error("contains NaN or infinity: the file is damaged; fetch it again")


def _unsupported(info: TensorInfo) -> str:
    names = ", ".join((*PLAIN_DTYPES, *FORMATS, *DEQUANTIZED_FORMATS))
    return f"has type {info.type.name}, but the supported types are {names}; fetch the model in one of these"


def _read(info: TensorInfo, first: int, last: int) -> Tensor:
    return torch.frombuffer(read_rows(info, first, last), dtype=torch.uint8)


def _half(blocks: Tensor, at: int) -> Tensor:
    """Return the float16 at byte `at` of each block, [n, 1]."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16)


def _fields(packed: Tensor, run: int, bits: int) -> Tensor:
    """Return fields of `bits` from uint8 [n, bytes], [n, bytes x 8 / bits].

    Of each run of `run` bytes, the lowest fields of all bytes come first, then the next ones.
    """
    runs = packed.contiguous().view(len(packed), -1, run)  # operations on whole tensors are the fastest
    found = [(runs >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    return torch.stack(found, 2).view(len(packed), -1)


def _bit_plane(packed: Tensor) -> Tensor:
    """Return the bits of 4 bytes, lowest first, [n, 32]."""
    return ((packed.unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8)) & 1).view(len(packed), -1)


def _q4(blocks: Tensor, *, has_minimum: bool) -> _Blocks:
    """Q4_0 and Q4_1: scale, minimum, 32 codes. IQ4_NL is stored as Q4_0."""
    start = 4 if has_minimum else 2
    minimums = -_half(blocks, 2) if has_minimum else None  # the file's is added
    return _Blocks(_fields(blocks[:, start:], 16, 4), _half(blocks, 0), minimums)


def _q5(blocks: Tensor, *, has_minimum: bool) -> _Blocks:
    """Q5_0 and Q5_1: scale, minimum, the highest bits of 32 codes, their low bits."""
    start = 4 if has_minimum else 2
    high = _bit_plane(blocks[:, start : start + 4])
    minimums = -_half(blocks, 2) if has_minimum else None
    return _Blocks(_fields(blocks[:, start + 4 :], 16, 4) | (high << 4), _half(blocks, 0), minimums)


def _q8_0(blocks: Tensor) -> _Blocks:
    """Scale, 32 signed codes, which become unsigned by flipping the sign bit."""
    return _Blocks(blocks[:, 2:] ^ 0x80, _half(blocks, 0))


def _mxfp4(blocks: Tensor) -> _Blocks:
    """Exponent (E8M0), 32 codes. Half of 2^(e - 127) is a float32 with exponent e - 1, subnormal for e of 0 and 1."""
    exponents = blocks[:, :1].to(torch.int32)
    bits = torch.where(exponents < 2, 0x00200000 << exponents.clamp(max=1), (exponents - 1).clamp(min=0) << 23)
    return _Blocks(_fields(blocks[:, 1:], 16, 4), bits.view(torch.float32))


def _six_bit_pairs(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Return 8 scales and 8 minimums of 6 bits from uint8 [n, 12], as Q4_K and Q5_K pack them."""
    first, second, mixed = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = torch.cat((first & 63, (mixed & 15) | ((first >> 2) & 48)), 1)
    minimums = torch.cat((second & 63, (mixed >> 4) | ((second >> 2) & 48)), 1)
    return scales.view(torch.int8), minimums


def _q4_k(blocks: Tensor) -> _Blocks:
    """Shared scale, shared minimum, 8 pairs of 6 bits, 256 codes."""
    scales, minimums = _six_bit_pairs(blocks[:, 4:16])
    return _Blocks(_fields(blocks[:, 16:], 32, 4), _half(blocks, 0), _half(blocks, 2), scales, minimums)


def _q5_k(blocks: Tensor) -> _Blocks:
    """As Q4_K, with the highest bits of all codes before their low bits."""
    scales, minimums = _six_bit_pairs(blocks[:, 4:16])
    codes = _fields(blocks[:, 48:], 32, 4) | (_fields(blocks[:, 16:48], 32, 1) << 4)
    return _Blocks(codes, _half(blocks, 0), _half(blocks, 2), scales, minimums)


def _q6_k(blocks: Tensor) -> _Blocks:
    """Low 4 bits and high 2 bits of 256 codes, 16 signed scales, shared scale."""
    codes = _fields(blocks[:, :128], 64, 4) | (_fields(blocks[:, 128:192], 32, 2) << 4)
    return _Blocks(codes, _half(blocks, 208), group_scales=blocks[:, 192:208].contiguous().view(torch.int8))


def _iq4_xs(blocks: Tensor) -> _Blocks:
    """Shared scale, high 2 bits and low 4 bits of 8 scales, 256 codes."""
    high, low = blocks[:, 2:4], blocks[:, 4:8]
    scales = _fields(low, 1, 4) | (_fields(high, 1, 2) << 4)
    return _Blocks(_fields(blocks[:, 8:], 16, 4), _half(blocks, 0), group_scales=scales.view(torch.int8) - 32)


def _q2_k(blocks: Tensor) -> _Blocks:
    """16 pairs of 4 bits (scale, minimum), 256 codes, shared scale, shared minimum."""
    pairs = blocks[:, :16]
    codes = _fields(blocks[:, 16:80], 32, 2)
    return _Blocks(codes, _half(blocks, 80), _half(blocks, 82), (pairs & 15).view(torch.int8), pairs >> 4)


def _q3_k(blocks: Tensor) -> _Blocks:
    """High bits of 256 codes, their low 2 bits, 16 scales of 6 bits, shared scale. A clear high bit subtracts 4."""
    codes = _fields(blocks[:, 32:96], 32, 2) | (_fields(blocks[:, :32], 32, 1) << 2)
    scales = _fields(blocks[:, 96:104], 8, 4) | (_fields(blocks[:, 104:108], 4, 2) << 4)
    return _Blocks(codes, _half(blocks, 108), group_scales=scales.view(torch.int8) - 32)


# By the name of the type: those that kernels can multiply with, and those of fewer bits than they support.
FORMATS = {
    "Q4_0": _Format(QuantScheme("Q4_0", 4, 32, offset=8), partial(_q4, has_minimum=False)),
    "Q4_1": _Format(QuantScheme("Q4_1", 4, 32, has_minimums=True), partial(_q4, has_minimum=True)),
    "Q5_0": _Format(QuantScheme("Q5_0", 5, 32, offset=16), partial(_q5, has_minimum=False)),
    "Q5_1": _Format(QuantScheme("Q5_1", 5, 32, has_minimums=True), partial(_q5, has_minimum=True)),
    "Q8_0": _Format(QuantScheme("Q8_0", 8, 32, offset=128), _q8_0),
    "Q4_K": _Format(QuantScheme("Q4_K", 4, 32, shared=256, has_minimums=True), _q4_k),
    "Q5_K": _Format(QuantScheme("Q5_K", 5, 32, shared=256, has_minimums=True), _q5_k),
    "Q6_K": _Format(QuantScheme("Q6_K", 6, 16, shared=256, offset=32), _q6_k),
    "IQ4_NL": _Format(QuantScheme("IQ4_NL", 4, 32, table=IQ4_TABLE), partial(_q4, has_minimum=False)),
    "IQ4_XS": _Format(QuantScheme("IQ4_XS", 4, 32, shared=256, table=IQ4_TABLE), _iq4_xs),
    "MXFP4": _Format(QuantScheme("MXFP4", 4, 32, table=MXFP4_TABLE, scale_dtype=torch.float32), _mxfp4),
}
DEQUANTIZED_FORMATS = {
    "Q2_K": _Format(QuantScheme("Q2_K", 2, 16, shared=256, has_minimums=True), _q2_k),
    "Q3_K": _Format(QuantScheme("Q3_K", 3, 16, shared=256, offset=4), _q3_k),
}
