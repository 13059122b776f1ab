"""Several tokens a step change no token and no log-probability of a real engine, whatever the drafts are."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from app.text.text_model import TextModel
from engine.drafting.lookup import Draft
from engine.drafting.speculator import MAX_DRAFTS, Speculator
from engine.engine import Engine
from engine.load import Counters
from engine.scheduling.costs import Costs
from engine.scheduling.sequence import Sequence
from engine.scheduling.speculation import Speculation
from engine.scheduling.step_time_model import StepTimeModel
from engine.types import PreemptionMode, Request, ServiceClass, TokenEvent
from tests import requirements
from tests.engine.same import TURNS, Texts, alone, make_engine, requests, run
from tests.engine.test_gguf_models import exported
from tests.engine.test_sameness import constraints
from tests.profiles import nightly

pytestmark = [requirements.a_compiler, pytest.mark.slow]

STREAMS, TOKENS = 36, 40
SLOTS = 16
VALUES: Callable[[TokenEvent], Any] = attrgetter("token_id", "logprob", "top", "finish")
LOOKUP = None  # the engine's own drafts, in place of a probability
RIGHT = (1.0, 0.7, 0.0, LOOKUP)
PARAMETERS = (
    {"temperature": 0.0},
    {"temperature": 0.7},
    {"temperature": 1.5},
    {"temperature": 1.5, "top_k": 8},
    {"top_p": 0.8, "temperature": 1.0},
    {"logprobs": 2},
    {"min_tokens": 12},
    {"logit_bias": {65: 4.0, 66: -100.0}},
    {"repetition_penalty": 1.3, "logprobs": 3},
    {"frequency_penalty": 0.7, "presence_penalty": 0.3, "temperature": 1.5},
)


class Oracle:
    """Drafter that reads the texts of a first run. right: probability that a draft is the next token of the text."""

    def __init__(self, submitted: list[Request], texts: Texts, right: float) -> None:
        self._full = {
            (one.id, choice): [*one.prompt, *(value[0] for value in texts[one.id, choice])]
            for one in submitted
            for choice in one.choices
        }
        self._right = right
        self._rng = random.Random(right)

    def __call__(self, sequence: Sequence, speculator: Speculator, limit: int) -> Draft:
        return Draft(tuple(self.continuation(sequence, sequence.tokens, limit)), MAX_DRAFTS)

    def continuation(self, sequence: Sequence, tokens: list[int], limit: int) -> list[int]:
        """Return drafts after some tokens of a sequence."""
        full, length = self._full[sequence.request.id, sequence.choice], len(tokens)
        assert tokens == full[:length] or len(full) < length, sequence
        text = [*full[length : length + limit], *[0] * limit][:limit]  # a text that ends has wrong drafts after it
        return [t if self._rng.random() < self._right else self._rng.randrange(100) for t in text]


@pytest.fixture(autouse=True)
def all_drafts_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Speculator, "worths", lambda speculator, draft: [1.0] * len(draft.tokens))
    monkeypatch.setattr("engine.scheduling.speculation.MIN_ROW_SHARE", 0.0)


@pytest.fixture(scope="module")
def text(demo: Path) -> TextModel:
    return TextModel.load(demo)


@pytest.fixture(scope="module")
def submitted(text: TextModel) -> list[Request]:
    """Return conversations with all kinds of sampling parameters, some of which repeat their prompt."""
    prompts = []
    for i in range(STREAMS):
        turn = {"role": "user", "content": TURNS[i % len(TURNS)] + " Please." * (i // len(TURNS))}
        again = [turn, {"role": "assistant", "content": TURNS[2] * 3}] if i % 3 == 0 else []
        prompts.append(text.encode(text.render_chat([*again, turn]), add_special_tokens=False))
    built = requests(prompts, TOKENS, text.eos_token_ids)
    of_both = [one | {"logprobs": 2, "repetition_penalty": 1.2, "min_tokens": 3} for one in constraints(text)[::3]]
    for i, more in enumerate((*PARAMETERS, *constraints(text), *of_both)):
        for j in (1 + 2 * i, 2 + 2 * i):
            built[j] = replace(built[j], sampling=replace(built[j].sampling, **more))
    for i in (4, 9, 16):
        built[i] = replace(built[i], n=3)
    # Beside a higher class a sequence has no drafts.
    return [one if i % 4 == 0 else replace(one, service_class=ServiceClass.STANDARD) for i, one in enumerate(built)]


@pytest.fixture(scope="module")
def texts(demo: Path, submitted: list[Request]) -> Texts:
    """Return what each request generates alone, a token a step."""
    return alone(make_engine(demo, speculation="off"), submitted, VALUES)


@pytest.fixture(params=RIGHT, ids=["right", "often right", "wrong", "looked up"])
def right(request: pytest.FixtureRequest) -> float | None:
    return request.param


def drafting(model: Path, submitted: list[Request], texts: Texts, right: float | None, **options: Any) -> Engine:
    """Return an engine with drafts."""
    engine = make_engine(model, **({"max_num_seqs": SLOTS} | options))
    assert engine.scheduler.speculation is not None
    use_drafts(engine, submitted, texts, right)
    return engine


def use_drafts(engine: Engine, submitted: list[Request], texts: Texts, right: float | None) -> None:
    """Let an engine draft, as if rows took no time."""
    oracle = None if right is LOOKUP else Oracle(submitted, texts, right)
    scheduler, runner = engine.scheduler, engine._runner
    ahead = {"max_rows": runner.max_draft_rows, "runs_ahead": runner.runs_ahead}
    scheduler.speculation = Speculation(scheduler.policy, scheduler.counters, scheduler.kv_manager, oracle, **ahead)
    scheduler.speculation._model = StepTimeModel(Costs(1e9, 1e9, decode_seconds=1.0))


def preempting(engine: Engine, modes: list[PreemptionMode], share: float = 0.05) -> Callable[[], None]:
    """Return a function that preempts running sequences at random."""
    rng = random.Random(len(modes))

    def preempt_some() -> None:
        for sequence in list(engine.scheduler.running):
            if rng.random() < share:
                engine.scheduler.preempt(sequence, 0.0, mechanism=rng.choice(modes))

    return preempt_some


def check_counts(counters: Counters, right: float | None) -> None:
    """Assert that drafts were tried, and as many accepted as were right."""
    drafted, accepted = counters.drafted_tokens, counters.accepted_tokens
    if right is LOOKUP:
        assert 0 < accepted < drafted
    else:
        assert drafted > 100
        assert accepted > 0.8 * right**3 * drafted if right else accepted < 0.1 * drafted


def test_alone(demo: Path, submitted: list[Request], texts: Texts, right: float | None):
    """A request without others has the same text in fewer steps."""
    engine = drafting(demo, submitted, texts, right)
    assert alone(engine, submitted, VALUES) == texts
    check_counts(engine.load().counters, right)


def test_each_kind_of_request_has_drafts(demo: Path, submitted: list[Request], texts: Texts):
    """Penalties, biases, log-probabilities, grammars and limits of reasoning too: right drafts save steps of each."""
    engine = drafting(demo, submitted, texts, 1.0)
    for one in submitted:
        before = engine.load().counters
        run(engine, [one])
        after = engine.load().counters
        assert after.accepted_tokens - before.accepted_tokens > 0.4 * (after.generated_tokens - before.generated_tokens)


@pytest.mark.parametrize(("chunk", "page_size"), [(7, 16), (64, 5), pytest.param(None, 16, marks=nightly)])
def test_in_a_batch(
    demo: Path, submitted: list[Request], texts: Texts, right: float | None, chunk: int | None, page_size: int
):
    """In a batch with cold and warm caches, whose pages hold no rejected draft."""
    engine = drafting(demo, submitted, texts, right, prefill_chunk=chunk, page_size=page_size)
    assert run(engine, submitted, value_of=VALUES) == texts
    check_counts(engine.load().counters, right)
    assert run(engine, submitted, value_of=VALUES) == texts, "second run, from a warm cache"
    assert engine.load().counters.cached_tokens > 0


def test_with_answers_as_prompts(demo: Path, submitted: list[Request], texts: Texts, right: float | None):
    """A conversation goes on from cached pages of its answer, which were computed beside rejected drafts."""
    options = {"page_size": 4}
    engine = drafting(demo, submitted, texts, right, **options)
    some = [one for one in submitted if one.n == 1 and one.sampling.grammar is None]
    run(engine, some, value_of=VALUES)
    longer = [
        replace(one, id=f"{one.id}+", prompt=(*one.prompt, *(value[0] for value in texts[one.id, 0]), 1))
        for one in some
    ]
    expected = alone(make_engine(demo, speculation="off", **options), longer, VALUES)
    use_drafts(engine, longer, expected, right)
    before = engine.load().counters.cached_tokens
    assert run(engine, longer, value_of=VALUES) == expected
    assert engine.load().counters.cached_tokens > before + sum(len(one.prompt) for one in some)


@pytest.mark.parametrize(
    "modes", [list(PreemptionMode), *(pytest.param([mode], marks=nightly) for mode in PreemptionMode)], ids="-".join
)
def test_preempted_at_random(
    demo: Path, submitted: list[Request], texts: Texts, right: float | None, modes: list[PreemptionMode]
):
    """Preemption at any step, by any mechanism, with drafts before and after it."""
    engine = drafting(demo, submitted, texts, right, page_size=8, enable_prefix_caching=len(modes) > 1)
    assert run(engine, submitted, preempting(engine, modes), VALUES) == texts
    counters = engine.load().counters
    assert sum(map(counters.paused_by, modes)) > STREAMS // 2
    if right is not LOOKUP:
        check_counts(counters, right)


def test_in_a_small_pool(demo: Path, submitted: list[Request], texts: Texts, right: float | None):
    """Sequences are preempted for memory; drafts take no page."""
    engine = drafting(demo, submitted, texts, right, num_pages=36, swap_space=0.001)
    assert run(engine, submitted, value_of=VALUES) == texts
    assert sum(map(engine.load().counters.paused_by, PreemptionMode)) > 0


def test_resumed_by_other_engines(demo: Path, submitted: list[Request], texts: Texts, right: float | None):
    """Every five steps a new engine goes on from the output so far."""
    output: Texts = {(one.id, choice): [] for one in submitted for choice in one.choices}
    ended: set[tuple[str, int]] = set()
    for _ in range(200):
        left = {one.id: [c for c in one.choices if (one.id, c) not in ended] for one in submitted}
        if not any(left.values()):
            break
        engine = drafting(demo, submitted, texts, right)
        for one in submitted:
            if left[one.id]:
                so_far = {c: tuple(value[0] for value in output[one.id, c]) for c in left[one.id]}
                engine.submit(replace(one, output_so_far=so_far))
        for event in itertools.chain.from_iterable(engine.step() for _ in range(5)):
            if isinstance(event, TokenEvent):
                key = event.request_id, event.choice
                output[key].append(VALUES(event))
                if event.finish is not None:
                    ended.add(key)
    assert output == texts


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "auto"},
        *({"dtype": "auto", "quantization": name} for name in ("int8", "int4")),
        pytest.param({"dtype": "bfloat16"}, marks=nightly),
    ],
    ids=lambda options: "-".join(options.values()),
)
@pytest.mark.parametrize("right", [0.7, LOOKUP], indirect=True, ids=["often right", "looked up"])
def test_with_rounded_weights(demo: Path, submitted: list[Request], right: float | None, options: dict[str, str]):
    """Rounding does not depend on the rows beside, among them those of drafts."""
    check_arithmetic(demo, submitted, right, **options)


@pytest.mark.parametrize("right", [0.7, LOOKUP], indirect=True, ids=["often right", "looked up"])
@pytest.mark.parametrize("kind", ["Q8_0", *(pytest.param(kind, marks=nightly) for kind in ("K", "mixed"))])
def test_with_a_gguf_file(demo: Path, tmp_path: Path, submitted: list[Request], right: float | None, kind: str):
    """Quantised matrices of a file are multiplied row by row too."""
    check_arithmetic(exported(demo, tmp_path, kind), submitted, right, dtype="auto")


def check_arithmetic(model: Path, submitted: list[Request], right: float | None, **options: Any) -> None:
    """Assert that texts are equal in a batch, and preempted at random."""
    some = [one for one in submitted if one.sampling.grammar is None and one.sampling.reasoning_limit is None]
    expected = run(make_engine(model, speculation="off", **options), some, value_of=VALUES)
    engine = drafting(model, some, expected, right, **options)
    assert run(engine, some, value_of=VALUES) == expected
    check_counts(engine.load().counters, right)
    assert run(engine, some, preempting(engine, list(PreemptionMode)), VALUES) == expected


def test_the_costs_of_rows_change_no_text(
    demo: Path, submitted: list[Request], texts: Texts, monkeypatch: pytest.MonkeyPatch
):
    """The engine as it is: it tries those drafts that it takes to be worth their time."""
    monkeypatch.undo()
    assert run(make_engine(demo), submitted, value_of=VALUES) == texts


def predicted(submitted: list[Request], texts: Texts, kind: str) -> list[Request]:
    """Return the requests with predictions of their first choice, or of another request."""
    built = []
    for at, one in enumerate(submitted):
        text = [value[0] for value in texts[one.id, 0]]
        other = [value[0] for value in texts[submitted[at - 1].id, 0]]
        prediction = {
            "right": text,
            "partly wrong": [*text[:5], *other[:3], *text[5:12], *text[15:20], 1, *text[21:]],
            "unrelated": other,
            "too long": text + other * 100,
        }[kind]
        built.append(replace(one, prediction=tuple(prediction)))
    return built


@pytest.mark.parametrize("kind", ["right", "partly wrong", "unrelated", "too long"])
def test_with_predictions(demo: Path, submitted: list[Request], texts: Texts, kind: str):
    """Texts are the same alone, in a batch and preempted, and right predictions save steps."""
    built = predicted(submitted, texts, kind)
    engine, plain = drafting(demo, built, texts, LOOKUP), drafting(demo, submitted, texts, LOOKUP)
    assert alone(engine, built, VALUES) == alone(plain, submitted, VALUES) == texts
    with_predictions, without = engine.load().counters, plain.load().counters
    if kind != "unrelated":
        assert with_predictions.accepted_tokens > 1.2 * without.accepted_tokens
        assert with_predictions.steps < without.steps
    assert run(engine, built, value_of=VALUES) == texts
    assert run(engine, built, preempting(engine, list(PreemptionMode)), VALUES) == texts


def test_with_predictions_and_without_speculation(demo: Path, submitted: list[Request], texts: Texts):
    """They have no effect, not even on pages."""
    engine = make_engine(demo, speculation="off")
    assert run(engine, predicted(submitted, texts, "right"), value_of=VALUES) == texts
    assert engine.load().counters.drafted_tokens == 0
    cached = engine.load().counters.cached_tokens
    assert run(engine, submitted, value_of=VALUES) == texts
    assert engine.load().counters.cached_tokens > cached
