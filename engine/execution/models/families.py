"""Families of decoders: how each class name of transformers reads config.json, and how it names its tensors.

A family states its differences from Llama. `DecoderConfig` reads everything by one of these descriptions, and the files
that follow know no names of families.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from engine.execution.models.config_values import positive
from engine.execution.models.errors import ModelConfigError

Windows = Callable[[Mapping[str, Any], int], tuple[int, ...]]  # (config, layers) -> window of each, 0 for none


def full_attention(config: Mapping[str, Any], num_layers: int) -> tuple[int, ...]:
    return (0,) * num_layers


def one_window(config: Mapping[str, Any], num_layers: int) -> tuple[int, ...]:
    """Return `sliding_window` for all layers; it may be null."""
    if (layer_types := config.get("layer_types")) is not None:
        raise ModelConfigError("layer_types", layer_types, "is not part of a configuration of this family")
    return (_window(config),) * num_layers


def windows_by_layer(config: Mapping[str, Any], num_layers: int) -> tuple[int, ...]:
    """Return the windows that `use_sliding_window` allows: of the layers of a type, or from a number of layers on."""
    window = _window(config) if config.get("use_sliding_window", False) else 0
    if config.get("layer_types") is None:
        first_sliding = config.get("max_window_layers", 28)
        if not isinstance(first_sliding, int) or isinstance(first_sliding, bool) or first_sliding < 0:
            raise ModelConfigError("max_window_layers", first_sliding, "must be an integer of at least 0")
        return tuple(window if layer >= first_sliding else 0 for layer in range(num_layers))
    return tuple(window if kind == "sliding_attention" else 0 for kind in _layer_types(config, num_layers))


def _window(config: Mapping[str, Any]) -> int:
    if config.get("sliding_window", 4096) is None:
        return 0
    return positive(config, "sliding_window", 4096)


def _layer_types(config: Mapping[str, Any], num_layers: int) -> list[str]:
    layer_types: list[str] = config["layer_types"]
    if len(layer_types) != num_layers or set(layer_types) - {"full_attention", "sliding_attention"}:
        raise ModelConfigError(
            "layer_types", layer_types, f"must have {num_layers} entries, each full_attention or sliding_attention"
        )
    return layer_types


@dataclass(frozen=True)
class Family:
    """Differences of one architecture from Llama.

    needs_kv_heads: num_key_value_heads may not be missing. default_head_dim: None: hidden_size divided by the heads.
    always_qkv_bias: queries, keys and values have biases without a key. reads_attention_bias, reads_mlp_bias: these
    keys have an effect. qk_norm: queries and keys are normalised. windows: sliding windows of the layers.
    """

    class_name: str
    needs_kv_heads: bool = True
    default_head_dim: int | None = None
    always_qkv_bias: bool = False
    reads_attention_bias: bool = False
    reads_mlp_bias: bool = False
    qk_norm: bool = False
    windows: Windows = full_attention


FAMILIES = {
    family.class_name: family
    for family in (
        # Configurations from before grouped-query attention have no number of key heads.
        Family("LlamaForCausalLM", needs_kv_heads=False, reads_attention_bias=True, reads_mlp_bias=True),
        Family("MistralForCausalLM", windows=one_window),
        Family("Qwen2ForCausalLM", always_qkv_bias=True, windows=windows_by_layer),
        Family(
            "Qwen3ForCausalLM",
            default_head_dim=128,
            reads_attention_bias=True,
            qk_norm=True,
            windows=windows_by_layer,
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
