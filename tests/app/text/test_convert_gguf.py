"""Conversion of GGUF files to checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from app.text import convert_gguf
from app.text.text_model import TextModel
from tests.packaged_models import CONTROL_TOKENS, TEMPLATE, TOKENS, tiny_llama, write_gguf


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "checkpoint"
    made.mkdir()
    return made


@pytest.mark.parametrize("tied", [True, False])
def test_the_checkpoint_is_the_model_that_was_written_as_gguf(tmp_path: Path, folder: Path, tied: bool):
    """Weights are equal in bfloat16, except that quantized ones are as near as their quantization, and so is the
    configuration as transformers reads it.
    """
    model = tiny_llama(tied=tied)
    write_gguf(tmp_path / "model.gguf", model)
    convert_gguf.convert(tmp_path / "model.gguf", folder)
    found, expected = load_file(folder / "model.safetensors"), model.state_dict()
    assert found.keys() == expected.keys() - ({"lm_head.weight"} if tied else set())
    for name, tensor in found.items():
        assert tensor.dtype == torch.bfloat16
        if "down_proj" in name:
            torch.testing.assert_close(tensor.float(), expected[name], rtol=0.02, atol=0.001)
        else:
            assert torch.equal(tensor, expected[name].bfloat16()), name
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    for key in ("rope_parameters", "rms_norm_eps", "num_key_value_heads", "head_dim", "tie_word_embeddings"):
        assert getattr(loaded.config, key) == pytest.approx(getattr(model.config, key)), key


def test_the_tokenizer_splits_numbers_into_digits_and_keeps_control_tokens_whole(tmp_path: Path, folder: Path):
    """The spaces before a number are one piece, and transformers encodes as this server does."""
    write_gguf(tmp_path / "model.gguf", tiny_llama())
    convert_gguf.convert(tmp_path / "model.gguf", folder)
    loaded, text = AutoTokenizer.from_pretrained(folder), TextModel.load(folder)
    sample = "hell  42<|im_end|>é"
    ids = text.encode(sample, add_special_tokens=False)
    assert [TOKENS[number] for number in ids] == ["he", "ll", "ĠĠ", "4", "2", "<|im_end|>", "Ã", "©"]
    assert loaded.encode(sample) == ids and loaded.decode(ids) == sample
    assert loaded.all_special_tokens == ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
    assert loaded.chat_template == TEMPLATE
    assert len(CONTROL_TOKENS) == len(loaded.added_tokens_decoder)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"architecture": "qwen2"}, "general.architecture must be 'llama', got 'qwen2'"),
        ({"splitting": "llama-bpe"}, "tokenizer.ggml.pre must be 'smollm', got 'llama-bpe'"),
    ],
)
def test_another_kind_of_file_is_refused_by_name(
    tmp_path: Path, folder: Path, options: dict, message: str, capsys: pytest.CaptureFixture[str]
):
    """The child process ends with status 1 and one line, before it writes anything."""
    write_gguf(tmp_path / "model.gguf", tiny_llama(), **options)
    assert convert_gguf.main(str(tmp_path / "model.gguf"), str(folder)) == 1
    assert capsys.readouterr().err == f"ValueError: {message}\n"
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("name", ["blk.0.attn_q.bias", "blk.0.ffn_gate_exps.weight", "rope_freqs.weight"])
def test_a_tensor_without_a_place_in_the_checkpoint_is_refused_by_name(name: str):
    """Leaving it out would change the model."""
    with pytest.raises(ValueError, match=f"tensor '{name}' is not supported"):
        convert_gguf.checkpoint_name(name)


def test_a_token_of_an_unsupported_kind_is_refused():
    """Kind 4, user-defined, would have to be matched before the text is split."""
    with pytest.raises(ValueError, match="kind 4"):
        convert_gguf.make_tokenizer(["a", "b"], [1, 4], [])


def test_rounding_to_bfloat16_is_that_of_torch():
    """Random values, ties in both directions, signed zeros and the largest finite values."""
    random = np.random.default_rng(1).normal(size=1000).astype(np.float32)
    ties = np.array([0x3F808000, 0x3F818000, 0x80000000, 0, 0x7F7F0000], dtype=np.uint32).view(np.float32)
    values = np.concatenate([random, ties])
    expected = torch.from_numpy(values).bfloat16().view(torch.int16).numpy().view(np.uint16)
    assert np.array_equal(convert_gguf.bfloat16(values), expected)


@pytest.mark.parametrize("name", ["a", "ab", "abc"])
def test_the_weights_file_is_aligned_and_names_its_format(tmp_path: Path, name: str):
    """Transformers requires the format's name."""
    convert_gguf.write_safetensors(tmp_path / "x.safetensors", {name: np.zeros((3, 1), np.uint16)})
    data = (tmp_path / "x.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    assert length % 8 == 0 and len(data) == 8 + length + 6
    assert json.loads(data[8 : 8 + length])["__metadata__"] == {"format": "pt"}
