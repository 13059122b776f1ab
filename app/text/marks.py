"""Marks: special tokens inside of text, each as one character that no text contains.

A model may spell `<tool_call>` with ordinary tokens, as when it quotes a page. Only the special token begins a call,
for the grammar and for the parser of an answer. In the text that a parser receives, special tokens are therefore marks:
low surrogates, which no decoded text has. A token that the tokenizer does not list as special is text for both.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

FIRST_MARK = 0xDC00
_ANY_MARK = re.compile("[\udc00-\udfff]")


class Marks:
    """Marks of the special tokens among some texts. Without special tokens all methods return their argument."""

    __slots__ = ("_characters", "_pattern", "_texts", "ids", "shown")

    def __init__(self, special_tokens: Mapping[str, int], texts: Collection[str]) -> None:
        """special_tokens: ids of the tokenizer's special tokens by text. texts: those that are marked."""
        found = sorted(special_tokens.keys() & set(texts), key=lambda text: (-len(text), text))
        self._characters = {text: chr(FIRST_MARK + index) for index, text in enumerate(found)}
        self._texts = {ord(mark): text for text, mark in self._characters.items()}
        self._pattern = re.compile("|".join(map(re.escape, found)) or r"(?!)")
        self.ids = {mark: special_tokens[text] for text, mark in self._characters.items()}
        self.shown = {token_id: mark for mark, token_id in self.ids.items()}  # marks by id, for a detokenizer

    def encode(self, text: str) -> str:
        """Return `text` with each special token's text replaced by its mark."""
        return self._pattern.sub(lambda found: self._characters[found[0]], text)

    def decode(self, text: str) -> str:
        """Return `text` with each mark replaced by the token's text."""
        return text if text.isascii() else text.translate(self._texts)

    def split(self, text: str) -> list[str]:
        """Return the marks in `text`, which has them instead of tokens, and the texts between them, in order."""
        parts, at = [], 0
        for found in _ANY_MARK.finditer(text):
            parts += [text[at : found.start()], found[0]]
            at = found.end()
        return [part for part in (*parts, text[at:]) if part]


NO_MARKS = Marks({}, ())
