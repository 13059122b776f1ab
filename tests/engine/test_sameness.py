"""A request's text does not depend on other requests or on scheduling."""

from __future__ import annotations

import itertools
import json
import re
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from app.text.text_model import TextModel
from engine.execution.graphs import Shape
from engine.execution.runner import ModelRunner
from engine.scheduling.sequence import Sequence
from engine.types import PreemptionMode, ReasoningLimit, ServiceClass, TokenEvent
from tests.engine.same import Texts, alone, make_engine, requests, run
from tests.kernels.conftest import cpu_kernels
from tests.profiles import nightly

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
def stream_requests(text: TextModel):
    """Return 64 conversations; many share a prefix, so that the prefix cache is used."""
    prompts = []
    for i in range(STREAMS):
        system = [{"role": "system", "content": "You are a helpful assistant. Answer briefly."}] if i % 4 else []
        turn = {"role": "user", "content": f"{TURNS[i % len(TURNS)]}{' Please.' * (i // len(TURNS))}"}
        prompts.append(text.encode(text.render_chat([*system, turn]), add_special_tokens=False))
    built = requests(prompts, TOKENS, text.eos_token_ids)
    for i, constraint in enumerate(constraints(text)):
        for j in range(3 + 2 * i, STREAMS, 16):
            built[j] = replace(built[j], sampling=replace(built[j].sampling, **constraint))
    return built


def constraints(text: TextModel) -> list[dict[str, Any]]:
    """Return sampling parameters that constrain a text: grammars, a limit of reasoning, and both."""
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "sizes": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 4},
        },
        "required": ["name", "sizes"],
        "additionalProperties": False,
        "x-guidance": {"whitespace_pattern": " ?"},
    }
    json_grammar = f"start: %json {json.dumps(schema)}"
    thinking = 'start: /(.|\\n)*/ "</think>" /[a-z ]+[.]/'
    closing = tuple(text.encode("</think>", add_special_tokens=False))
    limit = ReasoningLimit(max_tokens=9, closing_ids=closing, open_tag=b"", close_tag=b"</think>")
    return [
        {"grammar": json_grammar},
        {"grammar": "start: /[0-9]{3,12} (yes|no), [A-Z][a-z]*/"},
        {"reasoning_limit": limit},
        {"grammar": thinking, "reasoning_limit": limit},
    ]


@pytest.fixture(scope="module")
def solo(demo: Path, stream_requests) -> Texts:
    return alone(make_engine(demo), stream_requests)


@pytest.mark.slow
def test_the_solo_texts_differ_from_each_other(solo: Texts):
    """Seeds and prompts lead to many different texts, so comparing them is meaningful."""
    assert len(solo) == STREAMS
    assert len({tuple(tokens) for tokens in solo.values()}) > STREAMS // 3


@pytest.mark.slow
def test_the_solo_texts_satisfy_their_constraints(text: TextModel, stream_requests, solo: Texts):
    """Grammars are followed, complete JSON is valid, and reasoning is closed after its limit."""
    complete = 0
    for request in stream_requests:
        tokens = solo[request.id, 0]
        answer = text.decode(tokens)
        if request.sampling.reasoning_limit is not None:
            assert len(text.encode(answer.partition("</think>")[0], add_special_tokens=False)) <= 12
            assert "</think>" in answer
        elif (request.sampling.grammar or "").startswith("start: %json"):
            if tokens[-1] in request.sampling.stop_token_ids:
                value = json.loads(answer)
                assert list(value) == ["name", "sizes"] and 2 <= len(value["sizes"]) <= 4
                complete += 1
            else:
                assert answer.lstrip().startswith("{") and len(tokens) == TOKENS
        elif request.sampling.grammar is not None:
            assert re.match("[0-9]+", answer)
    assert complete


