"""The writer of Q4_K and Q6_K in tests rounds as well as these types can."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from tests.k_quants import quantize_q4_k, quantize_q6_k


@pytest.mark.parametrize(
    ("write", "kind", "tolerance"),
    [(quantize_q4_k, gguf.GGMLQuantizationType.Q4_K, 0.08), (quantize_q6_k, gguf.GGMLQuantizationType.Q6_K, 0.02)],
)
def test_package_gguf_reads_what_was_written(write, kind: gguf.GGMLQuantizationType, tolerance: float):
    """Values of each group are near the original ones, also where a group or all of a block is zero."""
    rows = np.random.default_rng(0).standard_normal((5, 768)).astype(np.float32)
    rows[1, 32:64], rows[2, :256] = 0, 0
    found = gguf.dequantize(write(rows), kind)
    assert np.linalg.norm(found - rows) < tolerance * np.linalg.norm(rows)
    assert not found[2, :256].any()
