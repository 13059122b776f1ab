"""How a step's tokens are shared: one for each who decodes, then prompt chunks as the policy shares them
(Sarathi-Serve, Agrawal et al., OSDI'24). Reads sequences, changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from engine.config import EngineConfig
from engine.scheduling.batch import Chunk
from engine.scheduling.policy import LEAST_PROMPT_TOKENS, MOST_TOKENS, Policy
from engine.scheduling.sequence import Sequence


def share_tokens(
    running: list[Sequence], config: EngineConfig, policy: Policy, step: int, now: float
) -> tuple[list[Sequence], list[Chunk], list[Sequence]]:
    """`running` in service order -> those that decode, chunks, and who gets nothing. Whoever's last token is being
    sampled has nothing left to compute.
    """
    decodes = [s for s in running if s.num_tokens - s.num_computed == 1 and s.num_tokens < s.most_tokens]
    prefilling = [s for s in running if s.num_tokens - s.num_computed > 1] if len(decodes) < len(running) else []
    if not decodes and not prefilling:
        return [], [], []
    shares = policy.share(decodes, prefilling, step, now)
    if not shares.prompts:
        return shares.decodes, [], shares.held_back
    budget = policy.prompt_tokens(len(shares.decodes))
    if config.max_num_batched_tokens is None:
        most_of_all = max(most for _, most in shares.prompts)
        budget = max(LEAST_PROMPT_TOKENS, min(MOST_TOKENS - len(shares.decodes), most_of_all))
    longest = config.prefill_chunk or budget
    chunks: list[Chunk] = []
    for group, most in shares.prompts:
        new = _chunks(group, min(most, budget), longest)
        budget -= sum(chunk.length for chunk in new)
        chunks += new
    served = {chunk.slot for chunk in chunks}
    return shares.decodes, chunks, [*shares.held_back, *(s for s in prefilling if s.slot not in served)]


def _chunks(sequences: Iterable[Sequence], budget: int, longest: int) -> list[Chunk]:
    """The next uncomputed tokens of each, as long as the budget lasts."""
    chunks: list[Chunk] = []
    for sequence in sequences:
        if budget <= 0:
            break
        length = min(sequence.num_uncomputed, budget, longest)
        assert sequence.slot is not None
        samples = length == sequence.num_uncomputed
        chunks.append(Chunk(sequence.slot, sequence.num_computed, length, samples))
        budget -= length
    return chunks
