"""What an engine decides from its options, the model and the kernels."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.build import build_engine
from engine.config import EngineConfig
from engine.errors import ConfigError
from tests.kernels.conftest import cpu_kernels


def bytes_per_page(model: Path, **options) -> int:
    engine = build_engine(EngineConfig(model=str(model), device="cpu", num_pages=4, swap_space=0.0, **options))
    data: torch.Tensor = engine._runner._cache.data
    return data.nbytes // 4


def test_keys_and_values_are_kept_as_the_weights_are(demo: Path):
    """A bfloat16 checkpoint's take half of what float32 takes; other kernels keep what they compute in."""
    cpu_kernels()
    narrow, wide = bytes_per_page(demo), bytes_per_page(demo, kv_cache_dtype="float32")
    assert 2 * narrow == wide
    assert bytes_per_page(demo, kernels="torch") == wide
    assert bytes_per_page(demo, kv_cache_dtype="bfloat16") == narrow


@pytest.mark.parametrize(
    "options",
    [
        {"kv_cache_dtype": "fp8"},
        {"kv_cache_dtype": "float16"},
        {"kv_cache_dtype": "bfloat16", "kernels": "torch"},
        {"kv_cache_dtype": "float32", "dtype": "bfloat16", "kernels": "torch"},
    ],
)
def test_a_cache_that_cannot_be_had_is_refused_by_name(demo: Path, options: dict[str, str]):
    """Nothing else is quietly taken instead."""
    with pytest.raises(ConfigError, match=f"kv_cache_dtype.*{options['kv_cache_dtype']}"):
        bytes_per_page(demo, **options)


def test_what_is_computed_in_is_the_checkpoints_unless_told_otherwise(demo: Path):
    """As it is told to people: a bfloat16 checkpoint is computed in bfloat16, but by torch on a CPU."""
    cpu_kernels()

    def told(**options) -> str:
        return build_engine(EngineConfig(model=str(demo), device="cpu", num_pages=64, **options)).info.dtype

    assert told() == told(dtype="bfloat16") == "bfloat16"
    assert told(dtype="float32") == told(kernels="torch") == "float32"


def test_batch_invariance_is_had_or_refused_by_name(demo: Path):
    """float32 on a CPU always has it, bfloat16 where it is compiled; what cannot have it says so instead of
    promising."""
    cpu_kernels()
    bytes_per_page(demo, batch_invariant=True)
    bytes_per_page(demo, batch_invariant=True, dtype="bfloat16")
    with pytest.raises(ConfigError, match=r"batch_invariant.*float32"):
        bytes_per_page(demo, batch_invariant=True, dtype="bfloat16", kernels="torch")
