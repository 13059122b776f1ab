"""Pages to host memory and back, on a GPU beside computation.

Copies between host and device run on a stream of their own. Pages that leave are first gathered into a staging buffer
of fixed size, in the order of the computing stream, so that they may be written again at once; the copy to the host
follows. More pages than half of the buffer holds leave in pieces, which take turns with its two halves: only then does
the computing stream wait for copies. Pages that return are copied straight into place, while the step that admits
their sequence is computed; the sequence computes from the next step on (`engine.scheduling.scheduler`). On a CPU all
copies are direct and finished at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

import torch

from engine.execution.cache import KVCache

STAGING_BYTES = 256 << 20  # of device memory, in two halves

Pairs = Sequence[tuple[int, int]]


class Swap:
    """Moves pages of one cache; moves begin in the order of the calls."""

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self._staging = _Staging(cache) if cache.device.type == "cuda" and len(cache.host) else None
        self._is_under_way = False

    def out(self, pairs: Pairs) -> None:
        """Copy (device page, host page) pairs to host memory. On a GPU this only begins; until it has ended, host pages
        may be read by `back` alone."""
        if self._staging is not None:
            self._staging.out(pairs)
            return
        for page, host_page in pairs:
            self._cache.host[host_page].copy_(self._cache.data[page])

    def back(self, pairs: Pairs) -> None:
        """Begin to copy (host page, device page) pairs back. No step may touch either page before `land`."""
        self._is_under_way = True
        if self._staging is not None:
            self._staging.back(pairs)
            return
        for host_page, page in pairs:
            self._cache.data[page].copy_(self._cache.host[host_page])

    @property
    def is_under_way(self) -> bool:
        """Whether `land` is due."""
        return self._is_under_way

    def land(self) -> None:
        """Let later steps wait until all pages are back; called before a step touches any of them."""
        if self._is_under_way and self._staging is not None:
            self._staging.join()
        self._is_under_way = False


class _Staging:
    """Two halves of a device buffer, and the stream that copies from them."""

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self._stream = torch.cuda.Stream(cache.device)  # type: ignore[no-untyped-call]
        pages = half_pages(cache.data[0].nbytes, len(cache.host))
        shape = (pages, *cache.data.shape[1:])
        self._halves = [torch.empty(shape, dtype=cache.data.dtype, device=cache.device) for _ in range(2)]
        self._copied: list[torch.cuda.Event | None] = [None, None]  # the last copy from each half
        self._next = 0
        self._back: torch.cuda.Event | None = None  # the last page that returned

    def out(self, pairs: Pairs) -> None:
        """Gather pages and begin to copy them to the host, a piece after the other."""
        size = len(self._halves[0])
        for start in range(0, len(pairs), size):
            pages, host_pages = zip(*pairs[start : start + size], strict=True)
            self._gather_and_copy(pages, host_pages)

    def _gather_and_copy(self, pages: Sequence[int], host_pages: Sequence[int]) -> None:
        half, copied = self._halves[self._next], self._copied[self._next]
        if copied is not None:
            torch.cuda.current_stream(self._cache.device).wait_event(copied)
        torch.index_select(self._cache.data, 0, self._cache.index(pages), out=half[: len(pages)])
        with self._beside_computation():
            for at, there, count in _runs(host_pages):
                self._cache.host[there : there + count].copy_(half[at : at + count], non_blocking=True)
        self._copied[self._next] = self._stream.record_event()
        self._next = 1 - self._next

    def back(self, pairs: Pairs) -> None:
        """Begin to copy pages into place."""
        with self._beside_computation():
            for host_page, page in pairs:
                self._cache.data[page].copy_(self._cache.host[host_page], non_blocking=True)
        self._back = self._stream.record_event()

    def join(self) -> None:
        """Let the computing stream wait for pages that return, and for no later copy."""
        if self._back is not None:
            torch.cuda.current_stream(self._cache.device).wait_event(self._back)

    def _beside_computation(self) -> AbstractContextManager[object]:
        """Copy after all work that the computing stream has been given so far."""
        self._stream.wait_stream(torch.cuda.current_stream(self._cache.device))
        return torch.cuda.stream(self._stream)


def half_pages(page_bytes: int, host_pages: int) -> int:
    """Return how many pages one half of the staging buffer holds: no more than there are host pages, at least one."""
    return max(1, min(host_pages, STAGING_BYTES // 2 // page_bytes))


def _runs(pages: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield (index in `pages`, first page, count) of consecutive pages, each of which is one copy."""
    begin = 0
    for index in range(1, len(pages) + 1):
        if index == len(pages) or pages[index] != pages[index - 1] + 1:
            yield begin, pages[begin], index - begin
            begin = index
