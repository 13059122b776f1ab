"""Instructions that compute from the registers of one thread. Sources: PTX ISA, "Integer Arithmetic", "Floating Point",
"Comparison and Selection", "Logic and Shift", "Data Movement and Conversion".

Approximate functions are computed in float64 and rounded; subnormal numbers are kept. A chip may differ by as much as
PTX allows.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.ptx.numbers import TYPES, Array, bf16_to_float32, columns, float32_to_bf16
from tests.ptx.operands import Operands
from tests.ptx.program import PtxError, Statement
from tests.ptx.state import Execute, Mask, State

Compute = Callable[..., Array]

IGNORED_QUALIFIERS = {
    "lo",
    "rn",
    "full",
    "approx",
    "ftz",
}  # without effect here; others are part of a name below


def _fma(x: Array, y: Array, z: Array) -> Array:
    """Multiply and add. The product of two float32 is exact in float64; rounding the sum twice hardly ever differs from
    once. Products of float64 are rounded to the widest float of this machine."""
    wide = np.float64 if x.dtype == np.float32 else np.longdouble
    return (np.multiply(x, y, dtype=wide) + z).astype(x.dtype)


def _in_float64(function: Callable[[Array], Array]) -> Compute:
    return lambda x: function(x.astype(np.float64)).astype(np.float32)


def _divide_int32(x: Array, y: Array) -> Array:
    """Divide int32, rounding towards zero. Division by 0 gives an unspecified number on a chip; here it gives x."""
    x, y = x.astype(np.int64), np.where(y == 0, 1, y).astype(np.int64)
    return (np.abs(x) // np.abs(y) * np.sign(x) * np.sign(y)).astype(np.int32)


def _remainder(x: Array, y: Array) -> Array:
    return np.fmod(x, np.where(y == 0, 1, y).astype(y.dtype))


def _multiply_bf16_pairs(x: Array, y: Array) -> Array:
    """Multiply pairs of bfloat16."""
    return float32_to_bf16(bf16_to_float32(x.view(np.uint16)) * bf16_to_float32(y.view(np.uint16))).view(np.uint32)


def _shift_left(x: Array, by: Array) -> Array:
    """Shift left; a shift by the width or more gives 0."""
    bits = 8 * x.dtype.itemsize
    return np.where(by >= bits, 0, x << np.minimum(by, bits - 1).astype(x.dtype)).astype(x.dtype)


def _shift_right(x: Array, by: Array) -> Array:
    """Shift right; a shift by the width or more gives 0 or the sign."""
    bits = 8 * x.dtype.itemsize
    shifted = x >> np.minimum(by, bits - 1).astype(x.dtype)
    return shifted if x.dtype.kind == "i" else np.where(by >= bits, 0, shifted).astype(x.dtype)


def _extract_bits(x: Array, first: Array, length: Array) -> Array:
    """Extract a bit field of at most 32 bits, sign-extended if x is signed."""
    wide = x.astype(np.int64) >> first & (np.int64(1) << length) - 1
    sign = (wide >> np.maximum(length, 1) - 1 & 1) if x.dtype.kind == "i" else 0
    return (wide - (sign << length)).astype(x.dtype)


def _permute_bytes(x: Array, y: Array, selectors: Array) -> Array:
    """Select four of the eight bytes of y and x; the fourth bit of a selector gives a byte's sign instead."""
    both = x.astype(np.uint64) | y.astype(np.uint64) << np.uint64(32)
    out = np.zeros_like(x)
    for index in range(4):
        chosen = selectors >> 4 * index & 15
        byte = (both >> (chosen & 7).astype(np.uint64) * np.uint64(8)).astype(np.uint32) & 255
        out |= np.where(chosen & 8, (byte >> 7) * 255, byte).astype(np.uint32) << 8 * index
    return out


def _wide_product(x: Array, y: Array) -> Array:
    return np.multiply(x, y, dtype=f"{x.dtype.kind}{2 * x.dtype.itemsize}")


def _to_int64(x: Array) -> Array:
    """Truncate floats to int64; NaN becomes 0, and out-of-range values saturate."""
    inside = (x >= -(2.0**63)) & (x < 2.0**63)
    limit = np.where(x > 0, np.iinfo(np.int64).max, np.where(np.isnan(x), 0, np.iinfo(np.int64).min))
    return np.where(inside, np.where(inside, x, 0).astype(np.int64), limit)


def _cast(kind: str) -> Compute:
    return lambda x: x.astype(TYPES[kind], copy=False)


