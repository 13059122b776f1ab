"""The tokenizer of a folder equals AutoTokenizer's, including all files that define tokens."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from app.text import tokenizer_files
from app.text.errors import TokenizerError
from app.text.text_model import TextModel
from app.text.tokenizer_files import TokenizerFiles, load_tokenizer
from engine.model_files.open_model import open_model
from tests.app.text_models import MODEL, sentence_piece

GENERIC = {"tokenizer_class": "PreTrainedTokenizerFast"}
SIZE = MODEL.tokenizer.get_vocab_size()
FLAGS = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": True}
TEXTS = ("hello w", " hell", "he<|end|> x", "a <|end|> he<x>ll", "<|end|><x>\n", "w<image> ll", "<s>he </s>", "é🎠")

# Files beside a tokenizer.json with byte tokens and a few merges; config.json has a model type.
FOLDERS: dict[str, dict[str, Any]] = {
    "tokenizer.json alone": {"config.json": {}},
    "a special token in added_tokens_decoder": {
        "tokenizer_config.json": GENERIC
        | {"added_tokens_decoder": {str(SIZE): {"content": "<|end|>", "special": True}}, "eos_token": "<|end|>"}
    },
    "a token that is not special": {
        "tokenizer_config.json": GENERIC | {"added_tokens_decoder": {str(SIZE): FLAGS | {"content": "<x>"}}}
    },
    "a token that takes the spaces beside it": {
        "tokenizer_config.json": GENERIC
        | {"added_tokens_decoder": {str(SIZE): FLAGS | {"content": "<|end|>", "lstrip": True, "rstrip": True}}}
    },
    "an index beyond the next": {
        "tokenizer_config.json": GENERIC | {"added_tokens_decoder": {str(SIZE + 9): {"content": "<|end|>"}}}
    },
    "added_tokens.json": {
        "added_tokens.json": {"<|end|>": SIZE, "<x>": SIZE + 1},
        "special_tokens_map.json": {"eos_token": "<|end|>"},
        "tokenizer_config.json": GENERIC,
    },
    "a list of special tokens": {
        "tokenizer_config.json": GENERIC | {"additional_special_tokens": ["<|end|>", "<x>"], "bos_token": "<s>"}
    },
    "extra tokens by name": {"tokenizer_config.json": GENERIC | {"extra_special_tokens": {"image_token": "<image>"}}},
    "a token of the model's own": {"tokenizer_config.json": GENERIC | {"image_token": "<image>"}},
    "numbers and switches with the name of a token": {
        "tokenizer_config.json": GENERIC | {"num_image_token": 256, "add_bos_token": True, "split_by_token": []}
    },
    "special tokens as plain text": {
        "tokenizer_config.json": GENERIC | {"eos_token": "<|end|>", "split_special_tokens": True}
    },
    "a prefix space": {"tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True}},
    "a class without a prefix space": {"tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer"}},
    "a class that is chosen by the model": {"config.json": {"model_type": "qwen2"}},
    "a class that the model replaces": {"config.json": {"model_type": "qwen2"}, "tokenizer_config.json": GENERIC},
}


def write(path: Path, files: dict[str, Any], tokenizer: Tokenizer = MODEL.tokenizer) -> Path:
    """Save a tokenizer with files beside it."""
    tokenizer.save(str(path / "tokenizer.json"))
    for name, content in ({"config.json": {"model_type": "llama"}} | files).items():
        (path / name).write_text(json.dumps(content))
    return path


def assert_same_tokenizer(path: Path) -> None:
    """Compare ids, texts and special tokens with AutoTokenizer's."""
    expected = AutoTokenizer.from_pretrained(path)
    tokenizer, special = load_tokenizer(open_model(path))
    assert special == expected.special_tokens_map
    assert tokenizer.get_vocab() == expected.get_vocab()
    added = {index: repr(token) for index, token in tokenizer.get_added_tokens_decoder().items()}
    assert added == {index: repr(token) for index, token in expected.added_tokens_decoder.items()}
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        assert ids == expected.encode(text), text
        assert tokenizer.encode(text, add_special_tokens=False).ids == expected.encode(text, add_special_tokens=False)
        for skips in (True, False):
            assert tokenizer.decode(ids, skip_special_tokens=skips) == expected.decode(ids, skip_special_tokens=skips)


@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.usefixtures("without_processes")
def test_a_folder_has_the_tokenizer_that_transformers_makes_of_it(tmp_path: Path, name: str):
    """Tokens, their properties, ids and texts are equal, for every file that defines tokens."""
    assert_same_tokenizer(write(tmp_path, FOLDERS[name]))


@pytest.mark.parametrize("settings", [{}, {"add_prefix_space": False}, {"legacy": True}, {"add_bos_token": True}])
@pytest.mark.usefixtures("without_processes")
def test_a_prefix_space_is_handled_by_the_class(tmp_path: Path, settings: dict[str, Any]):
    """LlamaTokenizer handles the first space by itself, based on tokenizer_config.json."""
    config = {"tokenizer_class": "LlamaTokenizer"} | settings
    assert_same_tokenizer(write(tmp_path, {"tokenizer_config.json": config}, sentence_piece().tokenizer))


