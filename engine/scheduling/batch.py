"""What one step does, as the scheduler decided it. Frozen, and complete when built.

A batch speaks of slots and changes, not of whole states: the runner keeps each slot's tokens, page table and sampling
parameters, so the cost of telling it what to do grows with what changed, not with what runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from engine.types import Alternative, SamplingParams


@dataclass(frozen=True, slots=True)
class Join:
    """A sequence enters a slot, for the first time or again after a pause."""

    slot: int
    tokens: tuple[int, ...]  # all known tokens: the prompt, and what was generated before a pause
    prompt_len: int
    choice: int
    sampling: SamplingParams
    page_table: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Positions start..start+length-1 of a slot's tokens are put through the model."""

    slot: int
    start: int
    length: int
    samples: bool  # it ends at the last known token, so the next one is sampled


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One step. Memory moves happen before the forward, in this order: swap_out, copies, swap_in. What is swapped in is
    there in the step after: nothing of it is read before."""

    step: int
    swap_out: tuple[tuple[int, int], ...] = ()  # (device page, host page)
    copies: tuple[tuple[int, int], ...] = ()  # (device page, device page): copy-on-write of a shared page
    swap_in: tuple[tuple[int, int], ...] = ()  # (host page, device page)
    joins: tuple[Join, ...] = ()
    grown: tuple[tuple[int, int, int], ...] = ()  # (slot, index in its page table, page)
    decodes: tuple[int, ...] = ()  # slots whose last known token is the only one not computed yet
    chunks: tuple[Chunk, ...] = ()

    @property
    def prompt_tokens(self) -> int:
        """Tokens of chunks."""
        return sum([chunk.length for chunk in self.chunks])

    @property
    def num_tokens(self) -> int:
        """Tokens that go through the model."""
        return len(self.decodes) + self.prompt_tokens

    @property
    def sampled(self) -> list[int]:
        """The slots that get a new token, in the order in which an `Outcome` lists them."""
        return [*self.decodes, *(chunk.slot for chunk in self.chunks if chunk.samples)]

    @property
    def is_empty(self) -> bool:
        """True when there is nothing to compute and nothing to move."""
        return not (self.decodes or self.chunks or self.swap_out or self.copies or self.swap_in)


class Sampled(msgspec.Struct, frozen=True, gc=False):
    """One new token and, when asked for, the model's log-probabilities around it."""

    token_id: int  # below zero: none, as the logits had a NaN
    logprob: float | None = None
    top: tuple[Alternative, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the forward pass yielded: one entry for each of `Batch.sampled`."""

    sampled: tuple[Sampled, ...]
    # Which of the chunks have a NaN in them; empty: none. A last token that samples may be left out, as its next one
    # says it.
    broken: tuple[bool, ...] = ()
