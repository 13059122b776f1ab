"""Matrix products, and the instructions that load and store their operands. Sources: PTX ISA, "Matrix
multiply-accumulate operation using mma instruction", "Asynchronous Warpgroup Level Matrix Instructions".

Each lane holds one word of a matrix of 8 rows and 4 words of 32 bits, in row order. Larger matrices consist of several
of these. A product is computed in float64 and rounded once. BUILDERS is as in `tests.ptx.movement`.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from tests.ptx.memory import WARP
from tests.ptx.numbers import WORDS, Array, bf16_to_float32
from tests.ptx.operands import Builder, Operands
from tests.ptx.program import PtxError, Statement
from tests.ptx.state import Execute, Mask, State

WARPGROUP = 4  # warps of a warpgroup
ROW_BYTES = 16  # of a row of 8 numbers


def _whole_warps(state: State, mask: Mask) -> Array:
    """Return the indices of warps in which all lanes execute an instruction."""
    return np.arange(state.threads // WARP) if mask is None else np.flatnonzero(mask.reshape(-1, WARP).all(axis=1))


def _load_matrices(statement: Statement, operands: Operands) -> Execute:
    """Load matrices; 8 lanes give the row addresses of each. With .trans, lanes receive columns."""
    writes, address = operands.targets(statement.operands[0]), operands.address(statement.operands[1])
    transposed, text = "trans" in statement.opcode, statement.text

    def load(state: State, mask: Mask) -> None:
        warps = _whole_warps(state, mask)
        addresses = address(state).reshape(-1, WARP)[warps, : 8 * len(writes)]
        threads = np.repeat(warps * WARP, addresses.shape[1])
        rows = state.shared.read(addresses.ravel(), ROW_BYTES, threads, text)
        numbers = rows.view(np.uint16).reshape(len(warps), len(writes), 8, 8)
        if transposed:
            numbers = np.ascontiguousarray(numbers.swapaxes(2, 3))
        words = np.zeros((len(writes), state.threads // WARP, WARP), np.uint32)
        words[:, warps] = numbers.view(np.uint32).reshape(len(warps), len(writes), WARP).swapaxes(0, 1)
        for write, word in zip(writes, words, strict=True):
            write(state, word.ravel(), mask)

    return load


def _store_matrices(statement: Statement, operands: Operands) -> Execute:
    """Store matrices, the inverse of `_load_matrices`."""
    address, sources = operands.address(statement.operands[0]), operands.sources(statement.operands[1], "b32")
    transposed, text = "trans" in statement.opcode, statement.text

    def store(state: State, mask: Mask) -> None:
        warps = _whole_warps(state, mask)
        words = np.stack([source(state).reshape(-1, WARP)[warps] for source in sources], axis=1)
        numbers = words.view(np.uint16).reshape(len(warps), len(sources), 8, 8)
        if transposed:
            numbers = np.ascontiguousarray(numbers.swapaxes(2, 3))
        addresses = address(state).reshape(-1, WARP)[warps, : 8 * len(sources)]
        threads = np.repeat(warps * WARP, addresses.shape[1])
        state.shared.write(addresses.ravel(), numbers.view(WORDS[ROW_BYTES]).ravel(), threads, text)

    return store


def _numbers(words: list[Array], kind: str) -> Array:
    """Unpack registers with pairs of half-precision numbers -> [registers, warps, 8, 4, 2] float64."""
    halves = np.stack(words).view(np.uint16)
    numbers = bf16_to_float32(halves) if kind == "bf16" else halves.view(np.float16)
    return numbers.astype(np.float64).reshape(len(words), -1, 8, 4, 2)


def _left(words: list[Array], kind: str) -> Array:
    """Arrange four registers -> [warps, 16, 16]: first down the rows, then across."""
    return _numbers(words, kind).reshape(2, 2, -1, 8, 4, 2).transpose(2, 1, 3, 0, 4, 5).reshape(-1, 16, 16)


def _multiply(statement: Statement, operands: Operands) -> Execute:
    """Multiply 16 x 16 by 16 x 8 per warp in half precision, and add float32."""
    kind = statement.opcode[-2]
    results, lefts, rights, sums = statement.operands
    writes, addends = operands.targets(results), operands.sources(sums, "f32")
    left_sources, right_sources = operands.sources(lefts, "b32"), operands.sources(rights, "b32")

    def multiply(state: State, mask: Mask) -> None:
        left = _left([source(state) for source in left_sources], kind)
        right = _numbers([source(state) for source in right_sources], kind)  # [2, warps, columns, 4, 2]
        right = right.transpose(1, 0, 3, 4, 2).reshape(-1, 16, 8)
        added = np.stack([source(state) for source in addends]).reshape(2, 2, -1, 8, 4)
        product = (left @ right).reshape(-1, 2, 8, 4, 2).transpose(1, 4, 0, 2, 3)
        total = (product + added).astype(np.float32).reshape(4, -1)
        for write, numbers in zip(writes, total, strict=True):
            write(state, numbers, mask)

    return multiply


def _multiply_in_warpgroups(statement: Statement, operands: Operands) -> Execute:
    """Multiply 64 x 16 by 16 x N per warpgroup, completed at once. The right operand is in shared memory at the address
    of a descriptor. The left operand is too, unless it is in registers."""
    kind, text = statement.opcode[-1], statement.text
    columns = int(statement.opcode[4].removeprefix("m64n").removesuffix("k16"))
    results, left, right, adds, _, _, *transposed = statement.operands
    writes, before = operands.targets(results), operands.sources(results, "f32")
    in_registers = left.startswith("{")
    lefts = operands.sources(left, "b32" if in_registers else "u64")
    rights, adding = operands.source(right, "u64"), operands.source(adds, "pred")
    *left_transposed, right_transposed = map(int, transposed)

    def read(state: State, source: Array, rows: int, across: int) -> Array:
        words = state.shared.read_by_matrix_unit(_matrix_addresses(int(source), rows, across, text), text)
        return _numbers([words], kind).reshape(rows, 16)

    def multiply(state: State, mask: Mask) -> None:
        warps = _whole_warps(state, mask)
        firsts = warps[::WARPGROUP]
        if not np.array_equal(warps, (firsts[:, None] + np.arange(WARPGROUP)).ravel()) or (firsts % WARPGROUP).any():
            raise PtxError(f"warps are missing: {text}")
        sources = [source(state) for source in lefts]
        total = np.stack([source(state) for source in before])
        for first in firsts * WARP:
            group = slice(first, first + WARPGROUP * WARP)
            if in_registers:
                matrix = _left([source[group] for source in sources], kind).reshape(64, 16)
            else:
                matrix = read(state, sources[0][first], 64, *left_transposed)
            product = matrix @ read(state, rights(state)[first], columns, right_transposed).T
            # [warps, 2, 8, columns / 8, 4, 2] -> a register per eight columns, half of the rows and element of a pair.
            product = product.reshape(WARPGROUP, 2, 8, -1, 4, 2).transpose(3, 1, 5, 0, 2, 4).reshape(len(writes), -1)
            total[:, group] = product + (total[:, group] if adding(state)[first] else 0)
        for write, numbers in zip(writes, total, strict=True):
            write(state, numbers, mask)

    return multiply


@lru_cache(maxsize=4096)
def _matrix_addresses(descriptor: int, rows: int, transposed: int, text: str) -> Array:
    """Return the addresses of a matrix of rows x 16 numbers of 2 bytes -> [rows, 16]. PTX ISA, "Matrix Descriptor
    Format": start, step between parts of a row, step between groups of eight rows, and swizzling mode."""
    start, leading, stride = ((descriptor >> bit & 0x3FFF) << 4 for bit in (0, 16, 32))
    if descriptor >> 62 == 0:
        raise PtxError(f"unsupported matrix without swizzling: {text}")
    bits = 4 - (descriptor >> 62)
    width = ROW_BYTES << bits
    row, column = np.arange(rows)[:, None], np.arange(16)[None, :]
    if transposed:
        row, column = column, row
    addresses = start + row // 8 * stride + row % 8 * width + 2 * column % width + 2 * column // width * leading
    return addresses ^ (addresses >> 7 & (1 << bits) - 1) << 4


BUILDERS: dict[str, Builder] = {
    r"ldmatrix\.sync\.aligned\.m8n8\.x[124](\.trans)?\.shared\.b16": _load_matrices,
    r"stmatrix\.sync\.aligned\.m8n8\.x[124](\.trans)?\.shared\.b16": _store_matrices,
    r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.(bf16\.bf16|f16\.f16)\.f32": _multiply,
    r"wgmma\.mma_async\.sync\.aligned\.m64n(64|128)k16\.f32\.(bf16\.bf16|f16\.f16)": _multiply_in_warpgroups,
}
