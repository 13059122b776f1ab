"""A line in which tenants take turns by the service they had: virtual token counters (VTC, Sheng et al., OSDI'24).

Each tenant has an account of the weighted tokens it was served, divided by its weight; the next to go is the first of
the tenant that had least. Who comes back after a while without waiting starts level with the others: what was not asked
for is not saved up. Between two tenants that both keep waiting, service differs by at most twice what one admission can
cost (Theorem 4.4 there), whatever either of them sends.

Deadlines are heeded within a stated slack (as EEVDF does, Stoica & Abdel-Wahab, 1995): of the tenants that are at most
`DEADLINE_SLACK` ahead of the one that had least, the earliest deadline goes first. The bound grows by that much, and a
deadline is no lever against others.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from sortedcontainers import SortedKeyList

from engine.scheduling.sequence import Sequence

PROMPT_WEIGHT, OUTPUT_WEIGHT = 1.0, 2.0  # of a token, as in the paper: what is generated takes a pass of its own
DEADLINE_SLACK = 1024.0  # weighted tokens
DEADLINES_SEEN = 16  # earliest ones that are looked at for one that is its tenant's next and within the slack
FORESEEN = 128.0  # weighted tokens that somebody else's turn is assumed to take, where an order is foretold

Order = Callable[[Sequence], Any]


class Account:
    """What one tenant was served in one line."""

    __slots__ = ("is_listed", "serial", "served", "waiting", "weight")

    def __init__(self, weight: float, order: Order) -> None:
        self.serial = 0  # of equals, who began to wait last goes first: the others have had their turn
        self.weight = weight
        self.served = 0.0  # weighted tokens, divided by `weight`; only grows
        self.waiting: SortedKeyList[Sequence, Any] = SortedKeyList(key=order)
        self.is_listed = False  # has an entry in its line's heap

    def charge(self, weighted_tokens: float) -> None:
        """It was served that much."""
        self.served += weighted_tokens / self.weight


class FairLine:
    """Those who wait, tenant by tenant; within a tenant in `order`, which must not change while they wait.

    Every operation costs O(log n), whatever waits: counters only grow, so entries of the heap that lag behind are put
    right when they come to its top.
    """

    def __init__(self, order: Order) -> None:
        self._order = order
        self._accounts: dict[str, Account] = {}
        self._heap: list[tuple[float, int, Account]] = []
        self._deadlines: SortedKeyList[Sequence, Any] = SortedKeyList(key=lambda s: (s.request.deadline, s.arrival))
        self._floor = 0.0  # of who last stopped waiting
        self._length = 0
        self._begun = 0

    def __len__(self) -> int:
        return self._length

    @property
    def num_tenants(self) -> int:
        """That ever waited here."""
        return len(self._accounts)

    def accounts(self) -> Iterable[Account]:
        """Of all that ever waited here."""
        return self._accounts.values()

    def account(self, sequence: Sequence) -> Account:
        """Of the tenant of `sequence`."""
        request = sequence.request
        account = self._accounts.get(request.tenant)
        if account is None:
            account = self._accounts[request.tenant] = Account(request.weight, self._order)
        account.weight = request.weight
        return account

    def push(self, sequence: Sequence) -> Account:
        """Let it wait; returns its tenant's account."""
        account = self.account(sequence)
        if not account.waiting:
            self._begun += 1
            account.serial = -self._begun
            least = self._least()
            account.served = max(account.served, least.served if least is not None else self._floor)
            if not account.is_listed:
                account.is_listed = True
                heapq.heappush(self._heap, (account.served, account.serial, account))
        account.waiting.add(sequence)
        if sequence.request.deadline is not None:
            self._deadlines.add(sequence)
        self._length += 1
        return account

    def remove(self, sequence: Sequence) -> None:
        """It waits here no longer."""
        account = self.account(sequence)
        account.waiting.remove(sequence)
        if sequence.request.deadline is not None:
            self._deadlines.remove(sequence)
        if not account.waiting:
            self._floor = account.served
        self._length -= 1

    def head(self) -> Sequence | None:
        """Whose turn it is."""
        least = self._least()
        if least is None:
            return None
        for sequence in islice(self._deadlines, DEADLINES_SEEN):
            account = self.account(sequence)
            if account.waiting[0] is sequence and account.served <= least.served + DEADLINE_SLACK:
                return sequence
        first: Sequence = least.waiting[0]
        return first

    def in_order(self) -> Iterator[Sequence]:
        """Everybody, next first, as far as it can be foretold: what the others' turns will take is a guess."""
        first = self.head()
        if first is not None:
            yield first
        accounts = [account for account in self._accounts.values() if account.waiting]
        if len(accounts) == 1:
            yield from (s for s in accounts[0].waiting if s is not first)
            return
        heap = [(account.served, account.serial, 0, account) for account in accounts]
        heapq.heapify(heap)
        while heap:
            served, serial, index, account = heapq.heappop(heap)
            sequence = account.waiting[index]
            if sequence is not first:
                yield sequence
            if index + 1 < len(account.waiting):
                cost = PROMPT_WEIGHT * sequence.prompt_len + FORESEEN
                heapq.heappush(heap, (served + cost / account.weight, serial, index + 1, account))

    def _least(self) -> Account | None:
        """Who had least, of those who wait."""
        heap = self._heap
        while heap:
            seen, serial, account = heap[0]
            if not account.waiting:
                heapq.heappop(heap)
                account.is_listed = False
            elif seen < account.served:
                heapq.heapreplace(heap, (account.served, serial, account))
            else:
                return account
        return None
