"""Adoption: requests that another API process has lost, and that this one takes over. Independent of members' channels.

An engine goes on with the requests of a lost connection for a while (docs/decisions/0059). It gives one of them to the
API process whose client asks for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from app.engine_client.in_flight import InFlight
from app.engine_client.in_flight_request import Sink
from app.engine_client.member import EngineMember, EngineState
from engine.ipc import Abort, Adopt, Adopted, Forget, NotFound
from engine.sent_events import SentEvents
from engine.types import EndEvent, Event, Request, TokenEvent

POLL_SECONDS = 0.1  # between questions for a request that another process has


class HeldElsewhere(Exception):
    """Another API process has the request, and its connection to the engine."""


class AdoptedRequest:
    """Request of another API process, and its output so far. Its events wait until there is a sink for them.

    The request has no moments, which are on the clock of the process that has submitted it. output: in order; empty if
    all of it is computed again, and comes as events.
    """

    def __init__(self, message: Adopted) -> None:
        request = message.request
        self.output: list[TokenEvent | EndEvent] = []
        if request.output_so_far:
            self.output += SentEvents(request.sent).events(request.id)
        self.request: Request = replace(request, deadline=None, waiting_since=None)
        self._waiting: list[Event] = []
        self._sink: Sink = self._waiting.append

    def __call__(self, event: Event) -> None:
        self._sink(event)

    @property
    def tokens(self) -> list[TokenEvent]:
        """Return the tokens of its output."""
        return [event for event in self.output if isinstance(event, TokenEvent)]

    def output_after(self, tokens: int) -> Iterator[TokenEvent | EndEvent]:
        """Yield its output after some tokens, and the ends without a token before them."""
        count = 0
        for event in self.output:
            count += isinstance(event, TokenEvent)
            if isinstance(event, EndEvent) or count > tokens:
                yield event

    def release(self, sink: Sink) -> None:
        """Pass the events so far to a sink, and later ones too."""
        self._sink = sink
        for event in self._waiting:
            sink(event)


class _Question:
    """Name that engines were asked for, and those that have not answered."""

    def __init__(self, members: set[int]) -> None:
        self.members = members
        self.is_held = False  # an engine computes it for another connection
        self.answer: asyncio.Future[AdoptedRequest | None] = asyncio.get_running_loop().create_future()

    def settle(self) -> None:
        """Answer that no engine has it, once all have answered."""
        if not self.members and not self.answer.done():
            self.answer.set_result(None)


class Adoptions:
    """Questions to engines by name, each of which is asked once at a time."""

    def __init__(self, members: Mapping[int, EngineMember], in_flight: InFlight, *, is_possible: bool) -> None:
        """members: the current ones, by number. is_possible: their engines go on with the requests of an API process
        that has ended.
        """
        self.is_possible = is_possible
        self._members = members
        self._in_flight = in_flight
        self._questions: dict[str, _Question] = {}
        self._changed = asyncio.Event()

    async def adopt(self, name: str, cache_salt: str, seconds: float = 0.0) -> AdoptedRequest | None:
        """Take over the request with an ID or alias that another API process has lost; None if no engine has it.

        seconds: for which it is asked for again. Raises `HeldElsewhere` if the other process has not lost it then.
        """
        ends_at = time.monotonic() + seconds
        while True:
            try:
                return await self._ask(name, cache_salt)
            except HeldElsewhere:
                if time.monotonic() >= ends_at:
                    raise
            await asyncio.sleep(POLL_SECONDS)

    async def _ask(self, name: str, cache_salt: str) -> AdoptedRequest | None:
        assert name not in self._questions
        question = self._questions[name] = _Question(self._with_engine)
        try:
            for index in self._with_engine:
                self._members[index].engine.send(Adopt(name, cache_salt))
            question.settle()
            found = await question.answer
        finally:
            del self._questions[name]
        if found is None and question.is_held:
            raise HeldElsewhere
        return found

    async def connected(self, seconds: float) -> None:
        """Wait until all engines can be asked, for some seconds at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._with_engine != self._members.keys():
                    await self._changed.wait()

    def give_up(self, request_id: str) -> None:
        """End a request that was adopted, and let nothing know it: its former process goes on with it from a store."""
        if (state := self._in_flight.get(request_id)) is not None and state.member is not None:
            state.abort(None)
            self._members[state.member].abort(request_id, moves=True)
        self.forget(request_id)

    def forget(self, request_id: str) -> None:
        """Let no API process adopt a request that has ended."""
        for index in self._with_engine:
            self._members[index].engine.send(Forget(request_id))

    def handle(self, index: int, message: Adopted | NotFound) -> None:
        """Handle a member's answer. A request that nothing waits for, or that another engine has given too, is ended
        there.
        """
        question = self._questions.get(message.name)
        if isinstance(message, NotFound):
            if question is not None:
                question.is_held = question.is_held or message.is_held
                question.members.discard(index)
                question.settle()
        elif question is None or question.answer.done():
            self._members[index].engine.send(Abort(message.request.id))
        else:
            adopted = AdoptedRequest(message)
            self._in_flight.adopt(adopted.request, adopted, index)
            question.answer.set_result(adopted)

    def on_change(self) -> None:
        """Expect no answer from engines that are lost, and note those that have come."""
        self._changed.set()
        self._changed = asyncio.Event()
        for question in self._questions.values():
            question.members &= self._with_engine
            question.settle()

    @property
    def _with_engine(self) -> set[int]:
        """Return the members whose engines read messages: they serve requests, or end with those that they have."""
        if not self.is_possible:
            return set()
        return {
            index
            for index, member in self._members.items()
            if member.is_ready or (member.is_draining and member.phase is EngineState.RESTARTING)
        }
