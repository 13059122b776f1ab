"""Text model of a checkpoint: tokens, their bytes, and generation settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers

from app.protocols.completions import CompletionRequest
from app.text.chat_template import InvalidTemplate, MessagesRefused
from app.text.errors import TokenizerError
from app.text.text_model import TextModel
from engine.types import SamplingParams
from tests.app.text_models import MODEL, PIECES, byte_level


@given(st.text(max_size=200))
def test_no_text_has_fewer_tokens_than_its_lower_bound(text: str):
    """This holds for any characters, and with a normalizer that composes them."""
    assert MODEL.min_tokens(text) <= len(MODEL.encode(text))
    composing = byte_level()
    composing.tokenizer.normalizer = normalizers.NFC()
    assert composing.min_tokens(text) <= len(composing.encode(text))


def test_the_lower_bound_is_zero_if_a_token_may_have_any_length():
    """Examples are a token for unknown words and one that includes adjacent spaces."""
    words = TextModel(Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]")), None, {}, frozenset())
    stripping = byte_level()
    stripping.tokenizer.add_special_tokens([AddedToken("<|end|>", rstrip=True)])
    assert [words.min_tokens("a" * 99), stripping.min_tokens("a" * 99), MODEL.min_tokens("a" * 99)] == [0, 0, 24]


def test_bytes_of_tokens_with_a_space_and_of_byte_tokens():
    """The bytes are those in the middle of a text."""
    found = {token: PIECES.token_bytes(PIECES.tokenizer.token_to_id(token)) for token in ("▁the", "s", "<0xE4>", "<s>")}
    assert found == {"▁the": b" the", "s": b"s", "<0xE4>": b"\xe4", "<s>": b"<s>"}


def test_token_bytes_of_a_broken_character_are_its_bytes():
    """The `bytes` of log-probabilities add up to the text's bytes."""
    ids = MODEL.encode("é🎠 w")
    assert b"".join(MODEL.token_bytes(i) for i in ids) == "é🎠 w".encode()


@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"])
@pytest.mark.parametrize("content", ['{"a":', "[]"])
def test_a_damaged_file_of_the_checkpoint_is_named(tmp_path: Path, name: str, content: str):
    """The error is one line and comes at startup."""
    MODEL.tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / name).write_text(content)
    with pytest.raises(TokenizerError, match=rf"{name}: not"):
        TextModel.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("tokenizer_config.json", '{"chat_template": 5}', "chat_template must be"),
        ("tokenizer_config.json", '{"chat_template": [5]}', "chat_template must be"),
        ("tokenizer_config.json", '{"chat_template": [{"foo": 1}]}', "chat_template must be"),
        ("tokenizer_config.json", '{"chat_template": [{"name": "default", "template": 5}]}', "chat_template must be"),
        ("tokenizer_config.json", '{"eos_token": 5}', "eos_token must be"),
        ("tokenizer_config.json", '{"bos_token": {"a": 1}}', "bos_token must be"),
        ("chat_template.jinja", "\xff", "utf-8"),  # in Latin-1, which is not UTF-8
    ],
)
def test_an_invalid_entry_of_a_checkpoint_file_is_named_with_the_file(
    tmp_path: Path, name: str, content: str, expected: str
):
    """The file may contain any valid JSON."""
    MODEL.tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / name).write_text(content, encoding="latin-1")
    with pytest.raises((TokenizerError, InvalidTemplate), match=rf"{name}: .*{expected}"):
        TextModel.load(tmp_path)


def test_saved_truncation_and_padding_do_not_change_prompts(tmp_path: Path):
    """Truncation and padding that were saved with the tokenizer are disabled."""
    tokenizer = byte_level().tokenizer
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=64)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert TextModel.load(tmp_path).encode("hello world") == MODEL.encode("hello world")


