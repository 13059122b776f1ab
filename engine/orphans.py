"""Orphan: a request that has lost its connection and is computed for a while longer. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.types import EndEvent, Event, Phase, Request, StatusEvent, TokenEvent


def has_logprobs(request: Request) -> bool:
    """Return whether a request's events have log-probabilities."""
    return request.sampling.logprobs is not None or request.sampling.prompt_logprobs is not None


def has_known_order(request: Request) -> bool:
    """Return whether a request's stream follows from its tokens. Of several choices, the order of tokens and those that
    had ended are not kept, and neither are log-probabilities.
    """
    return request.n == 1 and not has_logprobs(request)


def can_be_adopted(request: Request) -> bool:
    """Return whether another API process can make a request's stream from its note and tokens."""
    return bool(request.note) and has_known_order(request)


class Orphan:
    """A request, the output that it had when it lost its connection, and its events since then."""

    def __init__(self, request: Request, output: Mapping[int, Sequence[int]], process: str, expires_at: float) -> None:
        """output: tokens of each choice that had not ended. process: the API process that had the request."""
        self.request = request
        self.process = process
        self.expires_at = expires_at
        self.is_held = False  # the process is connected, and has the events of the request, which has ended
        self.events: list[Event] = []
        self._output = output

    @property
    def can_continue(self) -> bool:
        """Return whether a new owner can receive all events of it. Log-probabilities of earlier tokens are not kept."""
        return not has_logprobs(self.request)

    @property
    def is_adoptable(self) -> bool:
        """Return whether another API process can make its stream."""
        return can_be_adopted(self.request)

    @property
    def output(self) -> dict[int, tuple[int, ...]]:
        """Return the tokens of each choice, without the one that ended it."""
        output = {choice: list(tokens) for choice, tokens in self._output.items()}
        for event in self.events:
            if isinstance(event, TokenEvent) and event.finish is None:
                output[event.choice].append(event.token_id)
        return {choice: tuple(tokens) for choice, tokens in output.items()}

    def events_after(self, output: Mapping[int, Sequence[int]], now: float) -> list[Event] | None:
        """Return the tokens and ends that follow the output that a new owner has, by choice.

        Returns None if that is not the beginning of this request's output, or if anything that follows is not kept.
        """
        if not self.can_continue:
            return None
        known, ends = self.output, self._ends()
        events: list[Event] = []
        for choice, tokens in output.items():
            if choice not in known or known[choice][: len(tokens)] != tuple(tokens):
                return None
            events += [TokenEvent(self.request.id, choice, token) for token in known[choice][len(tokens) :]]
            if (end := ends.get(choice)) is not None:
                events += [StatusEvent(self.request.id, choice, Phase.ENDED, monotonic_time=now), end]
        return events

    def choices_without(self, output: Mapping[int, Sequence[int]]) -> list[int]:
        """Return the choices that a new owner does not have."""
        return [choice for choice in self._output if choice not in output]

    def _ends(self) -> dict[int, TokenEvent | EndEvent]:
        return {
            event.choice: event
            for event in self.events
            if isinstance(event, TokenEvent | EndEvent) and event.finish is not None
        }
