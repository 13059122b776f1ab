"""Masks that take long do not delay the masks of other sequences, nor the engine's thread."""

from __future__ import annotations

import threading

import pytest

from engine.constraints import mask_threads
from engine.constraints.mask_threads import MAX_REPLACED, MaskThreads


class BlockedMask:
    """A mask that is complete when the test says so."""

    def __init__(self, *, is_slow: bool = False) -> None:
        self.is_slow = is_slow
        self.may_end, self.has_begun, self.is_complete = threading.Event(), threading.Event(), threading.Event()

    def compute(self) -> None:
        self.has_begun.set()
        self.may_end.wait()
        self.is_complete.set()


class QuickMask(BlockedMask):
    """A mask that is complete at once."""

    def __init__(self, *, is_slow: bool = False) -> None:
        super().__init__(is_slow=is_slow)
        self.may_end.set()


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> MaskThreads:
    """Return threads that are replaced at once when a wait has ended."""
    monkeypatch.setattr(mask_threads, "LONG_SECONDS", 0.0)
    return MaskThreads()


def submit(threads: MaskThreads, mask: BlockedMask) -> None:
    threads.submit(mask)
    assert mask.has_begun.wait(30)


def test_a_wait_ends_when_all_masks_are_complete(threads: MaskThreads):
    """Far more masks than threads."""
    masks = [QuickMask() for _ in range(100)]
    for mask in masks:
        threads.submit(mask)
    threads.wait(30)
    assert all(mask.is_complete.is_set() for mask in masks)


def test_a_long_mask_holds_up_no_other(threads: MaskThreads):
    """Each thread that is busy with one is replaced, when the engine has waited for it."""
    blocked = [BlockedMask() for _ in range(MAX_REPLACED)]
    for mask in blocked:
        submit(threads, mask)
        threads.wait(0.0)
    other = QuickMask()
    threads.submit(other)
    threads.wait(30)
    assert other.is_complete.is_set() and not any(mask.is_complete.is_set() for mask in blocked)
    for mask in blocked:
        mask.may_end.set()
        assert mask.is_complete.wait(30)


def test_slow_masks_are_computed_one_at_a_time_and_not_waited_for(threads: MaskThreads):
    """They have a thread of their own; a wait for any mask ends with the first of them."""
    first, second = BlockedMask(is_slow=True), BlockedMask(is_slow=True)
    submit(threads, first)
    threads.submit(second)
    threads.wait(3600)
    assert not second.has_begun.is_set()
    first.may_end.set()
    threads.wait_for_any(30)
    assert first.is_complete.wait(30) and second.has_begun.wait(30)
    second.may_end.set()


def test_replaced_threads_are_limited(threads: MaskThreads):
    """Beyond the limit a mask waits until one of the long ones is complete."""
    blocked = [BlockedMask() for _ in range(MAX_REPLACED + threads._max_threads)]
    for mask in blocked:
        submit(threads, mask)
        threads.wait(0.0)
    other = QuickMask()
    threads.submit(other)
    threads.wait(0.0)
    assert not other.has_begun.is_set()
    for mask in blocked:
        mask.may_end.set()
    threads.wait(30)
    assert other.is_complete.is_set()


def test_masks_wait_where_no_thread_can_be_started(threads: MaskThreads, monkeypatch: pytest.MonkeyPatch):
    """They are computed when one can."""
    first, second = QuickMask(), QuickMask()
    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", _refuse)
        threads.submit(first)
    assert not first.has_begun.is_set()
    threads.submit(second)
    threads.wait(30)
    assert first.is_complete.is_set() and second.is_complete.is_set()


def _refuse(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")
