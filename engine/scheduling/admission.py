"""Decisions of a policy as frozen values, and the view of slots and pages that it decides with.

A policy turns an `AdmissionView` into an `AdmissionPlan`, and the scheduler applies the plan (docs/decisions/0035). The
values name sequences and pages; they hold no functions and know no scheduler.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Seq
from typing import Protocol

import msgspec

from engine.scheduling.kv_manager import ReclaimedPages
from engine.scheduling.sequence import Sequence
from engine.types import PreemptionMode, WaitReason

GROWTH_MARGIN_DIVISOR = 16  # one in this many pages at most is kept for running sequences to grow


class PageView(Protocol):
    """Read-only part of `KVManager`, in the state before the plan."""

    @property
    def num_pages(self) -> int:
        """Return the number of device pages."""

    @property
    def host_pages_available(self) -> int:
        """Return the number of host pages to which preempted sequences can be swapped."""

    def reusable_pages(self, sequence: Sequence, preemptible: list[Sequence]) -> list[int]:
        """Return the cached pages that `sequence` would reuse, which stay valid while `preemptible` are preempted."""

    def pages_on_host(self, sequence: Sequence, num_reused: int) -> int:
        """Return the number of host pages with the content that follows the first `num_reused` pages."""

    def pages_short(self, sequence: Sequence, reused: list[int]) -> int:
        """Return the pages that `sequence` needs beyond `reused` and the available ones; negative: pages to spare."""

    def reclaim(self, reused: list[int]) -> ReclaimedPages:
        """Return a counter of the pages that preemptions make available to a sequence that reuses `reused`."""


class AdmissionView(msgspec.Struct, frozen=True):
    """Slots and pages before a plan. Valid until the plan is applied."""

    pages: PageView
    running: Seq[Sequence]  # sequences that have a slot, in service order
    has_free_slot: bool
    joined_slots: Collection[int | None] = ()  # filled in this step, which writes their pages
    admits_batches: bool = False  # sequences are admitted one whole batch at a time
    is_closed: bool = False  # the batch is complete: no further sequence is admitted in this step

    @property
    def max_margin(self) -> int:
        """Return the largest default number of pages that are kept for running sequences to grow."""
        return self.pages.num_pages // GROWTH_MARGIN_DIVISOR

    def preemptible(self) -> list[Sequence]:
        """Return the sequences that may be preempted in this step so that another can run.

        Excludes sequences that joined in this step, because it writes their pages. Empty if whole batches are admitted.
        """
        if self.admits_batches:
            return []
        return [s for s in self.running if s.slot not in self.joined_slots]


class Preemption(msgspec.Struct, frozen=True):
    """Decision to take slot and pages from a running sequence."""

    victim: Sequence
    mode: PreemptionMode
    reason: str  # names no other client and no text
    beneficiary: Sequence | None = None  # gets its slot or pages; None if memory ran short among equals


class Admission(msgspec.Struct, frozen=True):
    """Decision to give a waiting sequence a slot and pages for all its known tokens."""

    sequence: Sequence
    reused_pages: list[int]  # of the prefix cache, or of the choice that computed the prompt
    is_guaranteed: bool = False  # the policy keeps it in its slot for a minimum share of tokens
    restored_pages: int = 0  # that follow those, at most, and are copied from host memory


class Shortage(msgspec.Struct, frozen=True):
    """Resource that a waiting sequence lacks, to be reported to its client."""

    sequence: Sequence
    cause: WaitReason


class AdmissionPlan(msgspec.Struct, frozen=True):
    """Decisions about the next waiting sequence, applied in the order of the fields.

    A plan without an admission ends the admission of this step.
    """

    shortages: tuple[Shortage, ...] = ()
    preemptions: tuple[Preemption, ...] = ()  # to make room for the admission
    admission: Admission | None = None

    @property
    def is_short_of_pages(self) -> bool:
        """Return whether a sequence lacks pages."""
        return any(shortage.cause is WaitReason.PAGES for shortage in self.shortages)


NO_ADMISSION = AdmissionPlan()
