"""How a step's tokens are shared: one for each who decodes, then prompt chunks in service order (Sarathi-Serve, Agrawal
et al., OSDI'24). Reads sequences, changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from engine.config import EngineConfig
from engine.scheduling.batch import Chunk
from engine.scheduling.policy import OVERDUE_SHARE, Policy
from engine.scheduling.sequence import Sequence


def share_tokens(
    running: list[Sequence], config: EngineConfig, policy: Policy, now: float
) -> tuple[list[Sequence], list[Chunk], list[Sequence]]:
    """`running` in service order -> those that decode, chunks, and whose prompts get nothing. A share of the budget is
    for the prompts of the overdue, who would otherwise sit in their slots while prompts of higher classes take it all.
    Whoever's last token is being sampled has nothing left to compute.
    """
    decodes = [s for s in running if s.num_tokens - s.num_computed == 1 and s.num_tokens < s.most_tokens]
    if len(decodes) == len(running):
        return decodes, [], []
    overdue: list[Sequence] = []
    others: list[Sequence] = []
    for s in running:
        if s.num_uncomputed > 1:
            (overdue if s.is_protected or policy.is_overdue(s, now) else others).append(s)
    budget = policy.prompt_tokens(len(decodes))
    longest = config.prefill_chunk or budget
    chunks = _chunks(overdue, max(1, budget // OVERDUE_SHARE) if others else budget, longest)
    chunks += _chunks(others, budget - sum(chunk.length for chunk in chunks), longest)
    if len(chunks) == len(overdue) + len(others):
        return decodes, chunks, []
    served = {chunk.slot for chunk in chunks}
    return decodes, chunks, [s for s in (*overdue, *others) if s.slot not in served]


def _chunks(sequences: Iterable[Sequence], budget: int, longest: int) -> list[Chunk]:
    """The next uncomputed tokens of each, as long as the budget lasts."""
    chunks: list[Chunk] = []
    for sequence in sequences:
        length = min(sequence.num_uncomputed, budget, longest)
        if length > 0 and sequence.slot is not None:
            samples = length == sequence.num_uncomputed
            chunks.append(Chunk(sequence.slot, sequence.num_computed, length, samples))
            budget -= length
    return chunks
