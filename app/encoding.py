"""Long texts are tokenised in threads: a few at a time, people's before others', and none that could not be served."""

from __future__ import annotations

import asyncio
import time
from heapq import heappop, heappush
from itertools import count

from app.audit import Intake
from app.text import TextModel
from engine.errors import ContextExceeded
from engine.types import Cause, ServiceClass

THREAD_FROM = 8_192  # characters; shorter texts are tokenised faster than a thread is woken
PLACES = 2  # texts at once: each takes a hundred times its memory, and a core that the engine computes with
FOR_PEOPLE = 1  # of them: what is being tokenised cannot be stopped, and a person would wait for it


class Encoding:
    """Tokenises the texts of one server. `coming`: long ones that are not done yet."""

    def __init__(self, text: TextModel) -> None:
        self.coming = 0
        self._text = text
        self._free = PLACES
        self._waiting: list[tuple[ServiceClass, int, asyncio.Future[None]]] = []  # a heap
        self._arrivals = count()

    async def encode(
        self,
        text: str,
        service_class: ServiceClass,
        *,
        add_special_tokens: bool,
        most: int | None = None,
        intake: Intake | None = None,
    ) -> list[int]:
        """Token ids of `text`. Raises `ContextExceeded` where it is plain from its length that they are more than
        `most`. Whoever is cancelled before its turn costs nothing. intake: is told how long others went first."""
        if len(text) < THREAD_FROM:
            return self._text.encode(text, add_special_tokens=add_special_tokens)
        self.coming += 1
        try:
            await self._turn(service_class, intake)
            work = asyncio.get_running_loop().run_in_executor(None, self._encode, text, add_special_tokens, most)
            work.add_done_callback(lambda _: self._pass_on())  # a thread goes on, whoever is cancelled meanwhile
            return await asyncio.shield(work)
        finally:
            self.coming -= 1

    def _encode(self, text: str, add_special_tokens: bool, most: int | None) -> list[int]:
        least = self._text.least_tokens(text) if most is not None else 0
        if most is not None and least > most:
            raise ContextExceeded(f"the prompt has {least} tokens or more, the model's context {most}", param="prompt")
        return self._text.encode(text, add_special_tokens=add_special_tokens)

    async def _turn(self, service_class: ServiceClass, intake: Intake | None) -> None:
        mine = asyncio.get_running_loop().create_future()
        heappush(self._waiting, (service_class, next(self._arrivals), mine))
        self._let_in()
        if mine.done():
            return
        came = time.monotonic()
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():  # it was given to somebody who was cancelled in that moment
                self._pass_on()
            raise
        if intake is not None:
            intake.waited(came, time.monotonic(), Cause.TEXTS)

    def _pass_on(self) -> None:
        self._free += 1
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting:
            service_class, _, first = self._waiting[0]
            if not first.done():
                if self._free <= (0 if service_class is ServiceClass.INTERACTIVE else FOR_PEOPLE):
                    return
                self._free -= 1
                first.set_result(None)
            heappop(self._waiting)
