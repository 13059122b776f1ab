"""Times between tokens of one person beside streams that speculate, with drafts over those without.

    make model && python -m benchmarks.speculation_people
    python -m benchmarks.speculation_people --plain-person    # only the streams have drafts
    python -m benchmarks.speculation_people --classes batch --rounds 1 --questions 3   # a short trial

A person of the interactive class asks, reads the answer, thinks and asks again. Beside that, 8 streams make edits of
files, which drafts guess almost in full; a grammar that allows one text makes the model say them, and no draft comes
from that grammar. Two engines in one process play the same in alternating rounds, with `--speculation auto` and `off`,
for each class of the streams. Times are taken when a step returns, and a question is asked at its moment, even if a
step is computed meanwhile.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from app.text.packaged_model import DEFAULT_MODEL
from app.text.text_model import TextModel
from benchmarks.results import origin, save, spread
from benchmarks.speculation import MODES, Mode, build_engines, forget_answers, requests
from benchmarks.speculation_texts import Case, cases
from benchmarks.tally import percentile
from engine.engine import Engine
from engine.types import Event, Request, ServiceClass, TokenEvent

STREAMS = 8
EDITS = "edit, whole file"
CHATS = "chat"
ANSWER_TOKENS = 64  # of the person, at most
QUESTIONS = 10  # in a round
THINK_SECONDS = (0.2, 1.0)  # between an answer and the next question
CLASSES = ("batch", "interactive")  # of the streams
FIGURES = ("first_p50", "itl_p50", "itl_p99")
MAX_RATIOS = {"itl_p99": 1.05, "first_p50": 1.1}  # the marks


@dataclass
class Answer:
    """Answer to the person. asked: moment of the question, in seconds. moments: of the tokens."""

    asked: float
    moments: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    @property
    def gaps(self) -> list[float]:
        """Return the seconds between tokens; 0 between those of one step."""
        return [after - before for before, after in pairwise(self.moments)]


class Person:
    """Person that asks, reads the answer, thinks and asks again."""

    def __init__(self, questions: list[Request], seed: int, now: float) -> None:
        """questions: one after the other. The first is asked after a pause, too."""
        self.answers: list[Answer] = []
        self._questions = iter(questions)
        self._left = len(questions)
        self._random = random.Random(seed)
        self._asked = ""  # request in progress
        self._asks_at = now + self._pause()

    @property
    def is_done(self) -> bool:
        """Return whether all answers are complete."""
        return not self._left

    def question(self, now: float) -> Request | None:
        """Return the next question if its moment has come."""
        if self.is_done or self._asked or now < self._asks_at:
            return None
        request = next(self._questions)
        self._asked = request.id
        self.answers.append(Answer(self._asks_at))
        return request

    def read(self, events: list[Event], now: float) -> None:
        """Read the tokens of a step."""
        for event in events:
            if not isinstance(event, TokenEvent) or event.request_id != self._asked:
                continue
            self.answers[-1].moments.append(now)
            self.answers[-1].tokens.append(event.token_id)
            if event.finish is not None:
                self._left -= 1
                self._asked = ""
                self._asks_at = now + self._pause()

    def _pause(self) -> float:
        return self._random.uniform(*THINK_SECONDS)


class Editors:
    """Streams that always have an edit in progress."""

    def __init__(self, engine: Engine, edits: Iterator[Request], streams: int) -> None:
        self.tokens = 0  # of all streams so far
        self._engine = engine
        self._edits = edits
        self._in_progress: set[str] = set()
        for _ in range(streams):
            self._begin()
        self._not_begun = set(self._in_progress)

    @property
    def all_decode(self) -> bool:
        """Return whether each stream has had a token."""
        return not self._not_begun

    def read(self, events: list[Event]) -> None:
        """Read the tokens of a step, and submit a further edit for each that has ended."""
        for event in events:
            if not isinstance(event, TokenEvent) or event.request_id not in self._in_progress:
                continue
            self.tokens += 1
            self._not_begun.discard(event.request_id)
            if event.finish is not None:
                self._in_progress.remove(event.request_id)
                self._begin()

    def stop(self) -> None:
        """Give up the edits in progress."""
        for name in self._in_progress:
            self._engine.abort(name)
        while self._engine.has_work:
            self._engine.step()

    def _begin(self) -> None:
        request = next(self._edits)
        self._in_progress.add(request.id)
        self._engine.submit(request)


def endless(submitted: list[Request], service_class: ServiceClass) -> Iterator[Request]:
    """Yield the requests again and again, with other IDs."""
    for number, request in enumerate(itertools.cycle(submitted)):
        yield replace(request, id=f"{request.id}-{number}", service_class=service_class)


def questions(
    text: TextModel, chats: list[Case], number: int, first: int, *, speculation: bool = True
) -> list[Request]:
    """Return questions of a person. Each begins with its number, from `first` on, so that no cache has its prompt.

    speculation: whether the answers may have drafts.
    """
    asked = [case._replace(prompt=f"Question {first + at}: {case.prompt}") for at, case in enumerate(chats * number)]
    found = requests(text, asked[:number], number, ANSWER_TOKENS)
    return [replace(request, service_class=ServiceClass.INTERACTIVE, speculation=speculation) for request in found]


def play(engine: Engine, edits: Iterator[Request], streams: int, asked: list[Request], seed: int) -> dict[str, Any]:
    """Let a person ask beside the streams; return times in milliseconds, texts and counts."""
    editors = Editors(engine, edits, streams)
    while not editors.all_decode:
        editors.read(engine.step())
    began, before, counters = time.perf_counter(), editors.tokens, engine.load().counters
    person = Person(asked, seed, began)
    while not person.is_done:
        if question := person.question(time.perf_counter()):
            engine.submit(question)
        events = engine.step()
        now = time.perf_counter()
        person.read(events, now)
        editors.read(events)
    seconds, after = time.perf_counter() - began, engine.load().counters
    tokens = editors.tokens - before
    editors.stop()
    return {
        "first_ms": [1000 * (answer.moments[0] - answer.asked) for answer in person.answers],
        "gaps_ms": [1000 * gap for answer in person.answers for gap in answer.gaps],
        "texts": [answer.tokens for answer in person.answers],
        "streams_tokens_per_s": tokens / seconds,
        "drafted": after.drafted_tokens - counters.drafted_tokens,
        "accepted": after.accepted_tokens - counters.accepted_tokens,
    }


def measure(
    engines: Mapping[Mode, Engine],
    text: TextModel,
    service_class: ServiceClass,
    rounds: int,
    number: int,
    *,
    is_plain: bool,
) -> list[dict[str, Any]]:
    """Return a row for each round and mode. The first round, which fills the prefix cache, is left out.

    service_class: of the streams. number: of questions. is_plain: the person's answers have no drafts.
    """
    edits = requests(text, cases()[EDITS], STREAMS)
    chats = cases()[CHATS]
    rows: list[dict[str, Any]] = []
    for at in range(-1, rounds):
        texts = []
        for mode in MODES if at % 2 else reversed(MODES):
            forget_answers(engines[mode], is_random=False)
            asked = questions(text, chats, number, (at + 1) * number, speculation=not is_plain)
            row = play(engines[mode], endless(edits, service_class), STREAMS, asked, at)
            texts.append(row.pop("texts"))
            rows.append({"class": service_class.label, "round": at, "mode": mode, **row})
        assert texts[0] == texts[1], "drafts have changed a text"
    return rows[len(MODES) :]


def figures(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the median time of first tokens, and the median and 99th percentile between tokens, in milliseconds."""
    first = [value for row in rows for value in row["first_ms"]]
    gaps = [value for row in rows for value in row["gaps_ms"]]
    return {
        "first_p50": statistics.median(first),
        "itl_p50": statistics.median(gaps),
        "itl_p99": percentile(gaps, 0.99),
    }


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the ratios of the rounds, `auto` over `off`, those of all rounds together, and whether marks are met."""
    of_mode = {mode: [row for row in rows if row["mode"] == mode] for mode in MODES}
    pairs = [(figures([auto]), figures([off])) for auto, off in zip(of_mode["auto"], of_mode["off"], strict=True)]
    together = {mode: figures(some) for mode, some in of_mode.items()}
    ratios = {name: spread([auto[name] / off[name] for auto, off in pairs]) for name in FIGURES}
    speeds = {mode: statistics.median([row["streams_tokens_per_s"] for row in some]) for mode, some in of_mode.items()}
    return {
        "ratios": ratios,
        "ratios_together": {name: together["auto"][name] / together["off"][name] for name in FIGURES},
        "milliseconds": together,
        "streams_tokens_per_s": speeds,
        "drafts_accepted": sum(row["accepted"] for row in of_mode["auto"]),
        "marks": {name: ratios[name]["median"] <= most for name, most in MAX_RATIOS.items()},
    }


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=DEFAULT_MODEL.file)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--questions", type=int, default=QUESTIONS, help="in a round (default: %(default)s)")
    parser.add_argument("--plain-person", action="store_true", help="no drafts of the person's own answers")
    labels = [one.label for one in ServiceClass]
    parser.add_argument("--classes", nargs="+", choices=labels, default=CLASSES, help="of the streams")
    options = parser.parse_args()
    text = TextModel.load(options.model)
    engines = build_engines(options.model, text)
    print(origin()["processor"])
    rows, summary = [], {}
    for label in options.classes:
        service_class, is_plain = ServiceClass[label.upper()], options.plain_person
        own = measure(engines, text, service_class, options.rounds, options.questions, is_plain=is_plain)
        rows += own
        summary[label] = summarise(own)
        print(f"beside {STREAMS} streams of the class {label}:", json.dumps(summary[label], indent=1), flush=True)
    settings = {
        "model": options.model.name,
        "rounds": options.rounds,
        "questions": options.questions,
        "plain_person": options.plain_person,
        "streams": STREAMS,
        "answer_tokens": ANSWER_TOKENS,
        "think_seconds": THINK_SECONDS,
    }
    name = "speculation_plain_person" if options.plain_person else "speculation_people"
    print("Saved to", save(name, settings, rows, summary))


if __name__ == "__main__":
    main()