# Name: function, and the types that it supports.
FORMS: dict[str, tuple[Compute, str]] = {
    "add": (np.add, "s32 s64 f32 f64"),
    "sub": (np.subtract, "s32 s64 f32 f64"),
    "mul": (np.multiply, "s32 s64 f32 f64"),
    "mul.wide": (_wide_product, "s16 u16 s32 u32"),
    "mul.hi": (lambda x, y: (_wide_product(x, y) >> 32).astype(x.dtype), "s32 u32"),
    "mad": (lambda x, y, z: x * y + z, "s32 s64"),
    "mad.wide": (lambda x, y, z: _wide_product(x, y) + z, "s32 u32"),
    "fma": (_fma, "f32 f64"),
    "div": (np.divide, "f32 f64"),
    "rem": (_remainder, "u32 s64"),
    "min": (np.fmin, "s32 u32 s64 f32"),
    "max": (np.fmax, "s32 s64 f32 f64"),
    "neg": (np.negative, "s32 f32 f64"),
    "abs": (np.abs, "f32"),
    "and": (np.bitwise_and, "pred b16 b32 b64"),
    "or": (np.bitwise_or, "pred b16 b32 b64"),
    "xor": (np.bitwise_xor, "b32"),
    "not": (np.invert, "pred b32"),
    "shl": (_shift_left, "b16 b32 b64"),
    "shr": (_shift_right, "s16 u16 s32 u32 s64 u64"),
    "selp": (lambda x, y, chosen: np.where(chosen, x, y), "b16 b32 b64 f32 f64"),
    "mov": (lambda x: x, "pred b16 u16 b32 u32 b64 u64"),
    "bfe": (_extract_bits, "s32 u32"),
    "prmt": (_permute_bytes, "b32"),
    "popc": (np.bitwise_count, "b32"),
    "ex2": (_in_float64(np.exp2), "f32"),
    "lg2": (_in_float64(np.log2), "f32"),
    "sqrt": (np.sqrt, "f64"),
    "rsqrt": (_in_float64(lambda x: 1 / np.sqrt(x)), "f32"),
}
CASTS = (
    "f32.bf16 f32.f16 f64.f32 f16.f32 f32.s16 f32.u16 f32.s32 f32.u32 f32.f64 "
    "f64.s32 f64.s64 s64.s32 u16.u32 u32.u16 u32.u64 u64.u32"
)
OPERATIONS: dict[str, Compute] = {
    **{f"{name}.{kind}": compute for name, (compute, kinds) in FORMS.items() for kind in kinds.split()},
    **{f"cvt.{cast}": _cast(cast.split(".")[0]) for cast in CASTS.split()},
    "div.s32": _divide_int32,
    "mul.bf16x2": _multiply_bf16_pairs,
    "cvt.s16.s8": lambda x: x.astype(np.uint8).view(np.int8).astype(np.int16),
    "cvt.rzi.s64.f32": _to_int64,
    "cvt.rzi.s64.f64": _to_int64,
    "cvt.rzi.f64.f64": np.trunc,
    "cvt.bf16.f32": float32_to_bf16,
    "cvt.bf16x2.f32": lambda high, low: float32_to_bf16(low) | float32_to_bf16(high).astype(np.uint32) << 16,
    "cvt.f16x2.f32": lambda high, low: np.stack((low, high), axis=1).astype(np.float16).view(np.uint32).ravel(),
}
# Operand types that differ from the type in the opcode; {kind} is the latter.
OPERAND_TYPES = {
    "mad.wide": "{kind} {kind} {kind[0]}64",
    "shl": "{kind} u32",
    "shr": "{kind} u32",
    "selp": "{kind} {kind} pred",
    "cvt.s16": "u16",
    "bfe": "{kind} u32 u32",
}
COMPARISONS = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip


def arithmetic(statement: Statement, operands: Operands) -> Execute:
    """Return the effect of a statement. Raises PtxError for an instruction that is not in this file."""
    name = ".".join(part for part in statement.opcode if part not in IGNORED_QUALIFIERS)
    opcode, kind = statement.opcode, statement.opcode[-1]
    target, *sources = statement.operands
    if name in ("mov.b32", "mov.b64") and "{" in statement.text:
        return _repack(target, sources[0], kind, operands)
    if opcode[0] == "setp":
        return _apply(_comparison(opcode[1], kind), target, sources, [kind, kind], operands)
    if name not in OPERATIONS:
        raise PtxError(f"unsupported operation {name}")
    kinds = OPERAND_TYPES.get(name.rpartition(".")[0], " ".join(["{kind}"] * len(sources))).format(kind=kind)
    return _apply(OPERATIONS[name], target, sources, kinds.split(), operands)


def _apply(compute: Compute, target: str, sources: list[str], kinds: list[str], operands: Operands) -> Execute:
    write = operands.target(target)
    match [operands.source(*pair) for pair in zip(sources, kinds, strict=True)]:
        case [x]:
            return lambda state, mask: write(state, compute(x(state)), mask)
        case [x, y]:
            return lambda state, mask: write(state, compute(x(state), y(state)), mask)
        case [x, y, z]:
            return lambda state, mask: write(state, compute(x(state), y(state), z(state)), mask)
        case others:
            raise PtxError(f"{len(others)} operands for {target}")


def _comparison(name: str, kind: str) -> Compute:
    """Return a comparison. For floats `lt` is false if an operand is NaN, `ltu` is true."""
    exact = kind in ("f32", "f64", "bf16", "f16")
    if exact and name in ("nan", "num"):
        return lambda x, y: (np.isnan(x) | np.isnan(y)) == (name == "nan")
    if exact and name == "ne":
        return lambda x, y: (x != y) & ~np.isnan(x) & ~np.isnan(y)
    if exact and name.endswith("u") and name[:2] in COMPARISONS:
        compare = COMPARISONS[name[:2]]
        return lambda x, y: compare(x, y) | np.isnan(x) | np.isnan(y)
    if name not in COMPARISONS:
        raise PtxError(f"unsupported comparison of {kind}: {name}")
    return COMPARISONS[name]


def _repack(target: str, source: str, kind: str, operands: Operands) -> Execute:
    """Pack a register from parts, low part first, or unpack it."""
    if target.startswith("{"):
        whole, writes = operands.source(source, kind), operands.targets(target)
        part = f"u{TYPES[kind].itemsize // len(writes)}"

        def unpack(state: State, mask: Mask) -> None:
            pieces = columns(whole(state).view(part).reshape(-1, len(writes)))
            for write, piece in zip(writes, pieces, strict=True):
                write(state, piece, mask)

        return unpack
    write, count = operands.target(target), source.count(",") + 1
    pieces = operands.sources(source, f"b{8 * TYPES[kind].itemsize // count}")
    return lambda state, mask: write(
        state, np.stack([piece(state) for piece in pieces], axis=1).view(TYPES[kind]).ravel(), mask
    )
