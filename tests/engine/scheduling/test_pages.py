"""The page pool agrees with a simple model."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.errors import IntegrityError
from engine.prefixes import KEY_BYTES, CachedMarks, chain_next, chain_start
from engine.scheduling.pages import HostPool, PagePool, Rank
from tests.engine.scheduling.history import PAGE_SIZE, History
from tests.profiles import examples


def split(keys: bytes) -> set[bytes]:
    return {keys[start : start + KEY_BYTES] for start in range(0, len(keys), KEY_BYTES)}


class PoolMachine(RuleBasedStateMachine):
    """State machine in which holders allocate, share, publish and release in any order."""

    @initialize(total=st.integers(1, 8))
    def build(self, total):
        self.pool = PagePool(total)
        self.tables: list[list[int]] = []
        self.ever_held: set[int] = set()
        self.content: dict[int, bytes] = {}  # published digests of pages that have not been allocated since
        self.serial = 0
        self.marks: set[bytes] = set()  # digests that were published as marks
        self.reported: set[bytes] = set()  # keys, from all changes so far
        assert self.pool.marks.take_changes() is None

    @precondition(lambda self: self.pool.available)
    @rule()
    def allocate(self):
        free_before, ranks = self.pool.free, self.pool.ranks()
        held = {page for table in self.tables for page in table}
        page = self.pool.allocate()
        if not free_before:
            cached = {rank for p, digest in self.content.items() if p not in held for rank in [ranks[digest]]}
            assert ranks[self.content[page]] is min(cached), "a page of a higher rank was evicted"
        assert all(page not in table for table in self.tables), "a held page was given out"
        assert free_before or page in self.content, "a cached page was taken although one was free, or from nowhere"
        self.content.pop(page, None)
        self.tables.append([page])
        self.ever_held.add(page)

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), is_new=st.booleans(), is_mark=st.booleans())
    def publish(self, data, is_new, is_mark):
        page = data.draw(st.sampled_from(sorted({p for table in self.tables for p in table})))
        self.serial += is_new
        digest = f"{self.serial:08}".encode()
        known = digest in self.content.values()
        if page not in self.content and not known:
            self.content[page] = digest
            self.marks.discard(digest)
            if is_mark:
                self.marks.add(digest)
        self.pool.publish(page, digest, is_mark=is_mark)

    @rule(number=st.integers(0, 30))
    def look_up_and_share(self, number):
        digest = f"{number:08}".encode()
        expected = [page for page, known in self.content.items() if known == digest]
        assert self.pool.lookup([digest]) == expected
        if expected:
            self.pool.acquire(expected[0])
            self.tables.append(expected)

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), rank=st.sampled_from(Rank))
    def release(self, data, rank):
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        self.pool.release(reversed(table), rank)
        assert all(self.pool.ranks()[self.content[page]] >= rank for page in table if page in self.content)

    @rule(number=st.integers(0, 30), rank=st.sampled_from(Rank), oldest=st.booleans())
    def set_rank(self, number, rank, oldest):
        digest = f"{number:08}".encode()
        self.pool.set_rank(digest, rank, oldest=oldest)
        assert self.pool.ranks().get(digest, rank) is rank

    @rule()
    def forget(self):
        self.pool.forget_cached()
        held = {page for table in self.tables for page in table}
        self.content = {page: digest for page, digest in self.content.items() if page in held}
        assert self.pool.cached == 0

    @invariant()
    def books_balance(self):
        if not hasattr(self, "pool"):
            return
        self.pool.check_integrity(self.tables)
        held = Counter(page for table in self.tables for page in table)
        assert self.pool.held == len(held)
        assert self.pool.cached == len(self.content.keys() - held.keys())
        assert self.pool.free + self.pool.cached + self.pool.held == self.pool.total
        assert self.ever_held == set(range(self.pool.num_touched))

    @rule()
    def report_marks(self):
        """Changes since the last report give the same marks as a report of all."""
        if (changes := self.pool.marks.take_changes()) is not None:
            self.reported |= split(changes.gained)
            self.reported -= split(changes.lost)
        assert self.reported == split(self.pool.marks.take_all().gained)
        assert self.reported == {digest[:KEY_BYTES] for digest in self.content.values() if digest in self.marks}


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=examples(150), stateful_step_count=40)


def test_the_least_recently_released_page_is_evicted_first():
    """Within a sequence the tail is evicted before the beginning, because it is released tail first."""
    pool = PagePool(3)
    pages = [pool.allocate() for _ in range(3)]
    for page in pages:
        pool.publish(page, bytes([page]))
    pool.release(reversed(pages), Rank.STANDARD)
    assert pool.allocate() == pages[2]
    assert pool.lookup([bytes([pages[0]]), bytes([pages[1]]), bytes([pages[2]])]) == pages[:2]


def test_spare_pages_are_those_that_are_evicted_before_conversations():
    """Free ones, and cached ones of the two lowest ranks."""
    pool = PagePool(len(Rank) + 2)
    held = [pool.allocate() for _ in range(len(Rank) + 1)]
    for page, rank in zip(held, Rank, strict=False):
        pool.publish(page, bytes([page]))
        pool.release([page], rank)
    assert pool.spare == 3 and pool.available == len(Rank) + 1
    kept = [bytes([page]) for page, rank in zip(held, Rank, strict=False) if rank >= Rank.SESSION]
    while pool.spare:
        pool.allocate()
    assert all(digest in pool for digest in kept)


def test_digests_depend_on_salt_prefix_and_tokens():
    """Equal tokens after another prefix, or with another salt, are other pages."""
    a, b = chain_start("a"), chain_start("b")
    assert len({a, b, chain_next(a, [1, 2]), chain_next(b, [1, 2]), chain_next(a, [2, 1])}) == 5
    assert chain_next(chain_next(a, [1]), [2]) != chain_next(chain_next(a, [2]), [2])
    assert chain_next(a, [1, 2]) == chain_next(chain_start("a"), [1, 2])


@pytest.mark.parametrize("mistake", ["double release", "release free", "acquire free", "publish free", "run dry"])
def test_a_mistake_is_an_integrity_error(mistake: str):
    """Misuse raises an error with numbers."""
    pool = PagePool(2)
    page = pool.allocate()
    with pytest.raises(IntegrityError, match=r"\d"):
        match mistake:
            case "double release":
                pool.release([page, page], Rank.FLEX)
            case "release free":
                pool.release([1 - page], Rank.FLEX)
            case "acquire free":
                pool.acquire(1 - page)
            case "publish free":
                pool.publish(1 - page, b"x")
            case "run dry":
                pool.allocate()
                pool.allocate()


def test_a_leaked_page_is_found():
    """Reference counts are compared with the page tables."""
    pool = PagePool(2)
    pool.allocate()
    with pytest.raises(IntegrityError, match="has 1 references, but occurs 0 times in the page tables"):
        pool.check_integrity([])


def test_host_pages_are_allocated_and_released():
    """A host page has at most one holder."""
    host = HostPool(4, CachedMarks())
    pages = host.allocate(3)
    assert (host.used, host.available) == (3, 1)
    host.check_integrity([pages])
    with pytest.raises(IntegrityError):
        host.allocate(2)
    with pytest.raises(IntegrityError):
        host.check_integrity([])
    host.release(pages)
    host.check_integrity([])


def test_pages_that_a_resumed_sequence_has_not_filled_are_not_published():
    """A step that began before it was preempted has filled its earlier pages."""
    history = History(slots=1, pages=8)
    history.arrive(list(range(1, 13)), 4)
    history.step()
    (sequence,) = history.scheduler.running
    published = sequence.num_published
    assert published < len(sequence.page_table)
    earlier_table = list(sequence.page_table)
    history.scheduler._publish(sequence, earlier_table, 3 * PAGE_SIZE, history.now)
    assert sequence.num_published == published
    history.scheduler._publish(sequence, sequence.page_table, 3 * PAGE_SIZE, history.now)
    assert sequence.num_published == 3
