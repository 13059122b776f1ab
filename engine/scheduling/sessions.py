"""Sessions: conversations that are expected to go on, and what is kept of them in the prefix cache.

A session is the chain of full pages of an answer's tokens, from the beginning of its prompt. It begins with an answer
that asks for a tool or extends an earlier one, or with a hint from its client, and ends when a longer one extends it.
While it waits for the result of a tool, its pages are evicted last of all; otherwise before those, and after all pages
of single requests. A page of several sessions has the highest of their ranks.

Three limits. The sessions of each of these two ranks keep at most a share of the pool, which owners divide fairly
(`kept_pages`); beyond it a session has the next lower rank. The lowest is that of single requests: its pages are still
copied to host memory before they are evicted, as many as there is room for. A session waits for a time, and is then one
that does not. Of such a session the second half of the pages is given up after each half-life. Nothing is reserved: a
page of any rank is evicted if a running sequence needs it and there is no other. What is kept counts as service of its
tenant.
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable

from sortedcontainers import SortedKeyList

from engine.cache_note import CacheMiss
from engine.scheduling.cache_losses import CacheLosses
from engine.scheduling.ended_answers import MAX_ENDED_PAGES, MAX_ENDED_TOKENS, EndedAnswer, EndedAnswers
from engine.scheduling.kept_pages import KeptPages, Session
from engine.scheduling.pages import Rank
from engine.scheduling.sequence import Sequence
from engine.types import ServiceClass

TOOL_SECONDS = 600.0  # for which a session waits for the result of its tool at least
HALF_LIFE_SECONDS = 300.0
CHARGE_PER_SECOND = 0.1 / HALF_LIFE_SECONDS  # of a prompt token, for each kept token: a tenth of it in a half-life
MAX_CHARGED_OWNERS = 4096  # with charges that are not applied yet


def rank_of(sequence: Sequence) -> Rank:
    """Return the rank of the pages that a sequence releases."""
    return Rank.FLEX if sequence.service_class is ServiceClass.BATCH else Rank.STANDARD


class Sessions:
    """Sessions of one engine, and the ranks of their pages."""

    def __init__(
        self,
        set_rank: Callable[[bytes, Rank, bool], None],
        count: Callable[[str, int], None],
        losses: CacheLosses,
        *,
        max_pages: int,
        host_pages: int,
        page_size: int,
    ) -> None:
        """set_rank: changes that of a page; whether the page is the first of its rank to be evicted. count: adds pages
        to the counter with a name. max_pages: that the sessions of each rank keep at most; 0: there are no sessions.
        """
        self._set_rank = set_rank
        self._count = count
        bounds = {Rank.WAITING: max_pages, Rank.SESSION: max_pages, Rank.STANDARD: host_pages}
        self._kept = {rank: KeptPages[Session](pages) for rank, pages in bounds.items()}
        self._is_enabled = max_pages > 0
        self._losses = losses
        self._page_size = page_size
        # Called with the pages of a session that begins.
        self.on_begin: Callable[[list[bytes]], None] = lambda digests: None
        self.answers = EndedAnswers(min(MAX_ENDED_PAGES, MAX_ENDED_TOKENS // page_size))
        self._by_tail: dict[bytes, Session] = {}
        self._keepers: dict[bytes, list[int]] = {}  # sessions of each rank that have a page, by digest
        self._expiries: SortedKeyList[Session, float] = SortedKeyList(key=lambda session: session.until)
        self._charged_at: dict[str, float] = {}  # by owner that keeps pages
        self._page_seconds: OrderedDict[str, float] = OrderedDict()  # kept by owners since they were last charged
        self._now = 0.0

    def kept_pages(self, rank: Rank) -> int:
        """Return the number of pages that the sessions of a rank keep."""
        return self._kept[rank].total

    def rank(self, digest: bytes) -> Rank | None:
        """Return the rank of a page that sessions keep; None if none does."""
        keepers = self._keepers.get(digest)
        return None if keepers is None else next((rank for rank in self._kept if keepers[rank]), None)

    # Changes ------------------------------------------------------------------------------------------------------

    def ended(self, sequence: Sequence, now: float) -> None:
        """Note that a sequence ends; its pages are released next. If it extends a session, that goes on with them."""
        self._now, digests = now, sequence.published_digests
        if not digests:
            return
        request, tokens = sequence.request, sequence.tokens[: (len(digests) + 1) * self._page_size]
        answer = EndedAnswer(request.id, request.cache_salt, digests, request.session_seconds, now, array("i", tokens))
        if self._is_enabled:
            self._begin(answer, digests[: sequence.num_prompt_pages], asks_for_tool=sequence.asks_for_tool)
        self.answers.add(answer)

    def keep(self, request_id: str, now: float) -> None:
        """Keep the pages of an ended request that waits for the result of a tool.

        Unknown requests are ignored: they ended long ago, or had no full page.
        """
        self._now = now
        if self._is_enabled and (answer := self.answers.get(request_id)) is not None:
            self._wait(answer)

    def resume(self, owner: str, digests: list[bytes], now: float) -> None:
        """Begin a session with the pages of one that the process before has left."""
        self._now = now
        if self._is_enabled:
            self._add(Session(owner, digests, Rank.SESSION, now + HALF_LIFE_SECONDS))

    def expire(self, now: float) -> None:
        """Apply times that have passed."""
        self._now = now
        while self._expiries and self._expiries[0].until <= now:
            session = self._expiries[0]
            if session.rank is Rank.WAITING:
                self._lower(session)
                continue
            self._remove(session)
            half = len(session.digests) // 2
            self._count("expired_tokens", len(session.digests) - half)
            self._give_up(session.digests[half:], CacheMiss.EXPIRED)
            session.digests, session.until = session.digests[:half], now + HALF_LIFE_SECONDS
            if session.digests and session.tail not in self._by_tail:
                self._add(session, oldest=True)

    def take_page_seconds(self, owner: str) -> float:
        """Return the product of pages and seconds that an owner's sessions have kept since the last call."""
        if owner in self._charged_at:
            self._charge(owner)
        return self._page_seconds.pop(owner, 0.0)

    # Internals ----------------------------------------------------------------------------------------------------

    def _begin(self, answer: EndedAnswer, prompt: list[bytes], *, asks_for_tool: bool) -> None:
        """Begin the session of an answer that has a reason for one; those that its prompt extends end."""
        extended = [found for digest in prompt if (found := self._by_tail.get(digest)) is not None]
        for earlier in extended:
            self._remove(earlier)
        if asks_for_tool:
            self._wait(answer)
        elif answer.seconds or extended or any(self.answers.by_tail(digest) for digest in prompt):
            until = self._now + max(HALF_LIFE_SECONDS, answer.seconds)
            self._add(Session(answer.owner, answer.digests, Rank.SESSION, until))
            self.on_begin(answer.digests)

    def _wait(self, answer: EndedAnswer) -> None:
        seconds = max(TOOL_SECONDS, answer.seconds)
        self._add(Session(answer.owner, answer.digests, Rank.WAITING, self._now + seconds))
        self.on_begin(answer.digests)

    def _lower(self, session: Session) -> None:
        """Give a session the next lower rank; end it if there is none."""
        self._remove(session)
        if session.rank is Rank.STANDARD:
            self._give_up(session.digests, CacheMiss.SHARE)
        else:
            session.rank, session.until = Rank(session.rank - 1), self._now + HALF_LIFE_SECONDS
            self._add(session, oldest=True)

    def _add(self, session: Session, *, oldest: bool = False) -> None:
        """Count the pages of a session. oldest: they are the first of their rank to be evicted; the last ones first."""
        if (same := self._by_tail.get(session.tail)) is not None:
            self._remove(same)
        self._by_tail[session.tail] = session
        self._expiries.add(session)
        new = 0
        for digest in session.digests if oldest else reversed(session.digests):
            keepers = self._keepers.setdefault(digest, [0] * len(Rank))
            keepers[session.rank] += 1
            if keepers[session.rank] == 1:
                new += 1
                if session.rank is self.rank(digest):
                    self._set_rank(digest, session.rank, oldest)
        self._charge(session.owner)
        kept = self._kept[session.rank]
        kept.add(session, new)
        while kept.is_beyond_bound:
            lowered = kept.first_to_give_up()
            self._count("beyond_share_tokens", len(lowered.digests) if lowered.rank is not Rank.STANDARD else 0)
            self._lower(lowered)

    def _give_up(self, digests: list[bytes], reason: CacheMiss) -> None:
        """Record why pages are kept no more, except for those that other sessions keep."""
        for digest in digests:
            if digest not in self._keepers:
                self._losses.give_up(digest, reason)

    def _remove(self, session: Session) -> None:
        del self._by_tail[session.tail]
        self._expiries.remove(session)
        gone = 0
        for digest in session.digests:
            keepers = self._keepers[digest]
            keepers[session.rank] -= 1
            if keepers[session.rank]:
                continue
            gone += 1
            rank = self.rank(digest)
            if rank is None:
                del self._keepers[digest]
            if rank is None or rank < session.rank:
                self._set_rank(digest, Rank.STANDARD if rank is None else rank, True)
        self._charge(session.owner)
        self._kept[session.rank].remove(session, gone)

    def _charge(self, owner: str) -> None:
        """Add what an owner has kept until now; called before that changes."""
        pages = sum(kept.of(owner) for kept in self._kept.values())
        since = self._charged_at.pop(owner, self._now)
        self._charged_at[owner] = self._now
        if pages and self._now > since:
            self._page_seconds[owner] = self._page_seconds.get(owner, 0.0) + pages * (self._now - since)
            if len(self._page_seconds) > MAX_CHARGED_OWNERS:
                self._page_seconds.popitem(last=False)
        if len(self._charged_at) > MAX_CHARGED_OWNERS:
            del self._charged_at[next(iter(self._charged_at))]

    # Tests --------------------------------------------------------------------------------------------------------

    def kept(self, rank: Rank) -> set[bytes]:
        """Return the pages of the sessions of a rank."""
        return {digest for digest, keepers in self._keepers.items() if keepers[rank]}

    def check_integrity(self) -> None:
        """Compare all counts with the sessions. Raises `AssertionError`."""
        sessions = list(self._by_tail.values())
        assert set(sessions) == set(self._expiries) and len(self._expiries) == len(sessions)
        assert all(session.digests for session in sessions)
        pages = {rank: Counter(d for s in sessions if s.rank is rank for d in s.digests) for rank in Rank}
        assert self._keepers == {
            digest: [pages[rank][digest] for rank in Rank] for s in sessions for digest in s.digests
        }
        for rank, kept in self._kept.items():
            kept.check_integrity({session for session in sessions if session.rank is rank}, len(pages[rank]))
