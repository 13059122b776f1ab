"""Rotary embedding of a GGUF model, as config.json describes it.

GGUF has keys for linear scaling and yarn. The scalings of Llama 3 and Phi 3 are tables of factors, one for each pair of
dimensions, without the numbers that they were computed from.
"""

from __future__ import annotations

import math
import struct
from typing import Any

from engine.model_files.errors import ModelFileError
from engine.model_files.gguf import read_rows
from engine.model_files.gguf_metadata import Metadata

LLAMA3_FACTORS = "rope_freqs.weight"
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
ROPE_TENSORS = (LLAMA3_FACTORS, LONG_FACTORS, SHORT_FACTORS)
DEFAULT_THETA = 10000.0
MAX_HEAD_DIM = 1 << 13
# Only the ratios of these and the original context have an effect, and all published models have the same two.
LOW_FREQ_FACTOR, HIGH_FREQ_FACTOR = 1.0, 4.0
ORIGINAL_CONTEXTS = (8192, 2048, 4096, 16384, 32768, 65536, 131072)
TOLERANCE = 1e-3  # of factors, which were computed in float32
YARN_NUMBERS = {"yarn_beta_fast": "beta_fast", "yarn_beta_slow": "beta_slow"}
# Further parameters of yarn, with the values that config.json implies.
YARN_IMPLIED = {"yarn_ext_factor": 1.0, "yarn_attn_factor": 1.0, "yarn_log_multiplier": 0.0}


def rope_entries(metadata: Metadata, head_dim: int) -> dict[str, Any]:
    """Return the entries of config.json on positions, without the context length.

    Raises ModelFileError for a scaling that is not supported.
    """
    theta = metadata.number("rope.freq_base", DEFAULT_THETA)
    if theta <= 0:
        raise metadata.error("rope.freq_base", "must be positive")
    rotated = metadata.integer("rope.dimension_count", head_dim)
    if rotated > min(head_dim, MAX_HEAD_DIM) or rotated % 2:
        most = min(head_dim, MAX_HEAD_DIM)
        raise metadata.error("rope.dimension_count", f"must be even, and at most the size of a head, {most}")
    entries: dict[str, Any] = {"rope_theta": theta}
    if rotated != head_dim:
        # The product of this factor and the size of a head is rounded down when config.json is read.
        factor = rotated / head_dim
        entries["partial_rotary_factor"] = factor if int(head_dim * factor) == rotated else math.nextafter(factor, 1.0)
    if (scaling := _scaling(metadata, theta, rotated)) is not None:
        entries["rope_scaling"] = scaling
    return entries


def _scaling(metadata: Metadata, theta: float, rotated: int) -> dict[str, Any] | None:
    tensors = metadata.model.tensors
    kind = metadata.get("rope.scaling.type", "none")
    if LONG_FACTORS in tensors or SHORT_FACTORS in tensors:
        return _longrope(metadata, rotated)
    if LLAMA3_FACTORS in tensors:
        return _llama3(metadata, theta, rotated)
    if metadata.get("rope.scale_linear", 1.0) != 1.0:
        raise metadata.error("rope.scale_linear", "must be replaced by rope.scaling.factor")
    if kind == "none":
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": metadata.number("rope.scaling.factor")}
    if kind == "yarn":
        return _yarn(metadata)
    raise metadata.error("rope.scaling.type", "must be none, linear or yarn, or have a table of factors")


def _yarn(metadata: Metadata) -> dict[str, Any]:
    for name, implied in YARN_IMPLIED.items():
        if metadata.number(f"rope.scaling.{name}", implied) != implied:
            raise metadata.error(f"rope.scaling.{name}", f"must be {implied}, the only supported value")
    given = {
        entry: metadata.number(f"rope.scaling.{name}")
        for name, entry in YARN_NUMBERS.items()
        if metadata.get(f"rope.scaling.{name}") is not None
    }
    return {
        "rope_type": "yarn",
        "factor": metadata.number("rope.scaling.factor"),
        "original_max_position_embeddings": metadata.integer("rope.scaling.original_context_length"),
        **given,
    }


def _longrope(metadata: Metadata, rotated: int) -> dict[str, Any]:
    """Phi 3: factors up to the original context, and beyond it."""
    scaling: dict[str, Any] = {
        "rope_type": "longrope",
        "long_factor": _factors(metadata, LONG_FACTORS, rotated),
        "short_factor": _factors(metadata, SHORT_FACTORS, rotated),
    }
    if metadata.get("rope.scaling.attn_factor") is not None:
        scaling["attention_factor"] = metadata.number("rope.scaling.attn_factor")
    return scaling


def _llama3(metadata: Metadata, theta: float, rotated: int) -> dict[str, Any] | None:
    """Find the parameters that give the table of factors, which is the converter's formula."""
    factors = _factors(metadata, LLAMA3_FACTORS, rotated)
    factor = max(factors)
    if factor == min(factors) == 1.0:
        return None
    for original in ORIGINAL_CONTEXTS:
        expected = _llama3_factors(theta, rotated, factor, original)
        if all(math.isclose(one, other, rel_tol=TOLERANCE) for one, other in zip(factors, expected, strict=True)):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": LOW_FREQ_FACTOR,
                "high_freq_factor": HIGH_FREQ_FACTOR,
                "original_max_position_embeddings": original,
            }
    raise metadata.model.tensors[LLAMA3_FACTORS].error(
        "has factors of rotary embedding that are not those of Llama 3; fetch the model as safetensors"
    )


def _llama3_factors(theta: float, rotated: int, factor: float, original: int) -> list[float]:
    """Return the divisors of the frequencies, as `LlamaModel.generate_extra_tensors` of llama.cpp writes them."""
    factors = []
    for dimension in range(0, rotated, 2):
        turns = original / (2 * math.pi * theta ** (dimension / rotated))
        smooth = (turns - LOW_FREQ_FACTOR) / (HIGH_FREQ_FACTOR - LOW_FREQ_FACTOR)
        smooth = min(max(smooth, 0.0), 1.0)
        factors.append(1 / ((1 - smooth) / factor + smooth))
    return factors


def _factors(metadata: Metadata, name: str, rotated: int) -> list[float]:
    """Return a table of positive factors, one for each pair of dimensions."""
    info = metadata.model.tensors.get(name)
    if info is None:
        raise ModelFileError(metadata.model.file, f"tensor {name!r} is missing; convert the model again")
    if info.type.name != "F32" or info.shape != (rotated // 2,):
        raise info.error(
            f"must be F32 of shape {(rotated // 2,)}, got {info.type.name} of {info.shape}; convert the model again"
        )
    factors = list(struct.unpack(f"<{rotated // 2}f", read_rows(info, 0, 1)))
    if not all(0 < factor < math.inf for factor in factors):
        raise info.error("must have positive numbers; the file is damaged, fetch it again")
    return factors
