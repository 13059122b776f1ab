"""KV page allocation for sequences: current, missing and reusable pages. Their order is decided elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from itertools import islice, takewhile
from typing import Protocol

from engine.cache_note import CacheMiss, CacheNote
from engine.config import EngineConfig
from engine.load import PageCounts
from engine.prefixes import digests_of, is_mark
from engine.scheduling.batch_builder import BatchBuilder
from engine.scheduling.cache_losses import CacheLosses, Loss
from engine.scheduling.cache_notes import cache_note
from engine.scheduling.counters import CumulativeCounters
from engine.scheduling.disk_pages import DiskPages, DiskRead
from engine.scheduling.page_store import PageStore
from engine.scheduling.pages import HostPool, PagePool, Rank
from engine.scheduling.sequence import Sequence, State
from engine.scheduling.sessions import CHARGE_PER_SECOND, Sessions, rank_of
from engine.types import Request, ServiceClass

EVICTED_FOR = {of: Loss(CacheMiss.EVICTED, of) for of in ServiceClass}


class PromptEstimates(Protocol):
    """Part of `StepEstimates`."""

    def seconds_saved(self, start: int, tokens: int) -> float:
        """Return the seconds that are saved if `tokens` of a prompt from `start` on are in host memory."""


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

    def __init__(
        self,
        config: EngineConfig,
        batch_builder: BatchBuilder,
        counters: CumulativeCounters,
        num_pages: int,
        host_pages: int,
    ) -> None:
        self.pool = PagePool(num_pages)
        self.host = HostPool(host_pages, self.pool.marks)
        max_pages = int(num_pages * config.session_share) if config.enable_prefix_caching else 0
        self.losses = CacheLosses()
        self.sessions = Sessions(
            self._set_rank,
            self._count,
            self.losses,
            max_pages=max_pages,
            host_pages=host_pages,
            page_size=config.tokens_per_page,
        )
        self._evicted = Loss(CacheMiss.EVICTED)  # of pages that the current request takes
        self.pool.on_evict = self._keep_on_host
        self.host.on_evict = self._leave_host
        self._stored: set[int] = set()  # host pages of sessions that the step writes
        self._taken: dict[bytes, int] = {}  # host pages that the step copies back
        self.disk: DiskPages | None = None
        self._batch_builder = batch_builder
        self._counters = counters
        self._size = config.tokens_per_page
        self._caching = config.enable_prefix_caching

    def begin_step(self, now: float) -> None:
        """Return host pages that the previous step has read to the pool, and apply times of sessions."""
        self.sessions.expire(now)
        self._stored.clear()
        self._taken.clear()
        self.host.release(self._batch_builder.host_pages_to_release)
        self._batch_builder.host_pages_to_release = []
        if self.disk is not None:
            self.disk.begin_step()

    def use_disk(self, store: PageStore, pages_per_step: int) -> None:
        """Write the pages of sessions to a store, and read them when a prompt continues them.

        pages_per_step: copied to host memory for that.
        """
        self.disk = DiskPages(
            store, self.pool, self.host, self._batch_builder, self.sessions.rank, self._count, pages_per_step
        )
        self.sessions.on_begin = self.disk.keep

    # Admission ----------------------------------------------------------------------------------------------------

    @property
    def num_pages(self) -> int:
        """Return the number of device pages."""
        return self.pool.total

    @property
    def page_size(self) -> int:
        """Return the number of tokens of a page."""
        return self._size

    @property
    def spare_pages(self) -> int:
        """Return the number of device pages that can be taken without a loss for any sequence or conversation."""
        return self.pool.spare

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

    def pages_on_host(self, sequence: Sequence, num_reused: int) -> int:
        """Return the number of host pages with the content that follows the first `num_reused` pages of a sequence."""
        if sequence.host_pages or not (self.host.cached or self._taken):
            return 0
        return sum(1 for _ in self._digests_on_host(sequence, num_reused))

    def cached_tokens(self, sequence: Sequence) -> int:
        """Return how many prompt tokens of a waiting sequence the prefix cache holds, also in host memory."""
        if not self._caching:
            return 0
        pages = len(self.pool.lookup(sequence.reusable_digests()))
        return (pages + self.pages_on_host(sequence, pages)) * self._size

    def cache_note(self, sequence: Sequence, now: float) -> CacheNote | None:
        """Return the note about a sequence that was admitted for the first time; None if it has no use for the cache:
        another choice computes its prompt.
        """
        if not self._caching or sequence.prompt_leader is not None:
            return None
        answers = self.sessions.answers
        disk: Container[bytes] = self.disk if self.disk is not None else ()
        return cache_note(sequence, answers, self.losses, self._size, now, host=self.host, disk=disk)

    def read_from_disk(
        self, request: Request, estimates: PromptEstimates, now: float, clock: Callable[[], float]
    ) -> DiskRead | None:
        """Begin to read the pages on disk that continue what memory has of a prompt.

        Returns None if there are none, or computing them takes less time.
        """
        if self.disk is None or request.sampling.prompt_logprobs is not None:
            return None
        known = (self.pool, self.host, self.disk)
        digests = digests_of(request.prompt, request.cache_salt, self._size)
        chain = list(takewhile(lambda digest: any(digest in place for place in known), digests))
        missing = self.disk.missing(chain[len(self.pool.lookup(chain)) :])
        if not missing:
            return None
        saved = estimates.seconds_saved(chain.index(missing[0]) * self._size, len(missing) * self._size)
        if self.disk.read_seconds(len(missing)) >= saved:
            return None
        self.sessions.resume(request.cache_salt, chain[: chain.index(missing[-1]) + 1], now)
        return self.disk.read(missing, now + saved, clock)

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

    def allocate(self, sequence: Sequence, reused: list[int], restored_pages: int = 0) -> bool:
        """Allocate pages for all known tokens of `sequence`; the caller has checked that there are enough.

        restored_pages: that follow `reused`, at most, and are copied from host memory if they are still there.
        Returns whether some of their contents are still being copied from host memory.
        """
        pool, size = self.pool, self._size
        self._evicted = EVICTED_FOR[sequence.service_class]
        for page in reused:
            pool.acquire(page)
        table, num_reused = list(reused), len(reused)
        host_pages, sequence.host_pages = sequence.host_pages, []
        if host_pages:
            self._batch_builder.release_later(host_pages)
            host_pages = host_pages[num_reused:]
        else:
            host_pages = self._take_from_host(sequence, num_reused, restored_pages)
            sequence.num_computed = max(0, min((num_reused + len(host_pages)) * size, len(sequence.tokens) - 1))
            if not host_pages and sequence.num_computed < num_reused * size:
                # The last page is shared and will be written: copy it.
                table[-1] = pool.allocate()
                self._batch_builder.copy(reused[-1], table[-1])
                pool.release([reused[-1]], Rank.FLEX)
        table += (pool.allocate() for _ in range(sequence.pages_needed - len(table)))
        sequence.page_table = table
        if not host_pages:
            return False
        self._batch_builder.swap_in(host_pages, table[num_reused : num_reused + len(host_pages)])
        return True

    def _take_from_host(self, sequence: Sequence, num_reused: int, limit: int) -> list[int]:
        """Return up to `limit` host pages that continue the first `num_reused` pages of a sequence.

        They are taken before device pages are evicted for it, which may be stored in their place.
        """
        digests = list(islice(self._digests_on_host(sequence, num_reused), limit))
        self._count("restored_tokens", len(digests))
        taken = {digest: self.host.take(digest) for digest in digests if digest not in self._taken}
        self._taken |= taken
        self._batch_builder.release_later(list(taken.values()))
        return [self._taken[digest] for digest in digests]

    def _digests_on_host(self, sequence: Sequence, num_reused: int) -> Iterator[bytes]:
        digests = islice(sequence.reusable_digests(), num_reused, None)
        return takewhile(lambda digest: digest in self.host or digest in self._taken, digests)

    def _set_rank(self, digest: bytes, rank: Rank, oldest: bool) -> None:
        """Change the rank of a page wherever it is."""
        self.pool.set_rank(digest, rank, oldest=oldest)
        self.host.set_rank(digest, rank, oldest=oldest)

    def _keep_on_host(self, page: int, digest: bytes, rank: Rank) -> None:
        """Copy a page of a session that is evicted to host memory, if there is room."""
        if self.sessions.rank(digest) is None:
            self.losses.lose(digest, self._evicted)
            return
        host_page = self.host.store(digest, rank, is_mark=self.pool.is_mark(page))
        if host_page is not None:
            self._batch_builder.swap_out([page], [host_page])
            self._stored.add(host_page)
        if digest in self.host:
            self._count("moved_tokens", 1)
        else:
            self._lose(digest, self._evicted)

    def _lose(self, digest: bytes, loss: Loss) -> None:
        """Record that memory has lost a page of a session."""
        self.losses.lose(digest, loss)
        if self.disk is None or digest not in self.disk:
            self._count("lost_tokens", 1)

    def _leave_host(self, host_page: int, digest: bytes) -> None:
        """Cancel a copy of this step to a page that gives way: each host page is written once."""
        loss = Loss(CacheMiss.HOST, self._evicted.beneficiary)
        if self.sessions.rank(digest) is not None:
            self._lose(digest, loss)
        else:
            self.losses.lose(digest, loss)
        if host_page in self._stored:
            self._stored.remove(host_page)
            self._batch_builder.cancel_swap_out([host_page])

    def _count(self, name: str, pages: int) -> None:
        self._counters.add(name, pages * self._size)

    def grow(self, sequence: Sequence) -> bool:
        """Add one page to `sequence`; return False if none is available."""
        if not self.pool.available:
            return False
        assert sequence.slot is not None
        self._evicted = EVICTED_FOR[sequence.service_class]
        page = self.pool.allocate()
        self._batch_builder.grow(sequence.slot, len(sequence.page_table), page)
        sequence.page_table.append(page)
        return True

    def has_joined(self, sequence: Sequence) -> bool:
        """Return whether `sequence` joins in the step that is being scheduled, with the pages that it has."""
        return sequence.slot in self._batch_builder.joined_slots

    def publish(self, sequence: Sequence, computed: int) -> None:
        """Publish the full pages among the first `computed` tokens to the prefix cache."""
        if self._caching:
            for index in range(sequence.num_published, computed // self._size):
                digest = sequence.digest(index)
                self.pool.publish(sequence.page_table[index], digest, is_mark=is_mark(index))
                self.losses.forget(digest)
                if (rank := self.sessions.rank(digest)) is not None:  # of a session that had lost the page
                    self.pool.set_rank(digest, rank)
                sequence.num_published = index + 1

    # Release ------------------------------------------------------------------------------------------------------

    def swap_out(self, sequence: Sequence) -> None:
        """Copy the computed pages of `sequence` to host memory; the caller has checked that there is room."""
        self._evicted = EVICTED_FOR[sequence.service_class]
        written_pages = sequence.page_table[: -(-sequence.num_computed // self._size)]
        sequence.host_pages = self.host.allocate(len(written_pages))
        self._batch_builder.swap_out(written_pages, sequence.host_pages)

    def release(self, sequence: Sequence) -> None:
        """Release its device pages, so that the last ones are evicted first."""
        self.pool.release(reversed(sequence.page_table), rank_of(sequence))
        sequence.page_table, sequence.num_published = [], 0

    def take_charge(self, sequence: Sequence) -> float:
        """Return the prompt tokens that a tenant is charged for what its sessions have kept since the last call."""
        return self.sessions.take_page_seconds(sequence.request.cache_salt) * self._size * CHARGE_PER_SECOND

    def end(self, sequence: Sequence, now: float) -> None:
        """Note that a sequence ends; its pages are released next, and it may be continued."""
        self.sessions.ended(sequence, now)

    def release_host(self, sequence: Sequence) -> None:
        """Release its host pages."""
        self._batch_builder.cancel_swap_out(sequence.host_pages)
        self.host.release(sequence.host_pages)
        sequence.host_pages = []

    def page_counts(self) -> PageCounts:
        """Return how many pages are in which state."""
        pool, host, kept, disk = self.pool, self.host, self.sessions.kept_pages(Rank.WAITING), self.disk
        swapped, on_disk = host.used, 0
        if disk is not None:
            swapped, on_disk = swapped - len(disk.host_pages), len(disk)
        return PageCounts(
            pool.total, pool.held, pool.cached, pool.free, swapped, host.total, kept, host.cached, on_disk
        )

    def check_sessions(self) -> None:
        """Compare the ranks of all pages with the sessions. Raises `AssertionError`."""
        self.sessions.check_integrity()
        for rank_in in (self.pool.ranks(), self.host.ranks()):
            for digest, rank in rank_in.items():
                kept = self.sessions.rank(digest)
                assert rank is kept if kept is not None else rank <= Rank.STANDARD, (digest, rank, kept)
