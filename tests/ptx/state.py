"""What one block has while it runs. Instructions change it; which of its threads go on is none of their business."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tests.ptx.memory import GlobalMemory, SharedMemory
from tests.ptx.numbers import Array
from tests.ptx.program import PtxError

Mask = Array | None  # [threads] bool, those that execute an instruction; None: all of them
Execute = Callable[["State", Mask], None]
Source = Callable[["State"], Array]  # an operand's numbers, [threads]; nobody writes into them
Target = Callable[["State", Array, Mask], None]


@dataclass(frozen=True)
class Copy:
    """Words on their way to shared memory: data[n] for addresses[n], asked for by threads[n]."""

    addresses: Array
    data: Array
    threads: Array
    text: str


@dataclass
class State:
    """registers: by number, [threads] each. parameters: bytes of each argument. early: the kernel may run before its
    turn and has to wait for that, as it `waited`; known: what it may read meanwhile. copies: those asked for, groups:
    of those that were committed.
    """

    threads: int
    registers: list[Array]
    parameters: list[bytes]
    memory: GlobalMemory
    shared: SharedMemory
    early: bool
    known: GlobalMemory
    waited: bool = False
    copies: list[Copy] = field(default_factory=list)
    groups: list[list[Copy]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._all = np.arange(self.threads)

    def chosen(self, mask: Mask) -> Array:
        """The numbers of those threads."""
        return self._all if mask is None else np.flatnonzero(mask)

    @property
    def _has_its_turn(self) -> bool:
        return self.waited or not self.early

    def readable(self, addresses: Array, size: int, text: str) -> GlobalMemory:
        """Where there are words of `size` bytes at addresses[n]. Raises PtxError where it is not the kernel's turn yet
        and they are not known before it."""
        if not self._has_its_turn:
            self.memory.check(addresses, size, text)
            try:
                self.known.check(addresses, size, text)
            except PtxError as error:
                raise PtxError(f"reads memory before it has waited for its turn: {text}") from error
        return self.memory

    def writable(self, text: str) -> GlobalMemory:
        """Raises PtxError where it is not the kernel's turn yet."""
        if not self._has_its_turn:
            raise PtxError(f"writes memory before it has waited for its turn: {text}")
        return self.memory
