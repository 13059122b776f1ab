"""An engine on a CUDA device computes the same as on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch

from app.text.text_model import TextModel
from engine import build
from engine.engine import Engine
from engine.execution import swap
from engine.execution.device_slots import DeviceSlots
from engine.execution.runner import ModelRunner
from engine.execution.slots import SlotState
from engine.scheduling.batch import Batch, Chunk, Join, StepOutcome
from engine.types import PreemptionMode, Request, SamplingParams, TokenEvent
from kernels.slots import NO_DRAFT_TOKEN, DraftRows
from tests.engine.same import make_engine, run

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

TURNS = ("Hello!", "Tell me a story about a fox.", "What are pages?", "Write a table of three planets.")
TOKENS = 48
EVERYTHING = SamplingParams(
    max_tokens=TOKENS,
    temperature=0.8,
    seed=7,
    top_k=30,
    repetition_penalty=1.3,
    logit_bias={7: -1.0},
    min_tokens=20,
    stop_token_ids=(5,),
    logprobs=2,
)


@pytest.fixture(scope="module")
def requests(demo: Path) -> list[Request]:
    text = TextModel.load(demo)
    prompts = [
        text.encode(text.render_chat([{"role": "user", "content": turn}]), add_special_tokens=False) for turn in TURNS
    ]
    sampling = SamplingParams(max_tokens=TOKENS, temperature=0.0, logprobs=2)
    return [
        Request(id=turn, prompt=tuple(prompt), sampling=sampling) for turn, prompt in zip(TURNS, prompts, strict=True)
    ]


def on_device(model: Path, **options) -> Engine:
    """Build an engine with few recordings and little pinned memory; pinning takes seconds per GiB."""
    defaults = {"max_num_seqs": 8, "max_model_len": 1024, "swap_space": 0.1}
    return make_engine(model, device="cuda", **(defaults | options))


def generate(engine: Engine, requests: list[Request]) -> dict[str, list[TokenEvent]]:
    """Return every request's token events with their log-probabilities."""
    tokens: dict[str, list[TokenEvent]] = {request.id: [] for request in requests}
    for request in requests:
        engine.submit(request)
    while engine.has_work:
        for event in engine.step():
            if isinstance(event, TokenEvent):
                tokens[event.request_id].append(event)
    return tokens


def test_a_device_and_a_cpu_agree_on_every_log_probability(demo: Path, requests: list[Request]):
    """In float32, greedy, four requests at once: tokens are equal up to the first near tie, and log-probabilities
    differ by less than 0.001."""
    on_cpu, on_gpu = (
        generate(make_engine(demo, kv_cache_dtype="float32"), requests),
        generate(on_device(demo), requests),
    )
    for request in requests:
        for expected, got in zip(on_cpu[request.id], on_gpu[request.id], strict=False):
            assert expected.logprob is not None and got.logprob is not None
            best, second = (alternative.logprob for alternative in expected.top[:2])
            if expected.token_id != got.token_id:
                assert best - second < 0.002, (request.id, expected, got)
                break
            assert abs(expected.logprob - got.logprob) < 0.001, (request.id, expected, got)


@pytest.mark.parametrize("staging_bytes", [swap.STAGING_BYTES, 1], ids=["at_once", "page_by_page"])
def test_a_swap_changes_no_text_on_a_device(
    demo: Path, requests: list[Request], monkeypatch: pytest.MonkeyPatch, staging_bytes: int
):
    """A lone float32 request is swapped to pinned memory and back at every third step, at once or page by page."""
    monkeypatch.setattr(swap, "STAGING_BYTES", staging_bytes)
    quiet, disturbed = (on_device(demo, max_num_seqs=2) for _ in range(2))
    steps = 0

    def preempt_all() -> None:
        nonlocal steps
        steps += 1
        if steps % 3 == 0:
            for sequence in list(disturbed.scheduler.running):
                disturbed.scheduler.preempt(sequence, 0.0, mechanism=PreemptionMode.SWAP)

    for request in requests:
        assert run(disturbed, [request], preempt_all) == run(quiet, [request])