@pytest.mark.slow
@pytest.mark.parametrize(
    ("caching", "chunk"),
    [
        (True, 7),
        (False, None),
        *(pytest.param(*case, marks=nightly) for case in ((True, 64), (True, None), (False, 7), (False, 64))),
    ],
)
def test_64_concurrent_streams_generate_the_same_texts_as_alone(
    demo: Path, stream_requests, solo: Texts, caching: bool, chunk: int | None
):
    """Texts are equal for greedy and seeded requests, with and without the prefix cache, at three chunk sizes."""
    engine = make_engine(demo, enable_prefix_caching=caching, prefill_chunk=chunk)
    assert run(engine, stream_requests) == solo
    if caching:
        assert run(engine, stream_requests) == solo, "second run, from a warm cache"
        assert engine.load().counters.cached_tokens > 0


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["auto", pytest.param("bfloat16", marks=nightly)])
def test_rounding_does_not_depend_on_the_batch(demo: Path, stream_requests, dtype: str):
    """Compiled kernels may round rows; texts are still equal with chunked prompts and a warm cache."""
    cpu_kernels()
    some = stream_requests[:24]
    expected = alone(make_engine(demo, dtype=dtype), some)
    engine = make_engine(demo, dtype=dtype, prefill_chunk=7)
    assert run(engine, some) == expected
    assert run(engine, some) == expected


@pytest.mark.slow
@pytest.mark.parametrize("page_size", [pytest.param(5, marks=nightly), 32])
def test_long_contexts_change_no_bit(demo: Path, text: TextModel, page_size: int):
    """Attention changes its algorithm at some context length. A request that crosses it while decoding, is recomputed
    or starts from a warm cache has the same tokens and bitwise equal log-probabilities."""
    story = text.encode("Tell me a story about a fox and an owl. " * 30)
    lengths = (200, 240, 254, 255, 256, 257, 270, 300)
    some = [
        replace(request, sampling=replace(request.sampling, logprobs=0))
        for request in requests([story[i : i + length] for i, length in enumerate(lengths)], 60)
    ]
    options, value_of = {"dtype": "auto", "page_size": page_size}, attrgetter("token_id", "logprob")
    expected = alone(make_engine(demo, **options), some, value_of)
    engine = make_engine(demo, **options)
    assert run(engine, some, value_of=value_of) == expected
    assert run(engine, some, value_of=value_of) == expected
    engine, steps = make_engine(demo, **options, prefill_chunk=100), itertools.count()

    def preempt_all() -> None:
        if next(steps) % 7 == 0:
            for sequence in list(engine.scheduler.running):
                engine.scheduler.preempt(sequence, 0.0, mechanism=PreemptionMode.RECOMPUTE)

    assert run(engine, some, preempt_all, value_of) == expected
    assert engine.load().counters.paused_by(PreemptionMode.RECOMPUTE) > len(some)


@pytest.mark.slow
def test_an_engine_that_takes_over_changes_no_text(demo: Path, stream_requests, solo: Texts):
    """Every seven steps a new engine resumes from the requests and their output so far."""
    output: Texts = {}
    ended: set[str] = set()
    for _ in range(100):
        if len(ended) == len(stream_requests):
            break
        engine = make_engine(demo)
        for request in stream_requests:
            if request.id not in ended:
                engine.submit(replace(request, output_so_far={0: tuple(output.get((request.id, 0), ()))}))
        for _ in range(7):
            for event in engine.step():
                if isinstance(event, TokenEvent):
                    output.setdefault((event.request_id, 0), []).append(event.token_id)
                    if event.finish is not None:
                        ended.add(event.request_id)
    assert output == solo


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mechanisms", "caching"),
    [
        ([PreemptionMode.SWAP], True),
        ([PreemptionMode.RECOMPUTE], True),
        (list(PreemptionMode), False),
        pytest.param([PreemptionMode.SWAP], False, marks=nightly),
        pytest.param([PreemptionMode.RECOMPUTE], False, marks=nightly),
        pytest.param(list(PreemptionMode), True, marks=nightly),
    ],
)
def test_preemption_at_every_step_changes_no_text(demo: Path, stream_requests, solo: Texts, mechanisms, caching: bool):
    """Every running request is preempted before every step. A request that has computed nothing since its admission,
    because its pages are being swapped in, is preempted every third time."""
    engine = make_engine(demo, enable_prefix_caching=caching, max_num_seqs=16, max_num_batched_tokens=256)
    choices, thirds = itertools.cycle(mechanisms), itertools.cycle((True, False, False))
    scheduler = engine.scheduler
    computed: dict[Sequence, int] = {}  # tokens computed at the last preemption

    def preempt_all() -> None:
        for sequence in list(scheduler.running):
            if computed.get(sequence) != sequence.num_computed or next(thirds):
                scheduler.preempt(sequence, 0.0, mechanism=next(choices))
                computed[sequence] = sequence.num_computed

    some = stream_requests[:16]
    texts = run(engine, some, preempt_all)
    assert texts == {key: solo[key] for key in texts}
    assert len(texts) == len(some)
    counters = engine.load().counters
    assert sum(map(counters.paused_by, PreemptionMode)) > TOKENS


