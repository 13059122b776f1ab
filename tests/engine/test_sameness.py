"""The strongest promise: a request gets the text it would have got alone, whatever happens around it."""

from __future__ import annotations

import itertools
from operator import attrgetter
from pathlib import Path

import pytest
from msgspec.structs import replace

from app.text import TextModel
from engine.execution.graphs import Shape
from engine.execution.runner import ModelRunner
from engine.scheduling.sequence import Sequence
from engine.types import Mechanism, TokenEvent
from tests.engine.same import Texts, alone, make_engine, requests, run
from tests.kernels.conftest import cpu_kernels

STREAMS = 64
TOKENS = 40

TURNS = (
    "Hello!",
    "How does continuous batching work?",
    "Tell me a story about a fox.",
    "Write a table of three planets.",
    "Count from 3 to 12.",
    "What is 7 plus 8?",
    "what are pages",
    "Write a Python function that reverses a string.",
)


@pytest.fixture(scope="module")
def text(demo: Path) -> TextModel:
    return TextModel.load(demo)


@pytest.fixture(scope="module")
def wanted(text: TextModel):
    """64 conversations; many share a beginning, so that the prefix cache has something to do."""
    prompts = []
    for i in range(STREAMS):
        system = [{"role": "system", "content": "You are a helpful assistant. Answer briefly."}] if i % 4 else []
        turn = {"role": "user", "content": f"{TURNS[i % len(TURNS)]}{' Please.' * (i // len(TURNS))}"}
        prompts.append(text.encode(text.render_chat([*system, turn]), add_special_tokens=False))
    return requests(prompts, TOKENS, text.eos_token_ids)


@pytest.fixture(scope="module")
def solo(demo: Path, wanted) -> Texts:
    return alone(make_engine(demo), wanted)


@pytest.mark.slow
def test_the_solo_texts_differ_from_each_other(solo: Texts):
    """The comparison is worth something: seeds and prompts lead to many different texts."""
    assert len(solo) == STREAMS
    assert len({tuple(tokens) for tokens in solo.values()}) > STREAMS // 3


@pytest.mark.slow
@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("chunk", [7, 64, None])
def test_64_streams_at_once_say_what_each_says_alone(demo: Path, wanted, solo: Texts, caching: bool, chunk: int | None):
    """Greedy and seeded, with and without the prefix cache, at three chunk sizes."""
    engine = make_engine(demo, enable_prefix_caching=caching, prefill_chunk=chunk)
    assert run(engine, wanted) == solo
    if caching:
        assert run(engine, wanted) == solo, "again, now from a warm cache"
        assert engine.load().counters.cached_tokens > 0


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["auto", "bfloat16"])
def test_what_is_rounded_depends_on_nobody_else(demo: Path, wanted, dtype: str):
    """The compiled kernels may round rows: the texts are those said alone, with pieces of prompts and a warm cache."""
    cpu_kernels()
    some = wanted[:24]
    expected = alone(make_engine(demo, dtype=dtype), some)
    engine = make_engine(demo, dtype=dtype, prefill_chunk=7)
    assert run(engine, some) == expected
    assert run(engine, some) == expected


@pytest.mark.slow
@pytest.mark.parametrize("page_size", [5, 32])
def test_contexts_that_grow_long_change_no_bit(demo: Path, text: TextModel, page_size: int):
    """Attention takes another way from some position on: whoever comes there while it speaks, is read again or goes on
    from a warm cache, in whatever company, says what it says alone, and is as sure of it to the last bit."""
    story = text.encode("Tell me a story about a fox and an owl. " * 30)
    lengths = (200, 240, 254, 255, 256, 257, 270, 300)
    some = [
        replace(request, sampling=replace(request.sampling, logprobs=0))
        for request in requests([story[i : i + length] for i, length in enumerate(lengths)], 60)
    ]
    options, of = {"dtype": "auto", "page_size": page_size}, attrgetter("token_id", "logprob")
    expected = alone(make_engine(demo, **options), some, of)
    engine = make_engine(demo, **options)
    assert run(engine, some, of=of) == expected
    assert run(engine, some, of=of) == expected
    engine, steps = make_engine(demo, **options, prefill_chunk=100), itertools.count()

    def pause_all() -> None:
        if next(steps) % 7 == 0:
            for sequence in list(engine.scheduler.running):
                engine.scheduler.pause(sequence, 0.0, mechanism=Mechanism.RECOMPUTE)

    assert run(engine, some, pause_all, of) == expected
    assert engine.load().counters.paused_by(Mechanism.RECOMPUTE) > len(some)


