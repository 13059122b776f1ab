"""Products of matrices, and what brings their operands to the registers they are taken from. Sources: PTX ISA,
"Matrix multiply-accumulate operation using mma instruction", "Asynchronous Warpgroup Level Matrix Instructions".

Of a matrix of 8 rows and 4 words of 32 bits each lane has one word, row by row. Larger ones are several of these. A
product is computed in float64 and rounded once. MADE is as in `tests.ptx.movement`.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from tests.ptx.memory import WARP
from tests.ptx.numbers import WORDS, Array, widened
from tests.ptx.operands import Make, Operands
from tests.ptx.program import PtxError, Statement
from tests.ptx.state import Execute, Mask, State

GROUP = 4  # warps that multiply together
ROW = 16  # bytes of a row of 8


def _whole_warps(state: State, mask: Mask) -> Array:
    """The numbers of the warps that execute an instruction, all lanes of which do."""
    return np.arange(state.threads // WARP) if mask is None else np.flatnonzero(mask.reshape(-1, WARP).all(axis=1))


def _load_matrices(statement: Statement, operands: Operands) -> Execute:
    """8 lanes name the rows of each; with .trans their columns are handed out."""
    writes, address = operands.targets(statement.operands[0]), operands.address(statement.operands[1])
    transposed, text = "trans" in statement.opcode, statement.text

    def load(state: State, mask: Mask) -> None:
        warps = _whole_warps(state, mask)
        places = address(state).reshape(-1, WARP)[warps, : 8 * len(writes)]
        threads = np.repeat(warps * WARP, places.shape[1])
        rows = state.shared.read(places.ravel(), ROW, threads, text)
        numbers = rows.view(np.uint16).reshape(len(warps), len(writes), 8, 8)
        if transposed:
            numbers = np.ascontiguousarray(numbers.swapaxes(2, 3))
        words = np.zeros((len(writes), state.threads // WARP, WARP), np.uint32)
        words[:, warps] = numbers.view(np.uint32).reshape(len(warps), len(writes), WARP).swapaxes(0, 1)
        for write, word in zip(writes, words, strict=True):
            write(state, word.ravel(), mask)

    return load


def _store_matrices(statement: Statement, operands: Operands) -> Execute:
    """The other way round."""
    address, sources = operands.address(statement.operands[0]), operands.sources(statement.operands[1], "b32")
    transposed, text = "trans" in statement.opcode, statement.text

    def store(state: State, mask: Mask) -> None:
        warps = _whole_warps(state, mask)
        words = np.stack([source(state).reshape(-1, WARP)[warps] for source in sources], axis=1)
        numbers = words.view(np.uint16).reshape(len(warps), len(sources), 8, 8)
        if transposed:
            numbers = np.ascontiguousarray(numbers.swapaxes(2, 3))
        places = address(state).reshape(-1, WARP)[warps, : 8 * len(sources)]
        threads = np.repeat(warps * WARP, places.shape[1])
        state.shared.write(places.ravel(), numbers.view(WORDS[ROW]).ravel(), threads, text)

    return store


def _numbers(words: list[Array], kind: str) -> Array:
    """Registers of pairs of half-precision numbers -> [registers, warps, 8, 4, 2] float64."""
    halves = np.stack(words).view(np.uint16)
    numbers = widened(halves) if kind == "bf16" else halves.view(np.float16)
    return numbers.astype(np.float64).reshape(len(words), -1, 8, 4, 2)


def _left(words: list[Array], kind: str) -> Array:
    """Four registers -> [warps, 16, 16]: below each other, then beside."""
    return _numbers(words, kind).reshape(2, 2, -1, 8, 4, 2).transpose(2, 1, 3, 0, 4, 5).reshape(-1, 16, 16)


def _multiply(statement: Statement, operands: Operands) -> Execute:
    """16 x 16 times 16 x 8 of each warp, in half precision, plus float32."""
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


def _multiply_in_groups(statement: Statement, operands: Operands) -> Execute:
    """64 x 16 times 16 x N of each four warps, at once here; the right operand, and the left one unless it is in
    registers, lies in shared memory where a descriptor says.
    """
    kind, text = statement.opcode[-1], statement.text
    columns = int(statement.opcode[4].removeprefix("m64n").removesuffix("k16"))
    results, left, right, adds, _, _, *transposed = statement.operands
    writes, before = operands.targets(results), operands.sources(results, "f32")
    in_registers = left.startswith("{")
    lefts = operands.sources(left, "b32" if in_registers else "u64")
    rights, adding = operands.source(right, "u64"), operands.source(adds, "pred")
    *left_transposed, right_transposed = map(int, transposed)

    def read(state: State, source: Array, rows: int, across: int) -> Array:
        words = state.shared.read_by_unit(_places(int(source), rows, across, text), text)
        return _numbers([words], kind).reshape(rows, 16)

    def multiply(state: State, mask: Mask) -> None:
        warps = _whole_warps(state, mask)
        firsts = warps[::GROUP]
        if not np.array_equal(warps, (firsts[:, None] + np.arange(GROUP)).ravel()) or (firsts % GROUP).any():
            raise PtxError(f"warps are missing: {text}")
        sources = [source(state) for source in lefts]
        total = np.stack([source(state) for source in before])
        for first in firsts * WARP:
            group = slice(first, first + GROUP * WARP)
            if in_registers:
                matrix = _left([source[group] for source in sources], kind).reshape(64, 16)
            else:
                matrix = read(state, sources[0][first], 64, *left_transposed)
            product = matrix @ read(state, rights(state)[first], columns, right_transposed).T
            # [warps, 2, 8, columns / 8, 4, 2] -> a register for each eight columns, half of the rows and one of a pair.
            product = product.reshape(GROUP, 2, 8, -1, 4, 2).transpose(3, 1, 5, 0, 2, 4).reshape(len(writes), -1)
            total[:, group] = product + (total[:, group] if adding(state)[first] else 0)
        for write, numbers in zip(writes, total, strict=True):
            write(state, numbers, mask)

    return multiply


@lru_cache(maxsize=4096)
def _places(descriptor: int, rows: int, transposed: int, text: str) -> Array:
    """Where a matrix of rows x 16 numbers of 2 bytes lies -> [rows, 16]. PTX ISA, "Matrix Descriptor Format": where it
    starts, the steps from one part of a row to the next and from eight rows to the next, and how its bytes are mixed.
    """
    start, leading, stride = ((descriptor >> bit & 0x3FFF) << 4 for bit in (0, 16, 32))
    if descriptor >> 62 == 0:
        raise PtxError(f"nothing is mixed: {text}")
    bits = 4 - (descriptor >> 62)
    width = ROW << bits
    row, column = np.arange(rows)[:, None], np.arange(16)[None, :]
    if transposed:
        row, column = column, row
    places = start + row // 8 * stride + row % 8 * width + 2 * column % width + 2 * column // width * leading
    return places ^ (places >> 7 & (1 << bits) - 1) << 4


MADE: dict[str, Make] = {
    r"ldmatrix\.sync\.aligned\.m8n8\.x[124](\.trans)?\.shared\.b16": _load_matrices,
    r"stmatrix\.sync\.aligned\.m8n8\.x[124](\.trans)?\.shared\.b16": _store_matrices,
    r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.(bf16\.bf16|f16\.f16)\.f32": _multiply,
    r"wgmma\.mma_async\.sync\.aligned\.m64n(64|128)k16\.f32\.(bf16\.bf16|f16\.f16)": _multiply_in_groups,
}
