"""RoPE tables equal transformers' for every scaling."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, Phi3Config
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

from engine.execution.models.families import FAMILIES
from engine.execution.models.rope import cos_sin_table
from engine.execution.models.rope_parameters import rope_config

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}

SCALINGS: list[dict[str, Any]] = [
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 2.5},
    LLAMA3 | {"original_max_position_embeddings": 128},
    LLAMA3,
    YARN,
    YARN | {"attention_factor": 1.25},
    YARN | {"beta_fast": 16.0, "beta_slow": 2.0, "truncate": False},
    YARN | {"mscale": 1.0, "mscale_all_dim": 0.8},
    YARN | {"factor": 1.0},
]


@pytest.mark.parametrize("theta", [1e4, 1e6])
@pytest.mark.parametrize("head_dim", [16, 80, 128])
@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda scaling: "-".join(str(value) for value in scaling.values()))
def test_tables_equal_those_of_transformers(scaling: dict[str, Any], head_dim: int, theta: float):
    """Cosines and sines at every position are bitwise equal to transformers'."""
    given = dict(scaling) | {"rope_theta": theta}
    config = LlamaConfig(
        hidden_size=2 * head_dim,
        num_attention_heads=2,
        head_dim=head_dim,
        max_position_embeddings=1024,
        rope_parameters=dict(given),
    )
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(1024)[None])
    read = {"rope_parameters": given, "max_position_embeddings": 1024}
    ours = cos_sin_table(rope_config(read, FAMILIES["LlamaForCausalLM"], head_dim), 1024)
    half = head_dim // 2
    assert torch.equal(ours[:, :half], cos[0, :, :half])
    assert torch.equal(ours[:, half:], sin[0, :, :half])


@pytest.mark.parametrize("served", [64, 1024])
@pytest.mark.parametrize("part", [1.0, 0.75, 0.5])
@pytest.mark.parametrize("head_dim", [16, 96, 128])
@pytest.mark.parametrize("kind", ["default", "longrope"])
def test_tables_of_phi_3_equal_those_of_transformers(kind: str, head_dim: int, part: float, served: int):
    """transformers takes the long factors for more than 64 positions, the server if it accepts so many."""
    pairs = int(head_dim * part) // 2
    factors = [1.0 + pair / 7 for pair in range(pairs)]
    scaling = (
        {"short_factor": factors, "long_factor": [3.0 * factor for factor in factors]} if kind != "default" else {}
    )
    given = {"rope_type": kind, "rope_theta": 1e4, "partial_rotary_factor": part} | scaling
    lengths = {"max_position_embeddings": 1024, "original_max_position_embeddings": 64}
    config = Phi3Config(hidden_size=2 * head_dim, num_attention_heads=2, rope_parameters=dict(given), **lengths)
    cos, sin = Phi3RotaryEmbedding(config)(torch.zeros(1), torch.arange(served)[None])
    read = {"rope_parameters": given} | lengths
    ours = cos_sin_table(rope_config(read, FAMILIES["Phi3ForCausalLM"], head_dim, served), served)
    assert torch.equal(ours[:, :pairs], cos[0, :, :pairs])
    assert torch.equal(ours[:, pairs:], sin[0, :, :pairs])
