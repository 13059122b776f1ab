"""Masks of allowed tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels.interface import Kernels
from kernels.slots import SlotMasks


def packed(allowed: torch.Tensor) -> torch.Tensor:
    """Return allowed[N, V] bool as words of 32 bits, [N, ceil(V / 32)] int32."""
    bits = np.packbits(allowed.numpy(), axis=1, bitorder="little")
    words = np.zeros((len(bits), -(-allowed.shape[1] // 32) * 4), np.uint8)
    words[:, : bits.shape[1]] = bits
    return torch.from_numpy(words.view(np.int32))


@pytest.mark.parametrize("vocabulary", [1, 31, 32, 33, 1000])
@pytest.mark.parametrize("density", [0.0, 0.01, 0.5, 1.0])
def test_forbidden_tokens_become_minus_infinity(kernels: Kernels, device, vocabulary: int, density: float):
    """Other rows and allowed tokens keep their logits; a row without any becomes zeros."""
    generator = torch.Generator().manual_seed(vocabulary)
    logits = torch.randn(5, vocabulary, generator=generator)
    rows, allowed = torch.tensor([3, 0, 4]), torch.rand(3, vocabulary, generator=generator) < density
    expected, empty = logits.clone(), []
    for row, mask in zip(rows.tolist(), allowed, strict=True):
        empty.append(not mask.any())
        expected[row] = torch.where(mask, logits[row], -torch.inf) if mask.any() else 0.0
    masked = logits.to(device)
    is_empty = kernels.mask_logits(masked, rows.to(device), packed(allowed).to(device))
    assert torch.equal(masked.cpu(), expected) and is_empty.tolist() == empty


@pytest.mark.parametrize("vocabulary", [1, 33, 1000, 9000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_logits_of_masked_slots_are_masked(kernels: Kernels, device, vocabulary: int, dtype: torch.dtype):
    """Rows of other slots keep theirs, whatever is left of earlier masks."""
    generator = torch.Generator().manual_seed(vocabulary)
    logits = torch.randn(4, vocabulary, generator=generator).to(dtype)
    allowed = torch.rand(6, vocabulary, generator=generator) < 0.5
    is_masked, slot_ids = torch.tensor([1, 0, 1, 0, 1, 0]), torch.tensor([4, 1, 5, 0])
    expected = logits.clone()
    for row, slot in enumerate(slot_ids.tolist()):
        if is_masked[slot]:
            expected[row] = torch.where(allowed[slot], logits[row], -torch.inf)
    masked = logits.to(device)
    masks = SlotMasks(is_masked.to(device, torch.int32), packed(allowed).to(device))
    kernels.mask_slots(masked, masks, slot_ids.to(device))
    assert torch.equal(masked.cpu(), expected)


def test_a_row_that_other_edits_have_emptied_is_empty(kernels: Kernels, device):
    """Its only allowed token is forbidden already; a NaN is left for sampling to report."""
    logits = torch.tensor([[-torch.inf, 1.0, 2.0], [torch.nan, 1.0, 2.0]], device=device)
    allowed = torch.tensor([[True, False, False], [True, False, False]])
    is_empty = kernels.mask_logits(logits, torch.tensor([0, 1], device=device), packed(allowed).to(device))
    assert is_empty.tolist() == [True, False]
    assert logits[0].tolist() == [0.0, 0.0, 0.0] and logits[1].isnan().tolist() == [True, False, False]
