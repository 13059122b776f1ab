"""First tokens of an agent's forty turns beside floods, live, through the libraries of openai and anthropic.

    make model && python -m benchmarks.agent_turns
    python -m benchmarks.agent_turns --turns 6 --minutes 5 --only "openai, gaps of 0.5 s"      # a short trial

The trace of `benchmarks.sessions` on a real server: a system prompt and tools of about 2,000 tokens; each turn adds a
tool's result of about 250 tokens and an answer of 60, a call that the schema forces. Eight clients with other keys send
chats with random prompts of about 700 tokens, each as soon as its last answer of 60 tokens has ended. The pool has
twice the pages of the agent's context, and there is no host memory. Each client and gap runs with sessions (the
default) and with `--session-share 0` (the least recently used pages are evicted first).

The model is SmolLM2-135M-Instruct in bfloat16. Its config.json has 16,384 positions in place of 8,192, and four times
the base of the rotations: without that it fills its calls with blanks beyond 10,000 tokens. Beyond 8,192 its texts mean
little; the times are those of any text.

The first token of a turn is the first event with a part of the call, after the tokens of the function's name. A run
ends at its share of `--minutes`, with the turns that it has: runs with sessions get the time for all turns first, and
those without all of theirs with `--minutes 60`. Floods are compared in the time that both runs of a pair have.

Plain chats without sessions, one and eight at a time, are compared in alternating rounds on two servers.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from app.text.packaged_model import DEFAULT_MODEL
from benchmarks.agent_turns_clients import AGENTS, MODEL, Floods, Sizes, Turn, chat, converse, random_text
from benchmarks.results import origin, save, spread
from benchmarks.serving import Serving
from benchmarks.sse_client import run as run_client
from tests.packaged_models import write_checkpoint

TURNS, FLOODS = 40, 8
GAPS = (0.5, 5.0)  # seconds of a tool
POSITIONS, ROPE_FACTOR = 16_384, 4
PAGE, CONTEXT = 32, 14_848  # tokens of a page, and of the agent after the last turn
SETTINGS: dict[str, tuple[str, ...]] = {"sessions": (), "least recently used": ("--session-share", "0")}
AGENT_KEY = "agent-0123456789"
FLOOD_KEYS = [f"flood-{number}-0123456789" for number in range(FLOODS)]
OPTIONS = (
    *("--served-model-name", MODEL, "--api-key", ",".join([AGENT_KEY, *FLOOD_KEYS])),
    *("--max-num-seqs", str(FLOODS + 2), "--page-size", str(PAGE), "--swap-space", "0"),
)
MODEL_OPTIONS = (*OPTIONS, "--dtype", "bfloat16", "--num-pages", str(2 * CONTEXT // PAGE))
WARM_UP_SECONDS = 5.0  # of the floods alone
START_SECONDS = 6.0  # of a server
FIRST_ANSWER_SECONDS, ANSWER_SECONDS = 8.0, 4.0  # expected times of turns
BASE_SECONDS = 35.0  # of a run with which another one is compared, if time is short
MIN_WINDOW_SECONDS = 30.0  # in which floods are compared
PLAIN, PLAIN_SHARE = "plain chats", 0.2  # name of the part, and its share of the time at most
PLAIN_WORDS, PLAIN_ANSWER = 200, 60
PLAIN_REQUESTS = {1: 4, 8: 24}  # of a round, by requests at a time
MIN_CACHED, MAX_LATE, MIN_RATE, MAX_P50, MAX_PLAIN = 0.95, 1.5, 0.95, 1.2, 0.02  # the marks


@dataclass(frozen=True)
class Case:
    """A run of an agent. gap: seconds between its turns."""

    client: str
    gap: float
    setting: str

    @property
    def pair(self) -> str:
        """Return the name of this run and the one that it is compared with."""
        return f"{self.client}, gaps of {self.gap:g} s"

    def expected_seconds(self, turns: int) -> float:
        """Return the time that a run of so many turns is expected to take."""
        return FIRST_ANSWER_SECONDS + turns * (self.gap + ANSWER_SECONDS)


def time_limit(left: list[Case], turns: int, seconds: float) -> float:
    """Return the seconds of the first of the runs that are left. seconds: for all of them, with starts and warm-ups.

    Runs with sessions are first given the time of all their turns, and the others enough to compare floods.
    """
    seconds = max(0.0, seconds - WARM_UP_SECONDS - (len(left) - 1) * (START_SECONDS + WARM_UP_SECONDS))
    expected = [case.expected_seconds(turns) for case in left]
    needed = [
        all_turns if case.setting == "sessions" else BASE_SECONDS
        for case, all_turns in zip(left, expected, strict=True)
    ]
    if (surplus := seconds - sum(needed)) < 0:
        return seconds * needed[0] / sum(needed)
    return needed[0] + surplus * expected[0] / sum(expected)


@dataclass
class Run:
    """Measurements of a run. began: by `time.perf_counter`."""

    turns: list[Turn]
    floods: Floods
    began: float
    seconds: float

    def figures(self) -> dict[str, float | None]:
        """Return the figures of the whole run: `agent_figures`, and those of its floods."""
        return agent_figures(self.turns) | self.floods.figures(self.began, self.seconds)


def cases(only: str = "") -> list[Case]:
    """Return the runs of all pairs with `only` in their name; the setting that is first alternates."""
    found: list[Case] = []
    for gap in GAPS:
        for client in AGENTS:
            order = list(SETTINGS) if len(found) % 4 == 0 else list(reversed(SETTINGS))
            found += [Case(client, gap, setting) for setting in order]
    return [case for case in found if only in case.pair]


def agent_figures(turns: list[Turn]) -> dict[str, float | None]:
    """Return medians of the first tokens of turns 2 to 4 and of the last three, in seconds, and the cached share.

    The share is of the tokens of the prompt and answer before. None where there is no second turn.
    """
    later = turns[1:]
    if not later:
        return {"turns": len(turns), "early_s": None, "late_s": None, "late_over_early": None, "cached_share": None}
    early, late = (median(turn.first for turn in some) for some in (later[:3], later[-3:]))
    known = sum(turn.prompt + turn.answer for turn in turns[:-1])
    cached = sum(turn.cached for turn in later) / known
    return {
        "turns": len(turns),
        "early_s": early,
        "late_s": late,
        "late_over_early": late / early,
        "cached_share": cached,
    }


async def measure(
    server: Serving, case: Case, sizes: Sizes, turns: int, limit: float, flood_keys: Sequence[str] = FLOOD_KEYS
) -> Run:
    """Return a run of at most `limit` seconds, after the warm-up of the floods."""
    floods, done = Floods(server, sizes), list[Turn]()
    async with asyncio.TaskGroup() as group:  # ends with the first flood that fails
        tasks = [group.create_task(floods.follow(key, seed)) for seed, key in enumerate(flood_keys)]
        await asyncio.sleep(WARM_UP_SECONDS)
        agent = AGENTS[case.client](server.url, AGENT_KEY, random.Random(case.client), sizes)
        began = time.perf_counter()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await converse(agent, turns, sizes.result, case.gap, done)
        seconds = time.perf_counter() - began
        await agent.close()
        for task in tasks:
            task.cancel()
    return Run(done, floods, began, seconds)


def compare(runs: dict[str, Run]) -> dict[str, Any]:
    """Return the figures of both settings, and of the floods with sessions relative to those without.

    Raises `KeyError` unless both have run.
    """
    after, before = (runs[setting] for setting in SETTINGS)
    window = min(after.seconds, before.seconds)
    ratios: dict[str, float | None] = {"seconds": window}
    base = before.floods.figures(before.began, window)
    for name, value in after.floods.figures(after.began, window).items():
        reference = base[name]
        ratios[name] = value / reference if value is not None and reference else None
    return {**{setting: run.figures() for setting, run in runs.items()}, "floods_over_least_recently_used": ratios}


def marks(pair: dict[str, Any], turns: int) -> dict[str, bool | None]:
    """Return whether each mark is met; None where a run ended too early for it."""
    found, floods = pair["sessions"], dict(pair["floods_over_least_recently_used"])
    if floods["seconds"] < MIN_WINDOW_SECONDS:
        floods = dict.fromkeys(floods)
    is_complete = found["turns"] == turns

    def compared(value: float | None, at_least: float, at_most: float) -> bool | None:
        return None if value is None else at_least <= value <= at_most

    return {
        f"cached share at least {MIN_CACHED:g}": compared(found["cached_share"], MIN_CACHED, 1),
        f"turn {turns} at most {MAX_LATE:g} times turn 3": (
            compared(found["late_over_early"], 0, MAX_LATE) if is_complete else None
        ),
        f"floods' tokens/s at least {MIN_RATE:g}": compared(floods["floods_tokens_per_s"], MIN_RATE, float("inf")),
        f"floods' p50 at most {MAX_P50:g}": compared(floods["floods_p50_s"], 0, MAX_P50),
    }


def write_model(folder: Path) -> None:
    """Write a checkpoint of the default model with more positions into an existing folder (540 MB)."""
    path = write_checkpoint(DEFAULT_MODEL.file, folder) / "config.json"
    config = json.loads(path.read_text())
    config |= {"max_position_embeddings": POSITIONS, "rope_theta": ROPE_FACTOR * config["rope_theta"]}
    path.write_text(json.dumps(config))


def measure_alone(model: str, turns: int) -> None:
    """Measure an agent without floods, print and save: attention to a longer context takes longer in any case."""
    rows: list[dict[str, Any]] = []
    summary: dict[str, Any] = {}
    for client in AGENTS:
        case = Case(client, GAPS[0], "alone")
        with Serving(*MODEL_OPTIONS, model=model) as server:
            found = run_client(measure(server, case, Sizes(), turns, 3600.0, ()))
        rows += [{**asdict(case), "turn": turn, **asdict(each)} for turn, each in enumerate(found.turns, 1)]
        summary[case.pair] = agent_figures(found.turns)
        print(f"{case.pair}, alone: {summary[case.pair]}", flush=True)
    print("Saved to", save("agent_turns_alone", {"turns": turns, "options": MODEL_OPTIONS}, rows, summary))


def measure_turns(left: list[Case], model: str, turns: int, end: float) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return a row for each turn of the runs that are left, and the summary. end: of all, by `time.monotonic`."""
    rows: list[dict[str, Any]] = []
    pairs: dict[str, dict[str, Run]] = {}
    print(
        "| client and gap | setting | turns | turn 3, s | last turns, s | ratio | cached | floods' tokens/s | p50, s |"
    )
    print("|--|--|--|--|--|--|--|--|--|")
    for number, case in enumerate(left):
        with Serving(*MODEL_OPTIONS, *SETTINGS[case.setting], model=model) as server:
            limit = time_limit(left[number:], turns, end - time.monotonic())
            found = run_client(measure(server, case, Sizes(), turns, limit))
        pairs.setdefault(case.pair, {})[case.setting] = found
        rows += [{**asdict(case), "turn": turn, **asdict(each)} for turn, each in enumerate(found.turns, 1)]
        cells = ("-" if value is None else f"{value:.3g}" for value in found.figures().values())
        print(f"| {case.pair} | {case.setting} | {' | '.join(cells)} |", flush=True)
    summary = {name: compare(runs) for name, runs in pairs.items()}
    for name, pair in summary.items():
        pair["marks"] = marks(pair, turns)
        print(f"{name}: floods relative to least recently used {pair['floods_over_least_recently_used']}")
        print(f"{name}: {pair['marks']}")
    return rows, summary


