"""Speculation: several tokens of a sequence in one step, if they can be guessed.

The noise of a sample is a hash of its position, so a row that reads a draft samples exactly the token that the next
step would, if all drafts before it are right. Tokens are therefore accepted while they equal the drafts; the first that
differs is the answer's own. Drafts change no text, only the number of steps.

A draft is worth the probability that it and all before it are right, learnt for each sequence by source, position and
length of the match. Rows are added by falling worth, as long as they bring more tokens a second than the step would
have without them. They vanish by themselves in full batches, on processors where rows are dear, and in prose. Drafts
come last: none is in a step with prompts, or for a lower class beside a higher one. They take spare pages only.

If steps are launched before the outcome of the last one is known, the runner looks up drafts itself, in the text that
the device has; the choice how many is made with the text that the host knows. Other drafts need the latest token, so
their sequences leave out the step after each one that they are in.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator

from engine.drafting.answers import RecentAnswers, answers_key
from engine.drafting.lookup import NO_DRAFT, Draft
from engine.drafting.note import ANSWERS, LOOKUP
from engine.drafting.speculator import MAX_DRAFTS, Speculator
from engine.scheduling.batch import Chunk, Sampled, StepOutcome
from engine.scheduling.counters import CumulativeCounters
from engine.scheduling.kv_manager import KVManager
from engine.scheduling.policy import MAX_STEP_TOKENS, Policy
from engine.scheduling.sequence import Sequence, State
from engine.scheduling.step_in_flight import StepInFlight
from engine.types import ServiceClass

INDEXED_TOKENS = 1024  # in a step, of all sequences
MAX_SLOWDOWN = 0.05  # of a sequence's tokens, by the drafts of others
MAX_BACKGROUND_SECONDS = 0.01  # that drafts of lower classes add to a step, in which a person may arrive
MIN_GAIN = 1.1  # of tokens for a time, over those that the step brings in the same time without the row
SURE_MATCH = 8  # tokens in a sequence's own text, from which earlier answers are not asked
FIRST_CONTEXT = 2  # tokens of a prompt that are kept with its answer, so that the first one can be guessed
MIN_ROW_SHARE = 0.02  # of a step, that a row takes at least
MIN_GAIN_FOR_WAIT = 1.5  # tokens that a draft brings, for which a sequence leaves out a step that others are in


Drafter = Callable[[Sequence, Speculator, int], Draft]


class Speculation:
    """Choice of the drafts of a step."""

    def __init__(
        self,
        policy: Policy,
        counters: CumulativeCounters,
        kv_manager: KVManager,
        draft: Drafter | None = None,
        *,
        max_rows: int = MAX_STEP_TOKENS,
        runs_ahead: bool = False,
    ) -> None:
        """draft: of a sequence, in place of the sources below, for tests. max_rows: of a step with drafts.

        runs_ahead: the runner looks up drafts for sequences whose last token is not known.
        """
        self._policy = policy
        self._counters = counters
        self._model = policy.step_time_model
        self._kv_manager = kv_manager
        self._spare_pages = 0  # for drafts, beside one for each sequence that decodes
        self._draft = draft or self._look_up
        self._answers = RecentAnswers()
        self._max_rows = max_rows
        self._runs_ahead = runs_ahead
        self._following: set[Sequence] = set()  # sequences that leave out steps, so that their last token is known
        self._left_to_index = 0
        self._drafting: ServiceClass | None = None  # class that could have drafts in the last step, if one could

    def propose(self, sequence: Sequence, most: int) -> tuple[tuple[int, ...], int]:
        """Return a draft of a sequence with a constraint, and how many drafts are worth their masks, `most` at most.

        Called before the mask of its next token is computed. The next step is taken to be like the last one, in
        which one class could have drafts, or none.
        """
        if self._drafting is None or sequence.service_class > self._drafting or not self._can_have_drafts(sequence):
            return (), 0
        speculator = self._speculator(sequence)
        limit = max(0, min(speculator.max_masked, self._room(sequence), most))
        speculator.draft = self._draft(sequence, speculator, limit) if limit else NO_DRAFT
        return speculator.draft.tokens, limit

    def divide(self, decodes: list[Sequence], chunks: list[Chunk]) -> tuple[list[Sequence], list[Chunk]]:
        """Return the sequences that decode without drafts, and the chunks with those that have drafts last."""
        if not decodes and not chunks:  # each sequence waits for the outcome of a step
            return decodes, chunks
        if chunks or not self._can_pay(len(decodes)):
            self._drafting = None
            self._following.clear()
            return decodes, chunks
        self._drafting = min([sequence.service_class for sequence in decodes])
        self._left_to_index = INDEXED_TOKENS
        self._spare_pages = self._kv_manager.spare_pages - len(decodes)
        peers = [sequence for sequence in decodes if sequence.service_class is self._drafting]
        drafts = {sequence: draft for sequence in peers if (draft := self._draft_of(sequence)).tokens}
        rows = self._rows(len(decodes), peers, drafts)
        if not rows:
            return decodes, chunks
        drafted = {}
        for sequence, wanted in rows.items():
            assert sequence.slot is not None
            if number := min(wanted, self._make_space(sequence, wanted)):
                tokens = () if self._is_looked_up(sequence) else drafts[sequence].tokens[:number]
                chunk = Chunk(sequence.slot, sequence.num_computed, 1 + number, 1 + number, None, tokens)
                drafted[sequence] = chunk
        return [sequence for sequence in decodes if sequence not in drafted], list(drafted.values())

    def _can_pay(self, decodes: int) -> bool:
        """Return whether a draft that is surely right brings more than it costs; if not, none is looked for."""
        seconds, row_seconds = self._costs(decodes)
        return decodes < self._max_rows and seconds > MIN_GAIN * decodes * row_seconds

    def _costs(self, decodes: int) -> tuple[float, float]:
        """Return the time of a step without drafts, and that of each draft."""
        seconds, row_seconds = self._model.with_drafts(decodes)
        return seconds, max(row_seconds, MIN_ROW_SHARE * seconds)

    def _draft_of(self, sequence: Sequence) -> Draft:
        """Return a draft of a sequence, which may be empty."""
        if not self._can_have_drafts(sequence) or (limit := self._room(sequence)) < 1:
            return NO_DRAFT
        speculator = self._speculator(sequence)
        if sequence.constraint is None:
            speculator.draft = self._draft(sequence, speculator, limit)
            if self._runs_ahead:
                speculator.draft = self._draft_ahead(sequence, speculator.draft)
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

    def _can_have_drafts(self, sequence: Sequence) -> bool:
        """Return whether a step may have drafts of a sequence. Recorded ones have none for the full sampler."""
        if not sequence.can_have_drafts:
            return False
        sampling, generated = sequence.request.sampling, sequence.num_tokens - sequence.prompt_len
        return not self._runs_ahead or not (sampling.needs_full_sampler or generated < sampling.min_tokens)

    def _is_looked_up(self, sequence: Sequence) -> bool:
        """Return whether the runner looks up the drafts of a sequence."""
        return self._runs_ahead and sequence.constraint is None and sequence not in self._following

    def _draft_ahead(self, sequence: Sequence, draft: Draft) -> Draft:
        """Return a draft that may be in the next step. draft: after the tokens that are known.

        The runner finds one from the sequence's own text by itself. For others the sequence leaves out a step.
        """
        if draft.source == LOOKUP or not draft.tokens:
            self._following.discard(sequence)
            return draft
        assert sequence.speculator is not None
        if sum(sequence.speculator.worths(draft)) < MIN_GAIN_FOR_WAIT:
            self._following.discard(sequence)
            return NO_DRAFT
        self._following.add(sequence)
        return NO_DRAFT if sequence.has_token_in_flight else draft

    def ready(self, running: list[Sequence], steps: Iterable[StepInFlight]) -> list[Sequence]:
        """Return the sequences that can be in a step beside the `steps` in flight.

        The others wait for their last token, or for a page for all tokens that drafts may add.
        """
        self._following = {sequence for sequence in self._following if sequence.state is State.RUNNING}
        left_out = {sequence for sequence in self._following if sequence.has_token_in_flight}
        self._spare_pages = self._kv_manager.spare_pages - len(running)
        for step in steps:
            for _, sequence, _ in step.drafted_sequences:
                if sequence.state is State.RUNNING and self._make_space(sequence, 0) < 0:
                    left_out.add(sequence)
        return [sequence for sequence in running if sequence not in left_out] if left_out else running

    def _space(self, sequence: Sequence) -> int:
        """Return the free positions in the pages of a sequence, if the drafts in flight are right."""
        positions = len(sequence.page_table) * self._kv_manager.page_size
        return positions - sequence.num_tokens - sequence.drafts_in_flight

    def _make_space(self, sequence: Sequence, positions: int) -> int:
        """Return `_space`, after taking a spare page if it is less than `positions`."""
        if self._space(sequence) < positions and self._can_grow(sequence) and self._kv_manager.grow(sequence):
            self._spare_pages -= 1
        return self._space(sequence)

    def _can_grow(self, sequence: Sequence) -> bool:
        return self._spare_pages > 0 and not self._kv_manager.has_joined(sequence)

    def _room(self, sequence: Sequence) -> int:
        """Return how many drafts fit into the pages, and into what the sequence may still generate."""
        length = sequence.num_tokens + sequence.drafts_in_flight
        space = self._space(sequence)
        if self._can_grow(sequence):
            space += self._kv_manager.page_size
        return min(MAX_DRAFTS, space, sequence.max_len - length - 1)

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

    def count_drafts(self, flight: StepInFlight, outcome: StepOutcome) -> None:
        """Count and learn from the drafts of a step before its tokens are committed, which may end their sequences."""
        for index, sequence, chunk in flight.drafted_sequences:
            sequence.drafts_in_flight -= chunk.num_drafts
            drafts, right = chunk.num_drafts, len(outcome.further.get(index, ()))
            if (draft := outcome.looked_up.get(index)) is not None:
                drafts = len(draft.tokens)
            if (speculator := sequence.speculator) is not None:
                if draft is not None and draft.tokens:
                    speculator.draft = draft
                speculator.count_drafted(drafts)
                # The runner has found none where the host expected one: as if that had been wrong.
                speculator.learn(max(1, drafts), right, len(sequence.tokens) + 1 + right)
            if drafts:
                self._counters.count_draft(drafts, right)

    def remember(self, sequence: Sequence) -> None:
        """Keep the answer of a sequence that has ended, for the drafts of others like it."""
        if sequence.speculator is not None:
            answer = sequence.tokens[max(0, sequence.prompt_len - FIRST_CONTEXT) :]
            self._answers.add(sequence.speculator.answers_key, answer)

    def _rows(self, decodes: int, peers: list[Sequence], drafts: dict[Sequence, Draft]) -> dict[Sequence, int]:
        """Return how many drafts of each sequence are worth their time. peers: of the class that may have some."""
        if not drafts:
            for sequence in peers:
                self._expected_gain(sequence, None)
            return {}
        seconds, row_seconds = self._costs(decodes)
        worths = {s: s.speculator.worths(draft) for s, draft in drafts.items() if s.speculator is not None}
        for sequence, values in worths.items():
            if values[0] * seconds <= MIN_GAIN * decodes * row_seconds and sequence.speculator is not None:
                sequence.speculator.decline(sequence.num_tokens)
        order, gains = self._worthwhile(decodes, worths, seconds, row_seconds)
        # Waiting longer for a token than without drafts has to be worth it for each sequence, even without one now.
        least = min([self._expected_gain(sequence, gains.get(sequence)) for sequence in peers])
        most = ((1.0 + MAX_SLOWDOWN) * (1.0 + least) - 1.0) * seconds
        if peers[0].service_class is not ServiceClass.INTERACTIVE:
            most = min(most, MAX_BACKGROUND_SECONDS)
        rows: dict[Sequence, int] = {}
        for number, sequence in enumerate(order, 1):
            if number * row_seconds > most:
                break
            rows[sequence] = rows.get(sequence, 0) + 1
        for sequence in drafts:
            if sequence.constraint is not None and sequence.speculator is not None:
                sequence.speculator.expect_masked(rows.get(sequence, 0))
        return rows

    def _worthwhile(
        self, decodes: int, worths: dict[Sequence, list[float]], seconds: float, row_seconds: float
    ) -> tuple[list[Sequence], dict[Sequence, float]]:
        """Return the sequences whose next drafts are worth their time, in falling order, and the tokens each gains.

        seconds: of the step without drafts. row_seconds: of each draft.
        """
        tokens, order, gains = float(decodes), list[Sequence](), dict[Sequence, float]()
        rows = dict.fromkeys(worths, 0)
        heap = [(-values[0], at, sequence) for at, (sequence, values) in enumerate(worths.items())]
        heapq.heapify(heap)
        while heap and decodes + len(order) < self._max_rows:
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
        for index, sequence, _ in flight.drafted_sequences:
            right = outcome.further.get(index, ())
            for position, sampled in enumerate(right):
                if sequence.state is State.FINISHED:
                    break
                if sequence.speculator is not None:
                    sequence.speculator.count_accepted(position)
                sequence.num_tokens += 1
                self._policy.tokens_sampled((sequence,))
                self._counters.add("generated_tokens")
                self._counters.add("computed_tokens")
                if sequence.state is State.RUNNING:  # else it computes the token again
                    sequence.num_computed += 1
                    sequence.max_computed = max(sequence.max_computed, sequence.num_computed)
                    publish(sequence, sequence.page_table, len(sequence.tokens))
                yield sequence, sampled
            is_full = len(sequence.page_table) < sequence.pages_needed and sequence.num_tokens < sequence.max_len
            if right and is_full and sequence.state is State.RUNNING:
                outgrown.append(sequence)
