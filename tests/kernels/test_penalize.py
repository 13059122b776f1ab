"""Penalties of tokens that a text has already."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels.interface import Kernels
from kernels.slots import SamplingTensors, SeenTokens, SlotRecord, as_bytes


def penalties(values: list[tuple[float, float, float]]) -> SamplingTensors:
    """Return parameters of rows with these (repetition, frequency, presence) penalties."""
    records = np.zeros(len(values), SlotRecord)
    for record, (repetition, frequency, presence) in zip(records, values, strict=True):
        record["repetition_penalty"] = repetition
        record["frequency_penalty"], record["presence_penalty"] = frequency, presence
    return SamplingTensors(torch.from_numpy(as_bytes(records)), torch.zeros(len(values), dtype=torch.int64))


def expected_logit(logit: float, count: float, in_prompt: bool, parameters: tuple[float, float, float]) -> float:
    """Return the penalised logit, with each operation rounded to float32."""
    value, (repetition, frequency, presence) = np.float32(logit), map(np.float32, parameters)
    if count > 0 or in_prompt:
        value = value / repetition if value > 0 else value * repetition
    value = value - frequency * np.float32(count)
    return float(value - presence) if count > 0 else float(value)


@pytest.mark.parametrize("vocabulary", [1, 63, 64, 65, 1000])
@pytest.mark.parametrize("density", [0.0, 0.02, 1.0])
def test_seen_tokens_are_penalised_and_no_others(kernels: Kernels, device, vocabulary: int, density: float):
    """Each row has its own parameters and table row; rows that are not listed keep their logits."""
    generator = torch.Generator().manual_seed(vocabulary)
    logits = torch.randn(4, vocabulary, generator=generator)
    counts = torch.randint(1, 9, (6, vocabulary), generator=generator).float()
    counts *= torch.rand(6, vocabulary, generator=generator) < density
    in_prompt = torch.rand(6, vocabulary, generator=generator) < density
    rows, slots = [3, 0, 1], [5, 2, 0]
    parameters = [(1.3, 0.0, 0.0), (1.0, 0.7, -0.3), (0.8, -0.2, 1.5)]
    penalised = logits.clone().to(device)
    seen = SeenTokens(counts.to(device), in_prompt.to(device))
    row_ids, slot_ids = (torch.tensor(ids, device=device) for ids in (rows, slots))
    kernels.penalize(penalised, row_ids, slot_ids, seen, penalties(parameters).to(device))
    expected = logits.clone()
    for row, slot, values in zip(rows, slots, parameters, strict=True):
        for token in range(vocabulary):
            logit, count = logits[row, token].item(), counts[slot, token].item()
            expected[row, token] = expected_logit(logit, count, bool(in_prompt[slot, token]), values)
    assert torch.equal(penalised.cpu(), expected)


def test_a_nan_stays_one(kernels: Kernels, device):
    """Sampling reports it."""
    logits = torch.tensor([[torch.nan, torch.inf, -torch.inf]], device=device)
    seen = SeenTokens(torch.ones(1, 3, device=device), torch.ones(1, 3, dtype=torch.bool, device=device))
    index = torch.tensor([0], device=device)
    kernels.penalize(logits, index, index, seen, penalties([(1.2, 0.5, 0.5)]).to(device))
    assert logits.isnan().tolist() == [[True, False, False]] and logits[0, 1:].tolist() == [torch.inf, -torch.inf]
