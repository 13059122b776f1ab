"""Steps between their decision and their outcome: their tokens count as computed, their samples as present."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from engine.scheduling.batch import Chunk
from engine.scheduling.counters import CumulativeCounters
from engine.scheduling.sequence import Sequence


@dataclass(frozen=True, slots=True)
class StepInFlight:
    """A step between its decision and its outcome."""

    # Sequences that fill a page or end a chunk, their page tables, and how many of their tokens are computed then.
    to_publish: list[tuple[Sequence, list[int], int]]
    sampled: list[Sequence]  # in the order of `Batch.sampled_slots`
    chunked: list[Sequence]  # in the order of `Batch.chunks`
    chunk_starts: list[int]  # in the same order
    drafted: list[Chunk]  # with drafts, of the last sequences in `sampled`
    num_tokens: int
    new_phases: list[Sequence]  # sequences that decode from then on, or have been swapped in

    @property
    def drafted_sequences(self) -> list[tuple[int, Sequence, Chunk]]:
        """Return the sequences with drafts, with their index in `sampled`."""
        first = len(self.sampled) - len(self.drafted)
        return [(index, self.sampled[index], chunk) for index, chunk in enumerate(self.drafted, first)]


def count_as_computed(
    decodes: list[Sequence],
    chunks: Iterable[tuple[Sequence, Chunk]],
    swapped_in: list[Sequence],
    counters: CumulativeCounters,
    page_size: int,
) -> tuple[StepInFlight, list[Sequence]]:
    """Count a step's tokens as computed, and the tokens that it samples as present.

    Returns the step, and the sequences that need a further page for their next token.
    """
    outgrown: list[Sequence] = []
    to_publish: list[tuple[Sequence, list[int], int]] = []
    # Code that runs for every sequence in every step is inlined: benchmarks/scheduler_cost.py measures it.
    for sequence in decodes:
        sequence.num_computed = computed = sequence.num_computed + 1
        sequence.num_tokens = length = sequence.num_tokens + 1
        if computed <= sequence.max_computed:
            counters.add("recomputed_tokens")
        else:
            sequence.max_computed = computed
        if computed % page_size == 0 or sequence.siblings:
            to_publish.append((sequence, sequence.page_table, computed))
        if length > len(sequence.page_table) * page_size and length < sequence.max_len:
            outgrown.append(sequence)
    sampled, num_tokens, new_phases = list(decodes), len(decodes), swapped_in
    chunked: list[Sequence] = []
    chunk_starts: list[int] = []
    drafted: list[Chunk] = []
    for sequence, chunk in chunks:
        chunked.append(sequence)
        chunk_starts.append(chunk.start)
        before = sequence.num_computed
        # Of tokens after drafts only the first is sure; the others are counted when they are known to be right.
        length = 1 if chunk.samples > 1 else chunk.length
        sequence.num_computed = after = before + length
        num_tokens += length
        if before < sequence.max_computed:
            counters.add("recomputed_tokens", min(sequence.max_computed, after) - before)
        sequence.max_computed = max(sequence.max_computed, after)
        to_publish.append((sequence, sequence.page_table, after))
        if chunk.samples:
            sequence.num_tokens += 1
            sampled.append(sequence)
            if chunk.samples > 1:
                drafted.append(chunk)
                sequence.drafts_in_flight += chunk.num_drafts
            if sequence.num_tokens > len(sequence.page_table) * page_size and sequence.num_tokens < sequence.max_len:
                outgrown.append(sequence)
        if sequence.num_uncomputed == 1 and chunk.samples <= 1:
            new_phases.append(sequence)
    return StepInFlight(to_publish, sampled, chunked, chunk_starts, drafted, num_tokens, new_phases), outgrown
