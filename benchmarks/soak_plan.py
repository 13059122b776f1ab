"""Plan of a soak test: the times of engine kills and of hostile clients, determined by a seed."""

from __future__ import annotations

import random
import signal
from dataclasses import dataclass

from benchmarks.hostile_clients import CASES

# Time from a kill until the next engine serves on a busy machine: a stopped engine is replaced after 20 s, the server's
# default, and its successor loads in 1.5 s on idle cores.
RESTART_SECONDS = 60.0
MIN_KILL_GAP_SECONDS, MAX_KILL_GAP_SECONDS = RESTART_SECONDS, 120.0
STOP_SHARE = 0.2  # share of kills by SIGSTOP, until the watchdog acts
FIRST_FLOOD_SECONDS = 10.0
FLOOD_SECONDS, QUIET_SECONDS = 20.0, 10.0


@dataclass(frozen=True)
class Kill:
    """Signal to the engine process."""

    at: float  # seconds from the beginning
    signal: signal.Signals


@dataclass(frozen=True)
class Flood:
    """Attack by one hostile client; `case` is its name in `hostile_clients.CASES`."""

    at: float  # seconds from the beginning
    case: str
    seconds: float


@dataclass(frozen=True)
class Plan:
    """All disturbances of a soak test, in chronological order."""

    seconds: float
    kills: tuple[Kill, ...]
    floods: tuple[Flood, ...]


def make_plan(seconds: float, seed: int) -> Plan:
    """Return the plan of a soak test of `seconds`.

    Every kill leaves time for a restart before the next one and the end; every flood is followed by a quiet phase.
    """
    return Plan(seconds, _kills(seconds, random.Random(f"kills {seed}")), _floods(seconds, random.Random(seed)))


def _kills(seconds: float, chance: random.Random) -> tuple[Kill, ...]:
    kills = []
    at = chance.uniform(MIN_KILL_GAP_SECONDS, MAX_KILL_GAP_SECONDS)
    while at + RESTART_SECONDS <= seconds:
        kills.append(Kill(at, signal.SIGSTOP if chance.random() < STOP_SHARE else signal.SIGKILL))
        at += chance.uniform(MIN_KILL_GAP_SECONDS, MAX_KILL_GAP_SECONDS)
    return tuple(kills)


def _floods(seconds: float, chance: random.Random) -> tuple[Flood, ...]:
    floods: list[Flood] = []
    cases: list[str] = []
    at = FIRST_FLOOD_SECONDS
    while at + FLOOD_SECONDS + QUIET_SECONDS <= seconds:
        if not cases:  # each rotation has every case once, in random order
            cases = chance.sample(list(CASES), len(CASES))
        floods.append(Flood(at, cases.pop(), FLOOD_SECONDS))
        at += FLOOD_SECONDS + QUIET_SECONDS
    return tuple(floods)