@pytest.mark.usefixtures("without_processes")
def test_a_vocabulary_and_merges_make_a_tokenizer(tmp_path: Path):
    """GPT-2 is stored in this way, without a tokenizer.json."""
    MODEL.tokenizer.model.save(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer", "bos_token": "he"}')
    assert_same_tokenizer(tmp_path)


def test_an_eos_token_of_the_added_tokens_list_ends_a_text(tmp_path: Path):
    """The id of an eos_token that tokenizer.json lacks is found by the child process, as at a real start."""
    text = TextModel.load(write(tmp_path, FOLDERS["a special token in added_tokens_decoder"]))
    assert text.eos_token_ids == {SIZE}
    assert text.encode("he<|end|>") == [MODEL.tokenizer.token_to_id("he"), SIZE]
    assert text.decode([SIZE]) == "" and text.decode([SIZE], skip_special_tokens=False) == "<|end|>"


def test_a_complete_tokenizer_is_loaded_without_a_conversion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Startup is not slower if tokenizer.json is complete."""
    monkeypatch.setattr(tokenizer_files, "run_conversion", lambda path: pytest.fail("converted"))
    complete = Tokenizer.from_str(MODEL.tokenizer.to_str())
    complete.add_special_tokens(["<|end|>"])
    config = {"added_tokens_decoder": {str(SIZE): FLAGS | {"content": "<|end|>"}}, "eos_token": "<|end|>"}
    tokenizer, special = load_tokenizer(
        open_model(write(tmp_path, {"tokenizer_config.json": GENERIC | config}, complete))
    )
    assert special == {"eos_token": "<|end|>"} and tokenizer.token_to_id("<|end|>") == SIZE


def test_no_replaced_tokenizer_class_is_loaded_without_conversion():
    """Model types without conversion are not among those for which transformers replaces the declared class."""
    from transformers.models.auto.tokenization_auto import MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS

    assert not MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS & set(tokenizer_files.GENERIC_MODEL_TYPES)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"added_tokens_decoder": []}, "added_tokens_decoder"),
        ({"added_tokens_decoder": {"x": {"content": "<x>"}}}, "added_tokens_decoder"),
        ({"added_tokens_decoder": {"300": "<x>"}}, "added_tokens_decoder"),
        ({"additional_special_tokens": "<x>"}, "additional_special_tokens"),
        ({"extra_special_tokens": [5]}, "extra_special_tokens"),
        ({"image_token": {"a": 5}}, "image_token"),
    ],
)
def test_a_list_of_tokens_that_cannot_be_read_is_named(tmp_path: Path, config: dict[str, Any], named: str):
    """The error names the file and the key, and comes at startup."""
    with pytest.raises(TokenizerError, match=rf"tokenizer_config\.json: {named} must be"):
        TokenizerFiles.read(open_model(write(tmp_path, {"tokenizer_config.json": config})))


def test_a_folder_that_transformers_cannot_convert_is_named_with_the_reason(tmp_path: Path):
    """The child process writes its error instead of a traceback."""
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "tokenizer.model").write_bytes(b"not a model")
    with pytest.raises(TokenizerError, match=r"transformers cannot create a tokenizer from this folder: \S"):
        load_tokenizer(open_model(tmp_path))


def test_custom_code_of_a_tokenizer_is_not_needed_with_a_complete_file(tmp_path: Path):
    """transformers would ask for permission to run it, but the tokenizer.json suffices."""
    config = {"tokenizer_class": "OwnTokenizer", "auto_map": {"AutoTokenizer": [None, "own.Own"]}}
    tokenizer, _ = load_tokenizer(open_model(write(tmp_path, {"tokenizer_config.json": config})))
    assert tokenizer.get_vocab() == MODEL.tokenizer.get_vocab()


def test_a_tokenizer_with_custom_code_is_refused_with_an_alternative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Options of transformers that do not exist here are not named."""
    error = {"error": "Please pass the argument `trust_remote_code=True` to allow custom code to be run."}
    monkeypatch.setattr(tokenizer_files, "run_conversion", lambda path: error)
    (tmp_path / "vocab.txt").touch()
    with pytest.raises(TokenizerError, match=r"code of its own, .* use a folder with a tokenizer\.json"):
        load_tokenizer(open_model(tmp_path))


@pytest.fixture(scope="module")
def sentencepiece_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a sentencepiece model with byte fallback, the format of Llama 2 and the first Mistral."""
    folder = tmp_path_factory.mktemp("pieces")
    corpus = ["The engine serves people.", "He held the wheel while the carousel turned.", "1, 2, 3 and 4."] * 40
    SentencePieceTrainer.train(
        sentence_iterator=iter(corpus),
        model_prefix=str(folder / "tokenizer"),
        vocab_size=340,
        model_type="bpe",
        byte_fallback=True,
        character_coverage=1.0,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    return folder


@pytest.mark.parametrize("model_type", ["llama", "mistral", "gemma"])
@pytest.mark.parametrize("config", [{"tokenizer_class": "LlamaTokenizer", "legacy": False}, {}])
@pytest.mark.usefixtures("without_processes")
def test_a_sentencepiece_model_is_converted(
    tmp_path: Path, sentencepiece_folder: Path, model_type: str, config: dict[str, Any]
):
    """A folder with only a tokenizer.model gives the ids of sentencepiece, even if those of transformers differ."""
    shutil.copy(sentencepiece_folder / "tokenizer.model", tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    if config:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    if model_type == "llama" and config:
        assert_same_tokenizer(tmp_path)
    tokenizer, special = load_tokenizer(open_model(tmp_path))
    assert special["eos_token"] == "</s>"
    processor = SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model"))
    for text in ("The engine turned, and he held on.", "people 😀 漢字", "a  b\n c"):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert ids == processor.encode(text)
        assert tokenizer.decode(ids) == text


def test_a_sentencepiece_model_is_converted_at_startup(tmp_path: Path, sentencepiece_folder: Path):
    """The child process needs no torch."""
    shutil.copy(sentencepiece_folder / "tokenizer.model", tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    text = TextModel.load(tmp_path)
    assert text.eos_token_ids == {text.tokenizer.token_to_id("</s>")}
    assert text.decode(text.encode("the carousel turned")) == "the carousel turned"
