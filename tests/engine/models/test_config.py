"""Reading config.json: both generations of keys, the families' defaults, and errors that name key and value."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from app.resources import demo_model
from engine.execution.models import load_model
from engine.execution.models.config import DecoderConfig
from engine.execution.models.errors import ModelConfigError, ModelError
from engine.execution.models.rope import check_rope_table, inverse_frequencies
from engine.model_files.open_model import open_model
from tests.profiles import examples

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
MISTRAL = LLAMA | {"architectures": ["MistralForCausalLM"]}
QWEN2 = LLAMA | {"architectures": ["Qwen2ForCausalLM"]}
QWEN3 = LLAMA | {"architectures": ["Qwen3ForCausalLM"]}
SMOLLM3 = LLAMA | {"architectures": ["SmolLM3ForCausalLM"]}
PHI3 = LLAMA | {"architectures": ["Phi3ForCausalLM"]}
GRANITE = LLAMA | {"architectures": ["GraniteForCausalLM"]}
FACTORS = {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8}

SCALING = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


def test_old_and_new_rope_keys_mean_the_same():
    """rope_theta and rope_scaling (transformers 4) are equivalent to rope_parameters (transformers 5)."""
    old = LLAMA | {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3"} | SCALING}
    older = LLAMA | {"rope_theta": 5e5, "rope_scaling": {"type": "llama3"} | SCALING}
    new = LLAMA | {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5} | SCALING}
    assert DecoderConfig.from_hf(old) == DecoderConfig.from_hf(older) == DecoderConfig.from_hf(new)
    assert DecoderConfig.from_hf(new).rope.theta == 5e5


def test_a_configuration_without_any_positions_is_refused():
    """Llama's first configurations have a length and no theta, for which transformers has a default."""
    bare = {key: value for key, value in LLAMA.items() if key != "max_position_embeddings"}
    with pytest.raises(ModelConfigError, match=r"config.json: rope_theta = None: is missing.*describes no positions"):
        DecoderConfig.from_hf(bare)
    assert DecoderConfig.from_hf(LLAMA).rope.theta == 10000.0
    for positions in ({"max_sequence_length": 2048}, {"rope_theta": 5e5}):
        assert DecoderConfig.from_hf(bare | positions).max_position == 2048


def test_torch_dtype_and_dtype_mean_the_same():
    """The older name of the key is read too; the default is float32."""
    for key in ("dtype", "torch_dtype"):
        assert DecoderConfig.from_hf(LLAMA | {key: "bfloat16"}).dtype == torch.bfloat16
    assert DecoderConfig.from_hf(LLAMA).dtype == torch.float32


@pytest.mark.parametrize(
    ("config", "windows"),
    [
        (LLAMA | {"sliding_window": 8}, (0, 0, 0, 0)),
        (MISTRAL, (4096,) * 4),
        (MISTRAL | {"sliding_window": 8}, (8,) * 4),
        (MISTRAL | {"sliding_window": None}, (0,) * 4),
        (QWEN2 | {"sliding_window": 8}, (0,) * 4),
        (QWEN2 | {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 3}, (0, 0, 0, 8)),
        (QWEN2 | {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 28}, (0,) * 4),
        (
            QWEN3
            | {"sliding_window": 8, "use_sliding_window": True}
            | {"layer_types": ["full_attention", "sliding_attention"] * 2},
            (0, 8, 0, 8),
        ),
        (SMOLLM3 | {"sliding_window": 8}, (0,) * 4),
        (SMOLLM3 | {"sliding_window": 8, "use_sliding_window": True}, (0, 0, 0, 8)),
        (SMOLLM3 | {"sliding_window": 8, "use_sliding_window": True, "no_rope_layers": [0, 1, 1, 1]}, (8, 0, 0, 0)),
        (
            SMOLLM3
            | {"sliding_window": 8, "use_sliding_window": True}
            | {"layer_types": ["sliding_attention", "full_attention"] * 2},
            (8, 0, 8, 0),
        ),
        (SMOLLM3 | {"use_sliding_window": True}, (0,) * 4),
        (PHI3, (0,) * 4),
        (PHI3 | {"sliding_window": 8}, (8,) * 4),
        (GRANITE | {"sliding_window": 8}, (0,) * 4),
    ],
)
def test_windows_by_layer(config: dict[str, Any], windows: tuple[int, ...]):
    """A sliding window applies to the layers that the family's rules select."""
    assert DecoderConfig.from_hf(config).windows == windows


