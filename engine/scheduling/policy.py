"""The rules, stated: who is paused for whom, how, and what those who wait are promised.

1. A waiting sequence may pause running ones of a lower class, never of its own.
2. The victim is of the lowest class; within it, whoever is not under its minimum share; within these, the latest
   arrival. It has lost the least, and the oldest always advances, so that memory pressure cannot livelock.
3. When memory runs short while a running sequence grows, the same order picks the victim among all that run and are
   not of a higher class; it may be the growing one itself.
4. A victim is swapped to host memory when copying its pages there and back takes less time than computing them again,
   and host memory has room. Otherwise its pages are dropped (what is full stays in the prefix cache while it can).
5. Whoever of a lower class waited longer than its bound is overdue. Overdue sequences go first, but at most one in
   `OVERDUE_SHARE` slots serves them at a time: a flood of old batch jobs cannot shut people out. One may pause running
   ones of its own class too, and then generates `min_share` tokens before it may be paused for anybody. While the pages
   it lacks are held by higher classes it lets people pass; after twice its bound nobody passes it any more. Its prompt
   gets one in `OVERDUE_SHARE` tokens of a step's budget before all others. The clock of a paused sequence goes on
   unless it had generated its share: being let in and thrown out again is no service.
6. A step takes no more tokens than are read in `STEP_SECONDS`, unless told otherwise: nobody's stream halts for longer
   because somebody else's prompt is long (Sarathi-Serve's stall-free schedule, Agrawal et al., OSDI'24). However many
   decode, prompts get `LEAST_PROMPT_TOKENS`; while nobody does, a step takes what is read in twice the time.

Pure functions and numbers; holds no state.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from engine.config import EngineConfig
from engine.scheduling.sequence import Sequence
from engine.types import Mechanism, ServiceClass

OVERDUE_SHARE = 8

STEP_SECONDS = 0.03
LEAST_PROMPT_TOKENS, MOST_TOKENS = 32, 2048  # of a step: fewer waste a pass over the weights, more gain nothing


@dataclass(frozen=True, slots=True)
class Costs:
    """What the machine charges, as measured or assumed at start."""

    swap_pages_per_second: float  # one way
    prefill_tokens_per_second: float


@dataclass(frozen=True, slots=True)
class Policy:
    """The configured numbers behind the rules."""

    costs: Costs
    token_budget: int | None  # of a step, as configured
    tokens_in_time: int  # of a step, where nothing is configured
    min_share: int
    max_wait: dict[ServiceClass, float]
    overdue_slots: int

    @classmethod
    def from_config(cls, config: EngineConfig, costs: Costs) -> Policy:
        """The policy that `config` asks for on a machine with `costs`."""
        return cls(
            costs=costs,
            token_budget=config.max_num_batched_tokens,
            tokens_in_time=int(costs.prefill_tokens_per_second * STEP_SECONDS),
            min_share=config.min_share,
            max_wait={
                ServiceClass.STANDARD: config.max_wait_standard,
                ServiceClass.BATCH: config.max_wait_batch,
            },
            overdue_slots=max(1, config.max_num_seqs // OVERDUE_SHARE),
        )

    def prompt_tokens(self, decodes: int) -> int:
        """Rule 6: how many prompt tokens go with `decodes` rows that decode."""
        if self.token_budget is not None:
            return self.token_budget - decodes
        in_time = self.tokens_in_time - decodes if decodes else 2 * self.tokens_in_time
        return max(LEAST_PROMPT_TOKENS, min(MOST_TOKENS - decodes, in_time))

    def is_overdue(self, sequence: Sequence, now: float, *, times: int = 1) -> bool:
        """Rule 5: it has waited, or sat in its slot without its share, for its class's bound (or `times` that)."""
        bound = self.max_wait.get(sequence.service_class)
        return bound is not None and now - sequence.waiting_since >= times * bound

    def victim(self, candidates: Iterable[Sequence]) -> Sequence | None:
        """Rule 2: whom to pause, of those that may be paused."""
        return max(
            candidates,
            key=lambda s: (s.service_class, not s.is_protected, s.arrival, s.choice),
            default=None,
        )

    def why_victim(self, victim: Sequence) -> str:
        """Rule 2, in words: why `victim` and no other. Tells nothing of anybody else."""
        if victim.is_protected:
            return "nobody else could be paused, though its minimum share was not over"
        return "of the lowest class that ran, it came last and had lost the least"

    def mechanism(self, sequence: Sequence, host_pages_available: int) -> Mechanism:
        """Rule 4: how `sequence` is paused."""
        pages = len(sequence.page_table)
        if sequence.num_computed == 0 or pages > host_pages_available:
            return Mechanism.RECOMPUTE
        there_and_back = 2 * pages / self.costs.swap_pages_per_second
        compute_again = sequence.num_computed / self.costs.prefill_tokens_per_second
        return Mechanism.SWAP if there_and_back < compute_again else Mechanism.RECOMPUTE
