"""Several tokens in a step: never another text, whatever the drafts are."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import pytest

from engine.drafting.lookup import NO_DRAFT, Draft, Lookup
from engine.drafting.note import LOOKUP, PREDICTION, DraftNote
from engine.drafting.speculator import MAX_DRAFTS, Speculator
from engine.scheduling.batch import Batch, StepOutcome
from engine.scheduling.kv_manager import KVManager
from engine.scheduling.sequence import Sequence
from engine.scheduling.speculation import MAX_SLOWDOWN, MIN_ROW_SHARE, Drafter, Speculation
from engine.snapshot import snapshot
from engine.types import FinishReason, Phase, PreemptionMode, ServiceClass
from tests.engine.scheduling.history import PAGE_SIZE, History
from tests.fakes import next_token
from tests.profiles import examples

CASES, BLOCKS = examples(4000), 10


class Oracle:
    """Drafter that knows the text of the fake model, and is wrong now and then.

    right: probability of each token. sources: of drafts, at random.
    """

    def __init__(self, rng: random.Random, right: float, sources: tuple[str, ...] = (LOOKUP,)) -> None:
        self._rng = rng
        self._right = right
        self._sources = sources

    def __call__(self, sequence: Sequence, speculator: Speculator, limit: int) -> Draft:
        return self.look_up(sequence.tokens, sequence.choice, limit)._replace(source=self._rng.choice(self._sources))

    def look_up(self, text: list[int], choice: int, limit: int) -> Draft:
        """Return a draft, which may be shorter if it has wrong tokens."""
        tokens, drafts = list(text), list[int]()
        for _ in range(limit if self._right == 1.0 else self._rng.randint(0, limit)):
            token = next_token(tokens, choice, 1000)
            tokens.append(token)
            drafts.append(token if self._rng.random() < self._right else self._rng.randrange(1000))
        return Draft(tuple(drafts), MAX_DRAFTS)


def use(history: History, drafter: Drafter | None) -> None:
    """Let a history draft, by lookup without a drafter."""
    scheduler, runner = history.scheduler, history.engine._runner
    scheduler.speculation = Speculation(
        scheduler.policy, scheduler.counters, scheduler.kv_manager, drafter, runs_ahead=runner.runs_ahead
    )
    if isinstance(drafter, Oracle):
        runner.look_up = drafter.look_up  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def all_drafts_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Speculator, "worths", lambda speculator, draft: [1.0] * len(draft.tokens))


@pytest.mark.parametrize("block", range(BLOCKS))
@pytest.mark.parametrize("right", [1.0, 0.7, 0.0])
@pytest.mark.parametrize("sources", [None, (LOOKUP,), (PREDICTION,), (LOOKUP, PREDICTION)])
def test_random_histories_have_the_same_texts_with_any_drafts(
    block: int, right: float, sources: tuple[str, ...] | None
) -> None:
    """Right, wrong and mixed drafts, with preemptions of all kinds, aborts, stop tokens, sessions and a small pool.

    sources: of drafts for steps that are launched before the outcome of the last one is known.
    """
    accepted = drafted = 0
    for case in range(CASES // BLOCKS // 12):
        rng = random.Random(block * 1_000_000 + case)
        history = History(
            slots=rng.randint(1, 4),
            pages=rng.randint(8, 24),
            host=rng.choice([0, 6, 30]),
            swap_speed=rng.choice([1.0, 1e9]),
            nan_tokens=rng.sample(range(1000), rng.choice([0, 0, 20])),
            runs_ahead=sources is not None,
        )
        use(history, Oracle(rng, right, sources or (LOOKUP,)))
        for _ in range(rng.randint(10, 50)):
            match rng.choice(["arrive", "arrive", "step", "step", "step", "pause", "abort"]):
                case "arrive":
                    history.arrive(
                        [rng.randrange(1000) for _ in range(rng.randint(1, 20))],
                        rng.randint(1, 24),
                        stop=tuple(rng.sample(range(1000), rng.choice([0, 0, 50]))),
                        n=rng.choice([1, 1, 1, 3]),
                        service_class=rng.choice(list(ServiceClass)),
                    )
                case "step":
                    for _ in range(rng.randint(1, 6)):
                        history.step()
                case "pause" if history.scheduler.running:
                    at = rng.randrange(len(history.scheduler.running))
                    history.pause(at, rng.choice([PreemptionMode.SWAP, PreemptionMode.RECOMPUTE]))
                case "abort" if history.arrived and rng.random() < 0.2:
                    history.abort(f"r{rng.randint(1, history.arrived)}")
        history.end()
        counters = history.engine.load().counters
        accepted, drafted = accepted + counters.accepted_tokens, drafted + counters.drafted_tokens
    assert drafted
    assert accepted > 0.3 * drafted if right else accepted < 0.02 * drafted


def test_right_drafts_save_steps() -> None:
    """A step yields as many tokens as its drafts are right, up to the end of the page."""
    steps = []
    for right in (0.0, 1.0):
        history = History(slots=1, pages=24, max_len=64)
        use(history, Oracle(random.Random(1), right))
        history.arrive([1, 2, 3, 4], 16)
        history.end()
        steps.append(history.engine.load().counters.steps)
    assert steps[1] <= steps[0] - 10


@pytest.mark.parametrize("source", [LOOKUP, PREDICTION])
@pytest.mark.parametrize("others", [0, 2])
def test_right_drafts_save_steps_that_are_launched_ahead(source: str, others: int) -> None:
    """Drafts that are looked up need no outcome. For others a sequence leaves out steps that other sequences are in."""
    steps = []
    for right in (0.0, 1.0):
        history = Watched(slots=3, pages=90, max_len=64, runs_ahead=True)
        oracle = Oracle(random.Random(1), right, (source,))
        use(history, lambda *call, oracle=oracle: oracle(*call) if call[0].request.id == "r1" else NO_DRAFT)
        history.engine._runner.look_up = oracle.look_up  # type: ignore[attr-defined]
        name = history.arrive([1, 2, 3, 4], 30)
        for start in range(others):
            history.arrive([start, 7, 8], 50, speculation=False)
        while (name, 0) not in history.ends:
            history.step()
        steps.append(history.engine.load().counters.steps)
        history.end()
    assert steps[1] <= steps[0] - (10 if source == LOOKUP or not others else 3)


def test_a_sequence_with_drafts_in_flight_is_in_the_next_step() -> None:
    """Also with further drafts, at positions that the scheduler does not know yet."""
    history = Watched(slots=1, pages=60, max_len=64, runs_ahead=True)
    use(history, Oracle(random.Random(1), 0.8))
    history.arrive([1, 2, 3, 4], 50)
    ahead = {False: 0, True: 0}
    while history.engine.has_work:
        before = [sequence.drafts_in_flight for sequence in history.scheduler.running]
        history.step()
        if any(before):
            batch = history.steps[-1][0]
            ahead[bool(batch.drafted)] += 1
    history.end()
    assert min(ahead.values()) >= 3


def test_a_step_with_drafts_has_no_more_rows_than_the_runner_accepts() -> None:
    """Plain rows count too."""
    history = Watched(slots=4, pages=90)
    use(history, Oracle(random.Random(1), 1.0))
    scheduler = history.scheduler
    scheduler.speculation = Speculation(
        scheduler.policy, scheduler.counters, scheduler.kv_manager, Oracle(random.Random(1), 1.0), max_rows=6
    )
    for start in range(4):
        history.arrive([start, 2, 3], 12 + 6 * start)
    history.end()
    rows = [batch.rows for batch, _ in history.steps if batch.drafted]
    assert max(rows) == 6 and len({len(batch.sampled_slots) for batch, _ in history.steps if batch.drafted}) == 4


@pytest.mark.parametrize("grammar", [None, "start: /x/"])
def test_a_request_without_speculation_has_no_drafts(grammar: str | None) -> None:
    """Beside another one that has, and with the same text (`History.end`)."""
    drafted = []
    for speculation in (False, True):
        history = History(slots=2, pages=48, max_len=64)
        use(history, Oracle(random.Random(1), 1.0))
        names = [history.arrive([1, 2, 3, 4], 24, grammar=grammar, speculation=each) for each in (True, speculation)]
        history.end()
        drafted.append([notes(history, name) for name in names])
    [[with_drafts, without], both] = drafted
    assert with_drafts and both[1] and without == []


def test_the_live_view_has_the_tokens_of_the_last_step() -> None:
    """Of a sequence with right, wrong and no drafts."""
    history = History(slots=2, pages=48, max_len=64)
    use(history, Oracle(random.Random(1), 0.6))
    for speculation in (True, False):
        history.arrive([1, 2, 3, 4], 30, speculation=speculation)
    seen = set()
    for _ in range(20):
        before = {sequence: len(sequence.tokens) for sequence in history.scheduler.running}
        history.step()
        shown = {view.slot: view.step_tokens for view in snapshot(history.scheduler, 0.0).slots}
        for sequence in set(before).intersection(history.scheduler.running):
            assert sequence.slot is not None
            yielded = len(sequence.tokens) - before[sequence]
            assert shown[sequence.slot] == yielded or not yielded
            seen.add((sequence.request.speculation, yielded))
    assert {(True, 1), (True, 3), (False, 1)} <= seen
    assert (False, 2) not in seen


def notes(history: History, name: str) -> list[DraftNote]:
    """Return the notes of the choices of a request that had drafts."""
    return [status.draft_note for status in history.statuses[name] if status.draft_note is not None]


def test_a_deadline_that_drafts_can_meet_is_not_given_up() -> None:
    """Without drafts the request is known to be late after a few tokens."""
    ends = []
    for right in (None, 1.0):
        history = History(slots=1, pages=24, max_len=64)
        if right is not None:
            use(history, Oracle(random.Random(1), right))
        name = history.arrive([1, 2, 3, 4], 32, deadline=0.2)
        history.end()
        ends.append(history.ends[name, 0])
    assert ends == [FinishReason.ERROR, FinishReason.LENGTH]


def test_pages_that_drafts_fill_can_be_found_at_once() -> None:
    """Also those that the last step of an answer fills."""
    cached = []
    for right in (0.0, 1.0):
        history = History(slots=1, pages=24, max_len=64)
        use(history, Oracle(random.Random(1), right))
        name = history.arrive([1, 2, 3, 4], 17)
        history.end()
        history.arrive([1, 2, 3, 4, *history.texts[name, 0], 5], 1)
        history.end()
        cached.append(history.engine.load().counters.cached_tokens)
    assert cached == [20, 20]


class Seen(NamedTuple):
    """A running sequence when a step began."""

    sequence: Sequence
    length: int
    pages: int
    is_reading: bool  # its prompt, which no page has to arrive for


class Watched(History):
    """History that notes each step with the sequences in its slots."""

    def __init__(self, **options) -> None:
        super().__init__(**options)
        self.steps: list[tuple[Batch, dict[int, Seen]]] = []
        launch = self.engine._runner.launch

        def watched(batch: Batch) -> Callable[[], StepOutcome]:
            running = {
                s.slot: Seen(s, len(s.tokens), len(s.page_table), s.phase is Phase.PREFILL and s.num_uncomputed > 1)
                for s in self.scheduler.running
                if s.slot is not None
            }
            self.steps.append((batch, running))
            return launch(batch)

        self.engine._runner.launch = watched  # type: ignore[method-assign]


def random_history(rng: random.Random, right: float) -> Watched:
    """Run a history of requests of all classes to its end."""
    history = Watched(slots=4, pages=40)
    use(history, Oracle(rng, right))
    arrivals = random.Random(1)
    for _ in range(12):
        prompt = [arrivals.randrange(1000) for _ in range(arrivals.randint(1, 20))]
        history.arrive(prompt, arrivals.randint(4, 24), service_class=arrivals.choice(list(ServiceClass)))
        for _ in range(arrivals.randint(0, 5)):
            history.step()
    history.end()
    return history


@pytest.mark.parametrize("right", [1.0, 0.7, 0.0])
def test_drafts_come_after_prompts_and_higher_classes(right: float) -> None:
    """No step has drafts beside a prompt, or for a lower class beside a higher one."""
    drafted_steps = beside = 0
    for seed in range(20):
        for batch, running in random_history(random.Random(seed), right).steps:
            if not batch.drafted:
                continue
            assert batch.chunks == batch.drafted and not any(seen.is_reading for seen in running.values())
            classes = [running[slot].sequence.service_class for slot in batch.sampled_slots]
            drafted = {running[chunk.slot].sequence.service_class for chunk in batch.drafted}
            assert drafted == {min(classes)}
            drafted_steps += 1
            beside += len(set(classes)) > 1
    assert drafted_steps > 100 and beside > 10


def test_drafts_are_rows_after_the_last_known_token_within_its_pages() -> None:
    """Their positions have pages already, and none is after the end of the answer."""
    for seed in range(20):
        for batch, running in random_history(random.Random(seed), 0.7).steps:
            for chunk in batch.drafted:
                seen = running[chunk.slot]
                assert chunk.start == seen.length - 1 and 1 <= len(chunk.drafts) <= MAX_DRAFTS
                assert chunk.length == chunk.samples == 1 + len(chunk.drafts)
                last = chunk.start + len(chunk.drafts)
                assert last < seen.pages * PAGE_SIZE and last + 1 < seen.sequence.max_len


@pytest.mark.parametrize("right", [1.0, 0.7, 0.0])
def test_drafts_take_no_page_that_is_not_spare(right: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sequence of some length has as many pages as without drafts."""
    monkeypatch.setattr(KVManager, "spare_pages", 1)  # for the next token

    def pages(history: Watched) -> dict[tuple[str, int], set[int]]:
        held: dict[tuple[str, int], set[int]] = {}
        for _, running in history.steps:
            for seen in running.values():
                held.setdefault((seen.sequence.request.id, seen.length), set()).add(seen.pages)
        return held

    with_drafts, without = (pages(run_alone(use_drafts)) for use_drafts in (right, None))
    assert with_drafts.keys() <= without.keys() and len(without) > 40
    assert all(held == without[key] for key, held in with_drafts.items())
    assert (len(with_drafts) < 0.8 * len(without)) == (right > 0.0)


