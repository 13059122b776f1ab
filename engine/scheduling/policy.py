"""What the scheduler asks of a policy: who waits in which order, who is let in, who makes way, and how.

The scheduler owns slots, pages and tokens, and keeps every promise about them; a policy chooses. One is ours
(`policies/carousel.py`), the others are what comparable systems do (`policies/baselines.py`), so that a comparison has
the same engine under it. A policy reads sequences, and changes of them only what is its own: `share_left`, `has_claim`,
`is_overdue`, `account`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, Protocol

from engine.config import EngineConfig
from engine.scheduling.costs import Costs
from engine.scheduling.pace import Pace
from engine.scheduling.sequence import Sequence
from engine.types import Cause, Mechanism

# What a step may take for the prompts in it: some decode steps, within what people notice as even.
STEPS_WORTH, LEAST_SECONDS, MOST_SECONDS = 3, 0.005, 0.03
LEAST_PROMPT_TOKENS, MOST_TOKENS = 32, 2048  # of a step: fewer waste a pass over the weights, more gain nothing


@dataclass(frozen=True, slots=True)
class Pressure:
    """How memory stands when somebody has to make way."""

    lacking: int  # pages that must be freed now; 0 when only a slot is
    expected: int  # pages that will be taken beyond those that are available, before the paused one is back
    host: int  # host pages that are available


@dataclass(frozen=True, slots=True)
class Shares:
    """What a step carries."""

    decodes: list[Sequence]  # in service order
    held_back: list[Sequence]  # who could decode and waits for another step
    prompts: list[tuple[list[Sequence], int]]  # groups in turn, and the most tokens that each may take


Movable = Callable[[], list[Sequence]]


def nobody() -> list[Sequence]:
    """May be paused."""
    return []


class Stage(Protocol):
    """What a policy sees and may do while it admits."""

    @property
    def running(self) -> Seq[Sequence]:
        """Who has a slot, in service order."""

    def movable(self) -> list[Sequence]:
        """Who may be paused in this step to let another run."""

    def try_start(self, sequence: Sequence, movable: Movable = nobody, margin: int | None = None) -> bool:
        """Start `sequence`, pausing some of `movable` if it takes that, which are asked for only then; or, pausing
        nobody, note what it lacks. `margin` pages must be left for those who run to grow; by default some are, where
        there are many."""


class Policy(ABC):
    """The choices. Purely a function of what it was told: no clock, no randomness."""

    name: str

    def __init__(self, config: EngineConfig, costs: Costs) -> None:
        self.config = config
        self.costs = costs
        self.pace = Pace(costs)

    @property
    def step_seconds(self) -> float:
        """What a step may take for the prompts in it, as configured or from what steps are seen to take."""
        if self.config.step_time is not None:
            return self.config.step_time
        if not self.pace.lone_seconds:
            return MOST_SECONDS
        return max(LEAST_SECONDS, min(MOST_SECONDS, STEPS_WORTH * self.pace.lone_seconds))

    # Who waits ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def push(self, sequence: Sequence) -> None:
        """`sequence` waits from now on: it has arrived, or was paused."""

    @abstractmethod
    def remove(self, sequence: Sequence) -> None:
        """It waits no longer: it is about to run, or to be gone."""

    @abstractmethod
    def in_order(self) -> Iterator[Sequence]:
        """Everybody who waits, next first. Read only the first few: it is as long as the queue."""

    def num_ahead(self, sequence: Sequence) -> int:
        """How many go before `sequence`, which is the first of its line and could not be let in."""
        return 0

    def why_waits(self, sequence: Sequence) -> Cause:
        """What keeps one who is not the first of its line."""
        return Cause.ORDER

    # A step -------------------------------------------------------------------------------------------------------

    def begin_step(self, now: float) -> None:  # noqa: B027
        """A step is about to be decided."""

    @abstractmethod
    def admit(self, stage: Stage, now: float) -> None:
        """Let those who wait join, as the rules have it."""

    @abstractmethod
    def service_order(self, sequence: Sequence) -> tuple[Any, ...]:
        """Who of those who run is served first: lower goes first. Must not change while it runs."""

    def prompt_tokens(self, decodes: int, riding: int = 0, seconds: float = 0.0) -> int:
        """How many prompt tokens go with `decodes` rows that decode: what was configured, or what is read in
        `step_seconds`, and no more than is recorded with them and `riding` others. What those rows take longer than a
        lone one counts against it, as long as prompts have half of the step; while nobody decodes, it is twice as
        much. `seconds` is granted for prompts in any case, unless a budget or `step_time` was configured."""
        if self.config.max_num_batched_tokens is not None:
            return self.config.max_num_batched_tokens - decodes
        most, rows = self.step_seconds, self.pace.step_seconds(decodes)
        granted = min(most, max(most + self.pace.lone_seconds - rows, rows)) if decodes else 2 * most
        if self.config.step_time is None:
            granted = max(granted, seconds)
        in_time = granted / max(self.pace.token_seconds, 1e-9)
        recorded = self.costs.recorded_tokens if decodes or riding else 0
        room = recorded - riding if recorded else MOST_TOKENS
        return max(LEAST_PROMPT_TOKENS, int(min(min(room, MOST_TOKENS) - decodes, in_time)))

    def share(self, decodes: list[Sequence], prefilling: list[Sequence], step: int, now: float) -> Shares:
        """What goes into step number `step`, of those who could decode and those whose prompts are to be read, each in
        service order."""
        return Shares(decodes, [], [(prefilling, self.prompt_tokens(len(decodes)))])

    # Who makes way ------------------------------------------------------------------------------------------------

    @abstractmethod
    def may_make_way(self, growing: Sequence, running: Iterable[Sequence]) -> list[Sequence]:
        """Of whom one is paused when there is no page for `growing`'s next token; not empty."""

    @abstractmethod
    def victim(self, candidates: Iterable[Sequence], pressure: Pressure) -> Sequence:
        """Whom to pause, of those that may be; there is at least one."""

    @abstractmethod
    def why_victim(self, victim: Sequence, made_for: Sequence | None) -> str:
        """Why it and no other, in words that tell nobody else's name or words. `made_for`: who gets its place, where it
        is not memory that ran short among equals."""

    def mechanism(self, sequence: Sequence, pressure: Pressure) -> Mechanism:
        """How it keeps what it computed: the cheapest way."""
        return self.pause_cost(sequence, pressure)[1]

    def pause_cost(self, sequence: Sequence, pressure: Pressure) -> tuple[float, Mechanism]:
        """Seconds of the machine that its pause will cost, and the mechanism that is cheapest.

        With a prefix cache, dropped pages are gone only when somebody takes them, the last ones first; so what is
        computed again is the tail that memory is wanted for, and what does not fill a page.
        """
        size, costs = self.config.tokens_per_page, self.costs
        pages, computed = len(sequence.page_table), sequence.num_computed
        if computed == 0:
            return 0.0, Mechanism.RECOMPUTE
        kept = 0
        if self.config.enable_prefix_caching:
            kept = min(computed // size, max(0, pages - max(0, pressure.expected)))
        drop = self.pace.prompt_seconds(computed - kept * size), Mechanism.PARTIAL if kept else Mechanism.RECOMPUTE
        written = -(-computed // size)
        if written > pressure.host:
            return drop
        return min(drop, (costs.swap_seconds(written), Mechanism.SWAP), key=lambda way: way[0])

    # What was done ------------------------------------------------------------------------------------------------

    def started(self, sequence: Sequence, fresh_tokens: int, *, is_resumed: bool) -> None:  # noqa: B027
        """It has a slot; `fresh_tokens` of it go through the model for the first time."""

    def served(self, sequences: Iterable[Sequence]) -> None:  # noqa: B027
        """Each of them got a token."""

    def vacated(self, sequence: Sequence) -> None:  # noqa: B027
        """It has no slot any longer: it has ended, or gives way."""

    def paused(self, sequence: Sequence) -> None:  # noqa: B027
        """It gave way, and is pushed again."""
