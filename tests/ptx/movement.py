"""Instructions that move data: memory accesses, asynchronous copies, and exchange between the threads of a warp.
Sources: PTX ISA, "Data Movement and Conversion", "Parallel Synchronization and Communication".

BUILDERS maps each form of an opcode to a function that builds an instruction from a statement.
"""

from __future__ import annotations

import numpy as np

from tests.ptx.memory import WARP, check_alignment
from tests.ptx.numbers import TYPES, WORDS, Array, columns
from tests.ptx.operands import Builder, Operands
from tests.ptx.program import Statement
from tests.ptx.state import Copy, Execute, Mask, State

LANES = np.arange(WARP)
PREFETCH_UNIT_BYTES = 16


def _no_op(statement: Statement, operands: Operands) -> Execute:
    """Do nothing: launches of dependents, fences and commits of products, which are complete at once here."""
    return lambda state, mask: None


def _wait_for_turn(statement: Statement, operands: Operands) -> Execute:
    def wait(state: State, mask: Mask) -> None:
        state.waited = True

    return wait


def _parameter(statement: Statement, operands: Operands) -> Execute:
    kind, write = TYPES[statement.opcode[-1]], operands.target(statement.operands[0])
    number = int(statement.operands[1].rstrip("]").rsplit("_", 1)[1])

    def load(state: State, mask: Mask) -> None:
        value = np.frombuffer(state.parameters[number], kind, 1)
        write(state, np.repeat(value, operands.threads), mask)

    return load


def _load(statement: Statement, operands: Operands) -> Execute:
    kind, text = TYPES[statement.opcode[-1]], statement.text
    writes, address = operands.targets(statement.operands[0]), operands.address(statement.operands[1])
    size, is_global = kind.itemsize * len(writes), statement.opcode[1] == "global"

    def load(state: State, mask: Mask) -> None:
        threads = state.chosen(mask)
        addresses = address(state)[threads]
        if is_global:
            words = state.readable(addresses, size, text).read(addresses, size, text)
        else:
            words = state.shared.read(addresses, size, threads, text)
        if mask is not None:
            scattered = np.zeros(operands.threads, words.dtype)
            scattered[threads] = words
            words = scattered
        for write, numbers in zip(writes, columns(words.view(kind).reshape(-1, len(writes))), strict=True):
            write(state, numbers, mask)

    return load


def _store(statement: Statement, operands: Operands) -> Execute:
    kind, text = statement.opcode[-1], statement.text
    address, sources = operands.address(statement.operands[0]), operands.sources(statement.operands[1], kind)
    word, is_global = WORDS[TYPES[kind].itemsize * len(sources)], statement.opcode[1] == "global"

    def store(state: State, mask: Mask) -> None:
        threads = state.chosen(mask)
        data = np.stack([source(state)[threads] for source in sources], axis=1).view(word).ravel()
        addresses = address(state)[threads]
        if is_global:
            state.writable(text).write(addresses, data, text)
        else:
            state.shared.write(addresses, data, threads, text)

    return store


def _add_atomically(statement: Statement, operands: Operands) -> Execute:
    target, place, addend = statement.operands
    write, address = operands.target(target), operands.address(place)
    source, text = operands.source(addend, statement.opcode[-1]), statement.text

    def add(state: State, mask: Mask) -> None:
        threads, numbers = state.chosen(mask), source(state)
        before = np.zeros_like(numbers)
        before[threads] = state.writable(text).add(address(state)[threads], numbers[threads], text)
        write(state, before, mask)

    return add


def _prefetch(statement: Statement, operands: Operands) -> Execute:
    """Check a prefetch, which is allowed before griddepcontrol.wait because it neither changes nor returns data."""
    address, text = operands.address(statement.operands[0]), statement.text
    sizes = operands.source(statement.operands[1], "u32")

    def check(state: State, mask: Mask) -> None:
        threads = state.chosen(mask)
        begin, size = address(state)[threads], sizes(state)[threads]
        check_alignment(begin | size, PREFETCH_UNIT_BYTES, text)
        state.memory.check(begin, PREFETCH_UNIT_BYTES, text)
        state.memory.check(begin + size - PREFETCH_UNIT_BYTES, PREFETCH_UNIT_BYTES, text)

    return check


