"""Execution of one block from its first instruction to its last."""

from __future__ import annotations

import numpy as np

from tests.ptx.instructions import Instruction, Kind
from tests.ptx.memory import WARP
from tests.ptx.numbers import Array
from tests.ptx.program import PtxError
from tests.ptx.state import State

MAX_STEPS = 2_000_000


class Block:
    """Scheduler of a block's threads. Threads at the same instruction advance together. With several positions the
    earliest one advances first, so that diverged threads reconverge. A warp-wide instruction waits for all lanes of its
    warp, a barrier for all threads."""

    def __init__(self, instructions: list[Instruction], state: State) -> None:
        self._instructions, self._state = instructions, state
        self._positions = np.zeros(state.threads, np.int64)
        self._ended, self._waiting = np.zeros((2, state.threads), bool)
        self._steps = 0

    def run(self) -> None:
        """Run all threads. Raises PtxError for a forbidden operation of the program."""
        with np.errstate(all="ignore"):  # no instruction traps
            while not self._ended.all():
                if (self._ended | self._waiting).all():
                    self._waiting[:] = False
                    self._state.shared.barrier()
                self._advance(*self._next())
        if self._state.early and not self._state.waited:
            raise PtxError("an early-launched kernel never executed griddepcontrol.wait")

    def _next(self) -> tuple[Array, int, int]:
        """Return the threads that advance, their position, and the next position of other threads, where they may
        reconverge."""
        ready = ~(self._ended | self._waiting)
        positions = np.unique(self._positions[ready]).tolist()
        for at, rejoin in zip(positions, [*positions[1:], len(self._instructions)], strict=True):
            group = ready & (self._positions == at)
            if self._instructions[at].kind == Kind.WARP_WIDE:
                group &= self._full_warps(group).repeat(WARP)
            if group.any():
                return group, at, rejoin
        raise PtxError(f"deadlock: warps wait for lanes at {[self._instructions[at].text for at in positions]}")

    def _full_warps(self, group: Array) -> Array:
        """Return [warps] bool: warps with all unfinished lanes in `group`."""
        return (group == ~self._ended).reshape(-1, WARP).all(axis=1)

    def _advance(self, group: Array, at: int, rejoin: int) -> None:
        """Advance `group` from `at` to the reconvergence position, or until its threads diverge."""
        size = int(np.count_nonzero(group))
        mask = None if size == len(group) else group
        together = bool((self._full_warps(group) | ~group.reshape(-1, WARP).any(axis=1)).all())
        while mask is None or at != rejoin:
            instruction = self._instructions[at]
            self._steps += 1
            if self._steps > MAX_STEPS:
                raise PtxError(f"endless: stopped after {MAX_STEPS} steps at {instruction.text}")
            active, count = mask, size
            if instruction.guard is not None:
                active = instruction.guard(self._state) & group
                count = int(np.count_nonzero(active))
                if count == len(group):
                    active = None
            if instruction.kind == Kind.ORDINARY or (instruction.kind == Kind.WARP_WIDE and together):
                if count:
                    instruction.execute(self._state, active)
                at += 1
            elif instruction.kind == Kind.BRANCH and count == 0:
                at += 1
            elif instruction.kind == Kind.BRANCH and count == len(group):
                at = instruction.target
            else:
                self._diverge(instruction, at, group, group if active is None else active)
                return
        self._positions[group] = at

    def _diverge(self, instruction: Instruction, at: int, group: Array, active: Array) -> None:
        """Let some threads of a group end, wait or branch."""
        self._positions[group] = at if instruction.kind == Kind.WARP_WIDE else at + 1
        if instruction.kind == Kind.BRANCH:
            self._positions[active] = instruction.target
        elif instruction.kind == Kind.RETURN:
            self._ended |= active
        elif instruction.kind == Kind.BARRIER:
            self._waiting |= group