def test_a_folder_without_a_vocabulary_is_refused(tmp_path: Path):
    """transformers would create a tokenizer without vocabulary."""
    (tmp_path / "config.json").write_text('{"model_type": "qwen3", "vocab_size": 300}')
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json, and no tokenizer\.model, .* vocab\.json"):
        TextModel.load(tmp_path)


@pytest.mark.usefixtures("without_processes")
def test_special_tokens_map_json_defines_special_tokens(tmp_path: Path):
    """The file overrides tokenizer_config.json, as in transformers, unless that lists all added tokens."""
    MODEL.tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "special_tokens_map.json").write_text('{"bos_token": "he", "eos_token": {"content": "ll"}}')
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "Ġw", "eos_token": null}')
    text = TextModel.load(tmp_path, "{{ bos_token }}{{ eos_token }}{{ documents is none }}")
    assert text.render_chat([]) == "hellTrue"
    assert text.eos_token_ids == {MODEL.tokenizer.token_to_id("ll")}


@pytest.mark.usefixtures("without_processes")
@pytest.mark.parametrize(("eos_token_id", "eos_ids"), [("[1, 2]", {1, 2}), ("3", {3}), ("[]", set()), ("null", set())])
def test_the_tokenizer_s_eos_token_ends_a_text_too(tmp_path: Path, eos_token_id: str, eos_ids: set[int]):
    """It is added to the EOS tokens of the model, unless it is outside of the model's vocabulary."""
    tokenizer = Tokenizer.from_str(MODEL.tokenizer.to_str())
    tokenizer.add_special_tokens(["<end>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<end>"}')
    (tmp_path / "generation_config.json").write_text(f'{{"eos_token_id": {eos_token_id}}}')
    own = tokenizer.token_to_id("<end>")
    assert TextModel.load(tmp_path).eos_token_ids == eos_ids | {own}
    (tmp_path / "config.json").write_text(f'{{"vocab_size": {own}}}')
    assert TextModel.load(tmp_path).eos_token_ids == eos_ids


@pytest.mark.parametrize("templates", [[{"name": "default", "template": "x"}], {"default": "x", "rag": "y"}])
def test_the_default_of_several_templates_is_used(tmp_path: Path, templates: list | dict):
    """Both forms of named templates are supported."""
    MODEL.tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    assert TextModel.load(tmp_path).render_chat([]) == "x"


def test_a_model_without_a_template_refers_to_completions():
    """The refusal names the other route."""
    with pytest.raises(MessagesRefused, match="/v1/completions"):
        TextModel(MODEL.tokenizer, None, {}, frozenset()).render_chat([])


def sampling(fields: dict, eos: frozenset[int], recommended: dict[str, float]) -> SamplingParams:
    """Return the engine's parameters of a completion request."""
    return CompletionRequest(prompt="x", **fields).generation_request().sampling_params(5, eos, recommended)


def test_sampling_defaults_of_the_checkpoint_apply_to_missing_parameters(tmp_path: Path):
    """generation_config.json is honoured, and parameters of the request override it."""
    MODEL.tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.6, "top_k": 20, "eos_token_id": [1, 2]}')
    text = TextModel.load(tmp_path)
    assert text.eos_token_ids == {1, 2}
    defaults = sampling({}, text.eos_token_ids, text.sampling_defaults)
    assert (defaults.temperature, defaults.top_k, defaults.top_p) == (0.6, 20, 1.0)
    explicit = sampling({"temperature": 0.0, "top_k": 0}, text.eos_token_ids, text.sampling_defaults)
    assert (explicit.temperature, explicit.top_k) == (0.0, 0)


@pytest.mark.parametrize(("stop", "has_some"), [(None, False), ([], False), ("\n", True), (["a", "b"], True)])
def test_the_engine_receives_whether_there_are_stop_strings(stop: str | list[str] | None, has_some: bool):
    """The engine never sees the strings, and without an EOS id it would take the longest answer for the shortest."""
    assert sampling({"stop": stop, "ignore_eos": True}, frozenset([1]), {}).has_stop_strings is has_some
