"""When those who wait may be let in at all: at every step, or a batch at a time.

Continuous batching lets them in at every step (Orca, Yu et al., OSDI'22). The others are baselines on the same slots,
pages and kernels: `static` batches as TensorFlow Serving does, a full batch or whatever came within `batch_timeout`;
`dynamic` as Triton Inference Server does, at `batch_size` at the latest. Both let nobody in until all of a batch have
left, and pause nobody for those who wait.
"""

from __future__ import annotations

from collections import OrderedDict

from engine.config import EngineConfig


class Gate:
    """Counts those who wait for their first slot, in the order in which they came."""

    def __init__(self, config: EngineConfig) -> None:
        self.is_always_open = config.batching == "continuous"
        self.size = config.max_num_seqs if config.batch_size is None else config.batch_size
        self.timeout = config.batch_timeout
        self._since: OrderedDict[object, float] = OrderedDict()

    def arrive(self, key: object, now: float) -> None:
        """Somebody begins to wait."""
        if not self.is_always_open:
            self._since[key] = now

    def leave(self, key: object) -> None:
        """And is gone, or let in."""
        self._since.pop(key, None)

    def room(self, running: int, now: float) -> int | None:
        """How many may be let in now; None is as many as there are slots for."""
        if self.is_always_open:
            return None
        return self.size if not running and self.opens_at(now) <= now else 0

    def opens_at(self, now: float) -> float:
        """When a batch of those who wait is complete, if nobody else comes."""
        if self.is_always_open or len(self._since) >= self.size:
            return now
        return next(iter(self._since.values()), now) + self.timeout