@pytest.mark.slow
def test_an_engine_that_takes_over_changes_no_text(demo: Path, wanted, solo: Texts):
    """Every seven steps the engine is gone; the next one knows what was asked and what was said, and nothing else."""
    said: Texts = {}
    ended: set[str] = set()
    for _ in range(100):
        if len(ended) == len(wanted):
            break
        engine = make_engine(demo)
        for request in wanted:
            if request.id not in ended:
                engine.submit(replace(request, said={0: tuple(said.get((request.id, 0), ()))}))
        for _ in range(7):
            for event in engine.step():
                if isinstance(event, TokenEvent):
                    said.setdefault((event.request_id, 0), []).append(event.token_id)
                    if event.finish is not None:
                        ended.add(event.request_id)
    assert said == solo


@pytest.mark.slow
@pytest.mark.parametrize("mechanisms", [[Mechanism.SWAP], [Mechanism.RECOMPUTE], list(Mechanism)])
@pytest.mark.parametrize("caching", [True, False])
def test_preemption_at_every_step_changes_no_text(demo: Path, wanted, solo: Texts, mechanisms, caching: bool):
    """Before every step whoever runs is paused; nobody notices. Whoever has computed nothing since it was let in, as
    its pages are on their way, is paused every third time."""
    engine = make_engine(demo, enable_prefix_caching=caching, max_num_seqs=16, max_num_batched_tokens=256)
    choices, thirds = itertools.cycle(mechanisms), itertools.cycle((True, False, False))
    scheduler = engine.scheduler
    computed: dict[Sequence, int] = {}  # when it was last paused

    def pause_all() -> None:
        for sequence in list(scheduler.running):
            if computed.get(sequence) != sequence.num_computed or next(thirds):
                scheduler.pause(sequence, 0.0, mechanism=next(choices))
                computed[sequence] = sequence.num_computed

    some = wanted[:16]
    texts = run(engine, some, pause_all)
    assert texts == {key: solo[key] for key in texts}
    assert len(texts) == len(some)
    counters = engine.load().counters
    assert sum(map(counters.paused_by, Mechanism)) > TOKENS


@pytest.mark.slow
@pytest.mark.parametrize("disturbed", [False, True])
def test_steps_decided_before_the_last_one_is_known_change_no_text(
    demo: Path, wanted, solo: Texts, disturbed: bool, monkeypatch: pytest.MonkeyPatch
):
    """As on a GPU, which computes a step while the next one is decided; also with everybody paused all the time."""
    monkeypatch.setattr(ModelRunner, "runs_ahead", True)
    engine = make_engine(demo, max_num_seqs=16)
    scheduler, steps = engine.scheduler, itertools.count()

    def pause_all() -> None:
        if disturbed and next(steps) % 3 == 0:
            for sequence in list(scheduler.running):
                scheduler.pause(sequence, 0.0)

    assert run(engine, wanted, pause_all) == solo


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [7, None])
def test_recorded_steps_say_the_same(demo: Path, wanted, solo: Texts, chunk: int | None, replays: list[Shape]):
    """Whoever asks for a penalty among them too; prompts are read in them, and filters are looked for where somebody
    has one."""
    engine = make_engine(demo, max_num_seqs=24, prefill_chunk=chunk)
    assert run(engine, wanted) == solo
    assert sum(shape.prompts for shape in replays) > 1
    replays[:] = [shape for shape in replays if not shape.prompts]
    assert sum(shape.filtered for shape in replays) > TOKENS / 2
    replays.clear()
    simple = [one for one in wanted if (one.sampling.top_k, one.sampling.top_p, one.sampling.min_p) == (0, 1.0, 0.0)]
    texts = run(engine, simple)
    assert texts == {key: solo[key] for key in texts} and len(texts) == len(simple)
    assert replays and not any(shape.filtered for shape in replays if not shape.prompts)


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", [Mechanism.SWAP, Mechanism.RECOMPUTE])
def test_recorded_steps_say_the_same_to_whoever_is_paused(
    demo: Path, wanted, solo: Texts, mechanism: Mechanism, replays: list[Shape]
):
    """Everybody, before every third step: what was said is read again as a prompt, or comes back."""
    engine, steps = make_engine(demo, max_num_seqs=16, prefill_chunk=40), itertools.count()

    def pause_all() -> None:
        if next(steps) % 3 == 0:
            for sequence in list(engine.scheduler.running):
                engine.scheduler.pause(sequence, 0.0, mechanism=mechanism)

    some = wanted[:24]
    texts = run(engine, some, pause_all)
    assert texts == {key: solo[key] for key in texts} and len(texts) == len(some)
    assert engine.load().counters.paused_by(mechanism) > TOKENS
    assert sum(shape.prompts for shape in replays) > (TOKENS if mechanism is Mechanism.RECOMPUTE else 1)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [7, None])
