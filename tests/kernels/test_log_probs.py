"""Log probabilities agree with log-softmax in float64."""

from __future__ import annotations

import pytest
import torch

from kernels.interface import Kernels


@pytest.mark.parametrize("k", [0, 1, 5])
def test_log_probs_equal_the_log_of_the_softmax(kernels: Kernels, device: torch.device, k: int):
    """Results are the chosen token's log probability, and the k largest in descending order."""
    torch.manual_seed(0)
    logits = torch.randn(3, 101, device=device) * 4
    chosen = torch.tensor([0, 50, int(logits[2].argmax())], device=device)
    chosen_log_prob, ids, top = kernels.log_probs(logits, chosen, k)
    expected = logits.double().softmax(dim=-1).log()
    torch.testing.assert_close(chosen_log_prob.double(), expected[range(3), chosen], atol=1e-5, rtol=1e-5)
    order = expected.argsort(dim=-1, descending=True)
    assert torch.equal(ids, order[:, :k])
    torch.testing.assert_close(top.double(), expected.gather(1, order[:, :k]), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_read_in_float32(kernels: Kernels, device: torch.device, dtype: torch.dtype):
    """Results are float32, bitwise equal to those of the same numbers in float32."""
    torch.manual_seed(0)
    logits = (torch.randn(3, 101, device=device) * 4).to(dtype)
    chosen = torch.tensor([0, 50, 100], device=device)
    for got, expected in zip(
        kernels.log_probs(logits, chosen, 3), kernels.log_probs(logits.float(), chosen, 3), strict=True
    ):
        assert torch.equal(got, expected) and got.dtype == expected.dtype
