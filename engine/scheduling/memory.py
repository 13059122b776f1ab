"""What pages a sequence has, would need, and can take over from others. Whose turn it is, is decided elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import islice

from engine.config import EngineConfig
from engine.scheduling.moves import Moves
from engine.scheduling.pages import HostPool, PagePool
from engine.scheduling.sequence import Sequence, State


class Memory:
    """Device and host pages of one engine. What has to be copied for its changes is told to `moves`."""

    def __init__(self, config: EngineConfig, moves: Moves, num_pages: int, host_pages: int) -> None:
        self.pool = PagePool(num_pages)
        self.host = HostPool(host_pages)
        self._moves = moves
        self._size = config.tokens_per_page
        self._caching = config.enable_prefix_caching

    def begin_step(self) -> None:
        """Host pages that a step before has read may be written again."""
        self.host.release(self._moves.spent_host_pages)
        self._moves.spent_host_pages = []

    # Before it has a slot -----------------------------------------------------------------------------------------

    def reusable(self, sequence: Sequence, movable: list[Sequence]) -> list[int]:
        """Pages whose content `sequence` would otherwise compute; takes no reference. They stay what they are while
        `movable` are paused: published pages are remembered, and a lead is only copied when it stays."""
        if sequence.host_pages:  # what the cache still has need not come back from host memory
            full = sequence.num_computed // self._size
            return self.pool.lookup(islice(sequence.reusable_digests(), full)) if self._caching else []
        lead = sequence.lead
        if lead is not None and lead.state is State.RUNNING and lead.num_computed >= sequence.prompt_len:
            assert lead.slot is not None
            if sequence.num_generated == 0 and lead not in movable and lead.slot not in self._moves.joined:
                return lead.page_table[: -(-(sequence.prompt_len - 1) // self._size)]
        return self.pool.lookup(sequence.reusable_digests()) if self._caching else []

    def cached_tokens(self, sequence: Sequence) -> int:
        """Of a prompt that waits, those that the prefix cache has."""
        return len(self.pool.lookup(sequence.reusable_digests())) * self._size if self._caching else 0

    def lacking(self, sequence: Sequence, reused: list[int]) -> int:
        """Pages that `sequence` needs beyond `reused` and those that are available; negative: so many are to spare."""
        # Cached pages that it takes up again leave `available` too; a page that it shares and will write is copied.
        idle = sum(self.pool.references(page) == 0 for page in reused)
        shared = min(len(reused), (len(sequence.tokens) - 1) // self._size)
        return sequence.pages_needed - shared + idle - self.pool.available

    def reclaimable(self, movable: Iterable[Sequence], reused: list[int]) -> int:
        """Pages that pausing all of `movable` would make available to one that takes up `reused`."""
        taken_up = set(reused)  # pausing their holders gains nothing: they leave `available` at once
        held = Counter(page for s in movable for page in s.page_table if page not in taken_up)
        return sum(count == self.pool.references(page) for page, count in held.items())

    # While it has one ---------------------------------------------------------------------------------------------

    def furnish(self, sequence: Sequence, reused: list[int]) -> bool:
        """Give `sequence` pages for all its known tokens; there are enough. True when some of their contents are on
        their way from host memory."""
        pool, size = self.pool, self._size
        for page in reused:
            pool.acquire(page)
        table = list(reused)
        if reused and not sequence.host_pages:
            sequence.num_computed = min(len(reused) * size, len(sequence.tokens) - 1)
            if sequence.num_computed < len(reused) * size:
                # The last page is shared and will be written: copy it.
                table[-1] = pool.allocate()
                self._moves.copy(reused[-1], table[-1])
                pool.release([reused[-1]])
        table += (pool.allocate() for _ in range(sequence.pages_needed - len(table)))
        sequence.page_table = table
        known, kept = len(reused), sequence.host_pages
        sequence.host_pages = []
        self._moves.spend(kept[:known])
        if known >= len(kept):
            return False
        self._moves.swap_in(kept[known:], table[known : len(kept)])
        return True

    def grow(self, sequence: Sequence) -> bool:
        """One page more, if there is one."""
        if not self.pool.available:
            return False
        assert sequence.slot is not None
        page = self.pool.allocate()
        self._moves.grow(sequence.slot, len(sequence.page_table), page)
        sequence.page_table.append(page)
        return True

    def publish(self, sequence: Sequence, computed: int) -> None:
        """The full pages among the first `computed` tokens can be found by others."""
        if self._caching:
            for index in range(sequence.num_published, computed // self._size):
                self.pool.publish(sequence.page_table[index], sequence.digest(index))
                sequence.num_published = index + 1

    # When it leaves -----------------------------------------------------------------------------------------------

    def swap_out(self, sequence: Sequence) -> None:
        """Keep what it computed in host memory; there is room."""
        written = sequence.page_table[: -(-sequence.num_computed // self._size)]
        sequence.host_pages = self.host.allocate(len(written))
        self._moves.swap_out(written, sequence.host_pages)

    def release(self, sequence: Sequence) -> None:
        """Give back its device pages, the last ones first to be taken by others."""
        self.pool.release(reversed(sequence.page_table))
        sequence.page_table, sequence.num_published = [], 0

    def forget(self, sequence: Sequence) -> None:
        """Give back its host pages."""
        self._moves.cancel_swap_out(sequence.host_pages)
        self.host.release(sequence.host_pages)
        sequence.host_pages = []
