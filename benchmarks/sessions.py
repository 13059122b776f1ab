"""First tokens of an agent's turns beside floods: a session's pages are kept while its tool works.

python -m benchmarks.sessions            # simulated, all cases; --only "8 agents" for some

The scheduler, the policies and the prefix cache are the real ones; only the time of a step is a formula. An agent has a
prompt of 2,000 tokens, and each turn adds the 60 tokens of the answer and 250 of a tool's result, after a gap. Eight
other clients send random prompts of 700 tokens, each as soon as its last answer has ended. In the last case the server
is started again while a tool works, with and without pages on disk.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from statistics import median
from typing import Any

from benchmarks.results import save
from engine.config import EngineConfig
from engine.engine import Engine, Preparation
from engine.scheduling.disk_pages import POLL_SECONDS, STAGING_SECONDS
from engine.scheduling.page_store import MovedPage, PageRun
from engine.simulation import Clock, StepCost, simulated_engine
from engine.types import FinishReason, Request, SamplingParams, ServiceClass, StatusEvent, TokenEvent

SYSTEM, RESULT, ANSWER, TURNS = 2000, 250, 60, 40  # tokens, and turns
CONTEXT = SYSTEM + TURNS * (RESULT + ANSWER)
FLOODS, FLOOD_PROMPT, FLOOD_ANSWER = 8, 700, 60
GAPS = (0.5, 5.0, 30.0)  # seconds of a tool
PAGE = 16
COST = StepCost(step=0.008, decode=0.0005, prompt=0.00035, context=2e-8, prompt_context=2e-8, swapped_page=0.00005)
VOCABULARY = 50_000
DISK_PAGES_PER_SECOND = 2700.0  # of 370 kB, as a page of SmolLM2-135M in bfloat16: 1 GB/s
RESTART_TURN, RESTART_SECONDS = 20, 10.0  # a restart after this turn, and how long it takes
RESTART_GAPS = (5.0, 30.0)  # the tool ends before the server is ready, and after it


@dataclass
class Turn:
    """A request of an agent, and when it got its first token."""

    agent: int
    turn: int
    sent: float
    cached: int = 0
    prompt: int = 0
    first: float = 0.0


@dataclass
class Trace:
    """Clients that send a request after the end of the one before. gap: seconds between turns of an agent."""

    agents: int
    gap: float
    seed: int
    floods: int
    flood_class: ServiceClass
    turns: list[Turn] = field(default_factory=list)
    flood_latencies: list[float] = field(default_factory=list)
    flood_tokens: int = 0


class SimulatedDisk:
    """`PageStore` whose pages are moved one after another, on a simulated clock."""

    def __init__(self, clock: Clock, stored: dict[bytes, None]) -> None:
        self.stored = stored
        self._clock = clock
        self._moves: deque[tuple[float, MovedPage]] = deque()  # with the time when it ends
        self._free_at = 0.0

    def __contains__(self, digest: object) -> bool:
        return digest in self.stored

    def __len__(self) -> int:
        return len(self.stored)

    def latest(self, limit: int) -> list[bytes]:
        """Return the pages that were written last."""
        return list(self.stored)[-limit:] if limit else []

    def touch(self, digests: Sequence[bytes]) -> None:
        """Do nothing: no page is dropped."""

    def write(self, run: PageRun, wait: Callable[[], None]) -> None:
        """Begin to write pages."""
        self._move(zip(run.digests, run.host_pages, strict=True), was_read=False)

    def read(self, pages: Sequence[tuple[bytes, int]]) -> None:
        """Begin to read pages."""
        self._move(pages, was_read=True)

    def _move(self, pages: Iterable[tuple[bytes, int]], *, was_read: bool) -> None:
        for digest, host_page in pages:
            self._free_at = max(self._free_at, self._clock.now) + 1 / DISK_PAGES_PER_SECOND
            self._moves.append((self._free_at, MovedPage(digest, host_page, was_read, True)))

    def take_moved(self) -> list[MovedPage]:
        """Return the pages that were moved since the last call."""
        moved = []
        while self._moves and self._moves[0][0] <= self._clock.now:
            moved.append(self._moves.popleft()[1])
        self.stored |= {page.digest: None for page in moved if not page.was_read}
        return moved

    def take_marks(self) -> tuple[list[bytes], list[bytes]]:
        """Return nothing: there is one engine."""
        return [], []

    def read_seconds(self, pages: int) -> float:
        """Return the expected seconds for reading pages."""
        return pages / DISK_PAGES_PER_SECOND


class Run:
    """One simulated run of agents beside floods."""

    def __init__(self, trace: Trace, *, pool: float, host: float, share: float, has_disk: bool = False) -> None:
        """pool, host: pages of device and host memory, relative to the context of one agent. share: of sessions."""
        self.trace = trace
        self.clock = Clock()
        self._config = EngineConfig(model="", page_size=PAGE, max_num_seqs=16, session_share=share)
        self._pages, self._host_pages = (int(size * CONTEXT / PAGE) for size in (pool, host))
        self._disk: dict[bytes, None] | None = {} if has_disk else None
        self._preparing: list[tuple[Request, Preparation]] = []
        self.restarts_after = 0  # turn; 0: never
        self.ready_at = 0.0
        self.engine = self._start()
        self._dice = random.Random(trace.seed)
        self._numbers = count()
        self._due: list[tuple[float, int, Request]] = []
        self._of: dict[str, Turn] = {}
        self._sent: dict[str, float] = {}
        self._prompts = [self._random(SYSTEM + RESULT) for _ in range(trace.agents)]
        for agent in range(trace.agents):
            self._ask(agent, 1, 1.0 + agent)
        for flood in range(trace.floods):
            self._flood(f"flood {flood}", 0.01 * flood)

    def _start(self) -> Engine:
        pages, host_pages = self._pages, self._host_pages
        engine = simulated_engine(
            self._config, COST, self.clock, num_pages=pages, host_pages=host_pages, max_len=CONTEXT + 1000
        )
        if self._disk is not None:
            pages_per_step = int(STAGING_SECONDS / COST.swapped_page)
            engine.scheduler.kv_manager.use_disk(SimulatedDisk(self.clock, self._disk), pages_per_step)
        return engine

    def _restart(self) -> None:
        """Replace the engine. What floods had asked for is lost, and they ask again."""
        self.clock.now += RESTART_SECONDS
        self.ready_at = self.clock.now
        self.engine = self._start()
        self._due = [due for due in self._due if due[2].id not in self._sent]
        heapq.heapify(self._due)
        for name in list(self._sent):
            del self._sent[name]
            self._flood(name.rsplit(" ", 1)[0], self.clock.now)

    def _random(self, tokens: int) -> tuple[int, ...]:
        return tuple(self._dice.choices(range(10, VOCABULARY), k=tokens))

    def _submit(self, at: float, tenant: str, prompt: tuple[int, ...], **more: Any) -> str:
        name = f"{tenant} {next(self._numbers)}"
        sampling = SamplingParams(max_tokens=ANSWER)
        request = Request(id=name, prompt=prompt, sampling=sampling, tenant=tenant, cache_salt=tenant, **more)
        heapq.heappush(self._due, (at, next(self._numbers), request))
        return name

    def _ask(self, agent: int, turn: int, at: float) -> None:
        prompt = self._prompts[agent]
        name = self._submit(at, f"agent {agent}", prompt)
        self._of[name] = Turn(agent, turn, at, prompt=len(prompt))

    def _flood(self, tenant: str, at: float) -> None:
        name = self._submit(at, tenant, self._random(FLOOD_PROMPT), service_class=self.trace.flood_class)
        self._sent[name] = at

    def run(self) -> None:
        """Serve until the last turn of each agent has ended."""
        clock, left = self.clock, self.trace.agents
        while left:
            while self._due and self._due[0][0] <= clock.now:
                self._prepare(heapq.heappop(self._due)[2])
            self._submit_prepared()
            seconds = self.engine.seconds_to_step()
            if seconds is None or seconds:
                clock.now = max(clock.now, self._next_at(seconds))
                continue
            for event in self.engine.step():
                left -= self._apply(event)
            if self.restarts_after and any(turn.turn == self.restarts_after for turn in self.trace.turns):
                self.restarts_after = 0
                self._write_all()
                self._restart()

    def _write_all(self) -> None:
        """Let the pages be written before a restart: the tool works for longer than that takes."""
        while (seconds := self.engine.seconds_to_step()) is not None and self._disk is not None:
            self.clock.now += seconds
            if not seconds:
                self.engine.step()

    def _next_at(self, seconds: float | None) -> float:
        """Return when something happens next: a request arrives or is prepared, or a step is due in `seconds`."""
        times = [self._due[0][0]] if self._due else []
        times += [self.clock.now + POLL_SECONDS] if self._preparing else []
        times += [self.clock.now + seconds] if seconds else []
        return min(times)

    def _prepare(self, request: Request) -> None:
        preparation = self.engine.prepare(request)
        if preparation is None:
            self.engine.submit(request)
        else:
            self._preparing.append((request, preparation))

    def _submit_prepared(self) -> None:
        for request, preparation in list(self._preparing):
            if preparation.work.done():
                self._preparing.remove((request, preparation))
                self.engine.submit(request)

    def _apply(self, event: object) -> int:
        """Apply an event; return 1 if it ends the last turn of an agent."""
        now = self.clock.now
        match event:
            case StatusEvent(request_id=name, cached_tokens=cached) if cached and name in self._of:
                self._of[name].cached = cached
            case TokenEvent(request_id=name, finish=finish):
                if (turn := self._of.get(name)) is not None:
                    turn.first = turn.first or now
                else:
                    self.trace.flood_tokens += 1
                if finish is not FinishReason.LENGTH:
                    return 0
                if turn is None:
                    self.trace.flood_latencies.append(now - self._sent.pop(name))
                    self._flood(name.rsplit(" ", 1)[0], now)
                    return 0
                return self._next_turn(name, turn)
        return 0

    def _next_turn(self, name: str, turn: Turn) -> int:
        del self._of[name]
        self.trace.turns.append(turn)
        if turn.turn == TURNS:
            return 1
        self.engine.keep(name, 0)
        self._prompts[turn.agent] += (7,) * ANSWER + self._random(RESULT)
        self._ask(turn.agent, turn.turn + 1, self.clock.now + self.trace.gap)
        return 0


def figures(run: Run) -> dict[str, float]:
    """Return the figures of a run that has ended. Seconds; the cached share is of the tokens that could be cached."""
    trace = run.trace

    def first(*numbers: int) -> float:
        return median(turn.first - turn.sent for turn in trace.turns if turn.turn in numbers)

    later = [turn for turn in trace.turns if turn.turn > 1]
    found = {
        "turn 3": first(2, 3, 4),
        "turn 40": first(TURNS - 2, TURNS - 1, TURNS),
        "cached share": sum(turn.cached for turn in later) / sum(turn.prompt - RESULT - 1 for turn in later),
    }
    if trace.flood_latencies:
        found["floods' tokens/s"] = trace.flood_tokens / run.clock.now
        found["floods' median answer"] = median(trace.flood_latencies)
    return found


def measure(case: Case, share: float, floods: int, seed: int) -> dict[str, float]:
    """Return the figures of one run of a case. share: of the pool for sessions; floods: number of other clients."""
    trace = Trace(case.agents, case.gap, seed, floods, case.flood_class)
    run = Run(trace, pool=case.pool, host=case.host, share=share)
    run.run()
    return figures(run)


def measure_restart(gap: float, seed: int, *, has_disk: bool) -> dict[str, float]:
    """Return the first token of the turns around a restart, in seconds, and what the one after it found cached.

    That turn is measured from the time at which the server is ready, if the tool has ended before.
    """
    trace = Trace(1, gap, seed, FLOODS, ServiceClass.STANDARD)
    run = Run(trace, pool=2.0, host=2.0, share=0.5, has_disk=has_disk)
    run.restarts_after = RESTART_TURN
    run.run()
    taken = {turn.turn: turn.first - turn.sent for turn in trace.turns}
    (after,) = (turn for turn in trace.turns if turn.turn == RESTART_TURN + 1)
    return {
        "before": median(taken[turn] for turn in range(RESTART_TURN - 2, RESTART_TURN + 1)),
        "first turn after": after.first - max(after.sent, run.ready_at),
        "cached share": after.cached / (after.prompt - RESULT - 1),
    }


@dataclass(frozen=True)
class Case:
    """Agents with a gap, in seconds, and pages of device and host relative to the context of one."""

    agents: int
    gap: float
    pool: float
    host: float
    flood_class: ServiceClass

    @property
    def name(self) -> str:
        """Return the name for the table."""
        return f"{self.agents} agents, gaps of {self.gap:g} s, beside {self.flood_class.label} floods"


CASES = [
    *(Case(1, gap, 2.0, 0.0, of) for of in (ServiceClass.STANDARD, ServiceClass.BATCH) for gap in GAPS),
    *(Case(8, gap, 4.0, 8.0, ServiceClass.STANDARD) for gap in GAPS),
]
SETTINGS = {"alone": (0.5, 0), "least recently used": (0.0, FLOODS), "sessions": (0.5, FLOODS)}


def main() -> None:
    """Run all cases, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="part of the names of the cases to run")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    summary: dict[str, Any] = {}
    for case in CASES:
        if options.only not in case.name:
            continue
        medians: dict[str, dict[str, float]] = {}
        for name, (share, floods) in SETTINGS.items():
            runs = [measure(case, share, floods, seed) for seed in range(options.seeds)]
            rows += [{"case": case.name, "setting": name, "seed": seed, **run} for seed, run in enumerate(runs)]
            medians[name] = {key: median(run[key] for run in runs) for key in runs[0]}
        before, after = medians["least recently used"], medians["sessions"]
        summary[case.name] = {
            **medians,
            "turn 40 over turn 3": {name: row["turn 40"] / row["turn 3"] for name, row in medians.items()},
            "floods with sessions over without": {
                key: after[key] / before[key] for key in ("floods' tokens/s", "floods' median answer")
            },
        }
        print(json.dumps({case.name: summary[case.name]}, indent=1), flush=True)
    for gap in RESTART_GAPS:
        name = f"restart, gaps of {gap:g} s"
        if options.only in name:
            summary[name] = {}
            for setting, has_disk in (("without disk", False), ("with disk", True)):
                runs = [measure_restart(gap, seed, has_disk=has_disk) for seed in range(options.seeds)]
                rows += [{"case": name, "setting": setting, "seed": seed, **run} for seed, run in enumerate(runs)]
                found = {key: median(run[key] for run in runs) for key in runs[0]}
                summary[name][setting] = found | {"after over before": found["first turn after"] / found["before"]}
            print(json.dumps({name: summary[name]}, indent=1), flush=True)
    settings = {"cost": str(COST), "turns": TURNS, "floods": FLOODS, "seeds": options.seeds}
    print("Saved to", save("sessions", settings, rows, summary))


if __name__ == "__main__":
    main()