def _copy(statement: Statement, operands: Operands) -> Execute:
    """Copy 4, 8 or 16 bytes of global memory, or zeros if the fourth operand is 0."""
    target, source, size = statement.operands[:3]
    to, at, text = operands.address(target), operands.address(source), statement.text
    word = WORDS[int(size, 0)]
    sizes = operands.source(statement.operands[-1], "u32")

    def begin(state: State, mask: Mask) -> None:
        threads = state.chosen(mask)
        read = sizes(state)[threads] > 0
        data = np.zeros(len(threads), word)
        if read.any():
            addresses = at(state)[threads][read]
            data[read] = state.readable(addresses, word.itemsize, text).read(addresses, word.itemsize, text)
        copy = Copy(to(state)[threads], data, threads, text)
        state.shared.begin_write(copy.addresses, word.itemsize, threads, text)
        state.copies.append(copy)

    return begin


def _commit_copies(statement: Statement, operands: Operands) -> Execute:
    def commit(state: State, mask: Mask) -> None:
        state.groups.append(state.copies)
        state.copies = []

    return commit


def _wait_for_copies(statement: Statement, operands: Operands) -> Execute:
    """Wait for copies. Their data arrives only here, so a program that does not wait reads something else."""
    left = int(statement.operands[0])

    def wait(state: State, mask: Mask) -> None:
        while len(state.groups) > left:
            for copy in state.groups.pop(0):
                state.shared.write(copy.addresses, copy.data, copy.threads, copy.text)

    return wait


def _shuffle(statement: Statement, operands: Operands) -> Execute:
    """Give each lane the value of another lane, or its own if that is outside the warp."""
    target, number, other = statement.operands[:3]
    write, source = operands.target(target), operands.source(number, "b32")
    offset, mode = operands.source(other, "s32"), statement.opcode[2]

    def lanes(by: Array) -> Array:
        found = {"bfly": LANES ^ by, "up": LANES - by, "idx": by & WARP - 1}[mode]
        return np.where((found >= 0) & (found < WARP), found, LANES)

    if not other.startswith("%"):
        fixed = lanes(np.int32(int(other, 0)))
        return lambda state, mask: write(state, source(state).reshape(-1, WARP)[:, fixed].ravel(), mask)

    def shuffle(state: State, mask: Mask) -> None:
        numbers, by = source(state).reshape(-1, WARP), offset(state).reshape(-1, WARP)
        write(state, np.take_along_axis(numbers, lanes(by), axis=1).ravel(), mask)

    return shuffle


def _reduce(statement: Statement, operands: Operands) -> Execute:
    """Reduce over the lanes of a warp with set mask bits, for each of them."""
    target, number, members = statement.operands
    write, source, bits = operands.target(target), operands.source(number, "s32"), operands.source(members, "u32")
    reduce = {"add": np.add, "max": np.maximum, "min": np.minimum}[statement.opcode[2]].reduce

    def reduce_warps(state: State, mask: Mask) -> None:
        numbers, members = source(state).reshape(-1, WARP), bits(state).reshape(-1, WARP)
        out = np.empty_like(numbers)
        for row, of_warp, chosen in zip(out, numbers, members, strict=True):
            for lanes in np.unique(chosen):
                row[chosen == lanes] = reduce(of_warp[(lanes >> LANES & 1).astype(bool)], dtype=np.int32)
        write(state, out.ravel(), mask)

    return reduce_warps


VECTOR = r"(v[24]\.)?[bs](8|16|32|64)"
BUILDERS: dict[str, Builder] = {
    r"ld\.param\.[bs](32|64)": _parameter,
    rf"ld\.(global|global\.cg|shared)\.{VECTOR}": _load,
    rf"st\.(global|shared)\.{VECTOR}": _store,
    r"atom\.global\.gpu\.(relaxed|acq_rel)\.add\.u(32|64)": _add_atomically,
    r"cp\.async\.bulk\.prefetch\.L2\.global": _prefetch,
    r"cp\.async\.c[ag]\.shared\.global": _copy,
    r"cp\.async\.commit_group": _commit_copies,
    r"cp\.async\.wait_group": _wait_for_copies,
    r"shfl\.sync\.(bfly|up|idx)\.b32": _shuffle,
    r"redux\.sync\.(add|max|min)\.s32": _reduce,
    r"griddepcontrol\.wait": _wait_for_turn,
    r"griddepcontrol\.launch_dependents": _no_op,
    r"fence\.proxy\.async\.shared::cta": _no_op,
    r"wgmma\.(fence|commit_group|wait_group)\.sync\.aligned": _no_op,
    r"bar\.warp\.sync": _no_op,
}
