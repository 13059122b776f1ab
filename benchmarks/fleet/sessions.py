"""Sessions of agents: each turn repeats the conversation so far and adds to it, so an engine may have its prefix."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count, islice

from benchmarks.fleet.answers import Answer, first_tokens, percentiles
from benchmarks.fleet.arrivals import make_request, poisson
from benchmarks.fleet.fleet import Fleet, FleetShape
from benchmarks.fleet.scenarios import WARM_SHARE, quiet
from engine.simulation import SAMPLED_TOKEN
from engine.types import ServiceClass

SYSTEM_TOKENS = 512  # the same in all sessions
TASK_TOKENS, TURN_TOKENS, ANSWER_TOKENS = 512, 200, 50  # of the first prompt, and of each turn
MEAN_TURNS, MAX_TURNS = 8, 20
TOOL_SECONDS = 1.0  # mean, from the end of an answer until the next turn
MEAN_CONTEXT = SYSTEM_TOKENS + TASK_TOKENS + MEAN_TURNS * (TURN_TOKENS + ANSWER_TOKENS)


@dataclass
class Session:
    """Turns of one agent, each of which follows the answer to the previous one."""

    name: str
    turns: int
    fleet: Fleet
    tokens: Iterator[int]
    context: list[int]
    answers: list[Answer] = field(default_factory=list)
    repeated_tokens: int = 0  # of prompts: context of earlier turns, which an ideal cache has

    def take_turn(self) -> None:
        """Send the next turn."""
        if self.answers:
            self.repeated_tokens += len(self.context)
        self.context += islice(self.tokens, TURN_TOKENS)
        request = make_request(
            f"{self.name}.{len(self.answers)}", tuple(self.context), ANSWER_TOKENS, ServiceClass.STANDARD
        )
        self.answers.append(self.fleet.submit(request, self._on_answer))

    def _on_answer(self) -> None:
        self.context += [SAMPLED_TOKEN.token_id] * ANSWER_TOKENS
        if len(self.answers) < self.turns:
            pause = self.fleet.draw.expovariate(1 / TOOL_SECONDS)
            self.fleet.at(self.fleet.clock.now + pause, self.take_turn)


@quiet()
def sessions_row(shape: FleetShape, load: float, seconds: float, seed: int = 0) -> dict[str, object]:
    """Serve sessions and return the share of prompt tokens that were found in a cache, beside the ideal one.

    load: share of the time that engines with full batches need for them without a cache.
    """
    fleet = Fleet(shape, seed)
    rng = random.Random(f"sessions{seed}")
    cost = shape.cost
    turn_seconds = ANSWER_TOKENS * (cost.step / shape.slots + cost.decode) + MEAN_CONTEXT * cost.prompt
    tokens = count(100)
    system = list(islice(tokens, SYSTEM_TOKENS))
    sessions = []
    for number, at in enumerate(poisson(rng, load * shape.engines / turn_seconds / MEAN_TURNS, seconds)):
        turns = min(MAX_TURNS, 1 + int(rng.expovariate(1 / MEAN_TURNS)))
        context = system + list(islice(tokens, TASK_TOKENS))
        session = Session(f"s{number}", turns, fleet, tokens, context)
        sessions.append(session)
        fleet.at(at, partial(session.take_turn))
    fleet.run(seconds)
    busy = sum(member.busy_seconds for member in fleet.members) / seconds / shape.engines
    fleet.run()
    counters = [member.engine.load().counters for member in fleet.members if member.engine is not None]
    prompts = sum(one.prompt_tokens for one in counters)
    measured = [answer for answer in fleet.answers if answer.at >= WARM_SHARE * seconds]
    return {
        "engines": shape.engines,
        "load": load,
        "turns": len(fleet.answers),
        "lost": sum(not answer.is_whole for answer in fleet.answers),
        "cached": sum(one.cached_tokens for one in counters) / prompts,
        "repeated": sum(session.repeated_tokens for session in sessions) / prompts,
        "busy": busy,
        "turns_first_tokens": percentiles(first_tokens(measured)),
    }
