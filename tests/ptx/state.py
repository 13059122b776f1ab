"""State of one block while it runs. Instructions change it; the scheduling of threads is separate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tests.ptx.memory import GlobalMemory, SharedMemory
from tests.ptx.numbers import Array
from tests.ptx.program import PtxError

Mask = Array | None  # [threads] bool, the executing threads; None: all
Execute = Callable[["State", Mask], None]
Source = Callable[["State"], Array]  # values of an operand, [threads]; read-only
Target = Callable[["State", Array, Mask], None]


@dataclass(frozen=True)
class Copy:
    """Words on their way to shared memory: data[n] for addresses[n], copied by threads[n]."""

    addresses: Array
    data: Array
    threads: Array
    text: str


@dataclass
class State:
    """State of one block. `registers`: by number, [threads] each. `parameters`: bytes of each argument. `early`: the
    kernel may start before its predecessor ends and must execute griddepcontrol.wait, which sets `waited`.
    `readable_early`: memory that it may read before. `copies`: copies not committed yet; `groups`: committed groups of
    copies."""

    threads: int
    registers: list[Array]
    parameters: list[bytes]
    memory: GlobalMemory
    shared: SharedMemory
    early: bool
    readable_early: GlobalMemory
    waited: bool = False
    copies: list[Copy] = field(default_factory=list)
    groups: list[list[Copy]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._all = np.arange(self.threads)

    def chosen(self, mask: Mask) -> Array:
        """Return the indices of the threads in a mask."""
        return self._all if mask is None else np.flatnonzero(mask)

    @property
    def _may_access_memory(self) -> bool:
        return self.waited or not self.early

    def readable(self, addresses: Array, size: int, text: str) -> GlobalMemory:
        """Return the memory of words of `size` bytes at addresses[n]. Raises PtxError before griddepcontrol.wait,
        unless the words may be read early."""
        if not self._may_access_memory:
            self.memory.check(addresses, size, text)
            try:
                self.readable_early.check(addresses, size, text)
            except PtxError as error:
                raise PtxError(f"reads memory before griddepcontrol.wait: {text}") from error
        return self.memory

    def writable(self, text: str) -> GlobalMemory:
        """Return memory to write. Raises PtxError before griddepcontrol.wait."""
        if not self._may_access_memory:
            raise PtxError(f"writes memory before griddepcontrol.wait: {text}")
        return self.memory
