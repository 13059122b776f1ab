"""Incremental detokenization, and stop strings across pieces of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from app.text.text_model import TextModel

MAX_WINDOW_TOKENS = 32  # maximum tokens that a detokenizer decodes again
CONTEXT_TOKENS = 5  # of a prompt with which the continuation is decoded (as in vLLM)


class Detokenizer:
    """Incremental decoder from ids to text. Returned text never changes: an unfinished character is held back.

    The last few tokens are decoded with and without the newest; the difference is the new text (as in vLLM and TGI). If
    the text stops in mid-character, at most three replacement characters are pending: bytes that a following token
    could still complete.
    """

    __slots__ = ("_decode", "_emitted", "_ids", "_model", "_settled", "_shown")

    def __init__(
        self, model: TextModel, before: Sequence[int] = (), shown: Mapping[int, str] = MappingProxyType({})
    ) -> None:
        """before: tokens of a text that continues. Some decoders remove the space at the beginning of a text. shown:
        texts of control tokens, which are otherwise left out.
        """
        self._model = model
        self._shown = shown
        self._decode = model.tokenizer.decode  # same as `model.decode` of a list; called for every token
        self._ids: list[int] = []  # window: tokens since the last clean border, and a few before it
        self._settled = 0  # number of window tokens that were decoded to whole characters
        self._emitted = 0  # characters of the window's text that were returned
        first = max(0, len(before) - CONTEXT_TOKENS)
        while first > max(0, len(before) - MAX_WINDOW_TOKENS) and model.may_continue_character(before[first]):
            first -= 1  # a decoder needs all bytes of a character
        for token_id in before[first:]:
            self.push(token_id)

    def push(self, token_id: int) -> str:
        """Return the text that `token_id` completes; possibly empty."""
        if token_id in self._shown:
            return self.flush() + self._shown[token_id]
        alone, is_whole = self._model.decode_single(token_id)
        if is_whole and self._settled == len(self._ids):
            # The common case: nothing needs to be decoded.
            self._ids, self._settled, self._emitted = [token_id], 1, len(alone)
            return alone
        self._ids.append(token_id)
        text = self._decode(self._ids)
        pending = min(3, len(text) - len(text.rstrip("\ufffd"))) if text.endswith("\ufffd") else 0
        if pending and self._model.has_byte_fallback and len(self._ids) - self._settled <= MAX_WINDOW_TOKENS // 2:
            # until a run of bytes is complete, all of it decodes to replacement characters, even whole characters
            # before it
            return ""
        end = len(text) - pending
        new = text[self._emitted : end]
        if pending:
            self._emitted = max(self._emitted, end)
            if len(self._ids) > MAX_WINDOW_TOKENS:
                # Bytes that never form characters: keep the last few tokens, so that not every push decodes all of
                # them.
                left = len(text) - self._emitted
                self._ids = self._ids[-MAX_WINDOW_TOKENS // 2 :]
                self._settled = 0
                self._emitted = len(self._decode(self._ids)) - left
        else:
            # A clean border. The newest token stays as context, because some decoders treat the first token of a text
            # specially; a token without text gives no context.
            if alone or len(self._ids) > MAX_WINDOW_TOKENS:
                self._ids = self._ids[self._settled :]
            self._settled = len(self._ids)
            self._emitted = len(alone) if self._settled == 1 else len(self._decode(self._ids))
        return new

    def flush(self) -> str:
        """Return pending text at the end: replacement characters for bytes that were never completed."""
        text = self._decode(self._ids)[self._emitted :]
        if text:  # bytes of a character that no later token completes
            self._ids, self._settled, self._emitted = [], 0, 0
        return text


class StopMatcher:
    """Search for stop strings in text that arrives in pieces. Holds back text that may begin a stop string."""

    __slots__ = ("_held", "_is_included", "_stops", "_uncounted")

    def __init__(self, stops: Sequence[str], *, is_included: bool = False) -> None:
        """is_included: the stop string that ends a text is part of it."""
        self._stops = tuple(stops)
        self._is_included = is_included
        self._held = ""
        self._uncounted = 0  # characters at the beginning of the held text in which no stop string may end

    def push(self, text: str, *, counts: bool = True) -> tuple[str, str | None]:
        """Return the text that may be shown, and the matched stop string or None. After a match `push` must not be
        called.

        counts: whether a stop string may end in `text`; it may begin there in any case.
        """
        if not self._stops:
            return text, None
        self._held += text
        if not counts:
            self._uncounted = len(self._held)
        found = min(((at, stop) for stop in self._stops if (at := self._find(stop)) >= 0), default=None)
        if found is not None:
            at, stop = found
            return self._held[: at + len(stop) if self._is_included else at], stop
        keep = max(map(self._overlap, self._stops))
        shown = self._held[: len(self._held) - keep]
        self._held = self._held[len(shown) :]
        self._uncounted = max(0, self._uncounted - len(shown))
        return shown, None

    def flush(self) -> str:
        """Return held-back text at the end, which did not complete a stop string."""
        held, self._held = self._held, ""
        return held

    def _find(self, stop: str) -> int:
        """Return the position of a valid stop string in the held text, or -1."""
        return self._held.find(stop, max(0, self._uncounted - len(stop) + 1))

    def _overlap(self, stop: str) -> int:
        """Return the length of the longest suffix of the held text that is a prefix of `stop`."""
        for length in range(min(len(stop) - 1, len(self._held)), 0, -1):
            if stop.startswith(self._held[-length:]):
                return length
        return 0
