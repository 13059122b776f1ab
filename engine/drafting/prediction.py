"""Drafts from a prediction of the client: a text that the answer is expected to repeat, such as the file to edit.

While the answer equals the prediction, its continuation is drafted from the first token on. After a difference the
answer has its place again where its last tokens stand in the prediction after the difference, so that lines may be
inserted, deleted and replaced.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from engine.drafting.lookup import HASH, LONG_MATCH, NO_DRAFT, Draft
from engine.drafting.note import PREDICTION

MIN_FOLLOWED = 8  # tokens of the answer that any call reads, about as many as a step yields
SURE_MATCH = 32  # tokens after which a place is not given up for an earlier one
MAX_CANDIDATES = 16  # nearest places with the last two tokens, or with another pair of the same hash


class Prediction:
    """Place of an answer in its prediction. Takes 8 to 12 bytes a token.

    Each place has the next one with the same hash of its pair of tokens: a chain, which begins at `_first`. Places
    before the last difference leave their chains, so that a search takes the same time wherever the answer is.
    """

    def __init__(self, predicted: Sequence[int], tokens: list[int], start: int) -> None:
        """tokens: of the sequence, which appends to them. start: of the answer in them. Nothing is indexed yet."""
        self._predicted = predicted
        self._tokens = tokens
        self._start = start
        self._read = start  # tokens that were compared with the prediction
        self._place: int | None = 0  # of the next token in the prediction; None: not found after a difference
        self._match = LONG_MATCH  # tokens up to `_place` that are equal; the beginning counts as a long match
        self._searched_from = 0  # place of the last difference after a sure match
        self._later = array("i", [-1]) * len(predicted)  # by place of the second token of a pair
        self._first = array("i", [-1]) * (1 << len(predicted).bit_length())
        self._num_missing = max(0, len(predicted) - 1)  # pairs that are not indexed; the last one is indexed first

    def read(self, limit: int) -> int:
        """Index up to `limit` pairs and follow as many tokens of the answer, together; return how many.

        Until all pairs are indexed, the answer is followed up to its first difference.
        """
        indexed, predicted, tokens = self._index(limit), self._predicted, self._tokens
        first, end = self._read, min(len(tokens), self._read + max(limit - indexed, MIN_FOLLOWED))
        while self._read < end:
            place = self._place
            if place is not None and place < len(predicted) and predicted[place] == tokens[self._read]:
                self._place = place + 1
                self._match += 1
            elif self._num_missing:
                break
            else:
                if place is not None and self._match >= SURE_MATCH:
                    self._searched_from = place
                self._find(self._read)
            self._read += 1
        return indexed + self._read - first

    def draft(self, limit: int) -> Draft:
        """Return up to `limit` tokens that follow in the prediction; none after its end."""
        if self._place is None or self._read < len(self._tokens):
            return NO_DRAFT
        tokens = tuple(self._predicted[self._place : self._place + limit])
        return Draft(tokens, self._match, PREDICTION) if tokens else NO_DRAFT

    def _index(self, limit: int) -> int:
        """Index up to `limit` further pairs, and return how many."""
        predicted, later, first = self._predicted, self._later, self._first
        mask = len(first) - 1
        last = self._num_missing
        end = max(0, last - limit)
        for place in range(last, end, -1):
            at = (predicted[place - 1] * HASH[0] ^ predicted[place] * HASH[1]) & mask
            later[place] = first[at]
            first[at] = place
        self._num_missing = end
        return last - end

    def _find(self, last: int) -> None:
        """Set the place after the nearest one with the last three tokens of the answer, else with the last two.

        last: position of the last of these tokens in the sequence.
        """
        self._place = None
        if last - self._start < 1:
            return
        tokens, predicted = self._tokens, self._predicted
        before, token = tokens[last - 1], tokens[last]
        earlier = tokens[last - 2] if last - self._start > 1 else None
        at = (before * HASH[0] ^ token * HASH[1]) & (len(self._first) - 1)
        place = self._first[at]
        while 0 <= place < self._searched_from:
            place = self._later[place]
        self._first[at] = place
        for _ in range(MAX_CANDIDATES):
            if place < 1:
                break
            if predicted[place] == token and predicted[place - 1] == before:
                if place > 1 and predicted[place - 2] == earlier:
                    self._place, self._match = place + 1, 3
                    break
                if self._place is None:
                    self._place, self._match = place + 1, 2
            place = self._later[place]