@pytest.mark.parametrize("options", [{}, {"dtype": "bfloat16", "batch_invariant": True}])
@pytest.mark.parametrize("more", [{}, {"repetition_penalty": 1.3}, {"min_tokens": 20, "top_k": 30}])
def test_a_recorded_step_computes_what_single_operations_compute(
    demo: Path, requests: list[Request], more: dict, options: dict
):
    """Greedy and seeded requests, prompts beside decode rows, some with the full sampler, have the same texts. With
    batch invariance this is exact; in float32 a padded recording is close enough."""
    some = [
        msgspec.structs.replace(
            request, sampling=SamplingParams(max_tokens=TOKENS, temperature=temperature, seed=7, **features)
        )
        for request, temperature, features in zip(requests, (0.0, 0.8, 0.0, 1.0), (more, more, {}, {}), strict=True)
    ]
    recorded, eager = (on_device(demo, enforce_eager=which, **options) for which in (False, True))
    assert run(recorded, some) == run(eager, some)
    for request in some:
        assert run(recorded, [request]) == run(eager, [request])


def test_prompts_too_long_for_a_recording_run_beside_recorded_rows(demo: Path, requests: list[Request]):
    """Texts are equal whether a long prompt joins in one launch, or exceeds the recording and is chunked."""
    long = msgspec.structs.replace(requests[0], id="long", prompt=requests[0].prompt * (900 // len(requests[0].prompt)))
    options = {"dtype": "bfloat16", "batch_invariant": True, "max_num_seqs": 8}
    texts = []
    for budget, chunk in ((None, None), (1200, None), (1200, 40)):
        engine = on_device(demo, max_num_batched_tokens=budget, prefill_chunk=chunk, **options)
        for request in requests:
            engine.submit(request)
        for _ in range(5):
            engine.step()
        texts.append(run(engine, [long])[long.id, 0])
    assert texts[0] == texts[1] == texts[2]


def test_batch_invariant_texts_do_not_depend_on_the_batch_or_preemption(demo: Path, requests: list[Request]):
    """In bfloat16, texts are bitwise equal alone, together, and with a recomputation at every fifth step."""
    some = [
        msgspec.structs.replace(request, sampling=SamplingParams(max_tokens=TOKENS, temperature=temperature, seed=7))
        for request, temperature in zip(requests, (0.0, 0.8, 0.0, 1.0), strict=True)
    ]
    options = {"dtype": "bfloat16", "batch_invariant": True}
    engine, disturbed = on_device(demo, **options), on_device(demo, **options)
    alone = {key: text for request in some for key, text in run(engine, [request]).items()}
    assert run(engine, some) == alone
    steps = 0

    def preempt_one() -> None:
        nonlocal steps
        steps += 1
        if steps % 5 == 0 and disturbed.scheduler.running:
            disturbed.scheduler.preempt(
                next(iter(disturbed.scheduler.running)), 0.0, mechanism=PreemptionMode.RECOMPUTE
            )

    assert run(disturbed, some, preempt_one) == alone


def test_a_device_is_idle_if_no_work_is_queued_in_time(demo: Path, requests: list[Request]):
    """A step that is queued while the device is busy does not count as idle."""
    engine = on_device(demo, max_num_seqs=4)
    run(engine, requests)  # compile kernels and create tables
    for request in requests:
        engine.submit(request)
    for _ in range(8):
        engine.step()
    torch.cuda._sleep(1_000_000_000)  # cycles: half a second, before all work queued from here on
    engine.step()
    engine.step()
    assert not engine._runner.device_was_idle
    torch.cuda.synchronize()
    engine.step()
    assert engine._runner.device_was_idle


def test_nothing_in_a_launch_waits_for_the_device(demo: Path, requests: list[Request], monkeypatch: pytest.MonkeyPatch):
    """Queuing work while the device computes never synchronises, for requests with every sampling feature, new or
    resumed (docs/decisions/0007)."""
    some = [*requests, *(msgspec.structs.replace(r, id=f"{r.id} again", sampling=EVERYTHING) for r in requests)]
    engine = on_device(demo, max_num_seqs=4)
    run(engine, some)  # compile kernels and create tables
    launch, steps = ModelRunner.launch, 0

    def watched(runner: ModelRunner, batch: Batch) -> Callable[[], StepOutcome]:
        torch.cuda.set_sync_debug_mode("error")
        try:
            return launch(runner, batch)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    def preempt_one() -> None:
        nonlocal steps
        steps += 1
        if steps % 5 == 0 and engine.scheduler.running:
            mechanism = (PreemptionMode.RECOMPUTE, PreemptionMode.SWAP)[steps // 5 % 2]
            engine.scheduler.preempt(next(iter(engine.scheduler.running)), 0.0, mechanism=mechanism)

    monkeypatch.setattr(ModelRunner, "launch", watched)
    run(engine, some, preempt_one)
    assert steps > TOKENS


@pytest.mark.parametrize("is_recorded", [False, True])
def test_a_step_with_drafts_does_not_wait_for_the_device(
    demo: Path, requests: list[Request], monkeypatch: pytest.MonkeyPatch, is_recorded: bool
):
    """Two slots have the same request. The drafts of one, two right and one wrong, are accepted as the other's tokens:
    recorded with a filter, or with every sampling feature."""
    everything = msgspec.structs.replace(EVERYTHING, min_tokens=2)
    filtered = SamplingParams(max_tokens=TOKENS, temperature=0.8, seed=7, top_k=30)
    sampling = filtered if is_recorded else everything
    runner, prompt = on_device(demo)._runner, requests[0].prompt
    assert isinstance(runner, ModelRunner) and runner._graphs is not None
    joins = tuple(Join(slot, prompt, len(prompt), 0, sampling, (slot,)) for slot in (0, 1))
    chunks = tuple(Chunk(slot, 0, len(prompt), 1) for slot in (0, 1))
    [first, same] = runner.launch(Batch(step=0, joins=joins, chunks=chunks))().sampled
    assert first == same
    expected = [runner.launch(Batch(step=0, decodes=(0,)))().sampled[0] for _ in range(4)]
    drafts = (expected[0].token_id, expected[1].token_id, expected[2].token_id + 1)
    shapes, replay = [], runner._graphs.run
    monkeypatch.setattr(runner._graphs, "run", lambda shape, *rest: shapes.append(shape) or replay(shape, *rest))
    torch.cuda.set_sync_debug_mode("error")
    try:
        outcome = runner.launch(Batch(step=0, chunks=(Chunk(1, len(prompt), 4, 4, None, drafts),)))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert [shape.drafts for shape in shapes] == [True] * is_recorded
    result = outcome()
    tokens = [*result.sampled, *result.further.get(0, ()), *runner.launch(Batch(step=0, decodes=(1,)))().sampled]
    assert [token.token_id for token in tokens] == [token.token_id for token in expected]


def test_drafts_are_looked_up_without_waiting_for_the_device():
    """After joins, a step of single operations, then one with drafts that are right, wrong and absent."""
    kernels, device = build.load_kernels(torch.device("cuda")), torch.device("cuda")
    state = SlotState(3, 100, 8)
    kept = DeviceSlots(state, torch.zeros(4, dtype=torch.int64, device=device), has_tokens=True)
    texts, sampling = {0: (5, 6, 7, 8, 9, 5), 2: (1, 2, 1, 2, 1)}, SamplingParams(max_tokens=90, temperature=0.0)
    batch = Batch(step=0, joins=tuple(Join(slot, text, 1, 0, sampling, (0,)) for slot, text in texts.items()))
    state.apply(batch)

    def on_gpu(*numbers: int) -> torch.Tensor:
        return torch.tensor(numbers, device=device)

    slot_ids, first, limits = on_gpu(0, 2), on_gpu(6, 2), on_gpu(1, 2)
    row_slots, offsets, reads = on_gpu(0, 0, 0, 2, 2, 2, 3), on_gpu(0, 1, 2, 0, 1, 2, 0), on_gpu(0, 0, 1, 2, 2, 3, 0)
    logits = torch.nn.functional.one_hot(on_gpu(7, 8, 9, 1, 3, 4, 0), 20).to(torch.float32)
    drafts, matches = on_gpu(0, 0, 0, 0).view(2, 2), on_gpu(0, 0).to(torch.int32)
    ids = torch.zeros_like(row_slots)
    torch.cuda.set_sync_debug_mode("error")
    try:
        kept.apply(batch)
        kept.advance(slot_ids, first)
        kernels.draft_slots(kept.tensors, slot_ids, limits, drafts, matches)
        given = DraftRows(offsets, drafts.view(-1).index_select(0, reads))
        rows = kernels.gather_slots(kept.tensors, row_slots, given, 2, 8)
        kernels.sample_slots(logits, kept.tensors, row_slots, ids, True, given)
        kept.replace_last(slot_ids[:1], first[:1])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert drafts.tolist() == [[7, NO_DRAFT_TOKEN], [1, 2]] and matches.tolist() == [2, 4]
    assert rows.token_ids.tolist()[1:3] == [7, 0] and rows.positions.tolist() == [6, 7, 6, 5, 6, 7, 0]
    tokens, lengths = kept.tensors.tokens, kept.tensors.lengths.tolist()
    assert tokens is not None and lengths == [9, 1, 8, 1]
    assert tokens[0, :9].tolist() == [*texts[0], 6, 7, 6]
    assert tokens[2, :8].tolist() == [*texts[2], 2, 1, 3]
