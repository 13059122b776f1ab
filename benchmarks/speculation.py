"""Tokens a second with drafts over those without, for answers that repeat much, little and nothing.

    make model && python -m benchmarks.speculation

Two engines in one process, SmolLM2-135M-Instruct in four bits, answer the same requests in alternating rounds, with
`--speculation auto` and `off`. Texts are greedy, without the penalty that the model recommends, and must be equal. The
model is too small for edits and tool calls, so a grammar that allows one text makes it say them; no draft comes from
that grammar. The ratio is the median of those of the rounds.

--random guesses at random and pretends that it is sure, the worst that drafts can do. --cost measures the time and the
memory that drafting takes.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from app.text.packaged_model import DEFAULT_MODEL
from app.text.text_model import TextModel
from benchmarks.results import origin, save, spread
from benchmarks.speculation_cost import ROWS, MeasuredSpeculation, StepCosts, cost_marks, shares, table_bytes
from benchmarks.speculation_texts import Case, cases
from engine.build import build_engine
from engine.config import EngineConfig
from engine.constraints import forced
from engine.drafting.lookup import MAX_MATCH, NO_DRAFT, Draft
from engine.drafting.speculator import Speculator
from engine.engine import Engine
from engine.scheduling.sequence import Sequence
from engine.scheduling.speculation import Speculation
from engine.types import Request, SamplingParams, TokenEvent

STREAMS = (1, 4, 16)
MAX_TOKENS = 1600
COST_STREAMS = (16,)
COST_TOKENS = 200  # of an answer, so that all end at about the same time
OWN_TOKENS = 200  # of an answer that is not given
MIN_RATIOS = {"prediction, right, 1 streams": 3.0}  # the marks
MIN_RATIOS |= {f"prediction, wrong, {streams} streams": 0.97 for streams in STREAMS}
Mode = Literal["off", "auto"]
MODES: tuple[Mode, ...] = ("off", "auto")


def requests(text: TextModel, some: list[Case], streams: int, limit: int = MAX_TOKENS) -> list[Request]:
    """Return simultaneous requests, those of the cases in turn. limit: tokens of an answer."""
    found = []
    for number in range(streams):
        case = some[number % len(some)]
        chat = text.render_chat([{"role": "user", "content": case.prompt}])
        sampling = SamplingParams(
            max_tokens=limit if case.answer else min(limit, OWN_TOKENS),
            temperature=0.0,
            stop_token_ids=tuple(text.eos_token_ids),
            grammar=grammar(text, case),
        )
        prompt, prediction = (tuple(text.encode(part, add_special_tokens=False)) for part in (chat, case.prediction))
        name = f"{time.monotonic_ns()}-{number}"
        found.append(Request(id=name, prompt=prompt, sampling=sampling, prediction=prediction))
    return found


def grammar(text: TextModel, case: Case) -> str | None:
    """Return a grammar that allows the answer only; None if it is not given.

    A model that has not read the text in its prompt would divide it otherwise than the tokenizer, into two to three
    times as many tokens. Beside a prediction the grammar therefore allows no other division.
    """
    if not case.answer:
        return None
    if not case.prediction:
        return f"start: {json.dumps(case.answer)}"
    return "start: " + " ".join([f"<[{token}]>" for token in text.encode(case.answer, add_special_tokens=False)])


def build_engines(model: Path, text: TextModel) -> dict[Mode, Engine]:
    """Return an engine for each mode. Grammars draft in neither."""
    forced.MAX_ALLOWED = 0
    engines = {mode: build_engine(EngineConfig(model=str(model), speculation=mode, num_pages=3000)) for mode in MODES}
    for engine in engines.values():
        engine.use_vocabulary(text.vocabulary())
    return engines


def answers(engine: Engine, submitted: list[Request]) -> tuple[list[Any], float]:
    """Return the texts of simultaneous requests, and tokens a second while they decode."""
    texts: dict[str, list[int]] = {request.id: [] for request in submitted}
    for request in submitted:
        engine.submit(request)
    began, tokens = 0.0, 0
    while engine.has_work:
        for event in engine.step():
            if isinstance(event, TokenEvent):
                texts[event.request_id].append(event.token_id)
        if not began and all(texts.values()):
            began, tokens = time.perf_counter(), sum(map(len, texts.values()))
    return list(texts.values()), (sum(map(len, texts.values())) - tokens) / (time.perf_counter() - began)


def guess(sequence: Sequence, speculator: Speculator, limit: int) -> Draft:
    """Return a random draft, as if its match were long, unless drafts pause."""
    draft = Draft(tuple(random.choices(sequence.tokens, k=limit)), MAX_MATCH)
    return draft if speculator.may_use(draft, sequence.num_tokens) else NO_DRAFT


def forget_answers(engine: Engine, *, is_random: bool) -> None:
    """Let an engine draft anew. Requests are repeated here, and earlier answers would be the best drafts of all."""
    scheduler = engine.scheduler
    if scheduler.speculation is not None:
        drafter = guess if is_random else None
        scheduler.speculation = Speculation(scheduler.policy, scheduler.counters, scheduler.kv_manager, drafter)


def measure(
    engines: Mapping[Mode, Engine], text: TextModel, some: list[Case], streams: int, rounds: int, *, is_random: bool
) -> list[dict[str, Any]]:
    """Return a row for each round and mode. The first round, which fills the prefix cache, is left out."""
    rows: list[dict[str, Any]] = []
    for number in range(-1, rounds):
        found = {}
        for mode in MODES if number % 2 else reversed(MODES):
            forget_answers(engines[mode], is_random=is_random)
            before = engines[mode].load().counters
            texts, speed = answers(engines[mode], requests(text, some, streams))
            after = engines[mode].load().counters
            found[mode] = texts
            drafted, accepted = (
                after.drafted_tokens - before.drafted_tokens,
                after.accepted_tokens - before.accepted_tokens,
            )
            row = {"round": number, "mode": mode, "tokens_per_s": speed, "drafted": drafted, "accepted": accepted}
            rows.append(row | {"tokens": sum(map(len, texts)), "steps": after.steps - before.steps})
        assert found["off"] == found["auto"], "drafts have changed a text"
    return rows[len(MODES) :]


def measure_cost(engine: Engine, text: TextModel, some: list[Case], streams: int, rounds: int) -> list[dict[str, Any]]:
    """Return a row for each round and cost of rows.

    Answers of earlier rounds are kept, so that each source of drafts is asked. The first round is left out.
    """
    scheduler = engine.scheduler
    speculation = MeasuredSpeculation(scheduler.policy, scheduler.counters, scheduler.kv_manager)
    scheduler.speculation = speculation
    found: list[dict[str, Any]] = []
    for number in range(-1, rounds):
        for rows in ROWS:
            speculation.begin(rows)
            before = engine.load().counters
            costs = StepCosts.measure(engine, requests(text, some, streams, COST_TOKENS))
            after = engine.load().counters
            drafted, steps = after.drafted_tokens - before.drafted_tokens, after.steps - before.steps
            found.append({"round": number, "rows": rows, **asdict(costs), "drafted": drafted, "all_steps": steps})
    return found[len(ROWS) :]


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=DEFAULT_MODEL.file)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, nargs="+", help=f"default: {STREAMS}, with --cost {COST_STREAMS}")
    parser.add_argument("--only", default="", help="kinds of answers that contain this text")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--random", action="store_true", help="guess at random")
    kind.add_argument("--cost", action="store_true", help="measure the time and memory of drafting")
    options = parser.parse_args()
    text = TextModel.load(options.model)
    engines = build_engines(options.model, text)
    rows: list[dict[str, Any]] = []
    summary: dict[str, Any] = {}
    print(origin()["processor"])
    for streams in options.streams or (COST_STREAMS if options.cost else STREAMS):
        for name, some in cases().items():
            if options.only not in name:
                continue
            case = f"{name}, {streams} streams"
            if options.cost:
                own = measure_cost(engines["auto"], text, some, streams, options.rounds)
                found = {f"{case}, rows {kind}": shares([row for row in own if row["rows"] == kind]) for kind in ROWS}
            else:
                own = measure(engines, text, some, streams, options.rounds, is_random=options.random)
                found = {case: summarise(own, streams)}
            rows += [{"text": name, "streams": streams} | row for row in own]
            summary |= found
            for key, figures in found.items():
                print(key, {what: round(value, 3) for what, value in figures.items()}, flush=True)
    if options.cost:
        summary["bytes per token of context"] = table_bytes()
        print("bytes per token of context", summary["bytes per token of context"])
    summary["marks"] = cost_marks(summary) if options.cost else marks(summary)
    print("Marks met:", summary["marks"])
    settings = {"model": options.model.name, "rounds": options.rounds, "random": options.random}
    name = "speculation_cost" if options.cost else "speculation_random" if options.random else "speculation"
    print("Saved to", save(name, settings, rows, summary))


def marks(summary: dict[str, Any]) -> dict[str, bool]:
    """Return whether each mark is met whose case was measured."""
    return {case: summary[case]["median"] >= least for case, least in MIN_RATIOS.items() if case in summary}


def summarise(rows: list[dict[str, Any]], streams: int) -> dict[str, float]:
    """Return the ratio of speeds, and tokens of a stream in a step with drafts."""
    off, auto = ([row for row in rows if row["mode"] == mode] for mode in MODES)
    ratios = [one["tokens_per_s"] / other["tokens_per_s"] for one, other in zip(auto, off, strict=True)]
    tokens = statistics.median([row["tokens"] / row["steps"] / streams for row in auto])
    drafted = max(1, sum(row["drafted"] for row in auto))
    return spread(ratios) | {
        "tokens a step and stream": tokens,
        "share of right drafts": sum(row["accepted"] for row in auto) / drafted,
        "tokens a second without": statistics.median([row["tokens_per_s"] for row in off]),
    }


if __name__ == "__main__":
    main()
