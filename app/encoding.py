"""Encoding: long texts are tokenised in threads, a few at a time."""

from __future__ import annotations

from app.audit import Intake
from app.text import TextModel
from app.turnstile import Turnstile
from engine.errors import ContextExceeded
from engine.types import ServiceClass

THREAD_FROM = 8_192  # characters; shorter texts are tokenised faster than a thread is woken
PLACES = 2  # texts at once: each takes a hundred times its memory, and a core that the engine computes with
RESERVED = 1  # of them for interactive requests


class Encoding:
    """Tokenises the prompts of one server."""

    def __init__(self, text: TextModel) -> None:
        self._text = text
        self._turnstile = Turnstile(PLACES, RESERVED)

    @property
    def coming(self) -> int:
        """Long texts that are not done yet."""
        return self._turnstile.pending

    async def encode(
        self,
        text: str,
        service_class: ServiceClass,
        *,
        add_special_tokens: bool,
        most: int | None = None,
        intake: Intake | None = None,
    ) -> list[int]:
        """Return the token ids of `text`. Raises `ContextExceeded` if its length shows that they are more than `most`.
        `intake` is given the time that other texts went first."""
        if len(text) < THREAD_FROM:
            return self._text.encode(text, add_special_tokens=add_special_tokens)
        return await self._turnstile.run(
            lambda: self.encode_now(text, add_special_tokens, most), service_class, size=len(text), intake=intake
        )

    def encode_now(self, text: str, add_special_tokens: bool, most: int | None = None) -> list[int]:
        """As `encode`, in the calling thread and without a turn."""
        if most is not None:
            self._refuse_too_long(text, most)
        return self._text.encode(text, add_special_tokens=add_special_tokens)

    def _refuse_too_long(self, text: str, most: int) -> None:
        """Raise `ContextExceeded` for a text that has more than `most` tokens by far, at the cost of a part of it.

        What a tokenizer returns for a text of megabytes is created and freed with the interpreter lock held.
        """
        least = self._text.least_tokens(text)
        size = 4 * most
        while least <= most and size < len(text):
            # The beginning of a text has the same tokens as the whole, up to its last word: half of them are certain.
            least = max(least, self._text.count_tokens(text[:size]) // 2)
            size *= 2
        if least > most:
            raise ContextExceeded(f"the prompt has {least} tokens or more, the model's context {most}", param="prompt")
