"""RoPE tables equal transformers' for every scaling."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from engine.execution.models.config import rope_config
from engine.execution.models.rope import cos_sin_table

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
    ours = cos_sin_table(rope_config({"rope_parameters": given, "max_position_embeddings": 1024}), head_dim, 1024)
    half = head_dim // 2
    assert torch.equal(ours[:, :half], cos[0, :, :half])
    assert torch.equal(ours[:, half:], sin[0, :, :half])
