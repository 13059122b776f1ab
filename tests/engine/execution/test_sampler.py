"""Sampling agrees with a naive implementation that edits one row at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.execution.sampler import Sampler
from engine.execution.slots import SlotState
from engine.scheduling.batch import Batch, Join
from engine.types import SamplingParams
from kernels.load import load
from tests.profiles import examples

V = 50
CPU = torch.device("cpu")


def sampler(*rows: tuple[list[int], int, SamplingParams]) -> tuple[Sampler, SlotState]:
    """Return a sampler and slots that hold (tokens, prompt length, parameters)."""
    state = SlotState(len(rows), 64, 4)
    joins = tuple(Join(i, tuple(t), p, 0, params, ()) for i, (t, p, params) in enumerate(rows))
    state.apply(Batch(step=1, joins=joins))
    sampler_of_rows = Sampler(state, load(CPU), V, CPU)
    sampler_of_rows.join(joins)
    return sampler_of_rows, state


def params(**more) -> SamplingParams:
    return SamplingParams(max_tokens=10, **({"temperature": 0.0} | more))


def naive(logits: np.ndarray, tokens: list[int], prompt_len: int, p: SamplingParams) -> np.ndarray:
    """Apply the edits one at a time, as their papers and protocols define them."""
    out = logits.astype(np.float64).copy()
    generated = tokens[prompt_len:]
    if len(generated) < p.min_tokens:
        out[list(p.stop_token_ids)] = -np.inf
    for token, bias in p.logit_bias.items():
        out[token] += bias
    for token in set(tokens):
        out[token] = out[token] / p.repetition_penalty if out[token] > 0 else out[token] * p.repetition_penalty
    for token in set(generated):
        out[token] -= p.frequency_penalty * generated.count(token) + p.presence_penalty
    return out


sampling = st.builds(
    params,
    min_tokens=st.integers(0, 5),
    stop_token_ids=st.sampled_from([(), (3,), (3, 7)]),
    logit_bias=st.dictionaries(st.integers(0, V - 1), st.sampled_from([-100.0, -1.0, 2.0, 100.0]), max_size=3),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    frequency_penalty=st.sampled_from([0.0, 0.5, -0.5]),
    presence_penalty=st.sampled_from([0.0, 0.7]),
)
row = st.tuples(st.lists(st.integers(0, V - 1), min_size=1, max_size=20), st.floats(0.1, 1.0), sampling)


@given(rows=st.lists(row, min_size=1, max_size=5), seed=st.integers(0, 1000))
@settings(max_examples=examples(200))
def test_every_row_is_edited_independently(rows, seed):
    """Greedy tokens of a whole batch, four steps long, equal the naive edit of each row."""
    cases = [(list(tokens), max(1, int(share * len(tokens))), p) for tokens, share, p in rows]
    sampler_of_rows, state = sampler(*cases)
    all_slots = np.arange(len(cases))
    generator = torch.Generator().manual_seed(seed)
    for _ in range(4):
        logits = torch.randn(len(cases), V, generator=generator)
        token_ids = sampler_of_rows.sample(logits.clone(), sampler_of_rows.parameters(all_slots)).token_ids
        state.advance(all_slots)
        for i, (tokens, prompt_len, p) in enumerate(cases):
            expected = naive(logits[i].numpy(), tokens, prompt_len, p)
            assert expected[token_ids[i]] == pytest.approx(expected.max(), abs=1e-4)
            tokens.append(int(token_ids[i]))


def test_a_seed_uses_all_its_64_bits():
    """Seeds that differ only in the highest bit give different noise."""
    rows = [([1], 1, params(temperature=1.0, seed=s)) for s in (5, 5 + 2**63, 2**64 - 1)]
    sampler_of_rows, state = sampler(*rows)
    drawn = []
    for _ in range(20):
        token_ids = sampler_of_rows.sample(torch.zeros(3, V), sampler_of_rows.parameters(np.arange(3))).token_ids
        state.advance(np.arange(3))
        drawn.append(token_ids.tolist())
    columns = list(zip(*drawn, strict=True))
    assert len(set(columns)) == 3


def test_log_probabilities_are_the_model_s_own():
    """They are computed before bias and temperature, with the requested number of alternatives per row."""
    logits = torch.randn(3, V, generator=torch.Generator().manual_seed(1))
    sampler_of_rows, _ = sampler(
        ([1], 1, params(logprobs=2, logit_bias={9: 100.0})), ([1], 1, params()), ([1], 1, params(logprobs=0))
    )
    drawn = sampler_of_rows.sample(logits, sampler_of_rows.parameters(np.arange(3)))
    sampled = drawn.read(drawn.tensors)
    expected = torch.log_softmax(logits, -1)
    assert sampled[0].token_id == 9
    assert sampled[0].logprob == pytest.approx(expected[0, 9].item(), abs=1e-5)
    assert [a.token_id for a in sampled[0].top] == expected[0].topk(2).indices.tolist()
    assert sampled[1].logprob is None
    assert sampled[2].top == ()
    assert sampled[2].logprob == pytest.approx(expected[2].max().item(), abs=1e-5)


def test_logits_in_half_precision_are_edited_in_float32():
    """A bias too small for bfloat16 decides between two equal logits; a row without bias is unchanged."""
    logits = torch.full((2, V), -5.0, dtype=torch.bfloat16)
    logits[:, [9, 20]] = 8.0
    sampler_of_rows, _ = sampler(([1], 1, params(logit_bias={20: 1e-3}, logprobs=1)), ([1], 1, params()))
    drawn = sampler_of_rows.sample(logits, sampler_of_rows.parameters(np.arange(2)))
    first, second = drawn.read(drawn.tensors)
    assert (first.token_id, second.token_id) == (20, 9)
    assert first.logprob == pytest.approx(torch.log_softmax(logits[0].float(), -1)[20].item(), abs=1e-6)


def test_a_slot_keeps_no_state_of_its_previous_request():
    """A plain request replaces one with bias, penalties and log-probabilities."""
    sampler_of_rows, state = sampler(
        ([1], 1, params(logit_bias={9: 100.0}, repetition_penalty=2.0, min_tokens=5, stop_token_ids=(4,), logprobs=3))
    )
    second = Join(0, (1,), 1, 0, params(), ())
    state.apply(Batch(step=2, joins=(second,)))
    sampler_of_rows.join([second])
    logits = torch.randn(1, V, generator=torch.Generator().manual_seed(2))
    drawn = sampler_of_rows.sample(logits, sampler_of_rows.parameters(np.arange(1)))
    (sampled,) = drawn.read(drawn.tensors)
    assert sampled.token_id == logits.argmax().item()
    assert sampled.logprob is None


@given(st.integers(0, 2**32 - 1))
def test_the_choice_among_equal_alternatives_does_not_depend_on_the_batch(seed: int):
    """In half precision many logits are equal."""
    logits = torch.randn(2, 500, generator=torch.Generator().manual_seed(seed)).bfloat16()
    state = SlotState(2, 64, 4)
    tops = []
    for logprobs in (None, 1, 5, 20):
        rows = (params(logprobs=3), params(logprobs=logprobs))
        joins = tuple(Join(i, (1,), 1, 0, row, ()) for i, row in enumerate(rows))
        state.apply(Batch(step=1, joins=joins))
        sampler_of_rows = Sampler(state, load(CPU), 500, CPU)
        sampler_of_rows.join(joins)
        drawn = sampler_of_rows.sample(logits, sampler_of_rows.parameters(np.arange(2)))
        tops.append(drawn.read(drawn.tensors)[0].top)
    assert tops[0] == tops[1] == tops[2] == tops[3]
