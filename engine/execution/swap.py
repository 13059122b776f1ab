"""Pages to host memory and back, on a GPU beside what it computes.

Copies between host and device have a stream of their own. Pages that go out are first gathered where they are, in the
order of what is computed, so that they may be written again at once; the copy follows when it can. Pages that come back
are fetched while the step that lets their sequence in is computed, and are put where they belong before the next one:
who comes back computes from that step on (`engine.scheduling.scheduler`). On a CPU there is nothing to run beside; the
order is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.execution.cache import KVCache


@dataclass(frozen=True, slots=True)
class _Coming:
    """Pages on their way."""

    pages: Sequence[int]
    content: Tensor  # [n, layers, 2, Hkv, S, D] on the device
    fetched: torch.cuda.Event | None  # None where nothing runs beside


class Swap:
    """Moves pages of one cache. What it is told is begun in that order."""

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self._beside = torch.cuda.Stream(cache.device) if cache.device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._coming: list[_Coming] = []

    def out(self, pairs: Sequence[tuple[int, int]]) -> None:
        """(device page, host page) pairs: to host memory. On a GPU only begun: the host pages are for `back` alone."""
        cache = self._cache
        pages, host_pages = zip(*pairs, strict=True)
        leaving = cache.data.index_select(0, cache.index(pages))
        if self._beside is not None:
            self._beside.wait_stream(torch.cuda.current_stream(cache.device))
            leaving.record_stream(self._beside)
        with self._on_the_side():
            for at, there, count in _runs(host_pages):
                cache.host[there : there + count].copy_(leaving[at : at + count], non_blocking=True)

    def back(self, pairs: Sequence[tuple[int, int]]) -> None:
        """(host page, device page) pairs: begin to fetch. The device pages hold what they should after `land`; until
        then they are nobody else's, and so are the host pages."""
        host_pages, pages = zip(*pairs, strict=True)
        cache = self._cache
        with self._on_the_side():
            content = torch.empty((len(pages), *cache.data.shape[1:]), dtype=cache.data.dtype, device=cache.device)
            for at, there, count in _runs(host_pages):
                content[at : at + count].copy_(cache.host[there : there + count], non_blocking=True)
        fetched = None if self._beside is None else self._beside.record_event()
        self._coming.append(_Coming(pages, content, fetched))

    @property
    def is_under_way(self) -> bool:
        """Whether there is something to `land`."""
        return bool(self._coming)

    def land(self) -> None:
        """Put what was fetched where it belongs; before a step touches any page."""
        cache = self._cache
        for coming in self._coming:
            if coming.fetched is not None:
                computing = torch.cuda.current_stream(cache.device)
                computing.wait_event(coming.fetched)
                coming.content.record_stream(computing)
            cache.data.index_copy_(0, cache.index(coming.pages), coming.content)
        self._coming = []

    def _on_the_side(self) -> AbstractContextManager[object]:
        return nullcontext() if self._beside is None else torch.cuda.stream(self._beside)


def _runs(pages: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """(index in `pages`, page, number of pages) of what lies together there, and is one copy."""
    begin = 0
    for index in range(1, len(pages) + 1):
        if index == len(pages) or pages[index] != pages[index - 1] + 1:
            yield begin, pages[begin], index - begin
            begin = index
