"""Generation settings of a checkpoint are honoured if valid, and dropped with a warning otherwise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.options import parse
from app.server import load_text
from app.settings import SettingsError
from app.text.errors import TokenizerError
from app.text.text_model import TextModel
from tests.app.text_models import MODEL


def folder(path: Path, generation: Any, config: dict[str, Any] | None = None) -> Path:
    """Write a checkpoint without weights."""
    path.mkdir(exist_ok=True)
    MODEL.tokenizer.save(str(path / "tokenizer.json"))
    (path / "config.json").write_text(json.dumps({"vocab_size": 300} | (config or {})))
    (path / "generation_config.json").write_text(json.dumps(generation))
    return path


@pytest.mark.parametrize(
    ("generation", "defaults", "named"),
    [
        ({"top_p": 0, "temperature": 0.5}, {"temperature": 0.5}, "top_p"),
        ({"temperature": 2.5, "top_k": 20}, {"top_k": 20}, "temperature"),
        ({"top_k": 2.5}, {}, "top_k"),
        ({"min_p": "a", "top_k": -1}, {"top_k": 0}, "min_p"),
        ({"repetition_penalty": float("nan")}, {}, "repetition_penalty"),
        ({"temperature": True}, {}, "temperature"),
    ],
)
def test_a_setting_out_of_range_is_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, generation: Any, defaults: dict[str, float], named: str
):
    """The others are honoured, and the warning names the file, the entry and its range."""
    assert TextModel.load(folder(tmp_path, generation)).sampling_defaults == defaults
    [line] = caplog.messages
    assert f"generation_config.json: {named} must be between" in line and "ignored" in line


@pytest.mark.parametrize(
    ("given", "eos_ids"),
    [
        (99999, {7}),
        ("x", {7}),
        ([1, 2.5], {1}),
        (True, {7}),
        ([300, -1], {7}),
        ([2, 299, 300], {2, 299}),
    ],
)
def test_an_eos_id_that_is_no_token_is_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, given: Any, eos_ids: set
):
    """If no id is left, the ids of config.json hold."""
    text = TextModel.load(folder(tmp_path, {"eos_token_id": given}, {"eos_token_id": 7}))
    assert text.eos_token_ids == eos_ids
    assert "generation_config.json: eos_token_id" in caplog.text and "below 300" in caplog.text


def test_an_option_chooses_the_file(tmp_path: Path):
    """The choices are the checkpoint's own file, none, another file, or another folder."""
    model = folder(tmp_path / "model", {"temperature": 0.5, "eos_token_id": 1})
    other = folder(tmp_path / "other", {"temperature": 0.7, "eos_token_id": 2})
    for arguments, temperature, end in (
        ([], 0.5, 1),
        (["--generation-config", "auto"], 0.5, 1),
        (["--generation-config", "none"], None, 1),
        (["--generation-config", str(other)], 0.7, 2),
        (["--generation-config", str(other / "generation_config.json")], 0.7, 2),
    ):
        text = load_text(parse([str(model), *arguments]))
        assert text.sampling_defaults.get("temperature") == temperature
        assert text.eos_token_ids == {end}


@pytest.mark.parametrize("choice", ["vllm", "/nowhere"])
def test_a_missing_file_is_refused(tmp_path: Path, choice: str):
    """The error lists the choices."""
    with pytest.raises(SettingsError, match="auto, none or the path"):
        parse([str(folder(tmp_path, {})), "--generation-config", choice])


def test_a_file_with_invalid_json_is_refused(tmp_path: Path):
    """The file may have contained an EOS token."""
    (folder(tmp_path, {}) / "generation_config.json").write_text("{")
    with pytest.raises(TokenizerError, match=r"generation_config\.json: not JSON"):
        TextModel.load(tmp_path)
