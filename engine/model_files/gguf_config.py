"""Configuration of a GGUF model in the form of config.json, and names of its tensors as in a checkpoint.

The keys are those that llama.cpp's converter writes (gguf-py/gguf/constants.py). A known key that changes the
computation in a way that config.json of the family cannot express is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from engine.model_files.errors import ModelFileError, shown
from engine.model_files.gguf import GGUFModel
from engine.model_files.gguf_header import TensorInfo
from engine.model_files.gguf_metadata import Metadata
from engine.model_files.gguf_rope import ROPE_TENSORS, rope_entries

LAYER_NAME = re.compile(r"blk\.(0|[1-9]\d{0,5})\.(\w+)\.(weight|bias)")
TOP_NAME = re.compile(r"(\w+)\.(weight|bias)")
EMBEDDING, HEAD = "token_embd.weight", "output.weight"
TOP_LEVEL = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
OUTPUTS = {"attn_output": "self_attn.o_proj", "ffn_down": "mlp.down_proj"}
SEPARATE = {
    **NORMS,
    **OUTPUTS,
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
}
FUSED = {**NORMS, **OUTPUTS, "attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
# Keys of other kinds of models, with the values that change nothing.
NEUTRAL: dict[str, int | float] = {
    "expert_count": 0,
    "attention.causal": True,
    "attention.clamp_kqv": 0.0,
    "attention.max_alibi_bias": 0.0,
    "attn_logit_softcapping": 0.0,
    "final_logit_softcapping": 0.0,
    "use_parallel_residual": False,
    "pooling_type": 0,
}
# Keys of Granite, which other architectures' files may not have with another value.
MULTIPLIERS: dict[str, int | float] = {
    "attention.scale": 0.0,
    "embedding_scale": 1.0,
    "residual_scale": 1.0,
    "logit_scale": 1.0,
}
TOKEN_IDS = {"bos": "bos", "eos": "eos", "padding": "pad"}  # names in GGUF and in config.json


@dataclass(frozen=True, slots=True)
class GGUFFamily:
    """Models of one value of general.architecture.

    class_name, model_type: as in config.json. layer: parts of tensor names in a layer. is_permuted: the rows of queries
    and keys are in the order of llama.cpp. extra: further entries of config.json. has_multipliers: the keys of
    MULTIPLIERS have an effect.
    """

    class_name: str
    model_type: str
    layer: Mapping[str, str]
    is_permuted: bool
    extra: Callable[[Metadata], dict[str, Any]] = lambda metadata: {}
    has_multipliers: bool = False


def gguf_family(model: GGUFModel) -> GGUFFamily:
    """Return the family of a model. Raises ModelFileError for an architecture that is not supported."""
    architecture = model.metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in FAMILIES:
        raise ModelFileError(
            model.file,
            f"general.architecture {shown(architecture)} is not supported; use a model of {', '.join(FAMILIES)}",
        )
    return FAMILIES[architecture]


def gguf_config(model: GGUFModel) -> dict[str, Any]:
    """Return the content of config.json. Raises ModelFileError for keys that are missing, invalid or not supported."""
    family = gguf_family(model)
    metadata = Metadata(model, str(model.metadata["general.architecture"]))
    _refuse_unsupported(metadata, NEUTRAL if family.has_multipliers else NEUTRAL | MULTIPLIERS)
    heads, hidden = metadata.integer("attention.head_count"), metadata.integer("embedding_length")
    head_dim = metadata.integer("attention.key_length", hidden // heads)
    if metadata.integer("attention.value_length", head_dim) != head_dim:
        raise metadata.error("attention.value_length", f"must be that of keys, {head_dim}")
    return {
        "architectures": [family.class_name],
        "model_type": family.model_type,
        "dtype": "bfloat16",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": metadata.integer("feed_forward_length"),
        "max_position_embeddings": metadata.integer("context_length"),
        "num_attention_heads": heads,
        "num_hidden_layers": metadata.integer("block_count"),
        "num_key_value_heads": metadata.integer("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "rms_norm_eps": metadata.number("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": HEAD not in model.tensors,
        "vocab_size": _embedding(model).shape[0],
        **rope_entries(metadata, head_dim),
        **_token_ids(model),
        **family.extra(metadata),
    }


def gguf_weights(model: GGUFModel) -> dict[str, TensorInfo]:
    """Return the tensors of a model by their names in a checkpoint, without tables of rotary embeddings.

    Raises ModelFileError for a tensor that is no part of the family.
    """
    layer = gguf_family(model).layer
    return {_checkpoint_name(info, layer): info for name, info in model.tensors.items() if name not in ROPE_TENSORS}


def heads_in_halves(model: GGUFModel, name: str, config: Mapping[str, Any]) -> int | None:
    """Return the number of heads whose rows must be put in halves in the checkpoint's tensor `name`; None: in none."""
    if not gguf_family(model).is_permuted:
        return None
    if ".q_proj." in name:
        return int(config["num_attention_heads"])
    return int(config["num_key_value_heads"]) if ".k_proj." in name else None