def test_steps_in_one_go_say_the_same(
    demo: Path, wanted, solo: Texts, chunk: int | None, monkeypatch: pytest.MonkeyPatch
):
    """All who ask for filters alone, together: nothing is computed operation by operation, and nobody notices, with
    everybody paused now and then."""
    cpu_kernels()
    engine, steps = make_engine(demo, max_num_seqs=24, prefill_chunk=chunk), itertools.count()
    monkeypatch.delattr(ModelRunner, "_launch")

    def pause_all() -> None:
        if next(steps) % 5 == 0:
            for sequence in list(engine.scheduler.running):
                engine.scheduler.pause(sequence, 0.0)

    simple = [one for one in wanted if not one.sampling.penalises]
    texts = run(engine, simple, pause_all)
    assert texts == {key: solo[key] for key in texts} and len(texts) == len(simple) > STREAMS // 2


@pytest.mark.slow
def test_whoever_asks_for_more_than_a_recorded_step_does_has_it_and_disturbs_nobody(
    demo: Path, wanted, request: pytest.FixtureRequest
):
    """Log-probabilities, biases, penalties and least lengths, each beside those who ask for nothing: tokens and
    log-probabilities are those of operations launched one by one, alone."""
    more = (
        {"logprobs": 3},
        {"logit_bias": {65: 4.0, 66: -100.0}, "logprobs": 0},
        {"repetition_penalty": 1.3, "frequency_penalty": 0.2, "presence_penalty": 0.1},
        {"min_tokens": 20},
        {},
    )
    some = [
        replace(one, sampling=replace(one.sampling, **asked))
        for one, asked in zip(wanted[:20], itertools.cycle(more), strict=False)
    ]
    of = attrgetter("token_id", "logprob", "top")
    expected = alone(make_engine(demo), some, of)
    replays = request.getfixturevalue("replays")
    assert run(make_engine(demo, max_num_seqs=12), some, of=of) == expected
    assert len(replays) > TOKENS


@pytest.mark.slow
def test_a_pool_too_small_for_all_changes_no_text(demo: Path, wanted, solo: Texts):
    """Memory pressure pauses sequences by itself; all finish, with the same text."""
    engine = make_engine(demo, num_pages=24, swap_space=0.001)
    assert run(engine, wanted) == solo
    assert sum(map(engine.load().counters.paused_by, Mechanism)) > 0


@pytest.mark.slow
def test_n_choices_share_the_prompt_and_differ_only_in_noise(demo: Path, wanted):
    """n > 1 computes the prompt once; each choice is what it would be without its siblings."""
    engine = make_engine(demo, enable_prefix_caching=False)
    request = replace(wanted[1], n=4)
    together = run(engine, [request])
    computed = engine.load().counters.computed_tokens
    generated = sum(len(tokens) for tokens in together.values())
    # The prompt once, one token of it again for each sibling, and every generated token but the last of each choice.
    assert computed == len(request.prompt) + 3 + generated - 4
    paused = run(
        make_engine(demo, enable_prefix_caching=True, max_num_seqs=2, max_num_batched_tokens=64),
        [replace(request, id="x")],
    )
    assert [together[request.id, i] for i in range(4)] == [paused["x", i] for i in range(4)]
    assert together[request.id, 0] == run(engine, [wanted[1]])[request.id, 0]
