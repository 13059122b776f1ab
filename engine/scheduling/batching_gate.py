"""Admission of waiting sequences by batching mode: at every step, or one batch at a time.

Continuous batching admits at every step (Orca, Yu et al., OSDI'22). The other modes are baselines on the same slots,
pages and kernels. `static` batches like TensorFlow Serving: a full batch, or all sequences that arrived within
`batch_timeout`. `dynamic` batches like Triton Inference Server, with `batch_size` sequences at most. Both admit no
sequence until the whole batch has left, and preempt none for a waiting one.
"""

from __future__ import annotations

from collections import OrderedDict

from engine.config import EngineConfig


class BatchingGate:
    """Sequences that wait for a batch to begin, in order of arrival."""

    def __init__(self, config: EngineConfig) -> None:
        self.is_continuous = config.batching == "continuous"
        self.size = config.max_num_seqs if config.batch_size is None else config.batch_size
        self.timeout = config.batch_timeout
        self._arrival_times: OrderedDict[object, float] = OrderedDict()

    def add(self, key: object, now: float) -> None:
        """Add a sequence that begins to wait."""
        if not self.is_continuous:
            self._arrival_times[key] = now

    def remove(self, key: object) -> None:
        """Remove a sequence that has ended or is admitted."""
        self._arrival_times.pop(key, None)

    def admission_quota(self, running: int, now: float) -> int | None:
        """Return how many sequences may be admitted now; None is as many as there are free slots."""
        if self.is_continuous:
            return None
        return self.size if not running and self.opens_at(now) <= now else 0

    def opens_at(self, now: float) -> float:
        """Return when a batch of the waiting sequences is complete, if no other sequence arrives."""
        if self.is_continuous or len(self._arrival_times) >= self.size:
            return now
        return next(iter(self._arrival_times.values()), now) + self.timeout
