"""Description of a checkpoint by compressed-tensors, as LLM Compressor writes it.

`compressed_layers` reads the tensors; this module knows which modules have which scheme.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from engine.execution.models.errors import WeightsError
from engine.execution.models.quantized import targets
from engine.execution.models.quantized.compressed_layers import PACKED, SUFFIXES, Scheme, compressed_layer
from engine.execution.models.quantized.fields import ALTERNATIVES, Fields
from engine.execution.models.quantized.fp8 import FLOAT8, block_of
from engine.execution.models.quantized.interface import Layer
from engine.execution.models.tensor_table import TensorTable

DENSE, MIXED = "dense", "mixed-precision"
KINDS = {
    PACKED: ("int",),
    "int-quantized": ("int",),
    "float-quantized": ("float",),
    "naive-quantized": ("int", "float"),
}
BITS = {"int": (4, 8), "float": (8,)}
STRATEGIES = ("tensor", "channel", "group", "block")
ORDERS, SCATTERED_ORDERS = ("weight", "static"), ("group", "dynamic")  # only the latter scatter groups over inputs
HARMLESS = frozenset({"quant_method", "quantization_status", "global_compression_ratio", "version"})
HARMLESS_OF_WEIGHTS = frozenset({"observer", "observer_kwargs", "scale_dtype", "zp_dtype"})
ACTIVATIONS = "Activations are not quantised, although {} describes that: the computation is more precise"


@dataclass(frozen=True)
class CompressedTensors:
    """Format of a checkpoint."""

    schemes: tuple[Scheme, ...]
    ignore: tuple[str, ...]
    notes: tuple[str, ...]

    @classmethod
    def parse(cls, key: str, content: Any) -> CompressedTensors:
        """Read the description. Raises ModelConfigError with key and value."""
        fields = Fields(key, content)
        default = fields.choice("format", allowed=(*KINDS, DENSE, MIXED))
        groups = fields.object("config_groups") or {}
        found = [_parse_group(f"{key}.config_groups.{name}", group, default) for name, group in groups.items()]
        ignore = fields.texts("ignore")
        targets.check_patterns(fields, "ignore", ignore)
        has_cache_scheme = fields.get("kv_cache_scheme") is not None
        if (sparsity := fields.object("sparsity_config")) is not None:
            Fields(f"{key}.sparsity_config", sparsity).choice("format", allowed=(DENSE,), default=DENSE)
        fields.finish(HARMLESS)
        notes = [ACTIVATIONS.format(key)] if any(has_activations for _, has_activations in found) else []
        if has_cache_scheme:
            notes.append(f"The KV cache is not quantised as {key}.kv_cache_scheme describes; see --kv-cache-dtype")
        return cls(tuple(scheme for scheme, _ in found if scheme is not None), ignore, tuple(notes))

    def layer(self, tensors: TensorTable, module: str) -> Layer | None:
        weight = tensors.find(f"{module}.weight")
        names = [name for suffix in SUFFIXES if tensors.find(name := f"{module}.{suffix}") is not None]
        if not names and (weight is None or weight.dtype not in (torch.int8, FLOAT8)):
            return None
        scheme = self._scheme(module)
        if scheme is None:
            name = names[0] if names else f"{module}.weight"
            raise WeightsError(
                f"{tensors.require(name).file}: tensor {name} is of a quantised module, but quantization_config has no "
                f"group with {module} as a target, or ignores it; fetch the model again"
            )
        return compressed_layer(tensors, module, scheme)

    def _scheme(self, module: str) -> Scheme | None:
        """Return the scheme that matches a module most closely; the first of equals."""
        if targets.rank(module, self.ignore) is not None:
            return None
        ranks = [(rank, index) for index, each in enumerate(self.schemes)
                 if (rank := targets.rank(module, each.targets)) is not None]  # fmt: skip
        return self.schemes[min(ranks)[1]] if ranks else None


def _parse_group(key: str, content: Any, default: str) -> tuple[Scheme | None, bool]:
    """Return the scheme of a group, None if its weights are not quantised, and whether it quantises activations."""
    fields = Fields(key, content)
    names = fields.texts("targets")
    targets.check_patterns(fields, "targets", names)
    found = fields.choice("format", allowed=(*KINDS, DENSE), default=None if default == MIXED else default)
    weights = fields.object("weights")
    has_activations = any([fields.get("input_activations"), fields.get("output_activations")])
    fields.finish(frozenset())
    if weights is None or found == DENSE:
        return None, has_activations
    return _parse_weights(f"{key}.weights", weights, names, found), has_activations


def _parse_weights(key: str, content: Any, names: tuple[str, ...], found: str) -> Scheme:
    fields = Fields(key, content)
    kind = fields.choice("type", allowed=KINDS[found], default="int")
    bits = fields.choice("num_bits", allowed=BITS[kind], default=8)
    is_symmetric = fields.choice("symmetric", allowed=(True,) if kind == "float" else (True, False), default=True)
    fields.choice("dynamic", allowed=(False,), default=False)
    order = fields.choice("actorder", allowed=(*ORDERS, *SCATTERED_ORDERS, False), default=False)
    block = _block(fields)
    fields.finish(HARMLESS_OF_WEIGHTS)
    return Scheme(names, found, kind, bits, is_symmetric, block, order in SCATTERED_ORDERS)


def _block(fields: Fields) -> tuple[int, int]:
    """Return the outputs and inputs that share a scale, 0 for all."""
    size, block = fields.get("group_size"), fields.get("block_structure")
    default = "tensor" if size is None else "channel" if size == -1 else "group"
    strategy = fields.choice("strategy", allowed=STRATEGIES, default=default)
    if strategy == "group" and fields.integer("group_size") < 0:
        raise fields.error("group_size", size, f"must be positive with strategy group; {ALTERNATIVES}")
    if strategy == "block":
        return block_of(fields, "block_structure", block)
    return {"tensor": (0, 0), "channel": (1, 0), "group": (1, size)}[strategy]
