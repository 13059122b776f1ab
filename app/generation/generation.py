"""Generation: lifecycle of one request in the server, from its first engine event to its last log record.

Owns timers, the end of the request, and the decision when a request without readers is abandoned. Text comes from
`app.generation.choice`. Independent of protocols.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeAlias

from app.engine_client.client import EngineClient
from app.generation.choice import ChoiceOutput, OutputOptions
from app.generation.client_pause import ClientPause
from app.generation.predicted import PredictedTokens
from app.generation.timing import Timing
from app.streams.status import EngineMoveEvent, status_view
from app.streams.stream_log import (
    ChoiceFinished,
    ChoiceStarted,
    Encoder,
    Failure,
    PromptInfos,
    StreamLog,
    TokenInfo,
    Usage,
)
from app.streams.timeline import IntakeTimeline, RequestTimeline
from app.text.detokenizer import Detokenizer
from app.text.output_parser import OutputParser
from app.text.text_model import TextModel
from engine.request_logging import log_request
from engine.types import EndEvent, Event, FinishReason, Phase, PromptEvent, Request, StatusEvent, TokenEvent

log = logging.getLogger("carousel.generation")

ABANDONED_CODE = "abandoned"  # error code of an answer whose last reader has left
DEADLINE_GRACE_SECONDS = 0.25  # after a deadline by which a running engine has ended the request


GenerationCallback: TypeAlias = "Callable[[Generation], None]"
TokenCallback = Callable[[float | None, float | None], None]


class Generation:
    """Writer of one log. `handle_event` is the sink that the engine client calls."""

    __slots__ = (
        "__weakref__",
        "_abandon_timer",
        "_choices",
        "_client",
        "_deadline_timer",
        "_on_end",
        "_on_start",
        "_on_token",
        "_options",
        "_pause",
        "_predicted",
        "_prompt_infos",
        "cached_tokens",
        "changes",
        "encoder",
        "log",
        "request",
        "resume_grace_seconds",
        "timeline",
        "timing",
    )

    def __init__(
        self,
        request: Request,
        text: TextModel,
        options: OutputOptions,
        log: StreamLog,
        encoder: Encoder | None,
        client: EngineClient,
        intake: IntakeTimeline,
        *,
        parser: Callable[[str], OutputParser | None] = lambda name: None,
        continues_prompt: bool = False,
        grace: float = 0.0,
    ) -> None:
        """parser: returns the output parser of the choice with a name; None if all text is content. continues_prompt:
        the answer continues the text of the prompt.
        """
        self.request = request
        self.log = log
        self.encoder = encoder  # encodes the stream for a reader that resumes it; None: it cannot be resumed
        self.resume_grace_seconds = grace  # seconds that it continues without a reader; infinity: until its end
        self.timing = Timing(intake.received_at, time.monotonic())
        self.timeline = RequestTimeline(request.n, intake, self.timing.submitted)
        self.cached_tokens = 0
        self.changes = 0  # by its client
        self._client = client
        before = request.prompt if continues_prompt else ()
        self._choices = [
            ChoiceOutput(
                index,
                Detokenizer(text, before, {**options.shown_tokens, **options.marks.shown}),
                options,
                parser(f"{request.id}-{index}"),
                request.sampling.min_tokens,
                partial(client.keep, request.id, index),
            )
            for index in range(request.n)
        ]
        self._options = options
        self._predicted = PredictedTokens(is_enabled=options.counts_prediction)
        self._prompt_infos: list[TokenInfo | None] = []  # log-probabilities of the prompt's tokens, as they arrive
        self._on_start: GenerationCallback = lambda generation: None
        self._on_end: GenerationCallback = lambda generation: None
        self._on_token: TokenCallback = lambda gap, waited: None
        self._abandon_timer: asyncio.TimerHandle | None = None
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._pause: ClientPause | None = None

    def replay(self, events: Iterable[TokenEvent | EndEvent]) -> None:
        """Write the records of events that an earlier process has received, without counting the times of tokens."""
        for event in events:
            if self.log.is_closed:
                return
            if isinstance(event, EndEvent):
                self._on_end_event(event)
            elif not (choice := self._choices[event.choice]).is_finished:
                self._push(choice, event)

    def end_as(self, record: Usage | Failure) -> None:
        """End a replayed answer as the earlier process did, with its last record."""
        for choice in self._choices:
            if isinstance(record, Usage):
                self._abort(choice)
        if self.log.is_closed:
            self.log.records[-1] = record
        else:
            self._close(record)

    def connect(self, on_start: GenerationCallback, on_end: GenerationCallback, on_token: TokenCallback) -> None:
        """Set the functions that are called from now on. on_token: with the seconds since the previous token of its
        choice, if there was one, and, for the first token of the request, the seconds since the whole request had
        arrived.
        """
        self._on_start, self._on_end, self._on_token = on_start, on_end, on_token

    def change(self, request: Request, on_token: TokenCallback, max_pause: float) -> None:
        """Take the new state of the request: of another class, or paused by its client, for `max_pause` seconds at
        most. on_token: as in `connect`.
        """
        self.request, self._on_token = request, on_token
        self.changes += 1
        if not request.is_paused:
            self._end_pause()
        elif self._pause is None:
            self._pause = ClientPause(max_pause, self.fail)

    def _end_pause(self) -> None:
        """Let the pause count in no latency."""
        if self._pause is not None:
            moved, self._pause = self._pause.end(), None
            self.timing.move(moved)
            for choice in self._choices:
                choice.first_token, choice.last_token = moved(choice.first_token), moved(choice.last_token)

    @property
    def unfinished(self) -> list[int]:
        """Return the choices that have not ended."""
        return [choice.index for choice in self._choices if not choice.is_finished]

    @property
    def num_choices(self) -> int:
        """Return the number of choices."""
        return self.request.n

    @property
    def completion_tokens(self) -> int:
        """Return the number of tokens of all choices so far."""
        return sum(choice.generated for choice in self._choices)

    @property
    def mean_gap(self) -> float:
        """Return the mean seconds between two tokens of a choice; 0 if no choice has two tokens."""
        gaps, seconds = 0, 0.0
        for choice in self._choices:
            if choice.first_token is not None and choice.last_token is not None:
                gaps += choice.generated - 1
                seconds += choice.last_token - choice.first_token
        return seconds / gaps if gaps else 0.0

    @property
    def has_no_reader(self) -> bool:
        """Return whether the last reader has left and the grace period runs."""
        return self._abandon_timer is not None and not self.log.readers

    def handle_event(self, event: Event) -> None:
        """Handle the request's next event. An exception here ends this request with an error, and no other request."""
        if self.log.is_closed:
            if isinstance(event, StatusEvent):  # the answer ended at a stop string, its choice in the engine later
                self.timeline.add_drafts(event)
            return
        try:
            self._dispatch(event)
        except Exception:
            log_request(log, logging.ERROR, self.request, "an event could not be handled", has_traceback=True)
            self.fail(
                f"Internal server error; see the server log for request ID {self.request.log_id}.", "internal_error"
            )
        self.log.notify()

    def _dispatch(self, event: Event) -> None:
        match event:
            case TokenEvent():
                choice = self._choices[event.choice]
                if not choice.is_finished:  # else a stop string was found; the engine's abort and this token crossed
                    self._on_token_event(choice, event)
            case StatusEvent():
                self._on_status_event(event)
            case PromptEvent():
                self._on_prompt_event(event)
            case EndEvent():
                self._on_end_event(event)

    def _on_end_event(self, event: EndEvent) -> None:
        choice = self._choices[event.choice]
        if event.finish is not FinishReason.ERROR:
            self._abort(choice)
            return
        is_single_choice = event.code == "not_a_number"  # the only error that concerns a single choice
        if is_single_choice and choice.is_finished:
            return  # a stop string was found; the engine's event and this abort crossed
        level = logging.ERROR if is_single_choice else logging.INFO
        log_request(log, level, self.request, "%s (%s)", event.message, event.code)
        self._client.abort(self.request.id)  # ends the other choices
        self._close(Failure(event.message, event.code, event.param))

    def _on_prompt_event(self, event: PromptEvent) -> None:
        prompt, echo = self.request.prompt, self._options.echo
        if not self._prompt_infos:
            self._prompt_infos = [TokenInfo(prompt[0], None, (), 0), *([None] * (len(prompt) - 1))]
        for position, token in enumerate(event.tokens, event.start):
            offset = echo.offsets[position] if echo is not None else 0
            self._prompt_infos[position] = TokenInfo(prompt[position], token.logprob, token.top, offset)

    def _on_status_event(self, event: StatusEvent) -> None:
        self.timeline.add(event)
        self._predicted.add(event)
        if not self.unfinished:
            self._finish()
            return
        if event.phase is Phase.ENDED or (isinstance(event, EngineMoveEvent) and event.next_engine is not None):
            return
        self._choices[event.choice].status = event
        if event.choice == 0 and event.state == "running" and self.timing.started is None:
            self.timing.started = event.monotonic_time
            self.cached_tokens = event.cached_tokens
            self._on_start(self)
        self._publish_status()

    def _publish_status(self) -> None:
        """Publish the status of the first unfinished choice, because further choices wait for the first."""
        status = next(choice.status for choice in self._choices if not choice.is_finished)
        if status is not None and (self.log.status is None or status_view(status) != status_view(self.log.status)):
            self.log.status = status

    @property
    def is_calling(self) -> bool:
        """Return whether a choice has a tool call, or ends inside of one."""
        return any(choice.is_calling for choice in self._choices)

    def cancel(self, reason: str = "abort") -> None:
        """Stop now: slot and pages are free before the engine's next step. reason: of the choices' end, `steered` if
        another answer goes on from this one.
        """
        self._client.abort(self.request.id)
        for choice in self._choices:
            if not self.log.is_closed:
                self._abort(choice, reason)
        self.log.notify()

    def fail(self, message: str, code: str, param: str | None = None) -> None:
        """End the request with an error for its readers."""
        if not self.log.is_closed:
            self._client.abort(self.request.id)
            self._close(Failure(message, code, param))
            self.log.notify()

    def start_deadline_timer(self) -> None:
        """Set a timer for the deadline. The engine normally ends a late request; this covers a missing or hanging
        engine.
        """
        if self.request.deadline is not None and not self.log.is_closed:
            late = self.request.deadline + DEADLINE_GRACE_SECONDS - time.monotonic()
            failure = "the deadline has passed", "deadline_exceeded", "deadline_ms"
            self._deadline_timer = asyncio.get_running_loop().call_later(late, self.fail, *failure)

    def on_reader_left(self) -> None:
        """Handle the departure of a reader. After the last one, the request is abandoned once its grace period ends."""
        if self.log.readers:
            return
        if self.log.is_closed:
            self.timeline.record_delivery(time.monotonic())
        elif self.resume_grace_seconds <= 0:
            self._abandon()
        elif math.isfinite(self.resume_grace_seconds):
            self._cancel_abandon_timer()
            self._abandon_timer = asyncio.get_running_loop().call_later(
                self.resume_grace_seconds, self._abandon_if_unread
            )

    def _abandon_if_unread(self) -> None:
        self._abandon_timer = None
        if not self.log.readers and not self.log.is_closed:
            self._abandon()

    def _abandon(self) -> None:
        """End with an error instead of `cancel`: a reader that returns late must not take the answer for complete."""
        self.fail("The answer was given up before it was complete, because no client was reading it.", ABANDONED_CODE)

    def _on_token_event(self, choice: ChoiceOutput, event: TokenEvent) -> None:
        self._clock_token(choice)
        self._push(choice, event)

    def _push(self, choice: ChoiceOutput, event: TokenEvent) -> None:
        """Write the records of a token."""
        self._open(choice)
        for delta in choice.push(event):
            self.log.append(delta)
        if choice.is_finished:
            if event.finish is None:
                self._client.abort(self.request.id, event.choice)
            self._on_choice_finished(choice)

    def _clock_token(self, choice: ChoiceOutput) -> None:
        now = time.monotonic()
        gap = waited = None
        if choice.last_token is not None:
            gap = now - choice.last_token
        else:
            choice.first_token = now
            if self.timing.first_token is None:
                self.timing.first_token = now
                waited = now - self.timing.received_at
        choice.last_token = now
        self._on_token(gap, waited)

    def _open(self, choice: ChoiceOutput) -> None:
        if not choice.is_started:
            choice.is_started = True
            self.log.append(ChoiceStarted(choice.index))
            prompt_infos = [info for info in self._prompt_infos if info is not None]
            if self._options.lists_prompt:
                self.log.append(PromptInfos(choice.index, tuple(prompt_infos)))
            for delta in choice.echo(prompt_infos):
                self.log.append(delta)

    def _abort(self, choice: ChoiceOutput, reason: str = "abort") -> None:
        if choice.is_finished:
            return
        self._open(choice)
        for held in choice.abort(reason):
            self.log.append(held)
        self._on_choice_finished(choice)

    def _on_choice_finished(self, choice: ChoiceOutput) -> None:
        assert choice.finish_reason is not None
        self.log.append(ChoiceFinished(choice.index, choice.finish_reason, choice.stop_string))
        if self.unfinished:
            self._publish_status()
        else:
            self._finish()

    def _finish(self) -> None:
        """Write the usage, unless the engine still has to send a part of it."""
        if not self._predicted.is_complete:
            return
        now = time.monotonic()
        self.timeline.close(now, is_read=self.log.readers > 0)
        spent = self.timeline.totals_ms(now)
        reasoning = sum(choice.reasoning_tokens for choice in self._choices)
        counts = len(self.request.prompt), self.completion_tokens, self.cached_tokens
        self._close(Usage(*counts, spent, reasoning, self._predicted.tokens))

    def _cancel_abandon_timer(self) -> None:
        if self._abandon_timer is not None:
            self._abandon_timer.cancel()
            self._abandon_timer = None

    def _close(self, record: Usage | Failure) -> None:
        self._cancel_abandon_timer()
        self._end_pause()
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
        self.timeline.close(time.monotonic(), is_read=self.log.readers > 0)
        self.log.append(record)
        self._on_end(self)