@pytest.mark.slow
@pytest.mark.parametrize("runs_ahead", [False, True])
def test_pauses_and_changes_of_class_change_no_text(
    demo: Path, stream_requests, solo: Texts, runs_ahead: bool, monkeypatch: pytest.MonkeyPatch
):
    """Clients pause half of the requests before each step and resume the others, which move through all classes."""
    monkeypatch.setattr(ModelRunner, "runs_ahead", runs_ahead)
    engine, steps = make_engine(demo, max_num_seqs=16, max_num_batched_tokens=256), itertools.count()

    def change_all() -> None:
        step = next(steps)
        for number, name in enumerate(list(engine.scheduler.requests)):
            is_paused = (step // 3 + number) % 2 == 0 and len(engine.scheduler.requests) > 1
            engine.change(name, is_paused=is_paused, service_class=ServiceClass((step + number) % 3))

    some = stream_requests[:24]
    texts = run(engine, some, change_all)
    assert texts == {key: solo[key] for key in texts}
    assert len(texts) == len(some) and engine.load().counters.recomputed_tokens > 0


@pytest.mark.slow
@pytest.mark.parametrize("disturbed", [pytest.param(False, marks=nightly), True])
def test_steps_decided_before_the_last_one_is_known_change_no_text(
    demo: Path, stream_requests, solo: Texts, disturbed: bool, monkeypatch: pytest.MonkeyPatch
):
    """Steps are decided while the previous one is computed, as on a GPU, with and without frequent preemption."""
    monkeypatch.setattr(ModelRunner, "runs_ahead", True)
    engine = make_engine(demo, max_num_seqs=16)
    scheduler, steps = engine.scheduler, itertools.count()

    def preempt_all() -> None:
        if disturbed and next(steps) % 3 == 0:
            for sequence in list(scheduler.running):
                scheduler.preempt(sequence, 0.0)

    assert run(engine, stream_requests, preempt_all) == solo


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [7, pytest.param(None, marks=nightly)])
def test_recorded_steps_generate_the_same_texts(
    demo: Path, stream_requests, solo: Texts, chunk: int | None, replays: list[Shape]
):
    """Requests with penalties are included; prompts run in recordings, and filters are applied only if a request uses
    them."""
    engine = make_engine(demo, max_num_seqs=24, prefill_chunk=chunk)
    assert run(engine, stream_requests) == solo
    assert sum(shape.prompts for shape in replays) > 1
    replays[:] = [shape for shape in replays if not shape.prompts]
    assert sum(shape.filtered for shape in replays) > TOKENS / 2
    replays.clear()
    simple = [
        one
        for one in stream_requests
        if (one.sampling.top_k, one.sampling.top_p, one.sampling.min_p, one.sampling.top_n_sigma) == (0, 1.0, 0.0, 0.0)
    ]
    texts = run(engine, simple)
    assert texts == {key: solo[key] for key in texts} and len(texts) == len(simple)
    assert replays and not any(shape.filtered for shape in replays if not shape.prompts)


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", [pytest.param(PreemptionMode.SWAP, marks=nightly), PreemptionMode.RECOMPUTE])
def test_recorded_steps_generate_the_same_texts_after_preemption(
    demo: Path, stream_requests, solo: Texts, mechanism: PreemptionMode, replays: list[Shape]
):
    """All requests are preempted before every third step; output is recomputed as a prompt or swapped in."""
    engine, steps = make_engine(demo, max_num_seqs=16, prefill_chunk=40), itertools.count()

    def preempt_all() -> None:
        if next(steps) % 3 == 0:
            for sequence in list(engine.scheduler.running):
                engine.scheduler.preempt(sequence, 0.0, mechanism=mechanism)

    some = stream_requests[:24]
    texts = run(engine, some, preempt_all)
    assert texts == {key: solo[key] for key in texts} and len(texts) == len(some)
    assert engine.load().counters.paused_by(mechanism) > TOKENS
    assert sum(shape.prompts for shape in replays) > (TOKENS if mechanism is PreemptionMode.RECOMPUTE else 1)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [7, pytest.param(None, marks=nightly)])
