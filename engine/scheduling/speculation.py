"""Speculation: several tokens of a sequence in one step, if they can be guessed.

The noise of a sample is a hash of its position, so a row that reads a draft samples exactly the token that the next
step would, if all drafts before it are right. Tokens are therefore accepted while they equal the drafts; the first that
differs is the answer's own. Drafts change no text, only the number of steps.

A draft is worth the probability that it and all before it are right, learnt for each sequence by source, position and
length of the match. Rows are added by falling worth, as long as they bring more tokens a second than the step would
have without them. They vanish by themselves in full batches, on processors where rows are dear, and in prose. Drafts
come last: none is in a step with prompts, or for a lower class beside a higher one; none takes a page.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

from engine.drafting.answers import RecentAnswers, answers_key
from engine.drafting.lookup import NO_DRAFT, Draft
from engine.drafting.note import ANSWERS, LOOKUP
from engine.drafting.speculator import MAX_DRAFTS, Speculator
from engine.scheduling.batch import Chunk, Sampled, StepOutcome
from engine.scheduling.counters import CumulativeCounters
from engine.scheduling.policy import Policy
from engine.scheduling.sequence import Sequence, State
from engine.scheduling.step_in_flight import StepInFlight

INDEXED_TOKENS = 1024  # in a step, of all sequences
MAX_SLOWDOWN = 0.05  # of a sequence's tokens, by the drafts of others
MIN_GAIN = 1.1  # of tokens for a time, over those that the step brings in the same time without the row
SURE_MATCH = 8  # tokens in a sequence's own text, from which earlier answers are not asked
FIRST_CONTEXT = 2  # tokens of a prompt that are kept with its answer, so that the first one can be guessed
MIN_ROW_SHARE = 0.02  # of a step, that a row takes at least


Drafter = Callable[[Sequence, Speculator, int], Draft]


class Speculation:
    """Choice of the drafts of a step."""

    def __init__(
        self, policy: Policy, counters: CumulativeCounters, page_size: int, draft: Drafter | None = None
    ) -> None:
        """draft: of a sequence, in place of the sources below, for tests."""
        self._policy = policy
        self._counters = counters
        self._model = policy.step_time_model
        self._page_size = page_size
        self._draft = draft or self._look_up
        self._answers = RecentAnswers()
        self._left_to_index = 0
        self._pays = True  # drafts in the last step without prompts

    def propose(self, sequence: Sequence, most: int) -> tuple[tuple[int, ...], int]:
        """Return a draft of a sequence with a constraint, and how many drafts are worth their masks, `most` at most.

        Called before the mask of its next token is computed.
        """
        if not self._pays or not sequence.can_have_drafts:
            return (), 0
        speculator = self._speculator(sequence)
        limit = max(0, min(speculator.max_masked, self._room(sequence), most))
        speculator.draft = self._draft(sequence, speculator, limit) if limit else NO_DRAFT
        return speculator.draft.tokens, limit

    def divide(self, decodes: list[Sequence], chunks: list[Chunk]) -> tuple[list[Sequence], list[Chunk]]:
        """Return the sequences that decode without drafts, and the chunks with those that have drafts last."""
        if chunks or not decodes:
            return decodes, chunks
        self._pays = self._can_pay(len(decodes))
        if not self._pays:
            return decodes, chunks
        self._left_to_index = INDEXED_TOKENS
        highest = min([sequence.service_class for sequence in decodes])
        peers = [sequence for sequence in decodes if sequence.service_class is highest]
        drafts = {sequence: draft for sequence in peers if (draft := self._draft_of(sequence)).tokens}
        rows = self._rows(len(decodes), peers, drafts)
        if not rows:
            return decodes, chunks
        drafted = []
        for sequence, number in rows.items():
            assert sequence.slot is not None and sequence.speculator is not None
            sequence.speculator.count_drafted(number)
            tokens = drafts[sequence].tokens[:number]
            drafted.append(Chunk(sequence.slot, sequence.num_computed, 1 + number, 1 + number, None, tokens))
        return [sequence for sequence in decodes if sequence not in rows], drafted

    def _can_pay(self, decodes: int) -> bool:
        """Return whether a draft that is surely right brings more than it costs; if not, none is looked for."""
        seconds, row_seconds = self._costs(decodes)
        return seconds > MIN_GAIN * decodes * row_seconds

    def _costs(self, decodes: int) -> tuple[float, float]:
        """Return the time of a step without drafts, and that of each draft."""
        seconds, row_seconds = self._model.with_drafts(decodes)
        return seconds, max(row_seconds, MIN_ROW_SHARE * seconds)

    def _draft_of(self, sequence: Sequence) -> Draft:
        """Return a draft of a sequence, which may be empty."""
        if not sequence.can_have_drafts or (limit := self._room(sequence)) < 1:
            return NO_DRAFT
        speculator = self._speculator(sequence)
        if sequence.constraint is None:
            speculator.draft = self._draft(sequence, speculator, limit)
        else:
            (tokens, is_forced), proposed = sequence.constraint.drafts, speculator.draft
            speculator.draft = Draft(tokens[:limit], proposed.match, proposed.source, is_forced[:limit])
        return speculator.draft

    def _speculator(self, sequence: Sequence) -> Speculator:
        if sequence.speculator is None:
            request = sequence.request
            key = answers_key(request.cache_salt, request.sampling.grammar or "")
            sequence.speculator = Speculator(sequence.tokens, request.prediction, sequence.prompt_len, key)
        return sequence.speculator

    def _room(self, sequence: Sequence) -> int:
        """Return how many drafts fit into the last page, and into what the sequence may still generate."""
        length = sequence.num_tokens
        return min(MAX_DRAFTS, len(sequence.page_table) * self._page_size - length, sequence.max_len - length - 1)

    def _look_up(self, sequence: Sequence, speculator: Speculator, limit: int) -> Draft:
        """Return a draft of the client's prediction, of the sequence's own text or of earlier answers like this one."""
        length = sequence.num_tokens
        if (prediction := speculator.prediction) is not None:
            self._left_to_index -= prediction.read(max(0, self._left_to_index))
            draft = prediction.draft(limit)
            if draft.tokens and speculator.may_use(draft, length):
                return draft
        draft = NO_DRAFT
        if speculator.may_try(LOOKUP, length):
            self._left_to_index -= speculator.lookup.index(max(0, self._left_to_index))
            draft = speculator.lookup.draft(limit)
        if draft.match < SURE_MATCH and speculator.may_try(ANSWERS, length):
            self._left_to_index -= self._answers.index(max(0, self._left_to_index))
            other = self._answers.draft(speculator.answers_key, sequence.tokens, limit)
            if other.match >= max(draft.match, 1):
                draft = other
        return draft if draft.tokens and speculator.may_use(draft, length) else NO_DRAFT

    def remember(self, sequence: Sequence) -> None:
        """Keep the answer of a sequence that has ended, for the drafts of others like it."""
        if sequence.speculator is not None:
            answer = sequence.tokens[max(0, sequence.prompt_len - FIRST_CONTEXT) :]
            self._answers.add(sequence.speculator.answers_key, answer)

    def _rows(self, decodes: int, peers: list[Sequence], drafts: dict[Sequence, Draft]) -> dict[Sequence, int]:
        """Return how many drafts of each sequence are worth their time. peers: sequences that may have drafts."""
        seconds, row_seconds = self._costs(decodes)
        worths = {s: s.speculator.worths(draft) for s, draft in drafts.items() if s.speculator is not None}
        for sequence, values in worths.items():
            if values[0] * seconds <= MIN_GAIN * decodes * row_seconds and sequence.speculator is not None:
                sequence.speculator.decline(sequence.num_tokens)
        order, gains = self._worthwhile(decodes, worths)
        # Waiting longer for a token than without drafts has to be worth it for each sequence, even without one now.
        least = min([self._expected_gain(sequence, gains.get(sequence)) for sequence in peers])
        most = ((1.0 + MAX_SLOWDOWN) * (1.0 + least) - 1.0) * seconds
        rows: dict[Sequence, int] = {}
        for sequence in order[: int(most / row_seconds)]:
            rows[sequence] = rows.get(sequence, 0) + 1
        for sequence in drafts:
            if sequence.constraint is not None and sequence.speculator is not None:
                sequence.speculator.expect_masked(rows.get(sequence, 0))
        return rows

    def _worthwhile(
        self, decodes: int, worths: dict[Sequence, list[float]]
    ) -> tuple[list[Sequence], dict[Sequence, float]]:
        """Return the sequences whose next drafts are worth their time, in falling order, and what each gains in tokens."""
        seconds, row_seconds = self._costs(decodes)
        tokens, order, gains = float(decodes), list[Sequence](), dict[Sequence, float]()
        rows = dict.fromkeys(worths, 0)
        heap = [(-values[0], at, sequence) for at, (sequence, values) in enumerate(worths.items())]
        heapq.heapify(heap)
        while heap:
            worth, at, sequence = heap[0]
            if -worth * seconds <= MIN_GAIN * tokens * row_seconds:
                break
            tokens, seconds = tokens - worth, seconds + row_seconds
            order.append(sequence)
            gains[sequence] = gains.get(sequence, 0.0) - worth
            rows[sequence] = number = rows[sequence] + 1
            if number < len(worths[sequence]):
                heapq.heapreplace(heap, (-worths[sequence][number], at, sequence))
            else:
                heapq.heappop(heap)
        return order, gains

    def _expected_gain(self, sequence: Sequence, gain: float | None) -> float:
        """Return the tokens that drafts of a sequence bring in this step, or have brought on average if it has none."""
        if sequence.speculator is None:
            return 0.0
        mean_gain = sequence.speculator.learn_gain(gain or 0.0)
        return mean_gain if gain is None else gain

    def further_tokens(
        self,
        flight: StepInFlight,
        outcome: StepOutcome,
        publish: Callable[[Sequence, list[int], int], None],
        outgrown: list[Sequence],
    ) -> Iterator[tuple[Sequence, Sampled]]:
        """Yield the tokens beyond the first of sequences with drafts, until one ends, and count them as computed.

        Iterated while the caller commits the tokens, those of the first rows before. publish: called when one more
        token of a sequence is computed. outgrown: gets the sequences that need a further page for their next token.
        """
        for index, chunk in enumerate(flight.drafted, len(flight.sampled) - len(flight.drafted)):
            sequence, right = flight.sampled[index], outcome.further.get(index, ())
            self._counters.count_draft(len(chunk.drafts), len(right))
            if sequence.speculator is not None:
                sequence.speculator.learn(len(chunk.drafts), len(right), sequence.num_tokens + len(right))
            for position, sampled in enumerate(right):
                if sequence.state is not State.RUNNING:
                    break
                if sequence.speculator is not None:
                    sequence.speculator.count_accepted(position)
                sequence.num_tokens += 1
                sequence.num_computed += 1
                sequence.max_computed = max(sequence.max_computed, sequence.num_computed)
                self._policy.tokens_sampled((sequence,))
                self._counters.add("generated_tokens")
                self._counters.add("computed_tokens")
                publish(sequence, sequence.page_table, sequence.num_computed)
                yield sequence, sampled
            is_full = len(sequence.page_table) < sequence.pages_needed and sequence.num_tokens < sequence.max_len
            if right and is_full and sequence.state is State.RUNNING:
                outgrown.append(sequence)
