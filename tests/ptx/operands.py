"""Operands of statements as functions of a block's state, built once per program."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from tests.ptx.numbers import REGISTERS, TYPES, WORDS, Array, bf16_to_float32
from tests.ptx.program import PtxError, Statement, parts
from tests.ptx.state import Execute, Mask, Source, State, Target

INDICES = [f"%{name}.{axis}" for name in ("ctaid", "nctaid") for axis in "xyz"]
SHARED = "global_smem"  # start of Triton's shared memory: address 0


class Operands:
    """Register table of a program of `threads` threads. The first registers are the thread index and INDICES."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.kinds = [np.dtype("u4")] * (1 + len(INDICES))
        self._thread = np.arange(threads, dtype=np.uint32)
        self._zeros = {kind: np.zeros(threads, kind) for kind in REGISTERS.values()}
        self._numbers = {name: number for number, name in enumerate(["%tid.x", *INDICES])}
        self._sources: dict[tuple[str, str], Source] = {}

    def registers(self, indices: list[int]) -> list[Array]:
        """Return the registers at the start of a block. They are never written in place, so zero registers share
        memory. `indices`: values of INDICES."""
        first = [self._thread, *(np.full(self.threads, index, np.uint32) for index in indices)]
        return first + [self._zeros[kind] for kind in self.kinds[len(first) :]]

    def source(self, text: str, kind: str) -> Source:
        """Return a reader of a register or constant as a PTX type; bfloat16 is read as float32. Raises PtxError."""
        if (text, kind) not in self._sources:
            self._sources[text, kind] = self._source(text, kind)
        return self._sources[text, kind]

    def target(self, text: str) -> Target:
        """Return a writer of a register: values of the register's size, or integers of any size. Raises PtxError."""
        if text == "_":
            return lambda state, value, mask: None
        number = self._number(text)
        stored = self.kinds[number]

        def write(state: State, value: Array, mask: Mask) -> None:
            if value.dtype != stored:
                assert value.dtype.itemsize == stored.itemsize or value.dtype.kind in "iu"
                same = value.dtype.itemsize == stored.itemsize
                value = value.view(stored) if same else value.astype(stored)
            state.registers[number] = value if mask is None else np.where(mask, value, state.registers[number])

        return write

    def sources(self, text: str, kind: str) -> list[Source]:
        """Return the readers of a vector."""
        return [self.source(part, kind) for part in parts(text)]

    def targets(self, text: str) -> list[Target]:
        """Return the writers of a vector."""
        return [self.target(part) for part in parts(text)]

    def address(self, text: str) -> Source:
        """Return a reader of the address [%rd1 + 8], [%r1] or [global_smem+8], as int64. Raises PtxError."""
        found = re.fullmatch(r"\[\s*(%rd?\d+|global_smem)\s*(?:\+\s*(-?\d+))?\s*\]", text)
        if found is None:
            raise PtxError(f"unsupported address: {text}")
        base, offset = found[1], int(found[2] or 0)
        numbers = self.source(base, "s64" if base.startswith("%rd") else "u32")
        return lambda state: numbers(state).astype(np.int64) + offset

    def _source(self, text: str, kind: str) -> Source:
        if kind == "bf16":
            words = self.source(text, "u16")
            return lambda state: bf16_to_float32(words(state))
        dtype = TYPES[kind]
        if not text.startswith("%"):
            constant = np.full(self.threads, _constant(text, dtype))
            return lambda state: constant
        number = self._number(text)
        stored = self.kinds[number]
        if dtype == stored:
            return lambda state: state.registers[number]
        if dtype.itemsize == stored.itemsize:
            return lambda state: state.registers[number].view(dtype)
        if dtype.itemsize < stored.itemsize and stored.kind == "u":
            low = WORDS[dtype.itemsize]
            return lambda state: state.registers[number].astype(low).view(dtype)
        raise PtxError(f"operand cannot be read as {kind}: {text}")

    def _number(self, name: str) -> int:
        if name not in self._numbers:
            found = re.fullmatch(r"%(p|rs|rd|r)\d+", name)
            if found is None:
                raise PtxError(f"unknown register: {name}")
            self._numbers[name] = len(self.kinds)
            self.kinds.append(REGISTERS[found[1]])
        return self._numbers[name]


Builder = Callable[[Statement, Operands], Execute]  # raises PtxError


def _constant(text: str, dtype: np.dtype) -> Array:
    """Parse a constant of a dtype: a float by its bits (0f3F800000), an integer, or an address in shared memory."""
    if text[:2] in ("0f", "0d"):
        return np.array(int(text[2:], 16), WORDS[dtype.itemsize]).view(dtype)
    number = int(text.removeprefix(SHARED) or 0) if text.startswith(SHARED) else int(text.removesuffix("U"), 0)
    if dtype.kind == "b":
        return np.array(bool(number))
    return np.array(number & (1 << 8 * dtype.itemsize) - 1, WORDS[dtype.itemsize]).view(dtype)
