"""A discrete-event simulator around the very same engine: scheduler, policies, pages and events are the real ones; only
the forward pass is a formula for its time. What it foretells is held against the live engine by
`benchmarks/scheduling/`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from engine.config import EngineConfig
from engine.engine import Engine
from engine.scheduling.batch import Batch, Outcome, Sampled
from engine.scheduling.costs import Costs
from engine.scheduling.policies import make_policy
from engine.scheduling.scheduler import Scheduler
from engine.types import Event, ModelInfo, Request

SOME_TOKEN = Sampled(7)


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of a step: a sum over what it does. Fitted to measured steps, or given."""

    step: float  # whatever is in it
    decode: float  # for each sequence that decodes
    prompt: float  # for each prompt token
    chunk: float = 0.0  # for each piece of a prompt, however short, but for those in a recorded step
    decode_pass: float = 0.0  # for all sequences that decode together, where that is a pass of its own
    context: float = 0.0  # for each token of context that a decode reads
    swapped_page: float = 0.0  # one way
    wake: float = 0.0  # before the first step for whoever finds an idle engine: threads to wake, caches to fill
    host: float | None = None  # for deciding and launching, where a device computes meanwhile; None: nothing does
    host_prompts: float = 0.0  # besides, for launching the many operations that read prompts, unless it is recorded
    recorded: int = 0  # tokens, of rows and prompts, up to which a step is a recorded one

    def costs(self) -> Costs:
        """What the scheduler is told of such a machine at start."""
        tokens = 128
        return Costs(
            swap_pages_per_second=1 / self.swapped_page if self.swapped_page else 1e9,
            prefill_tokens_per_second=tokens / (self.step + self.chunk + tokens * self.prompt),
            decode_seconds=self.step + self.decode_pass + self.decode,
            row_seconds=self.decode,
            recorded_tokens=self.recorded,
        )


class Clock:
    """Seconds that pass only when somebody says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class SimulatedRunner:
    """Samples one token over and over; its steps take what `cost` says, on `clock`."""

    def __init__(self, slots: int, cost: StepCost, clock: Clock) -> None:
        self.runs_ahead = cost.host is not None
        self.ran_dry = True
        self._cost = cost
        self._clock = clock
        self._lengths = array("q", [0]) * slots
        self._done_at = 0.0  # all that was launched

    def take_memory(self, pages: int) -> bool:
        """There is none to take."""
        return False

    def launch(self, batch: Batch) -> Callable[[], Outcome]:
        """The host's time passes now, the device's until the outcome is asked for."""
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
        sampled = len(batch.decodes)
        for slot in batch.decodes:
            lengths[slot] += 1
        for chunk in batch.chunks:
            if chunk.samples:
                lengths[chunk.slot] += 1
                sampled += 1

        self._clock.now += cost.host or 0.0
        begun_at = max(self._done_at, self._clock.now)
        if batch.chunks and not is_recorded:  # it is computed while it is told
            self._clock.now += cost.host_prompts
        self.ran_dry = self._done_at < self._clock.now
        self._done_at = done_at = max(begun_at + seconds, self._clock.now)

        def outcome() -> Outcome:
            self._clock.now = max(self._clock.now, done_at)
            return Outcome((SOME_TOKEN,) * sampled)

        return outcome


def simulate(
    config: EngineConfig,
    cost: StepCost,
    arrivals: Iterable[tuple[float, Request]],
    take: Callable[[list[Event], float], None],
    *,
    num_pages: int,
    host_pages: int = 0,
    max_len: int = 4096,
    costs: Costs | None = None,
    make: Callable[..., Engine] = Engine,
) -> Engine:
    """Serve `arrivals` (seconds, in order) to the end; `take` gets each step's events and the time at its end. Returns
    the engine, for its books. `costs`: what the scheduler believes of the machine, where it is not what `cost` says.
    `make`: of the engine, where it is another."""
    clock = Clock()
    scheduler = Scheduler(
        config,
        make_policy(config, costs or cost.costs()),
        num_pages=num_pages,
        host_pages=host_pages,
        max_len=max_len,
    )
    info = ModelInfo(
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
    engine = make(config, info, scheduler, SimulatedRunner(config.max_num_seqs, cost, clock), clock)
    coming = iter(arrivals)
    upcoming = next(coming, None)
    while upcoming is not None or engine.has_work:
        while upcoming is not None and upcoming[0] <= clock.now:
            engine.submit(upcoming[1])
            upcoming = next(coming, None)
        seconds = engine.seconds_to_step()
        if seconds:  # it waits for a batch to be complete, or for its device
            clock.now += seconds
            if upcoming is not None:
                clock.now = min(clock.now, max(upcoming[0], clock.now - seconds))
        elif seconds is None:
            if upcoming is not None:
                clock.now = upcoming[0] + cost.wake
        else:
            take(engine.step(), clock.now)
    return engine
