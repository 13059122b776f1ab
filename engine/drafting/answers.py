"""Drafts from earlier answers of the same kind: the continuations that followed the last tokens in most of them.

SuffixDecoding (Oliaro et al., 2024) with chains of token pairs in place of suffix trees. Answers with one form, such as
JSON with one schema, are guessed where they repeat the form and not where they differ: there, the answers disagree.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence

from engine.drafting.lookup import MAX_CANDIDATES, MAX_MATCH, NO_DRAFT, Draft, PairIndex
from engine.drafting.note import ANSWERS
from engine.prefixes import chain_start

MAX_TOKENS = 1 << 19  # of all keys
MAX_KEY_TOKENS = 1 << 15
MAX_KEYS = 256
MIN_MATCH_SHARE = 0.75  # of the longest match, from which a place has a vote
MIN_AGREEMENT = 0.5  # share of the votes
END = -1  # after each answer, and before the first; no token


def answers_key(salt: str, grammar: str) -> bytes:
    """Return the key of answers of one tenant and one form. salt: that divides the prefix cache."""
    return hashlib.blake2b(chain_start(salt) + grammar.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class RecentAnswers:
    """Bounded store of answers that have ended, divided by key. Takes 12 to 17 bytes a token, and up to 9 KB a key.

    An answer never drafts for another key, since the time of accepted drafts would reveal its text. A key is made from
    all that separates texts and their forms, such as the cache salt of a tenant and a grammar.
    """

    def __init__(
        self, max_tokens: int = MAX_TOKENS, max_key_tokens: int = MAX_KEY_TOKENS, max_keys: int = MAX_KEYS
    ) -> None:
        """max_key_tokens: bounds one key, and how much of a long answer is kept. Each answer counts one token more."""
        self._max_tokens = max_tokens
        self._max_key_tokens = min(max_key_tokens, max_tokens)
        self._max_keys = max_keys
        self._num_tokens = 0
        self._texts: OrderedDict[bytes, _Answers] = OrderedDict()  # least recently used first
        self._waiting: dict[bytes, None] = {}  # keys with text that is not indexed yet, the longest waiting first

    def add(self, key: bytes, tokens: Sequence[int]) -> None:
        """Store an answer, which drafts when it is indexed. Drops the least recently used keys for it if needed."""
        kept = tokens[: self._max_key_tokens - 2]
        if len(kept) < 3:
            return  # a pair and a token after it
        text = self._texts.get(key)
        if text is None:
            text = self._texts[key] = _Answers()
            self._num_tokens += 1
        self._texts.move_to_end(key)
        self._num_tokens += text.add(kept, self._max_key_tokens)
        self._waiting[key] = None
        while self._num_tokens > self._max_tokens or len(self._texts) > self._max_keys:
            dropped, other = self._texts.popitem(last=False)
            self._num_tokens -= len(other.tokens)
            self._waiting.pop(dropped, None)

    def index(self, limit: int) -> int:
        """Index up to `limit` tokens of added answers, and return how many."""
        left = limit
        while left > 0 and self._waiting:
            key = next(iter(self._waiting))
            pairs = self._texts[key].pairs
            left -= pairs.index(left)
            if not pairs.num_missing:
                del self._waiting[key]
        return limit - left

    def draft(self, key: bytes, tokens: Sequence[int], limit: int) -> Draft:
        """Return up to `limit` tokens that followed the last ones of `tokens` in most answers of the key."""
        text = self._texts.get(key)
        if text is None or len(tokens) < 2:
            return NO_DRAFT
        self._texts.move_to_end(key)
        return text.draft(tokens[-MAX_MATCH:], limit)


class _Answers:
    """Answers of one key, one after another in one text."""

    def __init__(self) -> None:
        self.tokens = array("i", [END])
        self.pairs = PairIndex(self.tokens)

    def add(self, answer: Sequence[int], max_tokens: int) -> int:
        """Append an answer, and return the number of tokens that the text has more.

        In a full text only the latest answers in half of it are kept. They are indexed again: chains contain places of
        the present text alone, and each token is indexed twice on average.
        """
        before, size = len(self.tokens), len(answer) + 1
        excess = before + size - max_tokens
        if excess > 0:
            cut = before + size - max(max_tokens // 2, size + 1)
            self.tokens = self.tokens[self.tokens.index(END, cut) :]
        self.tokens.extend(array("i", answer))
        self.tokens.append(END)
        if excess > 0 or len(self.tokens) > self.pairs.room:
            self.pairs = PairIndex(self.tokens)
        return len(self.tokens) - before

    def draft(self, last: Sequence[int], limit: int) -> Draft:
        """Return the tokens that most places with a match nearly as long as the longest agree about."""
        matches, tokens = self._matches(last), self.tokens
        if not matches:
            return NO_DRAFT
        longest = max(matches.values())
        voters = [place for place, match in matches.items() if match >= MIN_MATCH_SHARE * longest]
        least, draft = MIN_AGREEMENT * len(voters), list[int]()
        for ahead in range(1, limit + 1):
            votes = [tokens[place + ahead] for place in voters]
            token = votes[0]
            if votes.count(token) < len(votes):
                token = max(dict.fromkeys(votes), key=votes.count)  # of equally frequent ones the latest
                voters = [place for place, vote in zip(voters, votes, strict=True) if vote == token]
            if token == END or len(voters) < least:
                break
            draft.append(token)
        return Draft(tuple(draft), longest, ANSWERS) if draft else NO_DRAFT

    def _matches(self, last: Sequence[int]) -> dict[int, int]:
        """Return the latest places with the last pair, the latest first, and how many tokens up to each match."""
        tokens, backwards, whole = self.tokens, last[::-1], array("i", last)
        matches = {}
        for place in self.pairs.places(last[-2], last[-1], MAX_CANDIDATES):
            match = 0
            if tokens[max(0, place + 1 - len(whole)) : place + 1] == whole:  # often, and faster than the loop
                match = len(whole)
            else:
                while tokens[place - match] == backwards[match]:  # at the latest, the END before the answer differs
                    match += 1
            if match > 1:
                matches[place] = match
        return matches
