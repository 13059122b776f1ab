"""KV page allocation for sequences: current, missing and reusable pages. Their order is decided elsewhere."""

from __future__ import annotations

from itertools import islice

from engine.config import EngineConfig
from engine.prefixes import is_mark
from engine.scheduling.batch_builder import BatchBuilder
from engine.scheduling.pages import HostPool, PagePool
from engine.scheduling.sequence import Sequence, State


class ReclaimedPages:
    """Counter of the pages that become available as sequences are preempted, for one that reuses certain pages.

    Preempting a holder of the reused pages gains none of them: they are taken at once.
    """

    def __init__(self, pool: PagePool, reused: list[int]) -> None:
        self.count = 0
        self._pool = pool
        self._reused = set(reused)
        self._dropped: dict[int, int] = {}  # references to each page

    def add(self, sequence: Sequence) -> None:
        """Count the pages that are available once `sequence` is preempted too."""
        for page in sequence.page_table:
            if page not in self._reused:
                self._dropped[page] = dropped = self._dropped.get(page, 0) + 1
                self.count += dropped == self._pool.references(page)


class KVManager:
    """Device and host pages of one engine. The required copies are recorded in `batch_builder`."""

    def __init__(self, config: EngineConfig, batch_builder: BatchBuilder, num_pages: int, host_pages: int) -> None:
        self.pool = PagePool(num_pages)
        self.host = HostPool(host_pages)
        self._batch_builder = batch_builder
        self._size = config.tokens_per_page
        self._caching = config.enable_prefix_caching

    def begin_step(self) -> None:
        """Return host pages that the previous step has read to the pool."""
        self.host.release(self._batch_builder.host_pages_to_release)
        self._batch_builder.host_pages_to_release = []

    # Admission ----------------------------------------------------------------------------------------------------

    @property
    def num_pages(self) -> int:
        """Return the number of device pages."""
        return self.pool.total

    @property
    def host_pages_available(self) -> int:
        """Return the number of host pages to which preempted sequences can be swapped."""
        return self.host.available

    def reusable_pages(self, sequence: Sequence, preemptible: list[Sequence]) -> list[int]:
        """Return pages with content that `sequence` would otherwise compute, without taking references.

        They stay valid while `preemptible` are preempted: published pages remain cached, and the pages of a lead are
        used only if it stays.
        """
        if sequence.host_pages:  # pages that are still cached need not be copied from host memory
            full = sequence.num_computed // self._size
            return self.pool.lookup(islice(sequence.reusable_digests(), full)) if self._caching else []
        lead = sequence.prompt_leader
        if lead is not None and lead.state is State.RUNNING and lead.num_computed >= sequence.prompt_len:
            assert lead.slot is not None
            if (
                sequence.num_generated == 0
                and lead not in preemptible
                and lead.slot not in self._batch_builder.joined_slots
            ):
                return lead.page_table[: -(-(sequence.prompt_len - 1) // self._size)]
        return self.pool.lookup(sequence.reusable_digests()) if self._caching else []

    def cached_tokens(self, sequence: Sequence) -> int:
        """Return how many prompt tokens of a waiting sequence the prefix cache holds."""
        return len(self.pool.lookup(sequence.reusable_digests())) * self._size if self._caching else 0

    def pages_short(self, sequence: Sequence, reused: list[int]) -> int:
        """Return the pages that `sequence` needs beyond `reused` and the available ones; negative: pages to spare."""
        # Cached pages that it reuses leave `available` too; a page that it shares and will write is copied.
        idle = sum(self.pool.references(page) == 0 for page in reused)
        shared = min(len(reused), (len(sequence.tokens) - 1) // self._size)
        return sequence.pages_needed - shared + idle - self.pool.available

    def reclaim(self, reused: list[int]) -> ReclaimedPages:
        """Return a counter of the pages that preemptions make available to a sequence that reuses `reused`."""
        return ReclaimedPages(self.pool, reused)

    # While running ------------------------------------------------------------------------------------------------

    def allocate(self, sequence: Sequence, reused: list[int]) -> bool:
        """Allocate pages for all known tokens of `sequence`; the caller has checked that there are enough.

        Returns whether some of their contents are still being copied from host memory.
        """
        pool, size = self.pool, self._size
        for page in reused:
            pool.acquire(page)
        table = list(reused)
        if reused and not sequence.host_pages:
            sequence.num_computed = min(len(reused) * size, len(sequence.tokens) - 1)
            if sequence.num_computed < len(reused) * size:
                # The last page is shared and will be written: copy it.
                table[-1] = pool.allocate()
                self._batch_builder.copy(reused[-1], table[-1])
                pool.release([reused[-1]])
        table += (pool.allocate() for _ in range(sequence.pages_needed - len(table)))
        sequence.page_table = table
        num_reused, host_pages = len(reused), sequence.host_pages
        sequence.host_pages = []
        self._batch_builder.release_later(host_pages[:num_reused])
        if num_reused >= len(host_pages):
            return False
        self._batch_builder.swap_in(host_pages[num_reused:], table[num_reused : len(host_pages)])
        return True

    def grow(self, sequence: Sequence) -> bool:
        """Add one page to `sequence`; return False if none is available."""
        if not self.pool.available:
            return False
        assert sequence.slot is not None
        page = self.pool.allocate()
        self._batch_builder.grow(sequence.slot, len(sequence.page_table), page)
        sequence.page_table.append(page)
        return True

    def publish(self, sequence: Sequence, computed: int) -> None:
        """Publish the full pages among the first `computed` tokens to the prefix cache."""
        if self._caching:
            for index in range(sequence.num_published, computed // self._size):
                self.pool.publish(sequence.page_table[index], sequence.digest(index), is_mark=is_mark(index))
                sequence.num_published = index + 1

    # Release ------------------------------------------------------------------------------------------------------

    def swap_out(self, sequence: Sequence) -> None:
        """Copy the computed pages of `sequence` to host memory; the caller has checked that there is room."""
        written_pages = sequence.page_table[: -(-sequence.num_computed // self._size)]
        sequence.host_pages = self.host.allocate(len(written_pages))
        self._batch_builder.swap_out(written_pages, sequence.host_pages)

    def release(self, sequence: Sequence) -> None:
        """Release its device pages, so that the last ones are evicted first."""
        self.pool.release(reversed(sequence.page_table))
        sequence.page_table, sequence.num_published = [], 0

    def release_host(self, sequence: Sequence) -> None:
        """Release its host pages."""
        self._batch_builder.cancel_swap_out(sequence.host_pages)
        self.host.release(sequence.host_pages)
        sequence.host_pages = []
