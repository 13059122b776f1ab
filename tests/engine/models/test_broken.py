"""A model with NaN for some token: a request that meets it gets an error, and others are not affected."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from msgspec.structs import replace
from safetensors.torch import load_file, save_file

from engine.execution.models import fallback, tensor_table
from engine.types import EndEvent, FinishReason, Request
from tests.engine.models.checkpoints import DECODERS, FALLBACKS, VOCAB, save
from tests.engine.same import alone, make_engine, requests, run
from tests.profiles import NIGHTLY, PROFILE, nightly

NAN_TOKEN = 7  # the token whose embedding is NaN
PAGES = 60


@pytest.fixture(scope="module", params=["llama", "mistral-window", "granite", "starcoder2-window"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a model of our own decoder, with and without a window, or of transformers."""
    path = tmp_path_factory.mktemp("broken") / request.param
    save(path, *(DECODERS | FALLBACKS)[request.param])
    [file] = path.glob("*.safetensors")
    tensors = load_file(file)
    tensors["model.embed_tokens.weight"][NAN_TOKEN] = math.nan
    save_file(tensors, file, metadata={"format": "pt"})
    return path


@pytest.fixture(autouse=True)
def unchecked_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load such a checkpoint, which is refused: its NaN stands for one that a sound model computes."""
    for module in (tensor_table, fallback):
        monkeypatch.setattr(module, "check_magnitude", lambda *_: None)


def prompt(length: int) -> tuple[int, ...]:
    """Return a prompt without the bad token."""
    return tuple(8 + (37 * length + 11 * j) % (VOCAB - 8) for j in range(length))


def with_nan(one: Request, at: int) -> Request:
    """Return the request with the bad token inserted and with log-probabilities; the prefix is unchanged."""
    sampling = replace(one.sampling, logprobs=2)
    return replace(one, id=f"{one.id}-bad", prompt=(*one.prompt[:at], NAN_TOKEN, *one.prompt[at:]), sampling=sampling)


def with_nan_output(one: Request) -> Request:
    """Return the request with a bias that makes the bad token its first output."""
    return replace(one, id=f"{one.id}-led", sampling=replace(one.sampling, logit_bias={NAN_TOKEN: 100.0}, logprobs=0))


@pytest.mark.parametrize("steps", ["one by one", "recorded and ahead"])
@pytest.mark.parametrize(
    ("page_size", "chunk"),
    [(8, 9), (32, None), pytest.param(8, None, marks=nightly), pytest.param(32, 9, marks=nightly)],
)
@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_a_request_with_nan_ends_with_an_error_and_others_are_not_affected(
    model: Path, kernels: str, page_size: int, chunk: int | None, steps: str, request: pytest.FixtureRequest
):
    """Requests with common prefixes run before, beside and after it through the same cache and pages. Their texts equal
    those of a run alone. Some requests meet NaN in their prompts, some in their output, some use log-probabilities and
    penalties."""
    if steps != "one by one":
        request.getfixturevalue("replays")
    engine = make_engine(
        model, kernels=kernels, num_pages=PAGES * 16 // page_size, page_size=page_size, prefill_chunk=chunk
    )
    plain = requests(map(prompt, (5, 17, 40, 70, 130, 12)), 12)  # the last has a penalty
    broken = [with_nan(one, len(one.prompt) // 2) for one in plain]
    led_requests = [with_nan_output(one) for one in plain]
    expected = alone(engine, plain)
    assert not any(NAN_TOKEN in text for text in expected.values()), "no output contains the bad token"
    engine.scheduler.kv_manager.pool.forget_cached()
    for one in broken:
        engine.submit(one)
    engine.step()  # with a chunk of 9, the first chunks could be found in the prefix cache by now
    assert run(engine, [*plain, *led_requests]) == expected | {(one.id, 0): [NAN_TOKEN] for one in led_requests}
    assert run(engine, broken) == {}
    assert run(engine, plain) == expected


@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_pages_after_a_window_are_not_shared_either(model: Path, kernels: str):
    """The end of a long chunk may be finite again; its pages are not cached all the same, and it has no output."""
    engine = make_engine(model, kernels=kernels, page_size=8)
    [long] = requests([prompt(200)], 12)
    for at in range(30, 50, 1 if PROFILE == NIGHTLY else 3):
        short = replace(long, prompt=long.prompt[: at + 2])
        expected = alone(engine, [short])
        engine.scheduler.kv_manager.pool.forget_cached()
        assert run(engine, [with_nan(long, at)]) == {}
        assert run(engine, [short]) == expected, at


def test_pages_that_others_share_stay_in_the_cache(model: Path):
    """Pages computed before by a request without NaN are still found."""
    engine = make_engine(model, page_size=8)
    [one] = requests([prompt(100)], 12)
    expected = run(engine, [one])
    assert run(engine, [with_nan(one, 64)]) == {}
    before = engine.load().counters.cached_tokens
    assert run(engine, [one]) == expected
    assert engine.load().counters.cached_tokens - before == 96


def test_the_error_names_a_remedy(model: Path):
    """It is one terminal event with a code that names the dtypes to try."""
    engine = make_engine(model)
    [one] = requests([prompt(5)], 12)
    engine.submit(with_nan(one, 2))
    events = []
    while engine.has_work:
        events += engine.step()
    [end] = [event for event in events if isinstance(event, EndEvent)]
    assert end.finish is FinishReason.ERROR and end.code == "not_a_number" and "--dtype bfloat16" in end.message
    assert engine.load().counters.generated_tokens == 0
