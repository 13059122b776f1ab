"""A model that has no numbers for some token: who comes upon it is told, and nobody else notices."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from msgspec.structs import replace
from safetensors.torch import load_file, save_file

from engine.types import EndEvent, FinishReason, Request
from tests.engine.models.checkpoints import DECODERS, FALLBACKS, VOCAB, save
from tests.engine.same import alone, make_engine, requests, run

BAD = 7  # the token whose embedding is NaN
PAGES = 60


@pytest.fixture(scope="module", params=["llama", "mistral-window", "phi3-window"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of our own decoder, with a window too, and of transformers'."""
    path = tmp_path_factory.mktemp("broken") / request.param
    save(path, *(DECODERS | FALLBACKS)[request.param])
    [file] = path.glob("*.safetensors")
    tensors = load_file(file)
    tensors["model.embed_tokens.weight"][BAD] = math.nan
    save_file(tensors, file, metadata={"format": "pt"})
    return path


def prompt(length: int) -> tuple[int, ...]:
    """Without the bad token."""
    return tuple(8 + (37 * length + 11 * j) % (VOCAB - 8) for j in range(length))


def with_nan(one: Request, at: int) -> Request:
    """The same with the bad token somewhere, and log-probabilities: they begin alike."""
    sampling = replace(one.sampling, logprobs=2)
    return replace(one, id=f"{one.id}-bad", prompt=(*one.prompt[:at], BAD, *one.prompt[at:]), sampling=sampling)


def led_to_nan(one: Request) -> Request:
    """The same, whose first token will be the bad one."""
    return replace(one, id=f"{one.id}-led", sampling=replace(one.sampling, logit_bias={BAD: 100.0}, logprobs=0))


@pytest.mark.parametrize("steps", ["one by one", "recorded and ahead"])
@pytest.mark.parametrize("chunk", [9, None])
@pytest.mark.parametrize("page_size", [8, 32])
@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_who_has_no_numbers_ends_with_an_error_and_nobody_else_notices(
    model: Path, kernels: str, page_size: int, chunk: int | None, steps: str, request: pytest.FixtureRequest
):
    """Among those who begin alike, before and after, through the same cache and the same pages: the texts of the others
    are what they are alone. Some come upon it in their prompts, some in their answers; some ask for log-probabilities
    and penalties."""
    if steps != "one by one":
        request.getfixturevalue("replays")
    engine = make_engine(
        model, kernels=kernels, num_pages=PAGES * 16 // page_size, page_size=page_size, prefill_chunk=chunk
    )
    wanted = requests(map(prompt, (5, 17, 40, 70, 130, 12)), 12)  # the last has a penalty
    broken = [with_nan(one, len(one.prompt) // 2) for one in wanted]
    led = [led_to_nan(one) for one in wanted]
    expected = alone(engine, wanted)
    assert not any(BAD in text for text in expected.values()), "nobody's answer comes upon it"
    engine.scheduler.memory.pool.forget_cached()
    for one in broken:
        engine.submit(one)
    engine.step()  # with a chunk of 9, what the first chunks computed could be found by now
    assert run(engine, [*wanted, *led]) == expected | {(one.id, 0): [BAD] for one in led}
    assert run(engine, broken) == {}
    assert run(engine, wanted) == expected


@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_what_lies_behind_a_window_is_not_shared_either(model: Path, kernels: str):
    """The end of a long chunk may have numbers again; its pages are nobody's all the same, and it has no answer."""
    engine = make_engine(model, kernels=kernels, page_size=8)
    [long] = requests([prompt(200)], 12)
    for at in range(30, 50):
        short = replace(long, prompt=long.prompt[: at + 2])
        expected = alone(engine, [short])
        engine.scheduler.memory.pool.forget_cached()
        assert run(engine, [with_nan(long, at)]) == {}
        assert run(engine, [short]) == expected, at


def test_what_others_share_stays_in_the_cache(model: Path):
    """What was computed before by somebody who had numbers is still found."""
    engine = make_engine(model, page_size=8)
    [one] = requests([prompt(100)], 12)
    expected = run(engine, [one])
    assert run(engine, [with_nan(one, 64)]) == {}
    before = engine.load().counters.cached_tokens
    assert run(engine, [one]) == expected
    assert engine.load().counters.cached_tokens - before == 96


def test_the_error_says_what_can_be_done(model: Path):
    """One terminal event, with a code; it names the dtypes to try."""
    engine = make_engine(model)
    [one] = requests([prompt(5)], 12)
    engine.submit(with_nan(one, 2))
    events = []
    while engine.has_work:
        events += engine.step()
    [end] = [event for event in events if isinstance(event, EndEvent)]
    assert end.finish is FinishReason.ERROR and end.code == "not_a_number" and "--dtype bfloat16" in end.message
    assert engine.load().counters.generated_tokens == 0