def test_fused_steps_generate_the_same_texts(
    demo: Path, stream_requests, solo: Texts, chunk: int | None, monkeypatch: pytest.MonkeyPatch
):
    """Requests that use filters only run in fused steps alone, with occasional preemption of all of them."""
    cpu_kernels()
    engine, steps = make_engine(demo, max_num_seqs=24, prefill_chunk=chunk), itertools.count()
    monkeypatch.delattr(ModelRunner, "_launch")

    def preempt_all() -> None:
        if next(steps) % 5 == 0:
            for sequence in list(engine.scheduler.running):
                engine.scheduler.preempt(sequence, 0.0)

    simple = [one for one in stream_requests if not one.sampling.has_penalties]
    texts = run(engine, simple, preempt_all)
    assert texts == {key: solo[key] for key in texts} and len(texts) == len(simple) > STREAMS // 2


@pytest.mark.slow
def test_requests_that_need_the_full_sampler_get_it_and_change_no_other_text(
    demo: Path, stream_requests, request: pytest.FixtureRequest
):
    """Log-probabilities, biases, penalties and minimum lengths, beside plain requests: tokens and log-probabilities
    equal those of single operations without a batch."""
    more = (
        {"logprobs": 3},
        {"logit_bias": {65: 4.0, 66: -100.0}, "logprobs": 0},
        {"repetition_penalty": 1.3, "frequency_penalty": 0.2, "presence_penalty": 0.1},
        {"min_tokens": 20},
        {},
    )
    some = [
        replace(one, sampling=replace(one.sampling, **features))
        for one, features in zip(stream_requests[:20], itertools.cycle(more), strict=False)
    ]
    value_of = attrgetter("token_id", "logprob", "top")
    expected = alone(make_engine(demo), some, value_of)
    replays = request.getfixturevalue("replays")
    assert run(make_engine(demo, max_num_seqs=12), some, value_of=value_of) == expected
    assert len(replays) > TOKENS


@pytest.mark.slow
def test_a_pool_too_small_for_all_changes_no_text(demo: Path, stream_requests, solo: Texts):
    """Memory pressure preempts sequences; all finish with the same text."""
    engine = make_engine(demo, num_pages=24, swap_space=0.001)
    assert run(engine, stream_requests) == solo
    assert sum(map(engine.load().counters.paused_by, PreemptionMode)) > 0


@pytest.mark.slow
def test_n_choices_share_the_prompt_and_differ_only_in_noise(demo: Path, stream_requests):
    """With n > 1 the prompt is computed once, and each choice equals its text without siblings."""
    engine = make_engine(demo, enable_prefix_caching=False)
    request = replace(stream_requests[1], n=4)
    together = run(engine, [request])
    computed = engine.load().counters.computed_tokens
    generated = sum(len(tokens) for tokens in together.values())
    # The prompt once, one of its tokens again per sibling, and every generated token but the last of each choice.
    assert computed == len(request.prompt) + 3 + generated - 4
    paused = run(
        make_engine(demo, enable_prefix_caching=True, max_num_seqs=2, max_num_batched_tokens=64),
        [replace(request, id="x")],
    )
    assert [together[request.id, i] for i in range(4)] == [paused["x", i] for i in range(4)]
    assert together[request.id, 0] == run(engine, [stream_requests[1]])[request.id, 0]