@pytest.mark.parametrize(
    ("config", "qkv_bias", "out_bias", "mlp_bias", "qk_norm"),
    [
        (LLAMA, False, False, False, False),
        (LLAMA | {"attention_bias": True, "mlp_bias": True}, True, True, True, False),
        (MISTRAL, False, False, False, False),
        (QWEN2, True, False, False, False),
        (QWEN3, False, False, False, True),
        (QWEN3 | {"attention_bias": True}, True, True, False, True),
        (SMOLLM3 | {"attention_bias": True, "mlp_bias": True}, True, True, True, False),
        (PHI3 | {"attention_bias": True, "mlp_bias": True}, False, False, False, False),
        (GRANITE | {"attention_bias": True, "mlp_bias": True}, True, True, True, False),
    ],
)
def test_biases_and_norms_by_family(
    config: dict[str, Any], qkv_bias: bool, out_bias: bool, mlp_bias: bool, qk_norm: bool
):
    """Biases of projections and normalisation of heads follow the family."""
    read = DecoderConfig.from_hf(config)
    assert (read.qkv_bias, read.out_bias, read.mlp_bias, read.qk_norm) == (qkv_bias, out_bias, mlp_bias, qk_norm)


def test_missing_keys_that_have_a_meaning():
    """The head size follows from the hidden size (128 for Qwen3), and an old Llama has as many key as query heads."""
    old = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    assert DecoderConfig.from_hf(old).num_kv_heads == 4
    assert DecoderConfig.from_hf(LLAMA).head_dim == 16
    assert DecoderConfig.from_hf(QWEN3).head_dim == 128
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    assert DecoderConfig.from_hf(LLAMA | {"rope_parameters": yarn}).max_position == 2048


def test_layers_without_rotary_embedding():
    """SmolLM3 lists them or has one in each interval; entries beyond the layers are ignored, as in transformers."""
    assert DecoderConfig.from_hf(SMOLLM3).rotated == (True, True, True, False)
    assert DecoderConfig.from_hf(SMOLLM3 | {"no_rope_layer_interval": 2}).rotated == (True, False, True, False)
    listed = SMOLLM3 | {"no_rope_layers": [0, 1, 0, 1, 1], "no_rope_layer_interval": 2}
    assert DecoderConfig.from_hf(listed).rotated == (False, True, False, True)
    assert DecoderConfig.from_hf(LLAMA | {"no_rope_layers": [0] * 4}).rotated == (True,) * 4


def test_multipliers_are_those_of_granite_alone():
    """A missing one is 1, that of attention too."""
    keys = ("attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling")
    given = dict(zip(keys, (0.25, 12.0, 0.22, 8.0), strict=True))
    read = [DecoderConfig.from_hf(config) for config in (GRANITE | given, GRANITE, LLAMA | given)]
    assert [(one.scale, one.embedding_multiplier, one.residual_multiplier, one.logits_divisor) for one in read] == [
        (0.25, 12.0, 0.22, 8.0),
        (1.0,) * 4,
        (0.25, 1.0, 1.0, 1.0),
    ]
    assert DecoderConfig.from_hf(LLAMA | {"num_attention_heads": 2}).scale == 32**-0.5


def test_defaults_are_those_of_the_family():
    """Configurations written by transformers lack keys with the default of their class."""
    bare = {key: value for key, value in LLAMA.items() if key != "max_position_embeddings"} | {"rope_theta": None}
    smollm3, phi3 = (DecoderConfig.from_hf(bare | {"architectures": one["architectures"], "rope_theta": 5.0})
                     for one in (SMOLLM3, PHI3))  # fmt: skip
    assert (smollm3.tied_embeddings, smollm3.max_position, smollm3.norm_eps) == (True, 32768, 1e-6)
    assert (phi3.tied_embeddings, phi3.max_position, phi3.norm_eps) == (False, 4096, 1e-5)
    assert DecoderConfig.from_hf(SMOLLM3).rope.theta == 2e6 and DecoderConfig.from_hf(PHI3).rope.theta == 1e4


@pytest.mark.parametrize("kind", ["longrope", "su", "yarn"])
def test_the_served_context_chooses_between_the_factors_of_phi_3(kind: str):
    """More than the original context takes the long ones; older names of longrope are read as such."""
    config = PHI3 | {"rope_scaling": {"type": kind} | FACTORS, "original_max_position_embeddings": 128}
    assert {most: DecoderConfig.from_hf(config, most).rope.divisors[0] for most in (None, 129, 128, 5)} == {
        None: 4.0, 129: 4.0, 128: 1.0, 5: 1.0,
    }  # fmt: skip
    assert DecoderConfig.from_hf(config).max_position == 512


