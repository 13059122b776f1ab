"""Each family of the engine's own decoder gives transformers' texts, from a folder and from a GGUF file."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from engine.execution.models.families import FAMILIES
from engine.model_files.gguf_config import FAMILIES as GGUF_FAMILIES
from engine.types import Request
from tests.engine.model_files.gguf_models import write_model
from tests.engine.models.checkpoints import DECODERS, VOCAB, Checkpoints
from tests.engine.same import alone, make_engine, requests, run

NEW_TOKENS = 48
LENGTHS = (3, 19, 70, 90, 1, 7, 40, 12)
ALONE = 5  # of these
ORIGINAL = 64  # original context of the checkpoint below


@dataclass(frozen=True)
class Case:
    """Checkpoint, the lengths of prompts, and the option --max-model-len."""

    checkpoint: str
    lengths: tuple[int, ...] = LENGTHS
    max_model_len: int | None = None


CASES = {
    name: Case(name)
    for name, (family, _) in DECODERS.items()
    if family in ("SmolLM3", "Phi3", "Granite") and name != "phi3-long"
} | {
    # transformers chooses by the length of the text, the server by the longest text that it accepts.
    "phi3-long": Case("phi3-long", tuple(ORIGINAL + length for length in LENGTHS)),
    "phi3-long, short texts": Case("phi3-long", tuple(range(1, 9)), max_model_len=ORIGINAL),
}
# A file of SmolLM3 has no key for its layers without rotation, and none for a window.
IN_GGUF = [name for name in CASES if name not in ("smollm3-biases", "smollm3-window")]


def greedy_requests(case: Case) -> list[Request]:
    generator = torch.Generator().manual_seed(5)
    prompts = [torch.randint(1, VOCAB, (length,), generator=generator).tolist() for length in case.lengths]
    plain = {"temperature": 0.0, "repetition_penalty": 1.0, "frequency_penalty": 0.0}
    return [replace(one, sampling=replace(one.sampling, **plain)) for one in requests(prompts, NEW_TOKENS)]


@pytest.mark.parametrize(("name", "kind"), [(name, "folder") for name in CASES] + [(name, "gguf") for name in IN_GGUF])
def test_greedy_texts_are_those_of_transformers(
    checkpoints: Checkpoints, greedy_texts: dict[str, list[list[int]]], tmp_path: Path, name: str, kind: str
):
    """Eight prompts at once, and five of them alone, in float32."""
    case = CASES[name]
    made = checkpoints[case.checkpoint]
    model = made.path
    if kind == "gguf":
        model = tmp_path / "model.gguf"
        architecture = made.reference.config.model_type
        write_model(model, architecture, made.reference.config, made.reference.state_dict())
    some = greedy_requests(case)
    if name not in greedy_texts:
        greedy_texts[name] = [made.generate(list(one.prompt), NEW_TOKENS) for one in some]
    expected = {(one.id, 0): text for one, text in zip(some, greedy_texts[name], strict=True)}
    engine = make_engine(model, kv_cache_dtype="float32", num_pages=120, max_model_len=case.max_model_len)
    assert run(engine, some) == expected
    first = some[:ALONE]
    assert alone(engine, first) == {(one.id, 0): expected[one.id, 0] for one in first}


@pytest.fixture(scope="module")
def greedy_texts() -> dict[str, list[list[int]]]:
    """Return the texts of transformers by case, which are computed once."""
    return {}


@pytest.mark.parametrize(
    ("max_model_len", "expected"),
    [
        (None, "long factors for texts of every length, as the server accepts 512 tokens"),
        (ORIGINAL + 1, "long factors for texts of every length, as the server accepts 65 tokens"),
        (ORIGINAL, "short factors, as --max-model-len 64 is within the model's original context, 64"),
    ],
)
def test_the_context_that_is_served_chooses_the_factors_of_longrope(
    checkpoints: Checkpoints, caplog: pytest.LogCaptureFixture, max_model_len: int | None, expected: str
):
    """One log line names the choice and the option."""
    with caplog.at_level(logging.INFO, "carousel.engine"):
        make_engine(checkpoints["phi3-long"].path, num_pages=40, max_model_len=max_model_len)
    assert f"longrope: {expected}" in caplog.text and "--max-model-len 64" in caplog.text


def test_the_choice_of_factors_changes_the_fingerprint(checkpoints: Checkpoints):
    """Servers of one model that compute other texts are told apart; other options of length have no effect."""
    path = checkpoints["phi3-long"].path
    marks = [make_engine(path, num_pages=40, max_model_len=most).info.fingerprint for most in (512, 300, 64, 20)]
    assert marks[0] == marks[1] != marks[2] == marks[3]


def test_other_models_are_not_asked_for_a_choice(checkpoints: Checkpoints, caplog: pytest.LogCaptureFixture):
    """Their fingerprints do not depend on the context that is served."""
    with caplog.at_level(logging.INFO, "carousel.engine"):
        marks = {make_engine(checkpoints["granite"].path, max_model_len=most).info.fingerprint for most in (64, 512)}
    assert len(marks) == 1 and "longrope" not in caplog.text


def test_every_architecture_of_gguf_files_has_a_decoder():
    """A file that can be read can be served."""
    assert {family.class_name for family in GGUF_FAMILIES.values()} <= FAMILIES.keys()


def test_every_family_is_compared_with_transformers():
    """A family without a random checkpoint is not verified."""
    assert {f"{family}ForCausalLM" for family, _ in DECODERS.values()} == FAMILIES.keys()
