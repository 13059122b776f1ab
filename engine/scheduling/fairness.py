"""A line in which tenants take turns by the service they had: virtual token counters (VTC, Sheng et al., OSDI'24).

Each tenant has an account of the weighted tokens it was served, divided by its weight; the next to go is the first of
the tenant that had least. Who comes back after a while without waiting starts level with the others: what was not asked
for is not saved up. Between two tenants that both keep waiting, service differs by at most twice what one admission can
cost (Theorem 4.4 there), whatever either of them sends.

Two things are heeded within a stated slack (as EEVDF heeds deadlines, Stoica & Abdel-Wahab, 1995). Of the tenants that
are at most `SLACK` ahead of the one that had least, the earliest deadline goes first; then whoever has fewer slots than
its share, by weight among the tenants that run or wait here: who says little is not kept waiting until who floods has
caught up with its last few requests. The bound grows by that much, and neither is a lever against others.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from sortedcontainers import SortedKeyList

from engine.scheduling.sequence import Sequence

PROMPT_WEIGHT, OUTPUT_WEIGHT = 1.0, 2.0  # of a token, as in the paper: what is generated takes a pass of its own
SLACK = 1024.0  # weighted tokens
MIN_FORGET_AT = 1024  # accounts from which those of idle tenants are dropped
SEEN = 16  # how many deadlines, and how many tenants, are looked at for one within the slack
FORESEEN = 128.0  # weighted tokens that somebody else's turn is assumed to take, where an order is foretold

Order = Callable[[Sequence], Any]


class Account:
    """What one tenant was served in one line."""

    __slots__ = ("is_listed", "running", "serial", "served", "waiting", "weight")

    def __init__(self, weight: float, order: Order) -> None:
        self.serial = 0  # of equals, who began to wait last goes first: the others have had their turn
        self.weight = weight
        self.served = 0.0  # weighted tokens, divided by `weight`; only grows
        self.waiting: SortedKeyList[Sequence, Any] = SortedKeyList(key=order)
        self.running = 0  # slots that it has
        self.is_listed = False  # has an entry in its line's heap

    @property
    def is_active(self) -> bool:
        """Something of it runs or waits."""
        return self.running > 0 or bool(self.waiting)

    def charge(self, weighted_tokens: float) -> None:
        """It was served that much."""
        self.served += weighted_tokens / self.weight


class FairLine:
    """Those who wait, tenant by tenant; within a tenant in `order`, which must not change while they wait.

    Every operation costs O(log n), whatever waits: counters only grow, so entries of the heap that lag behind are put
    right when they come to its top.
    """

    def __init__(self, order: Order, slots: int) -> None:
        self._order = order
        self._slots = slots  # of the engine
        self._accounts: dict[str, Account] = {}
        self._forget_at = MIN_FORGET_AT  # accounts
        self._active: dict[Account, float] = {}  # who runs or waits, with the weight that is in the sum
        self._active_weight = 0.0
        self._heap: list[tuple[float, int, Account]] = []
        self._deadlines: SortedKeyList[Sequence, Any] = SortedKeyList(key=lambda s: (s.request.deadline, s.arrival))
        self._floor = 0.0  # of who last stopped waiting
        self._length = 0
        self._begun = 0

    def __len__(self) -> int:
        return self._length

    @property
    def num_tenants(self) -> int:
        """That run or wait here."""
        return len(self._active)

    def share_of(self, account: Account) -> float:
        """Of the slots, by weight among the tenants that run or wait here; at least one."""
        # The sum may have lost a light weight beside a very heavy one.
        return max(1.0, self._slots * account.weight / max(self._active_weight, account.weight))

    def is_below_share(self, account: Account) -> bool:
        """It has at least one slot less than it may have."""
        return account.running + 1 <= self.share_of(account)

    def account(self, sequence: Sequence) -> Account:
        """Of the tenant of `sequence`."""
        request = sequence.request
        account = self._accounts.get(request.tenant)
        if account is None:
            if len(self._accounts) >= self._forget_at:
                self._forget_idle()
            account = self._accounts[request.tenant] = Account(request.weight, self._order)
        if account.weight != request.weight:
            account.weight = request.weight
            self._weigh(account)
        return account

    def _forget_idle(self) -> None:
        """Drop the accounts of tenants that neither run nor wait; they start level with the others if they return. The
        next time is when the accounts have doubled, so that a new account costs O(1) on average."""
        self._accounts = {tenant: account for tenant, account in self._accounts.items() if account.is_active}
        self._heap = [entry for entry in self._heap if entry[2].is_active]
        heapq.heapify(self._heap)
        self._forget_at = max(MIN_FORGET_AT, 2 * len(self._accounts))

    def started(self, sequence: Sequence) -> None:
        """It has a slot."""
        sequence.account.running += 1
        self._weigh(sequence.account)

    def vacated(self, sequence: Sequence) -> None:
        """It has none any longer."""
        sequence.account.running -= 1
        self._weigh(sequence.account)

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
        self._weigh(account)
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
            self._weigh(account)
        self._length -= 1

    def head(self) -> Sequence | None:
        """Whose turn it is."""
        least = self._least()
        if least is None:
            return None
        for sequence in islice(self._deadlines, SEEN):
            account = self.account(sequence)
            if account.waiting[0] is sequence and account.served <= least.served + SLACK:
                return sequence
        below = least if self.is_below_share(least) else self._below_share(least.served + SLACK)
        first: Sequence = (below or least).waiting[0]
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

    def _below_share(self, most: float) -> Account | None:
        """Who had least, and no more than `most`, of those who wait and have fewer slots than their share."""
        if len(self._active) < 2:
            return None
        found: Account | None = None
        passed: list[tuple[float, int, Account]] = []
        while len(passed) < SEEN and (least := self._least()) is not None and least.served <= most:
            if self.is_below_share(least):
                found = least
                break
            passed.append(heapq.heappop(self._heap))
        for entry in passed:
            heapq.heappush(self._heap, entry)
        return found

    def _weigh(self, account: Account) -> None:
        """Put right what the weights of those who run or wait sum up to."""
        self._active_weight -= self._active.pop(account, 0.0)
        if account.is_active:
            self._active[account] = account.weight
            self._active_weight += account.weight
        elif not self._active:
            self._active_weight = 0.0  # what rounding left

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
