"""First tokens of an agent's turns beside floods: a session's pages are kept while its tool works.

python -m benchmarks.sessions            # simulated, all cases; --only "8 agents" for some

The scheduler, the policies and the prefix cache are the real ones; only the time of a step is a formula. An agent has a
prompt of 2,000 tokens, and each turn adds the 60 tokens of the answer and 250 of a tool's result, after a gap. Eight
other clients send random prompts of 700 tokens, each as soon as its last answer has ended.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
from dataclasses import dataclass, field
from itertools import count
from statistics import median
from typing import Any

from benchmarks.results import save
from engine.config import EngineConfig
from engine.engine import Engine
from engine.simulation import Clock, StepCost, simulated_engine
from engine.types import FinishReason, Request, SamplingParams, ServiceClass, StatusEvent, TokenEvent

SYSTEM, RESULT, ANSWER, TURNS = 2000, 250, 60, 40  # tokens, and turns
CONTEXT = SYSTEM + TURNS * (RESULT + ANSWER)
FLOODS, FLOOD_PROMPT, FLOOD_ANSWER = 8, 700, 60
GAPS = (0.5, 5.0, 30.0)  # seconds of a tool
PAGE = 16
COST = StepCost(step=0.008, decode=0.0005, prompt=0.00035, context=2e-8, prompt_context=2e-8, swapped_page=0.00005)
VOCABULARY = 50_000


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


class Run:
    """One simulated run of agents beside floods."""

    def __init__(self, trace: Trace, *, pool: float, host: float, share: float) -> None:
        """pool, host: pages of device and host memory, relative to the context of one agent. share: of sessions."""
        self.trace = trace
        self.clock = Clock()
        config = EngineConfig(model="", page_size=PAGE, max_num_seqs=16, session_share=share)
        pages, host_pages = (int(size * CONTEXT / PAGE) for size in (pool, host))
        self.engine: Engine = simulated_engine(
            config, COST, self.clock, num_pages=pages, host_pages=host_pages, max_len=CONTEXT + 1000
        )
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
        clock, engine = self.clock, self.engine
        left = self.trace.agents
        while left:
            while self._due and self._due[0][0] <= clock.now:
                engine.submit(heapq.heappop(self._due)[2])
            seconds = engine.seconds_to_step()
            if seconds is None or seconds:
                clock.now = max(clock.now, self._due[0][0]) if self._due else clock.now + (seconds or 0)
                continue
            for event in engine.step():
                left -= self._apply(event)

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
    settings = {"cost": str(COST), "turns": TURNS, "floods": FLOODS, "seeds": options.seeds}
    print("Saved to", save("sessions", settings, rows, summary))


if __name__ == "__main__":
    main()
