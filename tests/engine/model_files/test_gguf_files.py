"""GGUF files answer as folders do; documents beside them apply if they can be about no other model."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import pytest

from engine.model_files.errors import ModelFileError
from engine.model_files.gguf_files import GGUFFiles
from engine.model_files.gguf_types import FILE_TYPES
from engine.model_files.interface import Description
from tests.packaged_models import tiny_llama, write_gguf

BESIDE = {"eos_token_id": [1], "temperature": 0.3}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a GGUF file with a generation_config.json beside it."""
    write_gguf(tmp_path / "a.gguf", tiny_llama())
    (tmp_path / "generation_config.json").write_text(json.dumps(BESIDE))
    return tmp_path / "a.gguf"


def test_a_generation_config_beside_the_file_is_above_its_own_end_tokens(file: Path):
    """Errors name the document; entries that it lacks are those of the GGUF file."""
    found = GGUFFiles(file).generation_config()
    assert (found.file, found.content) == (file.parent / "generation_config.json", BESIDE)
    (file.parent / "generation_config.json").write_text('{"top_p": 0.9}')
    assert GGUFFiles(file).generation_config().content == {"eos_token_id": [2, 0], "top_p": 0.9}


@pytest.mark.parametrize("others", [["b.gguf"], ["b.gguf", "c.GGUF"]])
def test_of_several_models_in_a_folder_none_has_the_generation_config(file: Path, others: list[str]):
    """It may be that of another one."""
    for other in others:
        (file.parent / other).touch()
    found = GGUFFiles(file).generation_config()
    assert (found.file, found.content) == (file, {"eos_token_id": [2, 0]})


@pytest.mark.parametrize("other", ["mmproj-a.gguf", "imatrix.gguf", "a.txt", "a-lora.gguf"])
def test_files_that_are_no_models_do_not_hide_the_generation_config(file: Path, other: str):
    """Such as an image encoder of the same model."""
    (file.parent / other).touch()
    assert GGUFFiles(file).generation_config().content == BESIDE


def test_a_damaged_generation_config_is_refused_with_its_name(file: Path):
    """It is not ignored."""
    (file.parent / "generation_config.json").write_text("{")
    with pytest.raises(ModelFileError, match=r"generation_config\.json: not JSON"):
        GGUFFiles(file).generation_config()


def test_a_file_without_a_suffix_has_its_own_end_tokens(file: Path):
    """As Ollama names its files, in a folder of many models."""
    file.rename(file.with_name("sha256-0f3c"))
    assert GGUFFiles(file.with_name("sha256-0f3c")).generation_config().content == {"eos_token_id": [2, 0]}


def test_file_types_are_those_of_llama_cpp():
    """Under the same numbers."""
    known = {kind.value: kind.name.partition("_")[2] for kind in gguf.LlamaFileType if kind.name != "GUESSED"}
    assert {number: name for number, name in FILE_TYPES.items() if name} == known


@pytest.mark.parametrize(
    ("file_type", "storage"),
    [(15, "Q4_K_M"), (15 + 1024, "Q4_K_M"), (1, "F16"), (None, "F32"), (4, "F32"), (999, "F32")],
)
def test_a_file_is_described_by_its_file_type_or_most_of_its_bytes(tmp_path: Path, file_type: int | None, storage: str):
    """Most bytes of this one are float32; types that a converter guessed count, unknown ones do not."""
    write_gguf(tmp_path / "a.gguf", tiny_llama(), file_type=file_type)
    found = GGUFFiles(tmp_path / "a.gguf").description()
    assert (found.format, found.family, found.storage) == ("gguf", "llama", storage)
    assert 0 < found.file_bytes < (tmp_path / "a.gguf").stat().st_size


@pytest.mark.parametrize(
    ("storage", "at_load", "expected"),
    [
        ("Q4_K_M", "none", "Q4_K_M"),
        ("Q4_K_M", "int8", "Q4_K_M"),
        ("F16", "none", "F16"),
        ("BF16", "int8", "int8"),
        ("", "int4", "int4"),
        ("", "none", ""),
    ],
)
def test_only_weights_that_are_not_quantised_are_so_at_load(storage: str, at_load: str, expected: str):
    """As the loader does it."""
    assert Description("gguf", "llama", 0, storage).quantization(at_load) == expected