def _checkpoint_name(info: TensorInfo, layer: Mapping[str, str]) -> str:
    if match := LAYER_NAME.fullmatch(info.name):
        number, part, kind = match.groups()
        if part in layer:
            return f"model.layers.{number}.{layer[part]}.{kind}"
    elif (match := TOP_NAME.fullmatch(info.name)) and match[1] in TOP_LEVEL:
        return f"{TOP_LEVEL[match[1]]}.{match[2]}"
    raise info.error("is not part of this architecture; fetch the model in another conversion")


def _refuse_unsupported(metadata: Metadata, neutral_values: Mapping[str, int | float]) -> None:
    for name, neutral in neutral_values.items():
        if metadata.get(name, neutral) != neutral:
            raise metadata.error(name, f"must be {neutral}, because such models are not supported")


def _embedding(model: GGUFModel) -> TensorInfo:
    info = model.tensors.get(EMBEDDING)
    if info is None:
        raise ModelFileError(model.file, f"tensor {EMBEDDING!r} is missing; fetch a model, not a vocabulary or adapter")
    return info


def _token_ids(model: GGUFModel) -> dict[str, Any]:
    found = {name: model.metadata.get(f"tokenizer.ggml.{key}_token_id") for key, name in TOKEN_IDS.items()}
    return {f"{name}_token_id": token for name, token in found.items() if isinstance(token, int)}


def _has_bias(metadata: Metadata, part: str) -> bool:
    return f"blk.0.{part}.bias" in metadata.model.tensors


def _llama(metadata: Metadata) -> dict[str, Any]:
    """Biases; Mistral models have this architecture too, and one with a window is named as such."""
    biases = {"attention_bias": _has_bias(metadata, "attn_q"), "mlp_bias": _has_bias(metadata, "ffn_down")}
    if metadata.get("attention.sliding_window", 0) == 0:
        return biases
    window = metadata.integer("attention.sliding_window")
    return {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": window}


def _qwen2(metadata: Metadata) -> dict[str, Any]:
    return {"use_sliding_window": False}


def _qwen3(metadata: Metadata) -> dict[str, Any]:
    return {"use_sliding_window": False, "attention_bias": _has_bias(metadata, "attn_q")}


def _granite(metadata: Metadata) -> dict[str, Any]:
    """Multipliers of IBM's models; a missing one is 1, except that attention has its usual scale."""
    head_dim = metadata.integer("embedding_length") // metadata.integer("attention.head_count")
    return {
        "attention_bias": _has_bias(metadata, "attn_q"),
        "mlp_bias": _has_bias(metadata, "ffn_down"),
        "attention_multiplier": metadata.number("attention.scale", head_dim**-0.5),
        "embedding_multiplier": metadata.number("embedding_scale", 1.0),
        "residual_multiplier": metadata.number("residual_scale", 1.0),
        "logits_scaling": metadata.number("logit_scale", 1.0),
    }


def _phi3(metadata: Metadata) -> dict[str, Any]:
    """A window of 0 is none. The ids that Phi3Config adds by itself are outside of small vocabularies."""
    window = metadata.get("attention.sliding_window", 0)
    original = metadata.integer("rope.scaling.original_context_length", metadata.integer("context_length"))
    ids = {f"{name}_token_id": None for name in TOKEN_IDS.values()}
    return {
        "sliding_window": None if window == 0 else metadata.integer("attention.sliding_window"),
        "original_max_position_embeddings": original,
        **ids,
        **_token_ids(metadata.model),
    }


def _smollm3(metadata: Metadata) -> dict[str, Any]:
    """Every fourth layer has no rotary embedding, which llama.cpp knows without a key."""
    return {
        "no_rope_layer_interval": 4,
        "use_sliding_window": False,
        "attention_bias": _has_bias(metadata, "attn_q"),
        "mlp_bias": _has_bias(metadata, "ffn_down"),
    }


QK_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
FAMILIES = {
    "llama": GGUFFamily("LlamaForCausalLM", "llama", SEPARATE, True, _llama),
    "qwen2": GGUFFamily("Qwen2ForCausalLM", "qwen2", SEPARATE, False, _qwen2),
    "qwen3": GGUFFamily("Qwen3ForCausalLM", "qwen3", {**SEPARATE, **QK_NORMS}, False, _qwen3),
    "phi3": GGUFFamily("Phi3ForCausalLM", "phi3", FUSED, False, _phi3),
    "granite": GGUFFamily("GraniteForCausalLM", "granite", SEPARATE, True, _granite, has_multipliers=True),
    "smollm3": GGUFFamily("SmolLM3ForCausalLM", "smollm3", SEPARATE, True, _smollm3),
}
