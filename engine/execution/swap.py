"""Swapping of pages to host memory and back, on a GPU concurrently with computation.

Copies between host and device run on a separate stream. Outgoing pages are first gathered into a staging buffer of
fixed size, in the order of the computing stream, so that they may be overwritten at once; the copy to the host follows.
If there are more pages than half of the buffer holds, they are copied in pieces that alternate between its two halves;
only then does the computing stream wait for copies. Incoming pages are copied straight into place while the step that
admits their sequence is computed; the sequence computes from the next step on (`engine.scheduling.scheduler`). On a CPU
all copies are direct and synchronous.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial

import torch

from engine.execution.cache import KVCache

STAGING_BYTES = 256 << 20  # device memory, in two halves

Pairs = Sequence[tuple[int, int]]


class PageSwapper:
    """Page mover of one cache; moves begin in the order of the calls."""

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self._staging = _Staging(cache) if cache.device.type == "cuda" and len(cache.host) else None
        self._is_swapping_in = False

    def swap_out(self, pairs: Pairs) -> None:
        """Copy (device page, host page) pairs to host memory.

        On a GPU this only begins the copy. Until it has ended, only `swap_in` may read the host pages.
        """
        if self._staging is not None:
            self._staging.swap_out(pairs)
            return
        for page, host_page in pairs:
            self._cache.host[host_page].copy_(self._cache.data[page])

    def swapped_out(self) -> Callable[[], None]:
        """Return a function that waits until the copies to host memory that began so far have ended."""
        return (lambda: None) if self._staging is None else self._staging.swapped_out()

    def swap_in(self, pairs: Pairs) -> None:
        """Begin to copy (host page, device page) pairs back. No step may touch either page before `finish`."""
        self._is_swapping_in = True
        if self._staging is not None:
            self._staging.swap_in(pairs)
            return
        for host_page, page in pairs:
            self._cache.data[page].copy_(self._cache.host[host_page])

    @property
    def is_swapping_in(self) -> bool:
        """Return whether pages are being swapped in and `finish` must be called."""
        return self._is_swapping_in

    def finish(self) -> None:
        """Make later steps wait for incoming pages. Called before a step touches any of them."""
        if self._is_swapping_in and self._staging is not None:
            self._staging.join()
        self._is_swapping_in = False


class _Staging:
    """Two halves of a device buffer, and the stream that copies from them."""

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self._stream = torch.cuda.Stream(cache.device)  # type: ignore[no-untyped-call]
        pages = half_pages(cache.data[0].nbytes, len(cache.host))
        shape = (pages, *cache.data.shape[1:])
        self._halves = [torch.empty(shape, dtype=cache.data.dtype, device=cache.device) for _ in range(2)]
        self._copies: list[torch.cuda.Event | None] = [None, None]  # last copy from each half
        self._next = 0
        self._last_swap_in: torch.cuda.Event | None = None  # last incoming copy

    def swap_out(self, pairs: Pairs) -> None:
        """Gather pages and begin to copy them to the host, piece by piece."""
        size = len(self._halves[0])
        for start in range(0, len(pairs), size):
            pages, host_pages = zip(*pairs[start : start + size], strict=True)
            self._gather_and_copy(pages, host_pages)

    def _gather_and_copy(self, pages: Sequence[int], host_pages: Sequence[int]) -> None:
        half, copied = self._halves[self._next], self._copies[self._next]
        if copied is not None:
            torch.cuda.current_stream(self._cache.device).wait_event(copied)
        torch.index_select(self._cache.data, 0, self._cache.index(pages), out=half[: len(pages)])
        with self._copy_stream():
            for source, target, count in _runs(host_pages):
                self._cache.host[target : target + count].copy_(half[source : source + count], non_blocking=True)
        self._copies[self._next] = self._stream.record_event()
        self._next = 1 - self._next

    def swapped_out(self) -> Callable[[], None]:
        """Return a function that waits for the copies to the host so far."""
        event: torch.cuda.Event = self._stream.record_event()
        return partial(event.synchronize)

    def swap_in(self, pairs: Pairs) -> None:
        """Begin to copy pages into place."""
        with self._copy_stream():
            for host_page, page in pairs:
                self._cache.data[page].copy_(self._cache.host[host_page], non_blocking=True)
        self._last_swap_in = self._stream.record_event()

    def join(self) -> None:
        """Make the computing stream wait for incoming pages, but for no later copy."""
        if self._last_swap_in is not None:
            torch.cuda.current_stream(self._cache.device).wait_event(self._last_swap_in)

    def _copy_stream(self) -> AbstractContextManager[object]:
        """Run copies after all work queued on the computing stream so far."""
        self._stream.wait_stream(torch.cuda.current_stream(self._cache.device))
        return torch.cuda.stream(self._stream)


def half_pages(page_bytes: int, host_pages: int) -> int:
    """Return how many pages one half of the staging buffer holds: no more than there are host pages, at least one."""
    return max(1, min(host_pages, STAGING_BYTES // 2 // page_bytes))


def _runs(pages: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield (index in `pages`, first page, count) of consecutive pages, each of which is one copy."""
    start = 0
    for index in range(1, len(pages) + 1):
        if index == len(pages) or pages[index] != pages[index - 1] + 1:
            yield start, pages[start], index - start
            start = index
