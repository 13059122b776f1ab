"""Discrete-event simulator around the real engine.

Scheduler, policies, pages and events are the real ones; only the forward pass is replaced by a formula for its time.
`benchmarks/scheduling/` compares its predictions with the live engine.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from engine.config import EngineConfig
from engine.engine import Engine
from engine.scheduling.batch import Batch, Sampled, StepOutcome
from engine.scheduling.costs import Costs
from engine.scheduling.policies import make_policy
from engine.scheduling.scheduler import Scheduler
from engine.types import Event, ModelInfo, Request

SAMPLED_TOKEN = Sampled(7)


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of a step as a sum over its contents, fitted to measured steps or given."""

    step: float  # in every step
    decode: float  # for each decoding sequence
    prompt: float  # for each prompt token
    chunk: float = 0.0  # for each prompt chunk of any length, except in recorded steps
    decode_pass: float = 0.0  # for all decoding sequences together, if that is a pass of its own
    context: float = 0.0  # for each token of context that a decode reads
    prompt_context: float = 0.0  # for each token of context that a prompt token reads
    swapped_page: float = 0.0  # one way
    wake: float = 0.0  # before the first step of an idle engine: threads to wake, caches to fill
    host: float | None = None  # for scheduling and launching, if a device computes meanwhile; None: no device
    # In addition, for launching the many operations that read prompts in a step that is not recorded.
    host_prompts: float = 0.0
    recorded: int = 0  # rows plus prompt tokens up to which a step is recorded

    def costs(self) -> Costs:
        """Return the costs that the scheduler of such a machine gets at startup."""
        tokens = 128
        return Costs(
            swap_pages_per_second=1 / self.swapped_page if self.swapped_page else 1e9,
            prefill_tokens_per_second=tokens / (self.step + self.chunk + tokens * self.prompt),
            decode_seconds=self.step + self.decode_pass + self.decode,
            row_seconds=self.decode,
            attention_ratio=self.prompt_context / self.prompt if self.prompt else 0.0,
            recorded_tokens=self.recorded,
        )


class Clock:
    """Clock that advances only when it is set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class SimulatedRunner:
    """Runner that samples the same token in every step; its steps take the time given by `cost`, on `clock`."""

    def __init__(self, slots: int, cost: StepCost, clock: Clock) -> None:
        self.runs_ahead = cost.host is not None
        self.device_was_idle = True
        self._cost = cost
        self._clock = clock
        self._lengths = array("q", [0]) * slots
        self._done_at = 0.0  # completion time of everything launched

    @property
    def max_draft_rows(self) -> int:
        """Return 0: every token is sampled alone."""
        return 0

    def swapped_out(self) -> Callable[[], None]:
        """Return a function that does nothing: pages are moved at once."""
        return lambda: None

    def prefault_pages(self, pages: int) -> bool:
        """Return False: there is no memory to prefault."""
        return False

    def launch(self, batch: Batch) -> Callable[[], StepOutcome]:
        """Advance the clock by the host's time now, and by the device's time when the outcome is read."""
        cost, lengths = self._cost, self._lengths
        for join in batch.joins:
            lengths[join.slot] = len(join.tokens)
        is_recorded = batch.num_tokens <= cost.recorded
        seconds = cost.step + cost.decode * len(batch.decodes) + cost.prompt * batch.prompt_tokens
        if batch.decodes or (batch.chunks and is_recorded):
            seconds += cost.decode_pass
        if not is_recorded:
            seconds += cost.chunk * len(batch.chunks)
        if batch.swap_in or batch.swap_out:
            seconds += cost.swapped_page * (len(batch.swap_in) + len(batch.swap_out))
        if cost.context:
            seconds += cost.context * sum([lengths[slot] for slot in batch.decodes])
        if cost.prompt_context:
            read = sum([chunk.length * (chunk.start + chunk.length / 2) for chunk in batch.chunks])
            seconds += cost.prompt_context * read
        sampled = len(batch.decodes)
        for slot in batch.decodes:
            lengths[slot] += 1
        for chunk in batch.chunks:
            if chunk.samples:
                lengths[chunk.slot] += 1
                sampled += 1

        self._clock.now += cost.host or 0.0
        started_at = max(self._done_at, self._clock.now)
        if batch.chunks and not is_recorded:  # computed while it is launched
            self._clock.now += cost.host_prompts
        self.device_was_idle = self._done_at < self._clock.now
        self._done_at = done_at = max(started_at + seconds, self._clock.now)

        def outcome() -> StepOutcome:
            self._clock.now = max(self._clock.now, done_at)
            return StepOutcome((SAMPLED_TOKEN,) * sampled, seconds=done_at - started_at if self.runs_ahead else None)

        return outcome


def simulated_engine(
    config: EngineConfig,
    cost: StepCost,
    clock: Clock,
    *,
    num_pages: int,
    host_pages: int = 0,
    max_len: int = 4096,
    costs: Costs | None = None,
    engine_factory: Callable[..., Engine] = Engine,
) -> Engine:
    """Return an engine whose steps take the time given by `cost`, on `clock`.

    costs: the scheduler's assumptions if they differ from `cost`.
    """
    runner = SimulatedRunner(config.max_num_seqs, cost, clock)
    policy = make_policy(config, costs or cost.costs())
    scheduler = Scheduler(config, policy, num_pages=num_pages, host_pages=host_pages, max_len=max_len)
    return engine_factory(config, _model_info(config, num_pages, max_len), scheduler, runner, clock)


def simulate(
    config: EngineConfig,
    cost: StepCost,
    arrivals: Iterable[tuple[float, Request]],
    on_events: Callable[[list[Event], float], None],
    *,
    num_pages: int,
    host_pages: int = 0,
    max_len: int = 4096,
    costs: Costs | None = None,
    engine_factory: Callable[..., Engine] = Engine,
) -> Engine:
    """Serve `arrivals` (in seconds, sorted) to the end and return the engine, for its counters.

    `on_events` receives each step's events and the time at its end. For other parameters see `simulated_engine`.
    """
    clock = Clock()
    engine = simulated_engine(
        config,
        cost,
        clock,
        num_pages=num_pages,
        host_pages=host_pages,
        max_len=max_len,
        costs=costs,
        engine_factory=engine_factory,
    )
    arrivals_iterator = iter(arrivals)
    next_arrival = next(arrivals_iterator, None)
    while next_arrival is not None or engine.has_work:
        while next_arrival is not None and next_arrival[0] <= clock.now:
            engine.submit(next_arrival[1])
            next_arrival = next(arrivals_iterator, None)
        seconds = engine.seconds_to_step()
        if seconds:  # waits for a complete batch or for its device
            clock.now += seconds
            if next_arrival is not None:
                clock.now = min(clock.now, max(next_arrival[0], clock.now - seconds))
        elif seconds is None:
            if next_arrival is not None:
                clock.now = next_arrival[0] + cost.wake
        else:
            on_events(engine.step(), clock.now)
    return engine


def _model_info(config: EngineConfig, num_pages: int, max_len: int) -> ModelInfo:
    return ModelInfo(
        name="simulated",
        vocab_size=1 << 20,
        max_model_len=max_len,
        num_pages=num_pages,
        page_size=config.tokens_per_page,
        max_num_seqs=config.max_num_seqs,
        device="none",
        dtype="none",
        parameters=0,
    )
