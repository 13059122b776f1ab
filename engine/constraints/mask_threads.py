"""MaskThreads: computes masks beside the engine's thread, which waits for them only for a bounded time.

A mask usually takes 10 to 150 us, but a client's grammar may make it take seconds, and it cannot be interrupted. So a
thread whose mask takes long is replaced and its priority lowered, and further masks of that grammar are computed in one
thread of low priority.
"""

from __future__ import annotations

import logging
import threading
import time
from queue import SimpleQueue
from typing import Protocol

from engine.host import lower_priority, num_cores

MAX_THREADS = 8  # for ordinary masks
MAX_REPLACED = 8  # threads that finish a long mask at the same time
LONG_SECONDS = 0.005  # of a mask, after which its thread is replaced

log = logging.getLogger(__name__)


class Mask(Protocol):
    """Mask that a thread computes."""

    @property
    def is_slow(self) -> bool:
        """Return whether it may take long."""

    def compute(self) -> None:
        """Compute it. Called in any thread; raises no exception."""


class MaskThreads:
    """Threads that are started when they are first needed. All public methods are for the engine's thread."""

    def __init__(self) -> None:
        self._max_threads = min(MAX_THREADS, num_cores())
        self._changed = threading.Condition()
        self._ordinary: SimpleQueue[Mask] = SimpleQueue()
        self._slow: SimpleQueue[Mask] = SimpleQueue()
        self._threads: list[_MaskThread] = []
        self._slow_thread: _MaskThread | None = None
        self._num_replaced = 0
        self._num_pending = 0  # ordinary masks that are not complete
        self._num_complete = 0  # of all masks so far

    def submit(self, mask: Mask) -> None:
        """Compute a mask beside the calling thread."""
        if mask.is_slow:
            self._slow.put(mask)
            if self._slow_thread is None:
                self._slow_thread = self._start(self._slow, is_slow=True)
        else:
            with self._changed:
                self._num_pending += 1
            self._ordinary.put(mask)
            self._start_missing()

    def wait(self, seconds: float) -> None:
        """Wait until all ordinary masks are complete, or for `seconds`."""
        if not self._num_pending:
            return
        with self._changed:
            if self._changed.wait_for(lambda: not self._num_pending, seconds):
                return
        self._replace_busy()

    def wait_for_any(self, seconds: float) -> None:
        """Wait until one more mask of any kind is complete, or for `seconds`."""
        with self._changed:
            before = self._num_complete
            self._changed.wait_for(lambda: self._num_complete != before, seconds)
        self._replace_busy()

    def serve(self, thread: _MaskThread) -> None:
        """Compute masks in `thread` until it is replaced."""
        while True:
            mask = thread.queue.get()
            thread.began = time.monotonic()
            mask.compute()
            with self._changed:
                thread.began = None
                self._num_complete += 1
                self._num_pending -= not (thread.is_slow or thread.is_replaced)
                self._changed.notify_all()
                if thread.is_replaced:
                    self._num_replaced -= 1
                    return

    def _start_missing(self) -> None:
        """Start a thread if there are more masks than threads."""
        if len(self._threads) < min(self._max_threads, self._num_pending):
            thread = self._start(self._ordinary, is_slow=False)
            if thread is not None:
                self._threads.append(thread)

    def _start(self, queue: SimpleQueue[Mask], *, is_slow: bool) -> _MaskThread | None:
        """Return a new thread; None if there can be none, so that masks wait until there can."""
        thread = _MaskThread(self, queue, is_slow=is_slow)
        try:
            thread.start()
        except RuntimeError as error:
            log.warning("no thread for masks of grammars can be started: %s", error)
            return None
        return thread

    def _replace_busy(self) -> None:
        """Let other masks go on without the threads whose masks take long."""
        latest = time.monotonic() - LONG_SECONDS
        with self._changed:
            busy = [thread for thread in self._threads if thread.began is not None and thread.began < latest]
            busy = busy[: MAX_REPLACED - self._num_replaced]
            for thread in busy:
                thread.is_replaced = True
                self._threads.remove(thread)
            self._num_replaced += len(busy)
            self._num_pending -= len(busy)
        for thread in busy:
            thread.yield_to_others()
        self._start_missing()


class _MaskThread(threading.Thread):
    """Thread that computes masks of one queue."""

    def __init__(self, owner: MaskThreads, queue: SimpleQueue[Mask], *, is_slow: bool) -> None:
        super().__init__(name="slow masks" if is_slow else "masks", daemon=True)
        self.queue = queue
        self.is_slow = is_slow
        self.began: float | None = None  # when its mask began, on the monotonic clock
        self.is_replaced = False
        self._owner = owner

    def run(self) -> None:
        if self.is_slow:
            self.yield_to_others()
        self._owner.serve(self)

    def yield_to_others(self) -> None:
        """Lower its priority, which cannot be raised again."""
        assert self.native_id is not None
        lower_priority(self.native_id)
