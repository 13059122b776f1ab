"""One step's work as decided by the scheduler: frozen, and complete when built.

A batch describes slots and changes, not whole states. The runner keeps each slot's tokens, page table and sampling
parameters, so the size of a batch grows with the number of changes, not with the number of running sequences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from engine.drafting.lookup import Draft
from engine.scheduling.constraint import Constraint
from engine.types import Alternative, PromptToken, SamplingParams


@dataclass(frozen=True, slots=True)
class Join:
    """A sequence that enters a slot, for the first time or after a preemption."""

    slot: int
    tokens: tuple[int, ...]  # all known tokens: the prompt, and tokens generated before a preemption
    prompt_len: int
    choice: int
    sampling: SamplingParams
    page_table: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Positions start..start+length-1 of a slot's tokens, which go through the model in this step.

    A chunk with drafts begins at the last known token, and drafts follow it: guesses of the next tokens. Each row is
    sampled; a token counts if all drafts before it were right. Without `drafts` its rows read what the runner looks up.
    """

    slot: int
    start: int
    length: int
    samples: int  # rows at its end that are sampled: 1 if it ends at the last known token, more with drafts
    prompt_logprobs: int | None = None  # see `SamplingParams`
    drafts: tuple[int, ...] = ()

    @property
    def num_drafts(self) -> int:
        """Return the number of rows that read drafts."""
        return max(0, self.samples - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One step.

    Memory moves happen before the forward pass, in this order: swap_out, copies, swap_in. Swapped-in pages are complete
    in the next step and are not read before.
    """

    step: int
    swap_out: tuple[tuple[int, int], ...] = ()  # (device page, host page)
    copies: tuple[tuple[int, int], ...] = ()  # (device page, device page): copy-on-write of a shared page
    swap_in: tuple[tuple[int, int], ...] = ()  # (host page, device page)
    joins: tuple[Join, ...] = ()
    new_pages: tuple[tuple[int, int, int], ...] = ()  # (slot, index in its page table, page)
    decodes: tuple[int, ...] = ()  # slots in which only the last known token is not computed yet
    chunks: tuple[Chunk, ...] = ()  # those with drafts last
    constraints: tuple[tuple[int, Constraint], ...] = ()  # of slots that sample a restricted token in this step

    @property
    def prompt_tokens(self) -> int:
        """Return the number of prompt tokens in the chunks."""
        return sum([chunk.length for chunk in self.chunks if chunk.samples <= 1])

    @property
    def drafted(self) -> tuple[Chunk, ...]:
        """Return the chunks with drafts."""
        return tuple([chunk for chunk in self.chunks if chunk.samples > 1])

    @property
    def num_drafts(self) -> int:
        """Return the number of drafts."""
        return sum([chunk.num_drafts for chunk in self.chunks])

    @property
    def num_decoding(self) -> int:
        """Return the number of sequences that decode, with and without drafts."""
        return len(self.decodes) + sum([1 for chunk in self.chunks if chunk.samples > 1])

    @property
    def rows(self) -> int:
        """Return the number of rows that decode: those of `decodes`, and of chunks with drafts."""
        return self.num_decoding + self.num_drafts

    @property
    def num_tokens(self) -> int:
        """Return the number of tokens that go through the model."""
        return len(self.decodes) + sum([chunk.length for chunk in self.chunks])

    @property
    def sampled_slots(self) -> list[int]:
        """Return the slots that get new tokens, in the order of `StepOutcome.sampled`."""
        return [*self.decodes, *(chunk.slot for chunk in self.chunks if chunk.samples)]

    @property
    def sampled_rows(self) -> list[int]:
        """Return the slot of each row that is sampled: several rows of a slot with drafts."""
        slots = list(self.decodes)
        for chunk in self.chunks:
            slots += [chunk.slot] * chunk.samples
        return slots

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing to compute, nothing to move, and no slot changes."""
        computes, moves = self.decodes or self.chunks, self.swap_out or self.copies or self.swap_in
        return not (computes or moves or self.joins or self.new_pages)


class Sampled(msgspec.Struct, frozen=True, gc=False):
    """One new token and, if requested, the log-probabilities at its position."""

    token_id: int  # NO_TOKEN_ALLOWED, or another negative number if the logits contained NaN: no token
    logprob: float | None = None
    top: tuple[Alternative, ...] = ()


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """Results of the forward pass: one entry for each slot of `Batch.sampled_slots`."""

    sampled: tuple[Sampled, ...]
    # Chunks that contain NaN; empty: none. May leave out a last token that samples, as its sampled token reports NaN.
    has_nan: tuple[bool, ...] = ()
    # By index of a chunk: log-probabilities of prompt tokens, the first of which follows the chunk's first token.
    prompt_tokens: Mapping[int, tuple[PromptToken, ...]] = field(default_factory=dict)
    seconds: float | None = None  # for which a device computed; None: the caller waited for all of the step
    # By index in `sampled`: the tokens after that one which count too, because the drafts before them were right.
    further: Mapping[int, tuple[Sampled, ...]] = field(default_factory=dict)
    # By index in `sampled`: the drafts that the runner has looked up.
    looked_up: Mapping[int, Draft] = field(default_factory=dict)
