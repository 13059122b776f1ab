"""Queue in which tenants take turns by the service they received: virtual token counters (VTC, Sheng et al., OSDI'24).

Each tenant has an account of the weighted tokens it was served, divided by its weight. The first sequence of the tenant
with the least service goes next. A tenant that returns after a while without waiting starts level with the others:
unused service is not saved up. Between two tenants that both keep waiting, service differs by at most twice the cost of
one admission (Theorem 4.4 there), independent of their requests.

Two preferences apply within a stated slack (as for deadlines in EEVDF, Stoica & Abdel-Wahab, 1995). Among the tenants
that are at most `SLACK` ahead of the one with the least service, the earliest deadline goes first. Next goes a tenant
with fewer slots than its share, by weight among the tenants that run or wait here: a light tenant does not wait for a
heavy one to catch up. The bound grows by the slack, and neither preference is a lever against other tenants.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from sortedcontainers import SortedKeyList

from engine.scheduling.account import Account
from engine.scheduling.sequence import Sequence

PROMPT_WEIGHT, OUTPUT_WEIGHT = 1.0, 2.0  # per token, as in the paper: each generated token takes a pass of its own
SLACK_TOKENS = 1024.0  # weighted tokens
MIN_CLEANUP_ACCOUNTS = 1024  # accounts, from which on those of idle tenants are dropped
MAX_EXAMINED = 16  # deadlines, and tenants, examined for one within the slack
ASSUMED_TURN_TOKENS = 128.0  # weighted tokens assumed for another tenant's turn when the order is predicted

Order = Callable[[Sequence], Any]


class FairQueue:
    """Waiting sequences by tenant; within a tenant in `order`, which must not change while they wait.

    Every operation takes O(log n). Counters only grow, so outdated heap entries are corrected when they reach the top.
    """

    def __init__(self, order: Order, slots: int) -> None:
        self._order = order
        self._slots = slots  # of the engine
        self._accounts: dict[str, Account] = {}
        self._forget_at = MIN_CLEANUP_ACCOUNTS  # accounts
        self._active: dict[Account, float] = {}  # tenants that run or wait, with their weight in the sum
        self._active_weight = 0.0
        self._heap: list[tuple[float, int, Account]] = []
        self._deadlines: SortedKeyList[Sequence, Any] = SortedKeyList(key=lambda s: (s.request.deadline, s.arrival))
        self._last_served = 0.0  # service of the tenant that last stopped waiting
        self._length = 0
        self._num_waits = 0

    def __len__(self) -> int:
        return self._length

    @property
    def num_tenants(self) -> int:
        """Return the number of tenants that run or wait here."""
        return len(self._active)

    def share_of(self, account: Account) -> float:
        """Return a tenant's share of the slots, by weight among the tenants that run or wait here; at least one."""
        # Next to a very heavy weight, rounding may have removed a light one from the sum.
        return max(1.0, self._slots * account.weight / max(self._active_weight, account.weight))

    def is_below_share(self, account: Account) -> bool:
        """Return whether the tenant has at least one slot less than its share."""
        return account.running + 1 <= self.share_of(account)

    def account(self, sequence: Sequence) -> Account:
        """Return the account of the tenant of `sequence`, creating it if needed."""
        request = sequence.request
        account = self._accounts.get(request.tenant)
        if account is None:
            if len(self._accounts) >= self._forget_at:
                self._forget_idle()
            account = self._accounts[request.tenant] = Account(request.weight, self._order)
        if account.weight != request.weight:
            account.weight = request.weight
            self._update_weight(account)
        return account

    def _forget_idle(self) -> None:
        """Drop the accounts of idle tenants; they start level with the others if they return.

        Runs again when the number of accounts has doubled, so that a new account costs O(1) on average.
        """
        self._accounts = {tenant: account for tenant, account in self._accounts.items() if account.is_active}
        self._heap = [entry for entry in self._heap if entry[2].is_active]
        heapq.heapify(self._heap)
        self._forget_at = max(MIN_CLEANUP_ACCOUNTS, 2 * len(self._accounts))

    def slot_taken(self, account: Account) -> None:
        """Count a slot given to a tenant."""
        account.running += 1
        self._update_weight(account)

    def slot_released(self, account: Account) -> None:
        """Count a slot taken from a tenant."""
        account.running -= 1
        self._update_weight(account)

    def join_running(self, sequence: Sequence) -> Account:
        """Count the slot of a sequence that comes from another queue, and return its tenant's account here."""
        account = self.account(sequence)
        if not account.is_active:
            self._level(account)
        self.slot_taken(account)
        return account

    def push(self, sequence: Sequence) -> Account:
        """Queue `sequence` and return its tenant's account."""
        account = self.account(sequence)
        if not account.waiting:
            self._num_waits += 1
            account.serial = -self._num_waits
            self._level(account)
            if not account.is_listed:
                account.is_listed = True
                heapq.heappush(self._heap, (account.served, account.serial, account))
        account.waiting.add(sequence)
        self._update_weight(account)
        if sequence.request.deadline is not None:
            self._deadlines.add(sequence)
        self._length += 1
        return account

    def remove(self, sequence: Sequence) -> None:
        """Remove `sequence` from the queue."""
        account = self.account(sequence)
        account.waiting.remove(sequence)
        if sequence.request.deadline is not None:
            self._deadlines.remove(sequence)
        if not account.waiting:
            self._last_served = account.served
            self._update_weight(account)
        self._length -= 1

    def head(self) -> Sequence | None:
        """Return the next sequence, or None if none waits."""
        least = self._least_served()
        if least is None:
            return None
        for sequence in islice(self._deadlines, MAX_EXAMINED):
            account = self.account(sequence)
            if account.waiting[0] is sequence and account.served <= least.served + SLACK_TOKENS:
                return sequence
        below_share = least if self.is_below_share(least) else self._below_share(least.served + SLACK_TOKENS)
        first: Sequence = (below_share or least).waiting[0]
        return first

    def in_order(self) -> Iterator[Sequence]:
        """Yield all sequences in their predicted order; the length of other tenants' turns is an estimate."""
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
                cost = PROMPT_WEIGHT * sequence.prompt_len + ASSUMED_TURN_TOKENS
                heapq.heappush(heap, (served + cost / account.weight, serial, index + 1, account))

    def _level(self, account: Account) -> None:
        """Let a tenant start level with the others: unused service is not saved up."""
        least = self._least_served()
        account.served = max(account.served, least.served if least is not None else self._last_served)

    def _below_share(self, max_served: float) -> Account | None:
        """Return the account with the least service, up to `max_served`, among waiting tenants below their share."""
        if len(self._active) < 2:
            return None
        found: Account | None = None
        passed: list[tuple[float, int, Account]] = []
        while len(passed) < MAX_EXAMINED and (least := self._least_served()) is not None and least.served <= max_served:
            if self.is_below_share(least):
                found = least
                break
            passed.append(heapq.heappop(self._heap))
        for entry in passed:
            heapq.heappush(self._heap, entry)
        return found

    def _update_weight(self, account: Account) -> None:
        """Update the sum of the weights of the tenants that run or wait."""
        self._active_weight -= self._active.pop(account, 0.0)
        if account.is_active:
            self._active[account] = account.weight
            self._active_weight += account.weight
        elif not self._active:
            self._active_weight = 0.0  # remove rounding errors

    def _least_served(self) -> Account | None:
        """Return the account with the least service among waiting tenants."""
        heap = self._heap
        while heap:
            heap_key, serial, account = heap[0]
            if not account.waiting:
                heapq.heappop(heap)
                account.is_listed = False
            elif heap_key < account.served:
                heapq.heapreplace(heap, (account.served, serial, account))
            else:
                return account
        return None
