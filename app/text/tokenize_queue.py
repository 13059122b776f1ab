"""TokenizeQueue: tokenization of long texts in threads, a few at a time."""

from __future__ import annotations

from app.admission.thread_queue import Caller, ThreadQueue
from app.text.text_model import TextModel
from engine.errors import ContextExceeded

MIN_THREAD_CHARACTERS = 8_192  # shorter texts are tokenized faster than a thread is woken
MAX_CONCURRENT = 2  # texts at once: each needs a hundred times its size in memory, and a core that the engine uses
RESERVED_INTERACTIVE = 1  # of these, for interactive requests


class TokenizeQueue:
    """Tokenizer of the prompts of one server."""

    def __init__(self, text: TextModel) -> None:
        self._text = text
        self._queue = ThreadQueue(MAX_CONCURRENT, RESERVED_INTERACTIVE)

    @property
    def pending(self) -> int:
        """Return the number of long texts that are not tokenized yet."""
        return self._queue.pending

    async def encode(
        self,
        text: str,
        caller: Caller,
        *,
        add_special_tokens: bool,
        max_tokens: int | None = None,
    ) -> list[int]:
        """Return the token ids of `text`. Raises `ContextExceeded` if its length shows that it has more than
        `max_tokens` tokens.
        """
        if len(text) < MIN_THREAD_CHARACTERS:
            return self._text.encode(text, add_special_tokens=add_special_tokens)
        return await self._queue.run(
            lambda: self.encode_inline(text, add_special_tokens, max_tokens), caller, size=len(text)
        )

    def encode_inline(self, text: str, add_special_tokens: bool, most: int | None = None) -> list[int]:
        """Encode in the calling thread, without waiting for a turn."""
        if most is not None:
            self._refuse_too_long(text, most)
        return self._text.encode(text, add_special_tokens=add_special_tokens)

    def _refuse_too_long(self, text: str, most: int) -> None:
        """Raise `ContextExceeded` for a text that clearly has more than `most` tokens, by tokenizing only a part of it.

        The result of tokenizing megabytes is created and freed with the interpreter lock held.
        """
        least = self._text.min_tokens(text)
        size = 4 * most
        while least <= most and size < len(text):
            # The beginning of a text has the same tokens as in the whole, up to its last word: at least half are
            # certain.
            least = max(least, self._text.count_tokens(text[:size]) // 2)
            size *= 2
        if least > most:
            raise ContextExceeded(
                f"the prompt has at least {least} tokens; the model's context has {most}", param="prompt"
            )
