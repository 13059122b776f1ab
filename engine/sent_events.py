"""Tokens and ends of a request in the order in which its client gets them. Pure.

The order of the choices' tokens depends on the steps in which they were computed. The records of a stream, and so the
cursors of its readers, follow from it.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from engine.types import EndEvent, Event, FinishReason, Request, SentOutput, TokenEvent

END_BYTES = 300  # of an end in memory, about
ALTERNATIVE_BYTES = 100  # of a token or an alternative with its log-probability, about
CHANGED = "The answer was computed again by another engine, with other tokens."


def outputs(request: Request) -> dict[int, tuple[int, ...]]:
    """Return the output so far of each choice that is to be answered."""
    return {choice: request.output_so_far.get(choice, ()) for choice in request.choices}


class Receiver(Protocol):
    """Takes the events of a request, like a list."""

    def append(self, event: Event, /) -> None:
        """Take the next event."""
        ...


class SentEvents:
    """Tokens, ends and their order, at 5 bytes a token. Other events, and log-probabilities, are not kept."""

    __slots__ = ("_choices", "_ends", "_tokens")

    def __init__(self, sent: SentOutput | None = None) -> None:
        self._tokens = array("I", () if sent is None else sent.tokens)
        self._choices = bytearray(b"" if sent is None else sent.choices)
        self._ends = [] if sent is None else list(sent.ends)

    @classmethod
    def of(cls, output: Mapping[int, Sequence[int]]) -> SentEvents:
        """Return the output of choices, one choice after another, where the order does not matter."""
        sent = cls()
        for choice, tokens in output.items():
            sent._tokens.extend(tokens)
            sent._choices += bytes([choice]) * len(tokens)
        return sent

    def __len__(self) -> int:
        """Return the number of tokens."""
        return len(self._tokens) + sum(isinstance(end, TokenEvent) for _, end in self._ends)

    @property
    def bytes(self) -> int:
        """Return its memory, about."""
        return (self._tokens.itemsize + 1) * len(self._tokens) + END_BYTES * len(self._ends)

    @property
    def ended(self) -> set[int]:
        """Return the choices that have ended."""
        return {end.choice for _, end in self._ends}

    def append(self, event: Event, /) -> None:
        """Add an event."""
        if isinstance(event, TokenEvent) and event.finish is None:
            self._tokens.append(event.token_id)
            self._choices.append(event.choice)
        elif isinstance(event, TokenEvent):
            end = TokenEvent(event.request_id, event.choice, event.token_id, event.finish)
            self._ends.append((len(self._tokens), end))
        elif isinstance(event, EndEvent):
            self._ends.append((len(self._tokens), event))

    def output(self, choice: int) -> tuple[int, ...]:
        """Return the tokens of a choice, without the one that ended it."""
        return tuple(token for token, owner in zip(self._tokens, self._choices, strict=True) if owner == choice)

    def freeze(self, *, without_end: bool = False) -> SentOutput:
        """Return the events so far as a message. without_end: except for the last end, if all choices have ended."""
        ends = self._ends[:-1] if without_end else self._ends
        return SentOutput(tuple(self._tokens), bytes(self._choices), tuple(ends))

    @property
    def last_end(self) -> TokenEvent | EndEvent:
        """Return the latest end."""
        return self._ends[-1][1]

    def events(self, request_id: str) -> Iterator[TokenEvent | EndEvent]:
        """Yield all events in order."""
        ends = deque(self._ends)
        for number, (token, choice) in enumerate(zip(self._tokens, self._choices, strict=True)):
            while ends and ends[0][0] <= number:
                yield ends.popleft()[1]
            yield TokenEvent(request_id, choice, token)
        for _, end in ends:
            yield end

    def events_after(self, request_id: str, output: Mapping[int, Sequence[int]]) -> Iterator[TokenEvent | EndEvent]:
        """Yield the events, in order, that follow the given output of choices; those of other choices are left out."""
        left = {choice: len(tokens) for choice, tokens in output.items()}
        for event in self.events(request_id):
            if left.get(event.choice, 0):
                left[event.choice] -= 1
            elif event.choice in left:
                yield event


class Recorder:
    """Passes the events of a request on to its owner, and records their order.

    A request that is computed again, for its log-probabilities, has events that were sent before. Its choices may take
    other turns in another batch, so that their events are passed on in the order of before, each with its
    log-probabilities, and wait for their turn until then. A choice ends where it did before.
    """

    def __init__(self, request: Request, target: Receiver | None) -> None:
        """target: takes the events; None: nothing does."""
        self.target = target
        self._request_id = request.id
        self.sent = SentEvents(request.sent)
        self.cut: list[int] = []  # choices that have ended here and go on in the engine, which the owner aborts
        output = outputs(request)
        self._turns = deque(self.sent.events_after(request.id, output))
        self._held: dict[int, deque[TokenEvent | EndEvent]] = {choice: deque() for choice in output}
        self._ended: set[int] = set()
        self._event_bytes = (1 + (request.sampling.logprobs or 0)) * ALTERNATIVE_BYTES

    @property
    def is_replaying(self) -> bool:
        """Return whether events that were sent before are still to come."""
        return bool(self._turns)

    @property
    def held_bytes(self) -> int:
        """Return the memory of the events that wait for their turn, about."""
        return self._event_bytes * sum(map(len, self._held.values()))

    def give_up(self, message: str) -> None:
        """End all choices with an error."""
        self._turns.clear()
        for choice in self._held.keys() - self._ended:
            self._end(EndEvent(self._request_id, choice, FinishReason.ERROR, message, "not_continued"))

    def append(self, event: Event, /) -> None:
        """Take the next event of the engine."""
        if not isinstance(event, TokenEvent | EndEvent):
            self._pass_on(event)
        elif not self._turns and event.choice not in self._ended:
            self.sent.append(event)
            self._pass_on(event)
        elif event.choice not in self._ended:
            self._held[event.choice].append(event)
            self._take_turns()

    def _pass_on(self, event: Event) -> None:
        if self.target is not None:
            self.target.append(event)

    def _take_turns(self) -> None:
        """Pass on the events whose turn it is, and the rest once all turns are over."""
        while self._turns:
            known = self._turns[0]
            choice, held = known.choice, self._held[known.choice]
            if choice in self._ended:
                self._turns.popleft()
            elif isinstance(known, EndEvent):
                self._turns.popleft()
                self._end(known)
            elif held:
                self._turns.popleft()
                event = held.popleft()
                if isinstance(event, TokenEvent) and (event.token_id, event.finish) != (known.token_id, known.finish):
                    self._end(EndEvent(self._request_id, choice, FinishReason.ERROR, CHANGED, "text_changed"))
                else:
                    self._pass_on(event)
                    if event.finish is not None:
                        self._ended.add(choice)
            else:
                return
        for choice, held in self._held.items():
            while held and choice not in self._ended:
                event = held.popleft()
                self.sent.append(event)
                self._pass_on(event)
            held.clear()

    def _end(self, end: EndEvent) -> None:
        """End a choice where the engine may go on with it."""
        self._pass_on(end)
        self._ended.add(end.choice)
        self._held[end.choice].clear()
        self.cut.append(end.choice)