def test_the_factor_of_longrope_on_cosines_and_sines():
    """It is given, one for each kind of factors, or derived from the extension of the context."""

    def factor(max_len: int | None = None, **entries: object) -> float | None:
        rope = {"rope_type": "longrope"} | FACTORS | entries
        config = PHI3 | {"rope_scaling": rope, "original_max_position_embeddings": 64}
        return DecoderConfig.from_hf(config, max_len).rope.attention_factor

    assert factor() == factor(10) == math.sqrt(1 + math.log(8) / math.log(64))
    assert factor(factor=2.0) == math.sqrt(1 + math.log(2) / math.log(64))
    assert factor(attention_factor=1.5, long_mscale=3.0) == 1.5
    mscales = {"short_mscale": 1.1, "long_mscale": 1.25}
    assert (factor(None, **mscales), factor(64, **mscales)) == (1.25, 1.1)
    assert factor(factor=0.5) == 1.0


@pytest.mark.parametrize(
    ("config", "changes", "key"),
    [
        (LLAMA, {"architectures": ["BertModel"]}, "architectures"),
        (LLAMA, {"architectures": None}, "architectures"),
        (LLAMA, {"hidden_act": "gelu"}, "hidden_act"),
        (LLAMA, {"vocab_size": None}, "vocab_size"),
        (LLAMA, {"hidden_size": -1}, "hidden_size"),
        (LLAMA, {"hidden_size": 66}, "hidden_size"),
        (LLAMA, {"num_hidden_layers": "4"}, "num_hidden_layers"),
        (LLAMA, {"num_hidden_layers": True}, "num_hidden_layers"),
        (LLAMA, {"num_key_value_heads": 3}, "num_key_value_heads"),
        (QWEN2, {"num_key_value_heads": None}, "num_key_value_heads"),
        (LLAMA, {"head_dim": 15}, "head_dim"),
        (LLAMA, {"dtype": "float8"}, "dtype"),
        (LLAMA, {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope_scaling"),
        (LLAMA, {"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "rope_parameters"),
        (LLAMA, {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        (LLAMA, {"rope_theta": None}, "rope_theta"),
        (LLAMA, {"rope_scaling": "linear"}, "rope_scaling"),
        (QWEN3, {"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "rope_parameters.full_attention"),
        (QWEN3, {"text_config": {"rope_scaling": {"type": "yarn"}}}, "text_config.rope_scaling"),
        (
            LLAMA,
            {"rope_parameters": {"rope_type": "default"}, "rope_scaling": {"type": "linear", "factor": 2.0}},
            "rope_scaling",
        ),
        (LLAMA, {"rms_norm_eps": None}, "rms_norm_eps"),
        (QWEN2, {"use_sliding_window": True, "max_window_layers": None}, "max_window_layers"),
        (MISTRAL, {"layer_types": ["full_attention"] * 4}, "layer_types"),
        (MISTRAL, {"sliding_window": 0}, "sliding_window"),
        (QWEN2, {"layer_types": ["chunked_attention"] * 4}, "layer_types"),
        (QWEN2, {"layer_types": ["full_attention"]}, "layer_types"),
        (SMOLLM3, {"layer_types": ["sliding_attention"] * 4}, "layer_types"),
        (SMOLLM3, {"layer_types": ["sliding_attention"] * 4, "use_sliding_window": True}, "layer_types"),
        (SMOLLM3, {"sliding_window": 0, "use_sliding_window": True}, "sliding_window"),
        (SMOLLM3, {"no_rope_layers": [1, 1, 1]}, "no_rope_layers"),
        (SMOLLM3, {"no_rope_layers": [1, 1, 1, 2]}, "no_rope_layers"),
        (SMOLLM3, {"no_rope_layers": [1, 1, 1, 1.0]}, "no_rope_layers"),
        (SMOLLM3, {"no_rope_layers": "1111"}, "no_rope_layers"),
        (SMOLLM3, {"no_rope_layer_interval": 0}, "no_rope_layer_interval"),
        (SMOLLM3, {"no_rope_layer_interval": None}, "no_rope_layer_interval"),
        (PHI3, {"layer_types": ["full_attention"] * 4}, "layer_types"),
        (PHI3, {"sliding_window": -1}, "sliding_window"),
        (PHI3, {"partial_rotary_factor": 0}, "partial_rotary_factor"),
        (PHI3, {"partial_rotary_factor": 1.5}, "partial_rotary_factor"),
        (PHI3, {"partial_rotary_factor": "0.5"}, "partial_rotary_factor"),
        (PHI3, {"partial_rotary_factor": 0.6}, "partial_rotary_factor"),  # 9 of 16 dimensions
        (PHI3, {"partial_rotary_factor": 0.01}, "partial_rotary_factor"),
        (PHI3, {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling"),
        (PHI3, {"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0] * 8}}, "rope_scaling"),
        (
            PHI3,
            {"rope_scaling": {"rope_type": "longrope"} | FACTORS, "partial_rotary_factor": 0.5},
            "rope_scaling.short_factor",
        ),
        (
            PHI3,
            {"rope_scaling": {"rope_type": "longrope"} | FACTORS | {"long_factor": [0.0] * 8}},
            "rope_scaling.long_factor",
        ),
        (
            PHI3,
            {"rope_scaling": {"rope_type": "longrope"} | FACTORS | {"long_factor": 4.0}},
            "rope_scaling.long_factor",
        ),
        (
            PHI3,
            {"rope_scaling": {"rope_type": "longrope"} | FACTORS, "original_max_position_embeddings": 1},
            "original_max_position_embeddings",
        ),
        (PHI3, {"rope_scaling": {"rope_type": "longrope"} | FACTORS | {"long_mscale": -1}}, "rope_scaling.long_mscale"),
        (LLAMA, {"rope_scaling": {"rope_type": "longrope"} | FACTORS}, "rope_scaling"),
        *(
            (GRANITE, {key: value}, key)
            for key in ("attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling")
            for value in (0, -1.0, None, "2", True, math.inf)
        ),
    ],
)
def test_errors_name_the_key_and_the_value(config: dict[str, Any], changes: dict[str, Any], key: str):
    """A configuration that cannot be computed is refused with the responsible key of config.json."""
    with pytest.raises(ModelConfigError) as raised:
        DecoderConfig.from_hf(config | changes)
    assert raised.value.key == key
    assert key in str(raised.value) and repr(raised.value.value) in str(raised.value)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0, -1, 1, 10**9, 10**11, 10**400, 2**31, 1e-300, 1e300, float("inf"), float("nan")])
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["yarn", "llama3", "linear", "longrope", "default", "float32"]),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=8), values, max_size=3),
    max_leaves=6,
)
ROPE = {
    "rope_type": "yarn", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "beta_fast": 32.0,
    "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "attention_factor": 1.0, "truncate": True,
    "original_max_position_embeddings": 64, "rope_theta": 1e4, "partial_rotary_factor": 1.0,
    "long_mscale": 1.0, "short_mscale": 1.0,
} | FACTORS  # fmt: skip
KEYS = (
    *QWEN3, "head_dim", "rms_norm_eps", "tie_word_embeddings", "attention_bias", "mlp_bias", "hidden_act", "dtype",
    "torch_dtype", "layer_types", "use_sliding_window", "sliding_window", "max_window_layers",
    "rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "original_max_position_embeddings",
    "no_rope_layers", "no_rope_layer_interval", "attention_multiplier", "embedding_multiplier", "residual_multiplier",
    "logits_scaling",
)  # fmt: skip


@given(
    base=st.sampled_from([LLAMA, MISTRAL, QWEN2, QWEN3, SMOLLM3, PHI3, GRANITE]),
    kind=st.sampled_from(["yarn", "llama3", "linear", "longrope"]),
    changes=st.dictionaries(st.sampled_from(KEYS), JSON, max_size=2),
    rope=st.none() | st.dictionaries(st.sampled_from(tuple(ROPE)), JSON, max_size=2),
)
def test_any_value_of_any_key_is_read_or_named(base, kind, changes: dict[str, Any], rope: dict[str, Any] | None):
    """Reading takes bounded memory, including the tables derived from the numbers."""
    scaling = {} if rope is None else {"rope_scaling": ROPE | {"rope_type": kind} | rope}
    try:
        read = DecoderConfig.from_hf(base | scaling | changes)
    except ModelConfigError as error:
        assert error.key.partition(".")[0] in (*KEYS, *ROPE)
        return
    assert len(read.windows) == read.num_layers
    inverse_frequencies(read.rope)
    assert len(read.rotated) == read.num_layers and 0 < read.rope.dim <= read.head_dim


def test_a_table_larger_than_memory_is_refused_before_it_is_created():
    """The error names the key and the free memory."""
    config = DecoderConfig.from_hf(LLAMA | {"max_position_embeddings": 2**31 - 1})
    with pytest.raises(ModelConfigError, match=r"max_position_embeddings = 2147483647: its table .* GiB are free"):
        check_rope_table(dataclasses.replace(config, head_dim=8192))


DEMO = json.loads((demo_model() / "config.json").read_text())


@settings(max_examples=examples(60))
@given(changes=st.dictionaries(st.sampled_from(sorted(DEMO.keys() - {"architectures"})), JSON, min_size=1, max_size=2))
def test_a_checkpoint_with_any_value_in_its_configuration_is_loaded_or_refused(
    tmp_path_factory, changes: dict[str, Any]
):
    """No tensor is created that the checkpoint does not contain."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "model.safetensors").symlink_to(demo_model() / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(DEMO | changes))
    try:
        load_model(open_model(folder), torch.float32, torch.device("cpu"), lambda done, total: None)
    except ModelError as error:
        assert "config.json" in str(error) or "model.safetensors" in str(error)
