"""Drafts from predictions of clients in a scheduler: their counts, and the steps that they save."""

from __future__ import annotations

import random

import pytest

from engine.drafting.lookup import Draft, Lookup
from engine.drafting.note import LOOKUP, PREDICTION, DraftNote
from engine.drafting.speculator import MAX_DRAFTS, MAX_PAUSE, Speculator
from engine.scheduling.speculation import INDEXED_TOKENS
from engine.types import Phase, PreemptionMode, Request, SamplingParams, StatusEvent, TokenEvent
from tests.engine.scheduling.history import History
from tests.engine.scheduling.test_speculation import Watched
from tests.fakes import text_alone
from tests.profiles import examples

PROMPT = [1, 2, 3, 4]
TOKENS = 24
RIGHT = tuple(text_alone(PROMPT, 0, TOKENS))
OTHER = (1,) * TOKENS
CASES = examples(200)


@pytest.fixture(autouse=True)
def all_drafts_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Speculator, "worths", lambda speculator, draft: [1.0] * len(draft.tokens))


def run(prediction: tuple[int, ...], *, history: History | None = None, **more) -> tuple[int, DraftNote | None]:
    """Return the steps of an answer, and its note."""
    history = history or History(slots=1, pages=40)
    name = history.arrive(PROMPT, TOKENS, prediction=prediction, **more)
    history.end()
    return history.engine.load().counters.steps, notes(history, name)[0]


def notes(history: History, name: str) -> list[DraftNote | None]:
    """Return the notes at the ends of a request's choices, and check that no other status has one."""
    assert not any(status.draft_note for status in history.statuses[name] if status.phase is not Phase.ENDED)
    ends = [status for status in history.statuses[name] if status.phase is Phase.ENDED]
    return [status.draft_note for status in sorted(ends, key=lambda status: status.choice)]


def test_a_right_prediction_saves_steps_from_the_first_token_on() -> None:
    """All of its drafts are accepted, as many as the pages have room for."""
    without, nothing = run(())
    steps, note = run(RIGHT)
    assert nothing is None and note is not None
    assert note.drafted == note.accepted and set(note.drafted) == {PREDICTION}
    assert steps < without - TOKENS // 2 and note.steps == TOKENS - note.accepted[PREDICTION]


def test_a_prediction_is_found_again_after_each_difference() -> None:
    """Inserted, deleted and replaced tokens cost few of its drafts."""
    edited = (*RIGHT[:4], 7, *RIGHT[4:10], *RIGHT[12:16], 8, *RIGHT[17:])
    assert run(RIGHT)[0] < run(edited)[0] < run(())[0] - 6


def test_an_unrelated_prediction_is_not_tried() -> None:
    """The prompt's step samples a first token that differs, and no place has the last two tokens."""
    assert run(OTHER) == run(())


def test_a_wrong_draft_is_counted_and_not_accepted() -> None:
    """One that begins right and goes on wrong costs no further step."""
    steps, note = run((*RIGHT[:3], *OTHER))
    assert note == DraftNote(TOKENS - 2, {PREDICTION: MAX_DRAFTS}, {PREDICTION: 2})
    assert steps == run(())[0] - 2


def test_without_speculation_a_prediction_has_no_effect() -> None:
    """The choice ends without a note."""
    assert run(RIGHT, history=History(slots=1, pages=40, speculation="off")) == run(())


def test_tokens_after_a_stop_token_are_not_accepted() -> None:
    """They were tried in the same step, were right and are in no answer."""
    rejected = set()
    for at in range(2, 10):
        history = History(slots=1, pages=40)
        _, note = run(RIGHT, history=history, stop=(RIGHT[at],))
        computed = history.engine.load().counters.accepted_tokens
        assert note is not None and note.accepted.get(PREDICTION, 0) == at + 1 - note.steps
        rejected.add(computed - note.accepted.get(PREDICTION, 0))
    assert rejected == set(range(MAX_DRAFTS + 1))


def test_each_choice_has_its_own_note() -> None:
    """The prediction is the text of the first choice."""
    history = History(slots=3, pages=40)
    name = history.arrive(PROMPT, TOKENS, n=3, prediction=RIGHT)
    history.end()
    first, *others = notes(history, name)
    assert first is not None and first.accepted[PREDICTION] == TOKENS - first.steps
    assert others == [None, None]


