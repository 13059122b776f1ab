"""Sharing of a step's tokens: one for each decoding sequence, then prompt chunks as the policy shares them.

Follows Sarathi-Serve (Agrawal et al., OSDI'24). Reads sequences, changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from engine.config import EngineConfig
from engine.scheduling.batch import Chunk
from engine.scheduling.policy import MAX_STEP_TOKENS, MIN_PROMPT_TOKENS, Policy
from engine.scheduling.sequence import Sequence


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
    budget = policy.prompt_tokens(len(shares.decodes))
    if config.max_num_batched_tokens is None:
        max_total = max(max_tokens for _, max_tokens in shares.prompts)
        budget = max(MIN_PROMPT_TOKENS, min(MAX_STEP_TOKENS - len(shares.decodes), max_total))
    max_chunk = config.prefill_chunk or budget
    chunks: list[Chunk] = []
    for group, max_tokens in shares.prompts:
        added = _chunks(group, min(max_tokens, budget), max_chunk)
        budget -= sum(chunk.length for chunk in added)
        chunks += added
    served = {chunk.slot for chunk in chunks}
    return shares.decodes, chunks, [*shares.held_back, *(s for s in prefilling if s.slot not in served)]


def _chunks(sequences: Iterable[Sequence], budget: int, max_chunk: int) -> list[Chunk]:
    """Return chunks of the next uncomputed tokens of `sequences`, until the budget is used up."""
    chunks: list[Chunk] = []
    for sequence in sequences:
        if budget <= 0:
            break
        length = min(sequence.num_uncomputed, budget, max_chunk)
        assert sequence.slot is not None
        samples = length == sequence.num_uncomputed
        chunks.append(Chunk(sequence.slot, sequence.num_computed, length, samples, sequence.prompt_logprobs))
        budget -= length
    return chunks
