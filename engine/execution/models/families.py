"""Families of decoders: how each class name of transformers reads config.json, and how it names its tensors.

A family states its differences from Llama. `DecoderConfig` reads everything by one of these descriptions, and the files
that follow know no names of families.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from engine.execution.models.config_values import positive
from engine.execution.models.errors import ModelConfigError

Value = TypeVar("Value")
PerLayer = Callable[[Mapping[str, Any], int], tuple[Value, ...]]  # (config, layers) -> value of each


def full_attention(config: Mapping[str, Any], num_layers: int) -> tuple[int, ...]:
    return (0,) * num_layers


def mistral_windows(config: Mapping[str, Any], num_layers: int) -> tuple[int, ...]:
    """Return `sliding_window` for all layers, 4,096 if the key is missing, none if it is null."""
    return _same_window(config, num_layers, 4096)


def phi3_windows(config: Mapping[str, Any], num_layers: int) -> tuple[int, ...]:
    """Return `sliding_window` for all layers, none if it is missing or null."""
    return _same_window(config, num_layers, None)


def qwen_windows(config: Mapping[str, Any], num_layers: int) -> tuple[int, ...]:
    """Return the windows that `use_sliding_window` allows: of the layers of a type, or from a number of layers on."""
    window = _window(config, 4096) if config.get("use_sliding_window", False) else 0
    if config.get("layer_types") is None:
        first_sliding = config.get("max_window_layers", 28)
        if not isinstance(first_sliding, int) or isinstance(first_sliding, bool) or first_sliding < 0:
            raise ModelConfigError("max_window_layers", first_sliding, "must be an integer of at least 0")
        return tuple(window if layer >= first_sliding else 0 for layer in range(num_layers))
    return tuple(window if kind == "sliding_attention" else 0 for kind in _layer_types(config, num_layers))


def smollm3_windows(config: Mapping[str, Any], num_layers: int) -> tuple[int, ...]:
    """Return the windows that `use_sliding_window` allows: of the layers of a type, or of those without rotation."""
    window = _window(config, None) if config.get("use_sliding_window", False) else 0
    if config.get("layer_types") is None:
        return tuple(0 if is_rotated else window for is_rotated in smollm3_rotation(config, num_layers))
    layer_types = _layer_types(config, num_layers)
    if not window and "sliding_attention" in layer_types:
        raise ModelConfigError(
            "layer_types", layer_types, "has sliding_attention, which needs use_sliding_window and sliding_window"
        )
    return tuple(window if kind == "sliding_attention" else 0 for kind in layer_types)


def _same_window(config: Mapping[str, Any], num_layers: int, default: int | None) -> tuple[int, ...]:
    if (layer_types := config.get("layer_types")) is not None:
        raise ModelConfigError("layer_types", layer_types, "is not part of a configuration of this family")
    return (_window(config, default),) * num_layers


def _window(config: Mapping[str, Any], default: int | None) -> int:
    """Return `sliding_window`, 0 if it is null."""
    if config.get("sliding_window", default) is None:
        return 0
    return positive(config, "sliding_window", default)


def _layer_types(config: Mapping[str, Any], num_layers: int) -> list[str]:
    layer_types: list[str] = config["layer_types"]
    if len(layer_types) != num_layers or set(layer_types) - {"full_attention", "sliding_attention"}:
        raise ModelConfigError(
            "layer_types", layer_types, f"must have {num_layers} entries, each full_attention or sliding_attention"
        )
    return layer_types


def rotation_everywhere(config: Mapping[str, Any], num_layers: int) -> tuple[bool, ...]:
    return (True,) * num_layers


def smollm3_rotation(config: Mapping[str, Any], num_layers: int) -> tuple[bool, ...]:
    """Return the entries of `no_rope_layers`, which are 0 for no rotation; by default, each fourth one is."""
    key = "no_rope_layers"
    given = config.get(key)
    if given is None:
        interval = positive(config, "no_rope_layer_interval", 4)
        return tuple((layer + 1) % interval != 0 for layer in range(num_layers))
    if not isinstance(given, list) or len(given) < num_layers or not all(type(one) in (int, bool) for one in given):
        raise ModelConfigError(key, given, f"must be a list of at least {num_layers} numbers, one for each layer")
    if set(given) - {0, 1}:
        raise ModelConfigError(key, given, "must have 1 for a layer with rotary embedding, and 0 for one without")
    return tuple(bool(one) for one in given[:num_layers])


ROPE_KINDS = {kind: kind for kind in ("default", "linear", "llama3", "yarn")}
# Phi3Config of transformers reads the names that earlier files of the family have for longrope.
PHI3_ROPE_KINDS = {"default": "default", "longrope": "longrope", "su": "longrope", "yarn": "longrope"}


@dataclass(frozen=True)
class Family:
    """Differences of one architecture from Llama.

    needs_kv_heads: num_key_value_heads may not be missing. default_head_dim: None: hidden_size divided by the heads.
    always_qkv_bias: queries, keys and values have biases without a key. reads_attention_bias, reads_mlp_bias: these
    keys have an effect. qk_norm: queries and keys are normalised. has_multipliers: the keys of Granite have an effect.
    windows, rotated: sliding windows of the layers, and which have rotary embedding. rope_kinds: how each rope type is
    computed. partial_rotary: a part of each head may be rotated. qkv, gate_up: names of the projections, one if they
    are stored as one matrix. Other defaults are those of keys that are missing.
    """

    class_name: str
    needs_kv_heads: bool = True
    default_head_dim: int | None = None
    default_max_position: int = 2048
    default_original_max_position: int | None = None
    default_norm_eps: float = 1e-6
    default_theta: float = 10000.0
    tied_by_default: bool = False
    always_qkv_bias: bool = False
    reads_attention_bias: bool = False
    reads_mlp_bias: bool = False
    qk_norm: bool = False
    has_multipliers: bool = False
    windows: PerLayer[int] = full_attention
    rotated: PerLayer[bool] = rotation_everywhere
    rope_kinds: Mapping[str, str] = field(default_factory=lambda: ROPE_KINDS)
    partial_rotary: bool = False
    qkv: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    gate_up: tuple[str, ...] = ("gate_proj", "up_proj")


FAMILIES = {
    family.class_name: family
    for family in (
        # Configurations from before grouped-query attention have no number of key heads.
        Family("LlamaForCausalLM", needs_kv_heads=False, reads_attention_bias=True, reads_mlp_bias=True),
        Family("MistralForCausalLM", windows=mistral_windows),
        Family("Qwen2ForCausalLM", always_qkv_bias=True, windows=qwen_windows),
        Family(
            "Qwen3ForCausalLM",
            default_head_dim=128,
            reads_attention_bias=True,
            qk_norm=True,
            windows=qwen_windows,
        ),
        Family(
            "SmolLM3ForCausalLM",
            default_max_position=32768,
            default_theta=2_000_000.0,
            tied_by_default=True,
            reads_attention_bias=True,
            reads_mlp_bias=True,
            windows=smollm3_windows,
            rotated=smollm3_rotation,
        ),
        Family(
            "Phi3ForCausalLM",
            needs_kv_heads=False,
            default_max_position=4096,
            default_original_max_position=4096,
            default_norm_eps=1e-5,
            windows=phi3_windows,
            rope_kinds=PHI3_ROPE_KINDS,
            partial_rotary=True,
            qkv=("qkv_proj",),
            gate_up=("gate_up_proj",),
        ),
        Family(
            "GraniteForCausalLM",
            needs_kv_heads=False,
            reads_attention_bias=True,
            reads_mlp_bias=True,
            has_multipliers=True,
        ),
    )
}


def family_of(config: Mapping[str, Any]) -> Family:
    """Return the family of config.json. Raises ModelConfigError if this engine computes none of its architectures."""
    architectures = config.get("architectures")
    for name in architectures or ():
        if name in FAMILIES:
            return FAMILIES[name]
    raise ModelConfigError("architectures", architectures, f"must contain one of {', '.join(FAMILIES)}")
