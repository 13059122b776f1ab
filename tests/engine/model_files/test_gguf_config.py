"""Configurations and names of GGUF models against transformers."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from engine.execution.models.config import DecoderConfig
from engine.model_files.errors import ModelFileError
from engine.model_files.gguf import GGUFModel, open_gguf
from engine.model_files.gguf_config import FAMILIES, gguf_config, gguf_weights, heads_in_halves
from engine.model_files.gguf_tensors import in_halves, plain_tensor
from tests.conftest import ROOT
from tests.engine.model_files.gguf_files import write_all
from tests.engine.model_files.gguf_models import LLAMA3, MODELS, llama3_factors, write_model
from tests.limits import HANG_SECONDS


def state_dict(model: GGUFModel, config: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return all weights by their names in a checkpoint, with rows in its order."""
    weights = {}
    for name, info in gguf_weights(model).items():
        heads = heads_in_halves(model, name, config)
        weights[name] = plain_tensor(info) if heads is None else in_halves(plain_tensor(info), heads)
    return weights


@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_a_model_computes_as_before_its_conversion(tmp_path: Path, name: str):
    """transformers gives equal logits for the original, and for configuration and weights of its GGUF file."""
    architecture, config = MODELS[name]
    torch.manual_seed(4)
    original = AutoModelForCausalLM.from_config(config).eval()
    for parameter in original.parameters():  # biases begin as zeros, norms as ones
        parameter.copy_(torch.randn_like(parameter) * 0.2)
    write_model(tmp_path / "model.gguf", architecture, config, original.state_dict())
    model = open_gguf(tmp_path / "model.gguf")
    entries = gguf_config(model)
    copy = AutoModelForCausalLM.from_config(AutoConfig.for_model(**entries), dtype=torch.float32).eval()
    missing, unexpected = copy.load_state_dict(state_dict(model, entries), strict=False)
    assert unexpected == []
    assert missing == (["lm_head.weight"] if entries["tie_word_embeddings"] else [])
    tokens = torch.randint(3, 40, (1, 30))
    torch.testing.assert_close(copy(tokens).logits, original(tokens).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_decoder_models_are_configured_as_from_their_folder(tmp_path: Path, name: str):
    """The engine's own configuration is that of the original's config.json, in bfloat16."""
    architecture, config = MODELS[name]
    model = AutoModelForCausalLM.from_config(config)
    write_model(tmp_path / "model.gguf", architecture, config, model.state_dict())
    given = {**config.to_dict(), "architectures": [type(model).__name__], "dtype": "bfloat16"}
    assert DecoderConfig.from_hf(gguf_config(open_gguf(tmp_path / "model.gguf"))) == DecoderConfig.from_hf(given)


def open_changed(
    path: Path, *, architecture: str = "llama", tensors: dict[str, np.ndarray] | None = None, **keys: Any
) -> GGUFModel:
    """Write a model of one embedding, with further keys and tensors. keys: None removes one; dots are written `__`."""
    entries = {
        "embedding_length": 32, "feed_forward_length": 48, "context_length": 128, "block_count": 2,
        "attention.head_count": 4, "attention.layer_norm_rms_epsilon": 1e-5,
        **{name.replace("__", "."): value for name, value in keys.items()},
    }  # fmt: skip
    writer = gguf.GGUFWriter(path, architecture)
    for name, value in entries.items():
        add = {bool: writer.add_bool, int: writer.add_uint64, float: writer.add_float64, str: writer.add_string,
               list: writer.add_array}.get(type(value))  # fmt: skip
        if add is not None:
            add(f"{architecture}.{name}", value)
    for name, values in {"token_embd.weight": np.zeros((40, 32), np.float32), **(tensors or {})}.items():
        writer.add_tensor(name, values)
    write_all(writer)
    return open_gguf(path)


def test_other_architectures_are_refused_with_the_list(tmp_path: Path):
    """One sentence names the architecture and all that are supported."""
    with pytest.raises(
        ModelFileError, match=r"'mamba' is not supported; use a model of llama, qwen2, qwen3, phi3, gra"
    ):
        gguf_config(open_changed(tmp_path / "m.gguf", architecture="mamba"))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no size": ({"embedding_length": None}, "key 'llama.embedding_length' must be a positive integer"),
    "no heads": ({"attention__head_count": 0}, "key 'llama.attention.head_count' must be a positive integer"),
    "heads of each layer": ({"attention__head_count": [4, 2]}, "the same for all layers, but got [4, 2]"),
    "text": ({"block_count": "two"}, "key 'llama.block_count' must be a positive integer"),
    "no epsilon": (
        {"attention__layer_norm_rms_epsilon": None},
        "key 'llama.attention.layer_norm_rms_epsilon' must be a finite number, but it is missing",
    ),
    "NaN": ({"attention__layer_norm_rms_epsilon": float("nan")}, "must be a finite number, but got nan"),
    "experts": ({"expert_count": 8}, "key 'llama.expert_count' must be 0"),
    "encoder": ({"attention__causal": False}, "key 'llama.attention.causal' must be True"),
    "soft caps": ({"final_logit_softcapping": 30.0}, "key 'llama.final_logit_softcapping' must be 0.0"),
    "value length": ({"attention__value_length": 16}, "key 'llama.attention.value_length' must be that of keys, 8"),
    "theta": ({"rope__freq_base": -1.0}, "key 'llama.rope.freq_base' must be positive"),
    "rotation": ({"rope__dimension_count": 10}, "key 'llama.rope.dimension_count' must be even, and at most"),
    "huge heads": ({"attention__key_length": 1 << 62, "attention__value_length": 1 << 62}, "at most the size of a"),
    "old scaling": ({"rope__scale_linear": 2.0}, "key 'llama.rope.scale_linear' must be replaced"),
    "scaling": ({"rope__scaling__type": "dynamic"}, "key 'llama.rope.scaling.type' must be none, linear or yarn"),
    "multiplier": ({"residual_scale": 0.5}, "key 'llama.residual_scale' must be 1.0, because such models are not"),
    "attention scale": ({"attention__scale": 0.5}, "key 'llama.attention.scale' must be 0.0, because such models"),
    "no factor": ({"rope__scaling__type": "linear"}, "key 'llama.rope.scaling.factor' must be a finite number"),
    "yarn": (
        {"rope__scaling__type": "yarn", "rope__scaling__yarn_attn_factor": 2.0},
        "key 'llama.rope.scaling.yarn_attn_factor' must be 1.0, the only supported value",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_keys_that_cannot_be_honoured_are_refused(tmp_path: Path, case: str):
    """The message names the key, what it must be, and its value."""
    keys, expected = REFUSED[case]
    with pytest.raises(ModelFileError) as raised:
        gguf_config(open_changed(tmp_path / "m.gguf", **keys))
    assert expected in str(raised.value)


TABLES: dict[str, tuple[dict[str, np.ndarray], str]] = {
    "other factors": ({"rope_freqs.weight": np.array([1, 2, 3, 4], np.float32)}, "that are not those of Llama 3"),
    "short table": ({"rope_freqs.weight": np.ones(3, np.float32)}, "must be F32 of shape (4,), got F32 of (3,)"),
    "half precision": ({"rope_freqs.weight": np.ones(4, np.float16)}, "must be F32 of shape (4,), got F16"),
    "NaN": ({"rope_freqs.weight": np.array([1, 1, 1, np.nan], np.float32)}, "must have positive numbers"),
    "one of two": ({"rope_factors_long.weight": np.ones(4, np.float32)}, "'rope_factors_short.weight' is missing"),
}


@pytest.mark.parametrize("case", TABLES)
def test_tables_of_factors_are_checked(tmp_path: Path, case: str):
    """A table that no entry of config.json describes is refused, and the tensor is named."""
    tensors, expected = TABLES[case]
    with pytest.raises(ModelFileError) as raised:
        gguf_config(open_changed(tmp_path / "m.gguf", tensors=tensors))
    assert expected in str(raised.value)


@pytest.mark.parametrize(("factor", "original"), [(8.0, 8192), (32.0, 8192), (4.0, 32768)])
def test_the_scaling_of_llama_3_is_found_from_its_table(tmp_path: Path, factor: float, original: int):
    """Factor and original context are those that the table was computed from."""
    rope = {**LLAMA3, "factor": factor, "original_max_position_embeddings": original}
    table = llama3_factors(rope, 128).numpy()
    keys = {"attention__key_length": 128, "attention__value_length": 128, "rope__freq_base": 500000.0}
    scaling = gguf_config(open_changed(tmp_path / "m.gguf", tensors={"rope_freqs.weight": table}, **keys))[
        "rope_scaling"
    ]
    assert scaling["factor"] == pytest.approx(factor)
    assert scaling["original_max_position_embeddings"] == original


def test_a_part_of_a_head_is_the_number_of_dimensions_in_the_file(tmp_path: Path):
    """config.json has a fraction, which is multiplied and rounded down; no dimension is lost."""
    sizes = {"attention__key_length": 176, "attention__value_length": 176, "rope__dimension_count": 30}
    entries = gguf_config(open_changed(tmp_path / "m.gguf", architecture="phi3", **sizes))
    assert int(176 * (30 / 176)) == 29
    assert DecoderConfig.from_hf(entries).rope.dim == 30


def test_the_files_factor_on_cosines_and_sines_is_used(tmp_path: Path):
    """llama.cpp's converter computes it from the extension of the context."""
    tensors = {f"rope_factors_{kind}.weight": np.ones(4, np.float32) for kind in ("long", "short")}
    model = open_changed(tmp_path / "m.gguf", architecture="phi3", tensors=tensors, rope__scaling__attn_factor=1.25)
    assert DecoderConfig.from_hf(gguf_config(model)).rope.attention_factor == 1.25


def test_a_table_of_ones_is_no_scaling(tmp_path: Path):
    """Factors that change nothing leave the default rotary embedding."""
    tensors = {"rope_freqs.weight": np.ones(4, np.float32)}
    assert "rope_scaling" not in gguf_config(open_changed(tmp_path / "m.gguf", tensors=tensors))


@pytest.mark.parametrize("name", ["blk.0.attn_sinks.weight", "blk.0.attn_q.scale", "blk.x.attn_q.weight", "cls.weight"])
def test_tensors_of_other_models_are_refused(tmp_path: Path, name: str):
    """A tensor that no loader reads is named."""
    model = open_changed(tmp_path / "m.gguf", tensors={name: np.zeros(4, np.float32)})
    with pytest.raises(ModelFileError, match=f"tensor '{name}' is not part of this architecture"):
        gguf_weights(model)


def test_a_file_without_weights_is_refused(tmp_path: Path):
    """Vocabularies and adapters are GGUF files too."""
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    for name in ("embedding_length", "attention.head_count", "feed_forward_length", "context_length", "block_count"):
        writer.add_uint32(f"llama.{name}", 1)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", struct.unpack("f", b"\0\0\x80\x3f")[0])
    write_all(writer)
    with pytest.raises(ModelFileError, match=r"tensor 'token_embd.weight' is missing; fetch a model, not a vocabulary"):
        gguf_config(open_gguf(tmp_path / "m.gguf"))


def test_every_architecture_has_a_test_with_transformers():
    """A family without a model among the tests above is not verified."""
    assert set(FAMILIES) == {architecture for architecture, _ in MODELS.values()}


def test_headers_and_configurations_need_no_torch():
    """The API process reads them, which loads neither torch nor numpy."""
    code = "import sys, engine.model_files.gguf_config; sys.exit(bool({'torch', 'numpy', 'gguf'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, timeout=HANG_SECONDS).returncode == 0