def test_a_lookup_drafts_where_the_prediction_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has its counts."""
    monkeypatch.setattr(Lookup, "draft", lambda lookup, limit: Draft((1,), 2))
    _, note = run((*RIGHT[:3], *OTHER))
    assert note is not None and note.drafted[PREDICTION] == MAX_DRAFTS and note.drafted[LOOKUP] > 3
    assert note.accepted == {PREDICTION: 2}


def test_a_prediction_in_its_place_does_not_pause() -> None:
    """Failed drafts of a lookup pause the others."""
    history = History(slots=1, pages=40)
    name = history.arrive(PROMPT, TOKENS, prediction=RIGHT)
    history.step()
    history.step()
    [sequence] = history.scheduler.running
    assert sequence.speculator is not None
    sequence.speculator.resumes_at = MAX_PAUSE
    history.end()
    [note] = notes(history, name)
    assert note is not None and note.steps <= TOKENS // 2


def test_a_resumed_answer_is_at_its_place_in_the_prediction() -> None:
    """Its note does not count the tokens of the engine before."""
    history = History(slots=1, pages=40)
    sampling = SamplingParams(max_tokens=TOKENS)
    resumed = {"output_so_far": {0: RIGHT[:8]}, "prediction": (9, *RIGHT)}
    history.engine.submit(Request(id="r", prompt=tuple(PROMPT), sampling=sampling, **resumed))
    events = [event for _ in range(TOKENS) for event in history.engine.step()]
    assert [event.token_id for event in events if isinstance(event, TokenEvent)] == list(RIGHT[8:])
    [note] = [event.draft_note for event in events if isinstance(event, StatusEvent) and event.phase is Phase.ENDED]
    assert note is not None and note.drafted == note.accepted
    assert note.steps + note.accepted[PREDICTION] == TOKENS - 8


def test_a_long_prediction_drafts_while_it_is_indexed() -> None:
    """In place it needs no index."""
    long = (*RIGHT, *[5] * 20 * INDEXED_TOKENS)
    assert run(long)[0] == run(RIGHT)[0]


@pytest.mark.parametrize("block", range(5))
def test_notes_count_the_drafts_of_all_steps(block: int) -> None:
    """With preemptions, aborts, stop tokens and several choices, and the texts are those without drafts."""
    accepted = 0
    for case in range(CASES // 5):
        rng = random.Random(block * 1000 + case)
        history = Watched(slots=rng.randint(1, 3), pages=rng.randint(8, 24), host=rng.choice([0, 6]))
        for _ in range(rng.randint(5, 30)):
            match rng.choice(["arrive", "step", "step", "pause", "abort"]):
                case "arrive":
                    prompt = [rng.randrange(1000) for _ in range(rng.randint(1, 8))]
                    text = text_alone(prompt, 0, TOKENS)
                    at = rng.randrange(TOKENS)
                    prediction = (*text[:at], *rng.sample(range(1000), 3), *text[at + rng.randint(0, 3) :])
                    stop = tuple(rng.sample(range(1000), rng.choice([0, 50])))
                    history.arrive(prompt, TOKENS, prediction=prediction, stop=stop, n=rng.choice([1, 1, 2]))
                case "step":
                    history.step()
                case "pause" if history.scheduler.running:
                    mode = rng.choice([PreemptionMode.SWAP, PreemptionMode.RECOMPUTE])
                    history.pause(rng.randrange(len(history.scheduler.running)), mode)
                case "abort" if history.arrived and rng.random() < 0.3:
                    history.abort(f"r{rng.randint(1, history.arrived)}")
        history.end()
        tried = dict.fromkeys(history.statuses, 0)
        for batch, running in history.steps:
            for chunk in batch.drafted:
                assert len(chunk.drafts) <= MAX_DRAFTS
                tried[running[chunk.slot].sequence.request.id] += len(chunk.drafts)
        for name, count in tried.items():
            found = [note for note in notes(history, name) if note is not None]
            assert sum(sum(note.drafted.values()) for note in found) == count
            assert all(note.accepted.get(PREDICTION, 0) <= note.drafted.get(PREDICTION, 0) for note in found)
            accepted += sum(note.accepted.get(PREDICTION, 0) for note in found)
            for choice, note in enumerate(notes(history, name)):
                if note is not None:
                    assert note.steps + sum(note.accepted.values()) == len(history.texts[name, choice])
    assert accepted > CASES
