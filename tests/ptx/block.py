"""One block from its threads' first instruction to their last."""

from __future__ import annotations

import numpy as np

from tests.ptx.instructions import Instruction, Kind
from tests.ptx.memory import WARP
from tests.ptx.numbers import Array
from tests.ptx.program import PtxError
from tests.ptx.state import State

MOST_STEPS = 2_000_000


class Block:
    """Threads that are at the same place go on together; of several places it is the first one's turn, so that those
    that went apart meet again. What a warp does together waits for all of its lanes, a barrier for all threads.
    """

    def __init__(self, instructions: list[Instruction], state: State) -> None:
        self._instructions, self._state = instructions, state
        self._place = np.zeros(state.threads, np.int64)
        self._ended, self._waiting = np.zeros((2, state.threads), bool)
        self._steps = 0

    def run(self) -> None:
        """Raises PtxError for what a program must not do."""
        with np.errstate(all="ignore"):  # no instruction traps
            while not self._ended.all():
                if (self._ended | self._waiting).all():
                    self._waiting[:] = False
                    self._state.shared.barrier()
                self._advance(*self._next())
        if self._state.early and not self._state.waited:
            raise PtxError("a kernel that begins early never waited for its turn")

    def _next(self) -> tuple[Array, int, int]:
        """Who goes on, from where, and where others are that they may meet."""
        ready = ~(self._ended | self._waiting)
        places = np.unique(self._place[ready]).tolist()
        for at, meeting in zip(places, [*places[1:], len(self._instructions)], strict=True):
            group = ready & (self._place == at)
            if self._instructions[at].kind == Kind.TOGETHER:
                group &= self._complete(group).repeat(WARP)
            if group.any():
                return group, at, meeting
        raise PtxError(f"deadlock: warps wait for lanes at {[self._instructions[at].text for at in places]}")

    def _complete(self, group: Array) -> Array:
        """[warps] bool: those of which all lanes that have not ended are in it."""
        return (group == ~self._ended).reshape(-1, WARP).all(axis=1)

    def _advance(self, group: Array, at: int, meeting: int) -> None:
        """They go on from `at` to where others are, or where not all of them go on together."""
        size = int(np.count_nonzero(group))
        mask = None if size == len(group) else group
        together = bool((self._complete(group) | ~group.reshape(-1, WARP).any(axis=1)).all())
        while mask is None or at != meeting:
            instruction = self._instructions[at]
            self._steps += 1
            if self._steps > MOST_STEPS:
                raise PtxError(f"endless: {MOST_STEPS} steps, the last one {instruction.text}")
            active, count = mask, size
            if instruction.guard is not None:
                active = instruction.guard(self._state) & group
                count = int(np.count_nonzero(active))
                if count == len(group):
                    active = None
            if instruction.kind == Kind.ORDINARY or (instruction.kind == Kind.TOGETHER and together):
                if count:
                    instruction.execute(self._state, active)
                at += 1
            elif instruction.kind == Kind.BRANCH and count == 0:
                at += 1
            elif instruction.kind == Kind.BRANCH and count == len(group):
                at = instruction.target
            else:
                self._part(instruction, at, group, group if active is None else active)
                return
        self._place[group] = at

    def _part(self, instruction: Instruction, at: int, group: Array, active: Array) -> None:
        """Some of a group end, wait or go elsewhere."""
        self._place[group] = at if instruction.kind == Kind.TOGETHER else at + 1
        if instruction.kind == Kind.BRANCH:
            self._place[active] = instruction.target
        elif instruction.kind == Kind.RETURN:
            self._ended |= active
        elif instruction.kind == Kind.BARRIER:
            self._waiting |= group
