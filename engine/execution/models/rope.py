"""Tables of cosines and sines for rotary embedding, with the frequency scalings of supported checkpoints.

Sources: default, Su et al. 2021; linear, Chen et al. 2023 (position interpolation); llama3, the Llama 3.1 reference
code; yarn, Peng et al. 2023; longrope, Ding et al. 2024. Each follows transformers.modeling_rope_utils operation by
operation, so that float32 tables are equal.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engine.execution.models.config import DecoderConfig
from engine.execution.models.errors import ModelConfigError
from engine.execution.models.rope_parameters import RopeConfig
from engine.host import free_memory_bytes


def cos_sin_table(rope: RopeConfig, max_position: int) -> Tensor:
    """Return [max_position, rope.dim] float32 on the CPU: first half cosines, second half sines."""
    frequencies, attention_factor = inverse_frequencies(rope)
    angles = torch.arange(max_position, dtype=torch.float32).unsqueeze(1) * frequencies
    return torch.cat((angles.cos() * attention_factor, angles.sin() * attention_factor), dim=-1)


def check_rope_table(config: DecoderConfig) -> None:
    """Raise ModelConfigError if the table does not fit into free memory."""
    needed = 3 * 4 * config.max_position * config.rope.dim  # angles, cosines and sines, and their concatenation
    if needed > (free := free_memory_bytes()):
        raise ModelConfigError(
            "max_position_embeddings",
            config.max_position,
            f"its table of rotary embeddings needs {needed / 2**30:.1f} GiB, but only {free / 2**30:.1f} GiB are free",
        )


def inverse_frequencies(rope: RopeConfig) -> tuple[Tensor, float]:
    """Return the angles per position ([rope.dim / 2] float32) and the factor on cosines and sines."""
    exponents = torch.arange(0, rope.dim, 2, dtype=torch.float32) / rope.dim
    plain = 1.0 / (rope.theta**exponents)
    match rope.kind:
        case "default":
            return plain, 1.0
        case "linear":
            return plain / rope.factor, 1.0
        case "llama3":
            return _llama3(rope, plain), 1.0
        case "yarn":
            return _yarn(rope, rope.theta**exponents), _yarn_attention_factor(rope)
        case "longrope":
            assert rope.attention_factor is not None
            return 1.0 / (torch.tensor(rope.divisors) * rope.theta**exponents), rope.attention_factor
    raise AssertionError(rope.kind)  # DecoderConfig allows no other kind


def _llama3(rope: RopeConfig, plain: Tensor) -> Tensor:
    """Stretch long wavelengths by the factor, keep short ones, and blend those between."""
    wavelengths = 2 * math.pi / plain
    low = rope.original_max_position / rope.low_freq_factor
    high = rope.original_max_position / rope.high_freq_factor
    scaled = torch.where(wavelengths > low, plain / rope.factor, plain)
    smooth = rope.original_max_position / wavelengths - rope.low_freq_factor
    smooth = smooth / (rope.high_freq_factor - rope.low_freq_factor)
    blended = (1 - smooth) * scaled / rope.factor + smooth * scaled
    between = (wavelengths >= high) & (wavelengths <= low)
    return torch.where(between, blended, scaled)


def _yarn(rope: RopeConfig, position_frequencies: Tensor) -> Tensor:
    """Interpolate low frequencies and keep high ones, with a linear ramp between two correction bounds."""
    low, high = (_correction_bound(rope, rotations) for rotations in (rope.beta_fast, rope.beta_slow))
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    if low == high:
        high += 0.001  # as in transformers: the ramp must have a width
    ramp = ((torch.arange(rope.dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    kept = 1 - ramp
    return 1.0 / (rope.factor * position_frequencies) * (1 - kept) + 1.0 / position_frequencies * kept


def _correction_bound(rope: RopeConfig, rotations: float) -> float:
    """Return the dimension whose frequency makes this many rotations over the original context."""
    turns = rope.original_max_position / (rotations * 2 * math.pi)
    return rope.dim * math.log(turns) / (2 * math.log(rope.theta))


def _yarn_attention_factor(rope: RopeConfig) -> float:
    """Return yarn's attention temperature, which is multiplied into cosines and sines."""
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return _mscale(rope.factor, rope.mscale) / _mscale(rope.factor, rope.mscale_all_dim)
    return _mscale(rope.factor, 1.0)


def _mscale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
