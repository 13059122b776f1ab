"""Answers that have ended and may be continued, by request, within a bound that owners divide fairly."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from itertools import islice

from engine.scheduling.kept_pages import KeptPages

MAX_ENDED_PAGES = 1 << 17
MAX_ENDED_TOKENS = 1 << 21


@dataclass(eq=False, frozen=True, slots=True)
class EndedAnswer:
    """Answer that may be continued.

    seconds: for which its client expects that. tokens: of the prompt and the answer, as far as its full pages,
    `digests`, and one page more.
    """

    request_id: str
    owner: str
    digests: list[bytes]
    seconds: float
    ended_at: float
    tokens: array[int]


class EndedAnswers:
    """The last answers of each owner. One of several choices of a request is kept, which ended last."""

    def __init__(self, max_pages: int) -> None:
        self._by_request: dict[str, EndedAnswer] = {}
        self._by_tail: dict[bytes, EndedAnswer] = {}
        self._kept: KeptPages[EndedAnswer] = KeptPages(max_pages)

    def add(self, answer: EndedAnswer) -> None:
        """Add an answer, and drop the oldest of the owner with the most pages while there are too many."""
        self._remove(answer.request_id)  # another choice
        self._by_request[answer.request_id] = self._by_tail[answer.digests[-1]] = answer
        self._kept.add(answer, len(answer.digests) + 1)
        while self._kept.is_beyond_bound:
            self._remove(self._kept.first_to_give_up().request_id)

    def get(self, request_id: str) -> EndedAnswer | None:
        """Return the answer of a request; None if it is unknown."""
        return self._by_request.get(request_id)

    def by_tail(self, digest: bytes) -> EndedAnswer | None:
        """Return the answer whose last full page has this digest."""
        return self._by_tail.get(digest)

    def latest(self, owner: str, limit: int) -> list[EndedAnswer]:
        """Return the last answers of an owner, the latest one first."""
        return list(islice(self._kept.latest(owner), limit))

    def _remove(self, request_id: str) -> None:
        answer = self._by_request.pop(request_id, None)
        if answer is not None:
            self._kept.remove(answer, len(answer.digests) + 1)
            if self._by_tail.get(answer.digests[-1]) is answer:
                del self._by_tail[answer.digests[-1]]
