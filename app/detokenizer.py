"""Tokens to text as they come, and stop strings across the pieces."""

from __future__ import annotations

from collections.abc import Sequence

from app.text import TextModel

WINDOW = 32  # most tokens a detokeniser looks back on
CONTEXT = 5  # tokens of a prompt that the text behind it is decoded with (as in vLLM)


class Detokenizer:
    """Turns ids into text as they come. What it has given out never changes: an unfinished character is held back.

    The text of the last few tokens is decoded with and without the newest; the difference is new (as in vLLM and TGI).
    At the end of a text that stops in mid-character at most three replacement characters are pending: the bytes that a
    following token could still complete.
    """

    __slots__ = ("_decode", "_given", "_ids", "_model", "_settled")

    def __init__(self, model: TextModel, before: Sequence[int] = ()) -> None:
        """before: the tokens of a text that goes on. Some decoders take the space away that a text begins with."""
        self._model = model
        self._decode = model.tokenizer.decode  # `model.decode` of a list, and as a string: what every token pays
        self._ids: list[int] = []  # the window: tokens since the last known good border, and a few before it
        self._settled = 0  # how many of them had been decoded to whole characters
        self._given = 0  # characters of the window's text that were given out
        first = max(0, len(before) - CONTEXT)
        while first > max(0, len(before) - WINDOW) and model.goes_on(before[first]):
            first -= 1  # of a character's bytes a decoder wants all
        for token_id in before[first:]:
            self.push(token_id)

    def push(self, token_id: int) -> str:
        """Text that `token_id` completes; possibly none."""
        alone, is_whole = self._model.alone(token_id)
        if is_whole and self._settled == len(self._ids):
            # Nearly every token: nothing needs to be decoded.
            self._ids, self._settled, self._given = [token_id], 1, len(alone)
            return alone
        self._ids.append(token_id)
        text = self._decode(self._ids)
        pending = min(3, len(text) - len(text.rstrip("\ufffd"))) if text.endswith("\ufffd") else 0
        if pending and self._model.falls_back_on_bytes and len(self._ids) - self._settled <= WINDOW // 2:
            return ""  # until a run of bytes is complete, all of them are replaced, those of characters before it too
        end = len(text) - pending
        new = text[self._given : end]
        if pending:
            self._given = max(self._given, end)
            if len(self._ids) > WINDOW:
                # Bytes that never make characters: keep the last few tokens, or each push would decode all of them.
                left = len(text) - self._given
                self._ids = self._ids[-WINDOW // 2 :]
                self._settled = 0
                self._given = len(self._decode(self._ids)) - left
        else:
            # A clean border. The newest token stays as context: some decoders treat a text's first token specially; one
            # without a text is no context.
            if alone or len(self._ids) > WINDOW:
                self._ids = self._ids[self._settled :]
            self._settled = len(self._ids)
            self._given = len(alone) if self._settled == 1 else len(self._decode(self._ids))
        return new

    def flush(self) -> str:
        """What is still pending when the text ends: replacement characters for bytes that were never completed."""
        text = self._decode(self._ids)[self._given :]
        self._given += len(text)
        return text


class StopMatcher:
    """Finds stop strings in a text that comes in pieces, and holds back what may be the beginning of one."""

    __slots__ = ("_held", "_stops", "_uncounted")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self._uncounted = 0  # characters at the beginning of the held text in which no stop string may end

    def push(self, text: str, *, counts: bool = True) -> tuple[str, str | None]:
        """(text that may be shown, the stop string that was met or None). After a match nothing more may be pushed.
        counts: whether a stop string may end in `text`; it may begin there either way."""
        if not self._stops:
            return text, None
        self._held += text
        if not counts:
            self._uncounted = len(self._held)
        found = min(((at, stop) for stop in self._stops if (at := self._find(stop)) >= 0), default=None)
        if found is not None:
            at, stop = found
            return self._held[:at], stop
        keep = max(map(self._overlap, self._stops))
        shown = self._held[: len(self._held) - keep]
        self._held = self._held[len(shown) :]
        self._uncounted = max(0, self._uncounted - len(shown))
        return shown, None

    def flush(self) -> str:
        """The text ended: what was held back was no stop string after all."""
        held, self._held = self._held, ""
        return held

    def _find(self, stop: str) -> int:
        """Return where a stop string that counts begins in the held text, or -1."""
        return self._held.find(stop, max(0, self._uncounted - len(stop) + 1))

    def _overlap(self, stop: str) -> int:
        """Length of the longest end of the held text that begins `stop`."""
        for length in range(min(len(stop) - 1, len(self._held)), 0, -1):
            if stop.startswith(self._held[-length:]):
                return length
        return 0
