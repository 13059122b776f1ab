"""Folders in Hugging Face layout: each question is answered from its file, and errors name the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.model_files.errors import ModelFileError
from engine.model_files.folder import SAMPLE_BYTES, FolderFiles
from engine.model_files.interface import Description
from engine.model_files.open_model import open_model


def write(folder: Path, **documents: Any) -> FolderFiles:
    """Write documents by name, without their suffix."""
    for name, content in documents.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return FolderFiles(folder)


def test_a_folder_is_opened_as_one(tmp_path: Path):
    """Nothing is read: the display name is that of the folder, and its path crosses to another process."""
    files = open_model(tmp_path / "llama")
    assert files == FolderFiles(tmp_path / "llama")
    assert (files.path, files.name) == (tmp_path / "llama", "llama")


@pytest.mark.parametrize("name", ["config", "generation_config", "tokenizer_config"])
def test_a_document_has_the_content_of_its_file(tmp_path: Path, name: str):
    """A missing document is empty, and its file is known for errors."""
    missing = getattr(FolderFiles(tmp_path), name)()
    assert (missing.file, missing.content, missing.exists) == (tmp_path / f"{name}.json", {}, False)
    found = getattr(write(tmp_path, **{name: {"eos_token_id": 1}}), name)()
    assert (found.file, found.content, found.exists) == (missing.file, {"eos_token_id": 1}, True)


@pytest.mark.parametrize(
    ("content", "reason"),
    [("{", "not JSON"), ("[]", "not a JSON object"), ("[" * 200_000, "not JSON"), (None, "cannot")],
)
def test_a_damaged_document_is_refused_with_its_file(tmp_path: Path, content: str | None, reason: str):
    """Also one that is nested too deeply, or that is a folder."""
    file = tmp_path / "config.json"
    file.mkdir() if content is None else file.write_text(content)
    with pytest.raises(ModelFileError, match=rf"config\.json: {reason}") as raised:
        FolderFiles(tmp_path).config()
    assert raised.value.file == file


def test_a_folder_with_a_configuration_is_a_model(tmp_path: Path):
    """Its weights may still be missing, which their reader reports."""
    assert not FolderFiles(tmp_path).has_config
    assert write(tmp_path, config={}).has_config


def test_a_tokenizer_is_the_bytes_of_its_file(tmp_path: Path):
    """The engine's side does not interpret them; files of older versions may name further tokens."""
    files = write(tmp_path, tokenizer={"model": {}})
    assert files.tokenizer().content == b'{"model": {}}' and not files.tokenizer().names_more_tokens
    assert write(tmp_path, added_tokens={}).tokenizer().names_more_tokens


def test_a_vocabulary_can_become_a_tokenizer(tmp_path: Path):
    """Without any vocabulary the folder is refused, because transformers would create an empty tokenizer."""
    with pytest.raises(ModelFileError, match=r"has no tokenizer\.json, and no tokenizer\.model, .* to make one from"):
        FolderFiles(tmp_path).tokenizer()
    (tmp_path / "model.tiktoken").touch()
    assert FolderFiles(tmp_path).tokenizer().content is None


@pytest.mark.parametrize(
    ("given", "template"),
    [
        (None, None),
        ("x", "x"),
        ({"default": "x", "rag": "y"}, "x"),
        ([{"name": "rag", "template": "y"}, {"name": "default", "template": "x"}], "x"),
        ([{"name": "rag", "template": "y"}], None),
    ],
)
def test_the_default_chat_template_is_returned(tmp_path: Path, given: Any, template: str | None):
    """A file of its own takes precedence over the entry."""
    files = write(tmp_path, tokenizer_config={"chat_template": given})
    assert files.chat_template() == template
    (tmp_path / "chat_template.jinja").write_text("own")
    assert files.chat_template() == "own"


@pytest.mark.parametrize("given", [5, [5], [{"name": "default"}], {"default": 5}])
def test_a_chat_template_of_another_type_is_refused(tmp_path: Path, given: Any):
    """The message shows the value."""
    with pytest.raises(
        ModelFileError, match=r"tokenizer_config\.json: chat_template must be a text or a list of named"
    ):
        write(tmp_path, tokenizer_config={"chat_template": given}).chat_template()


def test_fingerprint_parts_cover_configuration_and_weights(tmp_path: Path):
    """A byte in a sample, the size of a file and the configuration count; other files do not."""
    files = write(tmp_path, config={"a": 1})
    weights = tmp_path / "model.safetensors"
    seen = set()
    for content in (bytes(SAMPLE_BYTES), b"x" + bytes(SAMPLE_BYTES - 1), bytes(SAMPLE_BYTES + 1)):
        weights.write_bytes(content)
        seen.add(tuple(files.fingerprint_parts()))
    write(tmp_path, config={"a": 2})
    parts = tuple(files.fingerprint_parts())
    assert len(seen | {parts}) == 4
    write(tmp_path, tokenizer={"a": 1})
    assert tuple(files.fingerprint_parts()) == parts


def test_a_folder_is_described_by_its_model_type_and_the_size_of_its_weights(tmp_path: Path):
    """The dtype says how the weights are stored."""
    files = write(tmp_path, config={"model_type": "qwen3"})
    for number in range(2):
        (tmp_path / f"model-{number}.safetensors").write_bytes(bytes(100))
    assert files.description() == Description("safetensors", "qwen3", 200)
    assert write(tmp_path, config={"model_type": 3}).description().family == ""
    quantised = {"quantization_config": {"quant_method": "awq"}}
    assert write(tmp_path, config=quantised).description().quantization("int8") == "awq"
