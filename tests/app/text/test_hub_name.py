"""Names of models on the hub, and the files of a repository that they choose."""

from __future__ import annotations

import pytest

from app.text.hub_name import MAX_LISTED, HubName, NoSuchFile
from engine.model_files.gguf_names import model_files, quantization

SHARDS = [f"BF16/M-BF16-0000{number}-of-00002.gguf" for number in (1, 2)]
# A repository as converters write it: quantisations that begin or end alike, an image encoder, statistics, an adapter.
PATHS = [
    *(".gitattributes", "README.md", "config.json", "imatrix_unsloth.gguf", "mmproj-BF16.gguf", "M-lora-Q8_0.gguf"),
    *("M-Q4_K_M.gguf", "M-Q4_K_S.gguf", "M-UD-Q4_K_XL.gguf", "M-IQ4_XS.gguf", "M-Q4_0.gguf", *SHARDS),
]


def chosen(choice: str, paths: list[str] = PATHS) -> list[str]:
    """Return the files that a choice in a repository selects."""
    name = HubName.parse(f"o/r:{choice}" if choice else "o/r")
    assert name is not None
    return name.gguf_files(paths)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("owner/repo", HubName("owner/repo")),
        ("Owner/Repo-1.5_GGUF:q4_k_m", HubName("Owner/Repo-1.5_GGUF", "Q4_K_M")),
        ("hf.co/owner/repo:Q8_0", HubName("owner/repo", "Q8_0")),
        ("huggingface.co/owner/repo", HubName("owner/repo")),
        ("owner/repo:fp16", HubName("owner/repo", "F16")),
        ("owner/repo:sub/File-q8_0.gguf", HubName("owner/repo", "sub/File-q8_0.gguf")),
        *((text, None) for text in ("name", "a/b/c", "./a", "../a", "/a/b", "a/", "/a", "a/b:", "a b/c", "")),
    ],
)
def test_names_are_those_of_llama_cpp_and_ollama(text: str, name: HubName | None):
    """Paths are no names, and quantisations are compared without case."""
    assert HubName.parse(text) == name


@pytest.mark.parametrize(
    ("choice", "files"),
    [
        ("q4_k_m", ["M-Q4_K_M.gguf"]),
        ("Q4_K_S", ["M-Q4_K_S.gguf"]),
        ("ud-q4_k_xl", ["M-UD-Q4_K_XL.gguf"]),
        ("IQ4_XS", ["M-IQ4_XS.gguf"]),
        ("Q4_0", ["M-Q4_0.gguf"]),
        ("bf16", SHARDS),
        ("BF16/M-BF16-00001-of-00002.gguf", SHARDS),
        ("m-bf16-00002-of-00002.gguf", SHARDS),
        ("m-q4_0.GGUF", ["M-Q4_0.gguf"]),
        ("mmproj-BF16.gguf", ["mmproj-BF16.gguf"]),
    ],
)
def test_a_choice_selects_one_file_or_all_its_shards(choice: str, files: list[str]):
    """A quantisation selects only models; any file can be given by its name."""
    assert chosen(choice) == files


@pytest.mark.parametrize("choice", ["Q4_K", "Q4", "Q4_K_XL", "K_M", "Q8_0", "IQ4", "M"])
def test_parts_of_a_quantisation_select_nothing(choice: str):
    """Neither does the quantisation of an adapter; the error lists the others."""
    with pytest.raises(NoSuchFile, match=f"^has no {choice}; choose one of BF16, IQ4_XS, Q4_0, Q4_K_M, Q4_K_S, UD-Q"):
        chosen(choice)


def test_without_a_choice_a_repository_of_several_models_is_refused_with_a_command():
    """The example is the quantisation that llama.cpp takes by default, if it is there."""
    message = "has 6 GGUF models: BF16, IQ4_XS, Q4_0, Q4_K_M, Q4_K_S, UD-Q4_K_XL; choose one, for example `carousel "
    with pytest.raises(NoSuchFile) as raised:
        chosen("")
    assert str(raised.value) == message + "serve o/r:Q4_K_M`"
    with pytest.raises(NoSuchFile, match="serve o/r:Q4_0`"):
        chosen("", ["M-Q4_0.gguf", "M-Q8_0.gguf"])


