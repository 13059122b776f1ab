"""Agents beside floods: their turns on a real server, and the figures made of them."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock

import pytest

from benchmarks import agent_turns
from benchmarks.agent_turns import (
    BASE_SECONDS,
    OPTIONS,
    SETTINGS,
    START_SECONDS,
    WARM_UP_SECONDS,
    Case,
    Run,
    agent_figures,
    cases,
    compare,
    marks,
    measure,
    time_limit,
)
from benchmarks.agent_turns_clients import AGENTS, Floods, Sizes, Turn
from benchmarks.serving import Serving
from tests.limits import HANG_SECONDS

SMALL = Sizes(system=60, result=10, flood_prompt=20, flood_answer=8)


@pytest.fixture(scope="module")
def server():
    with Serving(*OPTIONS) as running:
        yield running


@pytest.mark.parametrize("client", AGENTS)
def test_a_turn_finds_the_prompt_before_it_in_the_cache(server, client, monkeypatch):
    """Each answer is a call, whose result extends the prompt; the floods have answers too."""
    monkeypatch.setattr(agent_turns, "WARM_UP_SECONDS", 0.0)
    run = asyncio.run(measure(server, Case(client, 0.0, "sessions"), SMALL, turns=3, limit=HANG_SECONDS))
    first, second, third = run.turns
    assert first.cached < second.cached < third.cached
    assert second.prompt > first.prompt + first.answer / 2
    assert all(0 < turn.first <= turn.seconds for turn in run.turns)
    assert run.floods.arrived


class StuckAgent:
    """An agent whose second answer never comes."""

    def __init__(self, *_: object) -> None:
        self._turns = [Turn(1.0, 2.0, prompt=100, cached=0, answer=10)]

    async def ask(self, text: str) -> Turn:
        if not self._turns:
            await asyncio.Event().wait()
        return self._turns.pop()

    async def close(self) -> None:
        pass


def test_a_run_that_reaches_its_limit_keeps_its_turns(server, monkeypatch):
    """The answer in progress is given up."""
    monkeypatch.setattr(agent_turns, "WARM_UP_SECONDS", 0.0)
    monkeypatch.setitem(AGENTS, "openai", StuckAgent)
    run = asyncio.run(measure(server, Case("openai", 0.0, "sessions"), SMALL, turns=3, limit=0.1))
    assert len(run.turns) == 1


def turn(first: float, *, prompt: int, cached: int) -> Turn:
    return Turn(first, first + 1, prompt, cached, answer=60)


TURNS = [
    turn(9.0, prompt=2000, cached=0),
    *(turn(1.0 + 0.1 * number, prompt=2000 + 310 * number, cached=1500 + 310 * number) for number in range(1, 8)),
]


def test_figures_are_of_turns_2_to_4_and_of_the_last_three():
    """The cached share is of the tokens that the turn before had."""
    found = agent_figures(TURNS)
    assert (found["turns"], found["early_s"], found["late_s"]) == (8, pytest.approx(1.2), pytest.approx(1.6))
    known = sum(2060 + 310 * number for number in range(7))
    assert found["cached_share"] == pytest.approx(sum(1810 + 310 * number for number in range(7)) / known)


def test_a_run_of_one_turn_has_no_figures():
    """There is nothing to compare."""
    assert agent_figures(TURNS[:1]) == dict.fromkeys(agent_figures(TURNS)) | {"turns": 1}


def run_of(began: float, seconds: float, rate: int, turns: list[Turn]) -> Run:
    """Return a run whose floods get `rate` tokens in each second, and an answer each second that takes 1/rate s."""
    floods = Floods(Mock(), SMALL)
    for second in range(int(seconds)):
        floods.arrived += [began + second] * rate
        floods.answers.append((began + second, 1 / rate))
    return Run(turns, floods, began, seconds)


def test_floods_are_compared_in_the_time_that_both_runs_have():
    """The longer run is twice as fast after the end of the other one, which does not count."""
    longer = run_of(50.0, 10.0, 8, TURNS)
    longer.floods.arrived += [57.0] * 1000
    pair = compare({"least recently used": run_of(7.0, 5.0, 10, TURNS[:3]), "sessions": longer})
    assert pair["floods_over_least_recently_used"] == {
        "seconds": 5.0,
        "floods_tokens_per_s": pytest.approx(0.8),
        "floods_p50_s": pytest.approx(1.25),
    }


def test_a_mark_that_was_not_reached_is_not_met():
    """A run that ended early has no last turn, and a short one no floods to compare; the others are met or missed."""
    pair = compare({setting: run_of(0.0, 60.0, 10, TURNS) for setting in SETTINGS})
    assert list(marks(pair, len(TURNS)).values()) == [False, True, True, True]
    assert list(marks(pair, 40).values()) == [False, None, True, True]
    short = compare({setting: run_of(0.0, 5.0, 10, TURNS) for setting in SETTINGS})
    assert list(marks(short, len(TURNS)).values()) == [False, True, None, None]


def test_every_pair_has_both_settings():
    """Two clients with two gaps, each once with sessions and once without."""
    pairs = [(case.pair, case.setting) for case in cases()]
    assert len(set(pairs)) == len(pairs) == 8
    assert {setting for _, setting in pairs} == set(SETTINGS)


@pytest.mark.parametrize("minutes", [10, 25, 60])
def test_runs_that_use_all_their_time_end_in_time(minutes):
    """Each start and warm-up counts too."""
    left, seconds = cases(), 60.0 * minutes
    while left:
        seconds -= WARM_UP_SECONDS + time_limit(left, 40, seconds) + (START_SECONDS if len(left) > 1 else 0)
        left = left[1:]
    assert seconds == pytest.approx(0, abs=1e-6)


def test_runs_with_sessions_have_the_time_of_all_turns_first():
    """The rest is divided among all."""
    with_sessions = [case for case in cases() if case.setting == "sessions"]
    others = [case for case in cases() if case.setting != "sessions"]
    overhead = 8 * WARM_UP_SECONDS + 7 * START_SECONDS
    needed = sum(case.expected_seconds(40) for case in with_sessions) + 4 * BASE_SECONDS
    for case in (*with_sessions, *others):
        left = [case, *(each for each in cases() if each != case)]
        exact, more, less = (time_limit(left, 40, overhead + factor * needed) for factor in (1.0, 2.0, 0.5))
        assert exact == pytest.approx(case.expected_seconds(40) if case in with_sessions else BASE_SECONDS)
        assert more > exact and less == pytest.approx(exact / 2)
