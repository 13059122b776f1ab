"""A model that has no numbers for some token: whoever uses it is told, and nobody else notices."""

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


@pytest.fixture(scope="module", params=["llama", "qwen2-window", "phi3-window"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of our own decoder, with a window too, and of transformers'."""
    path = tmp_path_factory.mktemp("broken") / request.param
    save(path, *(DECODERS | FALLBACKS)[request.param])
    [file] = path.glob("*.safetensors")
    tensors = load_file(file)
    tensors["model.embed_tokens.weight"][BAD] = math.nan
    save_file(tensors, file, metadata={"format": "pt"})
    return path


def prompts() -> list[list[int]]:
    """Of unlike lengths; none has the bad token."""
    return [
        [8 + (37 * i + 11 * j) % (VOCAB - 8) for j in range(length)] for i, length in enumerate((5, 17, 40, 70, 130))
    ]


def with_nan(wanted: list[Request]) -> list[Request]:
    """The same with the bad token in the middle: they begin alike."""
    return [
        replace(
            one,
            id=f"{one.id}-bad",
            prompt=(*one.prompt[: len(one.prompt) // 2], BAD, *one.prompt[len(one.prompt) // 2 :]),
        )
        for one in wanted
    ]


@pytest.mark.parametrize("chunk", [9, None])
@pytest.mark.parametrize("page_size", [8, 32])
@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_who_has_no_numbers_ends_with_an_error_and_nobody_else_notices(
    model: Path, kernels: str, page_size: int, chunk: int | None
):
    """Among those who begin alike, before and after, through the same cache and the same pages: the texts of the others
    are what they are alone."""
    engine = make_engine(
        model, kernels=kernels, num_pages=PAGES * 16 // page_size, page_size=page_size, prefill_chunk=chunk
    )
    wanted = requests(prompts(), 12)
    broken = with_nan(wanted)
    expected = alone(engine, wanted)
    assert not any(BAD in text for text in expected.values()), "nobody's answer comes upon it"
    engine.scheduler.memory.pool.forget_cached()
    for one in broken:
        engine.submit(one)
    engine.step()  # pages of theirs can be found by now
    mixed = run(engine, wanted)
    assert {name for name, _ in mixed} == {one.id for one in wanted}, "the others have no text at all"
    assert mixed == expected
    assert run(engine, broken) == {}
    assert run(engine, wanted) == expected


def test_the_error_says_what_can_be_done(model: Path):
    """One terminal event, with a code; it names the dtypes to try."""
    engine = make_engine(model)
    [request] = with_nan(requests(prompts()[:1], 12))
    engine.submit(request)
    events = []
    while engine.has_work:
        events += engine.step()
    [end] = [event for event in events if isinstance(event, EndEvent)]
    assert end.finish is FinishReason.ERROR and end.code == "not_a_number" and "--dtype bfloat16" in end.message