@pytest.mark.parametrize(
    ("paths", "files"),
    [
        (["a.gguf", "mmproj-a.gguf", "config.json"], ["a.gguf"]),
        (SHARDS, SHARDS),
        (["config.json", "model.safetensors", "a-Q4_0.gguf", "a-Q8_0.gguf"], []),
        (["config.json", "model.safetensors"], []),
        (["config.json", "pytorch_model.bin"], []),
    ],
)
def test_without_a_choice_the_only_model_or_the_checkpoint_is_taken(paths: list[str], files: list[str]):
    """A repository with safetensors is a folder, whatever else it has."""
    assert chosen("", paths) == files


def test_files_of_the_same_quantisation_are_chosen_by_their_names():
    """They are listed, here and among the others."""
    paths = ["a/M-Q4_0.gguf", "b/M-Q4_0.gguf", "model.gguf", "M-Q8_0.gguf"]
    with pytest.raises(NoSuchFile, match=r"has 2 files Q4_0; choose one of a/M-Q4_0\.gguf, b/M-Q4_0\.gguf"):
        chosen("Q4_0", paths)
    with pytest.raises(NoSuchFile, match=r"choose one of Q8_0, a/M-Q4_0\.gguf, b/M-Q4_0\.gguf, model\.gguf"):
        chosen("Q5_0", paths)
    assert chosen("b/m-q4_0.gguf", paths) == ["b/M-Q4_0.gguf"]
    assert chosen("M-Q8_0.gguf", [*paths, "x/M-Q8_0.gguf"]) == ["M-Q8_0.gguf"]


@pytest.mark.parametrize(
    ("choice", "paths", "message"),
    [
        (
            "Q4_0",
            ["config.json", "model.safetensors"],
            "has no GGUF models; `carousel serve o/r` serves safetensors",
        ),
        ("x.gguf", ["a.gguf"], r"has no x\.gguf; choose one of a\.gguf"),
        ("BF16", SHARDS[:1], r"lacks 1 of 2 shards: BF16/M-BF16-00002-of-00002\.gguf"),
        ("Q8_0", ["M-Q8_0-00001-of-99999.gguf"], "must count from 1 to at most 1024"),
    ],
)
def test_a_missing_file_is_named_with_an_alternative(choice: str, paths: list[str], message: str):
    """Also a shard, and an impossible number of shards."""
    with pytest.raises(NoSuchFile, match=message):
        chosen(choice, paths)


def test_names_of_files_cannot_control_the_terminal():
    """The repository is written by others."""
    with pytest.raises(NoSuchFile) as raised:
        chosen("Q4_0", ["a\x1b[2J\n.gguf", "M-Q8_0.gguf"])
    assert str(raised.value).isprintable()


def test_a_long_list_is_shortened():
    """A repository may have thousands of files."""
    with pytest.raises(NoSuchFile, match=r" and 9960 more; choose one") as raised:
        chosen("", [f"{number}.gguf" for number in range(MAX_LISTED + 9960)])
    assert len(str(raised.value)) < 1000


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("Meta-Llama-3-8B-Instruct.Q4_K_M.gguf", "Q4_K_M"),
        ("qwen2.5-0.5b-instruct-fp16.gguf", "F16"),
        ("Model.i1-IQ2_XXS.gguf", "IQ2_XXS"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("model-Q4_K_M_imat.gguf", "Q4_K_M"),
        ("Model-Q4_0_4_4.gguf", "Q4_0_4_4"),
        ("Q4_K_M/Model-00001-of-00003.gguf", "Q4_K_M"),
        ("Model-F16-Q8_0.gguf", "Q8_0"),
        ("model.gguf", ""),
        ("SEQ4_0.gguf", ""),
    ],
)
def test_the_quantisation_is_the_last_one_of_the_name(path: str, expected: str):
    """As converters name files, in any case and with further words."""
    assert quantization(path) == expected


@pytest.mark.parametrize(
    "name",
    ["mmproj-F16.gguf", "M.mmproj-Q8_0.gguf", "imatrix.gguf", "M-imatrix.gguf", "adapter_model.gguf", "M-LoRA.gguf"],
)
def test_other_kinds_of_files_are_no_models(name: str):
    """Words that only contain theirs are names of models."""
    assert model_files([name, "Flora-Q4_0.gguf", "notes.txt"]) == ["Flora-Q4_0.gguf"]
