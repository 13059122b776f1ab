"""The comparison at load detects effects beyond the lengths that a configuration names."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.olmo2 import modeling_olmo2

from engine.execution.models import ModelError, fallback_lengths, load_model
from engine.execution.models.fallback_lengths import longest_probe, named_lengths
from engine.model_files.open_model import open_model
from tests.engine.models.checkpoints import FALLBACKS, Checkpoint, save

WINDOW = 40


@pytest.fixture
def windowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit Olmo2's own attention to the last `WINDOW` tokens, invisibly to the caller."""
    eager = modeling_olmo2.eager_attention_forward

    def forward(module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any) -> Any:
        far = torch.ones(query.shape[2], key.shape[2]).tril(-WINDOW).bool()
        masked = attention_mask.masked_fill(far, torch.finfo(query.dtype).min)
        return eager(module, query, key, value, masked, **options)

    monkeypatch.setattr(modeling_olmo2, "eager_attention_forward", forward)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return save(tmp_path, *FALLBACKS["olmo2"])


def set_key(path: Path, key: str, value: Any) -> None:
    """Set a key of config.json."""
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {key: value}))


@pytest.mark.parametrize("key", ["local_attention", "window_size"])
@pytest.mark.usefixtures("windowed")
def test_a_window_that_the_attention_function_never_receives_is_detected(checkpoint: Checkpoint, key: str):
    """It is longer than the first comparison, and its length occurs in config.json under some name."""
    set_key(checkpoint.path, key, WINDOW)
    with pytest.raises(ModelError, match=r"after 48 tokens differ from its own"):
        checkpoint.load()


@pytest.mark.usefixtures("windowed")
def test_a_length_beyond_the_bound_of_a_probe_is_logged(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """The warning names the key, its value and the length of the comparison."""
    set_key(checkpoint.path, "window_size", WINDOW)
    monkeypatch.setattr(fallback_lengths, "MAX_PROBE_TOKENS", 30)
    with caplog.at_level(logging.WARNING):
        checkpoint.load()
    assert "window_size = 40 in config.json is too long" in caplog.text and "at most 30 tokens" in caplog.text


@pytest.mark.parametrize("threshold", [30, 100, 480])
def test_frequencies_that_change_within_the_context_are_detected(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, threshold: int
):
    """A rotary embedding that depends on the longest sequence of a batch is refused, even if the configuration does not
    name the length."""
    forward = modeling_olmo2.Olmo2RotaryEmbedding.forward

    def switching(self: Any, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        stretched = position_ids / 2 if int(position_ids.max()) >= threshold else position_ids
        return forward(self, x, stretched)

    monkeypatch.setattr(modeling_olmo2.Olmo2RotaryEmbedding, "forward", switching)
    with pytest.raises(ModelError, match=r"after 24 tokens from position 488 differ"):
        checkpoint.load()


def test_a_model_that_fails_at_the_end_of_its_context_is_refused(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
):
    """The error is one sentence without a traceback."""
    forward = modeling_olmo2.Olmo2RotaryEmbedding.forward

    def failing(self: Any, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        if int(position_ids.max()) > 500:
            raise IndexError("index out of range in self")
        return forward(self, x, position_ids)

    monkeypatch.setattr(modeling_olmo2.Olmo2RotaryEmbedding, "forward", failing)
    with pytest.raises(ModelError, match="cannot be served: running it on 24 tokens from position 488 failed; choose"):
        checkpoint.load()


def test_a_window_that_the_attention_function_receives_causes_no_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Positions, which are compared up to the end of the context, cause no warning either."""
    monkeypatch.setattr(fallback_lengths, "MAX_PROBE_TOKENS", 30)
    family, changes = FALLBACKS["starcoder2-window"]
    made = save(tmp_path, family, changes | {"sliding_window": 50})
    with caplog.at_level(logging.WARNING):
        load_model(open_model(made.path), torch.float32, torch.device("cpu"), lambda done, total: None)
    assert "too long for the comparison" not in caplog.text


def test_every_number_that_may_be_a_length_is_found():
    """Top level, text section and RoPE parameters are searched; the context length itself is excluded."""
    config = {
        "max_position_embeddings": 512,
        "vocab_size": 300,
        "attention_window_size": 40,
        "use_local": True,
        "rope_parameters": {"rope_type": "yarn", "original_max_position_embeddings": 64},
        "text_config": {"sliding_window": 20, "max_length": 512},
    }
    assert named_lengths(config, 512) == {
        "text_config.sliding_window": 20,
        "attention_window_size": 40,
        "rope_parameters.original_max_position_embeddings": 64,
    }


def test_the_cost_of_a_probe_is_bounded():
    """Larger models get fewer tokens."""
    assert [longest_probe(size) for size in (0, 10**6, 10**9, 10**12)] == [2048, 2048, 125, 0]