def test_drafts_take_the_spare_pages_that_they_fill() -> None:
    """At most those of seven drafts, so that a step at the end of a page has about as many as others."""
    steps = run_alone(1.0).steps
    for _, running in steps:
        for seen in running.values():
            assert seen.pages <= -(-(seen.length + MAX_DRAFTS) // PAGE_SIZE)
    numbers = [chunk.num_drafts for batch, _ in steps for chunk in batch.drafted]
    assert max(numbers) == MAX_DRAFTS and sum(numbers) > 5 * len(numbers)


def run_alone(right: float | None) -> Watched:
    """Run three requests, one after another. right: None for no drafts."""
    history = Watched(slots=1, pages=24, speculation="off" if right is None else "auto")
    if right is not None:
        use(history, Oracle(random.Random(2), right))
    for start in range(3):
        history.arrive([start, 2, 3, 4, 5], 30)
    history.end()
    return history


def test_a_paused_speculator_probes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong drafts lead to pauses of 16, 32, 64 and 128 tokens, with a single trial after each."""
    monkeypatch.undo()
    monkeypatch.setattr(Lookup, "draft", lambda lookup, limit: Draft((1001,), MAX_DRAFTS))  # never a token
    history = Watched(slots=1, pages=200, max_len=600, row_seconds=0.0003)
    use(history, None)
    history.arrive([1, 2, 3], 500)
    history.end()
    lengths = [running[chunk.slot].length for batch, running in history.steps for chunk in batch.drafted]
    gaps = [later - earlier - 1 for earlier, later in pairwise(lengths)]
    pauses = [gap for gap in gaps if gap >= 16]
    # A draft that would need a further page is left out, so that the one after a pause may come a token later.
    assert [pause // 16 * 16 for pause in pauses] == [16, 32, 64, 128]
    assert gaps[-len(pauses) :] == pauses and 0 < len(gaps) - len(pauses) < 12, "some drafts before the first pause"


@pytest.mark.parametrize("row_seconds", [0.0, 0.00015, 0.0003, 0.002])
def test_drafts_hardly_slow_sequences_without_any(row_seconds: float) -> None:
    """They add at most 5 % of the step; with drafts for all, rows are added as long as they pay."""
    most: dict[bool, int] = {}
    for has_other in (False, True):
        history = Watched(slots=2, pages=40, row_seconds=row_seconds)
        oracle = Oracle(random.Random(1), 1.0)
        use(history, lambda *call, oracle=oracle: oracle(*call) if call[0].request.id == "r1" else NO_DRAFT)
        history.arrive([1, 2, 3], 40)
        if has_other:
            history.arrive([4, 5, 6], 60)
        history.end()
        model = history.scheduler.policy.step_time_model
        most[has_other] = 0
        for batch, _ in history.steps:
            rows = sum(len(chunk.drafts) for chunk in batch.drafted)
            most[has_other] = max(most[has_other], rows)
            if has_other and len(batch.sampled_slots) > 1:
                seconds = model.step_seconds(2)
                assert rows * max(row_seconds, MIN_ROW_SHARE * seconds) <= MAX_SLOWDOWN * seconds
    assert most[False] >= PAGE_SIZE - 1 > most[True]


@pytest.mark.parametrize("has_often", [False, True])
def test_a_sequence_that_often_has_drafts_waits_for_those_of_others(has_often: bool) -> None:
    """One that never has any does not wait for a draft that takes more than 5 % of the step."""
    history, rng = Watched(slots=2, pages=200, max_len=200, row_seconds=0.0006), random.Random(1)
    oracle = Oracle(random.Random(1), 1.0)

    def sometimes(sequence: Sequence, speculator: Speculator, limit: int) -> Draft:
        has_draft = sequence.request.id == "r1" or (has_often and rng.random() < 0.5)
        return oracle(sequence, speculator, limit) if has_draft else NO_DRAFT

    use(history, sometimes)
    for start in (1, 4):
        history.arrive([start, 2, 3], 150)
    history.end()
    beside = [batch for batch, _ in history.steps if batch.drafted and batch.decodes]
    assert bool(beside) == has_often


@pytest.mark.parametrize("service_class", ServiceClass)
def test_drafts_of_lower_classes_lengthen_a_step_by_a_bounded_time(service_class: ServiceClass) -> None:
    """A person who arrives meanwhile waits for the step."""
    history = Watched(slots=2, pages=80, max_len=64, row_seconds=0.004)
    use(history, Oracle(random.Random(1), 1.0))
    for start in (1, 4):
        history.arrive([start, 2, 3], 50, service_class=service_class)
    history.end()
    most = max(batch.num_drafts for batch, _ in history.steps)
    assert most == 2 if service_class is not ServiceClass.INTERACTIVE else most > 2


def test_a_page_with_a_wrong_draft_is_not_reused() -> None:
    """The last position of a page holds one while its token is known and not computed."""
    history = Watched(slots=1, pages=24)

    def right_then_wrong(sequence: Sequence, speculator: Speculator, limit: int) -> Draft:
        oracles = [Oracle(random.Random(1), right)(sequence, speculator, limit).tokens for right in (1.0, 0.0)]
        return Draft((*oracles[0][:1], *oracles[1][1:2]), MAX_DRAFTS)

    use(history, right_then_wrong)
    name = history.arrive([1, 2, 3, 4, 5], 20)
    history.step()
    history.step()
    [sequence] = history.scheduler.running
    assert len(sequence.tokens) == 2 * PAGE_SIZE and sequence.num_computed == 2 * PAGE_SIZE - 1
    tokens = list(sequence.tokens)
    history.abort(name)
    history.scheduler.speculation = None
    history.arrive([*tokens, 9, 9], 4)
    history.end()
    assert history.engine.load().counters.cached_tokens == PAGE_SIZE


def test_answers_draft_for_later_ones_of_the_same_tenant_and_form() -> None:
    """The time of accepted drafts would reveal them to others."""

    def steps(salt: str, grammar: str | None, later_salt: str, later_grammar: str | None) -> int:
        history = History(slots=1, pages=60)
        use(history, None)
        for salt_of, grammar_of in ((salt, grammar), (later_salt, later_grammar)):
            before = history.engine.load().counters.steps
            history.arrive([1, 2, 3, 4], 24, cache_salt=salt_of, grammar=grammar_of)
            history.end()
        return history.engine.load().counters.steps - before

    alone = steps("a", None, "b", None)
    assert steps("a", None, "a", None) < alone - 10
    assert steps("a", "start: /x/", "a", "start: /y/") == steps("a", "start: /x/", "b", "start: /x/") == alone
    assert steps("a", "start: /x/", "a", "start: /x/") < alone - 10


def test_an_aborted_answer_drafts_for_no_other() -> None:
    """Only answers that have ended do."""
    history = History(slots=1, pages=60)
    use(history, None)
    name = history.arrive([1, 2, 3, 4], 24)
    for _ in range(20):
        history.step()
    history.abort(name)
    history.arrive([1, 2, 3, 4], 24)
    history.end()
    assert history.engine.load().counters.drafted_tokens == 0
