"""Sharing of a step's tokens: one for each decoding sequence, then prompt chunks as the policy shares them.

Follows Sarathi-Serve (Agrawal et al., OSDI'24). Reads sequences, changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from engine.config import EngineConfig
from engine.scheduling.batch import Chunk
from engine.scheduling.policy import MAX_STEP_TOKENS, MIN_PROMPT_TOKENS, Policy
from engine.scheduling.sequence import Sequence
from engine.scheduling.step_time_model import StepTimeModel


def divide_step(
    running: list[Sequence], config: EngineConfig, policy: Policy, step: int, now: float
) -> tuple[list[Sequence], list[Chunk], list[Sequence]]:
    """Divide a step among `running` (in service order).

    Returns the decoding sequences, the chunks, and the sequences that get nothing. A sequence whose last token is being
    sampled has nothing left to compute.
    """
    decodes = [s for s in running if s.num_tokens - s.num_computed == 1 and s.num_tokens < s.max_len]
    prefilling = [s for s in running if s.num_tokens - s.num_computed > 1] if len(decodes) < len(running) else []
    if not decodes and not prefilling:
        return [], [], []
    shares = policy.share(decodes, prefilling, step, now)
    if not shares.prompts:
        return shares.decodes, [], shares.held_back
    budget: float = policy.prompt_tokens(len(shares.decodes))
    if config.max_num_batched_tokens is None:
        max_work = max(max_work for _, max_work in shares.prompts)
        budget = max(1, min(MAX_STEP_TOKENS - len(shares.decodes), max_work))
    model = policy.step_time_model if policy.plans_time and config.max_num_batched_tokens is None else None
    max_chunk = config.prefill_chunk or MAX_STEP_TOKENS
    chunks: list[Chunk] = []
    for group, max_work in shares.prompts:
        added, work = _chunks(group, min(max_work, budget), max_chunk, model)
        budget -= work
        chunks += added
    served = {chunk.slot for chunk in chunks}
    return shares.decodes, chunks, [*shares.held_back, *(s for s in prefilling if s.slot not in served)]


def is_paced(decodes: list[Sequence], chunks: list[Chunk], config: EngineConfig, policy: Policy) -> bool:
    """Return whether ITL targets leave so little of a step to prompts that they are read far more slowly than alone."""
    plans_time = policy.plans_time and config.max_num_batched_tokens is None and config.prefill_chunk is None
    return plans_time and bool(decodes) and sum([chunk.length for chunk in chunks]) < MIN_PROMPT_TOKENS


def _chunks(
    sequences: Iterable[Sequence], budget: float, max_chunk: int, model: StepTimeModel | None
) -> tuple[list[Chunk], float]:
    """Return chunks of the next uncomputed tokens of `sequences`, until the budget is used up, and their work.

    A chunk has at least one token, so that the work may exceed the budget by a part of one. model: None if every token
    counts as one.
    """
    chunks: list[Chunk] = []
    left = budget
    for sequence in sequences:
        if left < 1:
            break
        start = sequence.num_computed
        affordable = int(left) if model is None else max(1, model.tokens_within(left, start))
        length = min(sequence.num_uncomputed, affordable, max_chunk)
        assert sequence.slot is not None
        samples = length == sequence.num_uncomputed
        chunks.append(Chunk(sequence.slot, start, length, samples, sequence.prompt_logprobs))
        left -= length if model is None else model.work(start, length)
    return chunks, budget - left