async def plain_round(server: Serving, at_once: int, seed: int) -> dict[str, float]:
    """Return tokens per second and the median first token, in seconds, of chats with different prompts."""
    dice, firsts, tokens = random.Random(seed), list[float](), list[float]()
    prompts = [random_text(dice, PLAIN_WORDS) for _ in range(PLAIN_REQUESTS[at_once])]

    async def client(key: str) -> None:
        while prompts:
            arrived: list[float] = []
            prompt, sent = prompts.pop(), time.perf_counter()
            await chat(server, key, prompt, PLAIN_ANSWER, arrived)
            firsts.append(arrived[0] - sent)
            tokens.extend(arrived)

    began = time.perf_counter()
    await asyncio.gather(*(client(key) for key in FLOOD_KEYS[:at_once]))
    return {"tokens_per_s": len(tokens) / (time.perf_counter() - began), "first_s": median(firsts)}


def measure_plain(model: str, rounds: int, end: float) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return a row for each round, setting and number of requests, and the ratios of the settings in a round.

    end: after which no further round but the first begins, by `time.monotonic`.
    """
    rows: list[dict[str, Any]] = []
    ratios: dict[str, list[float]] = {}
    with contextlib.ExitStack() as stack:
        servers = {
            name: stack.enter_context(Serving(*MODEL_OPTIONS, *flags, model=model)) for name, flags in SETTINGS.items()
        }
        for number in range(-1, rounds):  # the first is a warm-up
            if number > 0 and time.monotonic() > end:
                break
            for at_once in PLAIN_REQUESTS:
                found = {}
                for name in SETTINGS if number % 2 else reversed(SETTINGS):
                    found[name] = run_client(plain_round(servers[name], at_once, seed=number))
                if number < 0:
                    continue
                rows += [{"plain": at_once, "round": number, "setting": name, **row} for name, row in found.items()]
                after, before = (found[name] for name in SETTINGS)
                for name, value in after.items():
                    ratios.setdefault(f"{at_once} at a time, {name}", []).append(value / before[name])
    summary = {name: spread(values) for name, values in ratios.items()}
    for name, ratio in summary.items():
        is_met = abs(ratio["median"] - 1) <= MAX_PLAIN
        print(f"{PLAIN}, {name} of least recently used: {ratio} ({'met' if is_met else 'MISSED'})")
    return rows, summary


def vector_flags() -> list[str]:
    """Return the processor's vector and matrix extensions; empty where /proc/cpuinfo does not list them."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("flags"):
                return [flag for flag in line.split() if flag.startswith(("avx", "amx"))]
    return []


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--minutes", type=float, default=24.5, help="for everything; default: 24.5")
    parser.add_argument("--rounds", type=int, default=5, help="of plain chats; default: 5")
    parser.add_argument("--only", default="", help=f'part of the names of pairs to run; "{PLAIN}" is one')
    parser.add_argument("--alone", action="store_true", help="an agent without floods, for comparison")
    options = parser.parse_args()
    begin = time.monotonic()
    print(f"{origin()['processor']}: {' '.join(vector_flags())}", flush=True)
    rows: list[dict[str, Any]] = []
    summary: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="carousel-agent-turns-") as folder:
        write_model(Path(folder))
        if options.alone:
            measure_alone(folder, options.turns)
            return
        if options.only in PLAIN:
            end = begin + 60 * PLAIN_SHARE * options.minutes
            more, summary[PLAIN] = measure_plain(folder, options.rounds, end)
            rows += more
        if runs := cases(options.only):
            more, pairs = measure_turns(runs, folder, options.turns, begin + 60 * options.minutes)
            rows, summary = rows + more, summary | pairs
    settings = {
        **vars(options),
        "model": f"{DEFAULT_MODEL.title} in bfloat16",
        "positions": POSITIONS,
        "rope_factor": ROPE_FACTOR,
    }
    settings |= {"options": MODEL_OPTIONS, "floods": FLOODS, **asdict(Sizes()), "vector_flags": vector_flags()}
    print("Saved to", save("agent_turns", settings, rows, summary))


if __name__ == "__main__":
    main()
