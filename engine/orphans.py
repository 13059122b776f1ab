"""Orphan: a request that has lost its connection and is computed for a while longer. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec.structs import replace

from engine.sent_events import SentEvents
from engine.types import EndEvent, Event, Phase, Request, StatusEvent, TokenEvent

TOKEN_BYTES = 36  # of a token ID of a request in memory, about


def request_bytes(request: Request) -> int:
    """Return the bytes of a request without output in memory, about."""
    tokens = len(request.prompt) + len(request.prediction)
    return len(request.note) + len(request.sampling.grammar or "") + TOKEN_BYTES * tokens


def has_logprobs(request: Request) -> bool:
    """Return whether a request's events have log-probabilities."""
    return request.sampling.logprobs is not None or request.sampling.prompt_logprobs is not None


def can_be_adopted(request: Request, *, is_exact: bool) -> bool:
    """Return whether another API process can make a request's stream from its note and tokens. Log-probabilities are
    computed again, where that gives the same ones (`ModelInfo.is_exact`).
    """
    return bool(request.note) and (is_exact or not has_logprobs(request))


class Orphan:
    """A request that has lost its connection, with its events until then and since then."""

    def __init__(
        self, request: Request, choices: Collection[int], sent: SentEvents, process: str, expires_at: float
    ) -> None:
        """choices: those that had not ended. sent: takes its events. process: the API process that had the request."""
        self.request = request
        self.sent = sent
        self.process = process
        self.expires_at = expires_at
        self.is_held = False  # the process is connected, and has the events of the request, which has ended
        self._choices = choices

    @property
    def bytes(self) -> int:
        """Return its memory, about."""
        return request_bytes(self.request) + self.sent.bytes

    @property
    def has_ended(self) -> bool:
        """Return whether all choices have ended."""
        return self.sent.ended.issuperset(self._choices)

    def adopted_request(self) -> Request:
        """Return the request with its output. If it has ended, its last end is left out, which follows as an event."""
        ended = self.sent.ended - ({self.sent.last_end.choice} if self.has_ended else set())
        output = {choice: self.sent.output(choice) for choice in self._choices if choice not in ended}
        return replace(self.request, output_so_far=output, sent=self.sent.freeze(without_end=self.has_ended))

    def events_after(self, output: Mapping[int, Sequence[int]], now: float) -> list[Event] | None:
        """Return the tokens and ends, in order, that follow the output that a new owner has, by choice.

        Returns None if that is not the beginning of this request's output, or if anything that follows is not kept:
        log-probabilities are not.
        """
        if has_logprobs(self.request) or not all(
            choice in self._choices and self.sent.output(choice)[: len(tokens)] == tuple(tokens)
            for choice, tokens in output.items()
        ):
            return None
        return with_status(self.sent.events_after(self.request.id, output), now)

    def choices_without(self, output: Mapping[int, Sequence[int]]) -> list[int]:
        """Return the choices that a new owner does not have."""
        return [choice for choice in self._choices if choice not in output]


def with_status(events: Iterable[TokenEvent | EndEvent], now: float) -> list[Event]:
    """Return events with the phase of each choice that ends."""
    found: list[Event] = []
    for event in events:
        if event.finish is not None:
            found.append(StatusEvent(event.request_id, event.choice, Phase.ENDED, monotonic_time=now))
        found.append(event)
    return found
