"""Generation: one request on its way through the server, from engine events to log records.

Owns the detokenization and stop strings of each choice, token counts, and the decision when a request without readers
is abandoned. Independent of protocols.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from app.engine_client.client import EngineClient
from app.streams.status import status_view
from app.streams.stream_log import ChoiceFinished, ChoiceStarted, Delta, Encoder, Failure, StreamLog, TokenInfo, Usage
from app.streams.timeline import IntakeTimeline, RequestTimeline
from app.text.detokenizer import Detokenizer, StopMatcher
from app.text.text_model import TextModel
from engine.request_logging import log_request
from engine.types import EndEvent, Event, FinishReason, Phase, Request, StatusEvent, TokenEvent

log = logging.getLogger("carousel.generation")

ABANDONED_CODE = "abandoned"  # error code of an answer whose last reader has left
DEADLINE_GRACE_SECONDS = 0.25  # seconds after a deadline by which a running engine has ended the request


@dataclass(slots=True)
class _Choice:
    detokenizer: Detokenizer
    stops: StopMatcher
    stops_from: int  # number of tokens before which no stop string may end
    opened: bool = False
    finished: bool = False
    status: StatusEvent | None = None
    infos: list[TokenInfo] = field(default_factory=list)  # of tokens whose text is still held back
    tokens: int = 0  # number of tokens whose text is still held back
    generated: int = 0  # tokens so far
    shown: int = 0  # characters appended to the log
    characters: int = 0  # characters so far, including held-back ones; counted only with log-probabilities
    first_token: float | None = None  # arrival, in monotonic seconds
    last_token: float | None = None


@dataclass(slots=True)
class Timing:
    """Times of a request, in monotonic seconds, for metrics."""

    received_at: float  # the whole request had arrived; client-visible latency counts from here
    submitted: float
    started: float | None = None
    first_token: float | None = None


class Generation:
    """Writer of one log. `take` is the sink that the engine client calls."""

    __slots__ = (
        "_abandon_timer",
        "_choices",
        "_client",
        "_deadline_timer",
        "_on_end",
        "_on_start",
        "_on_token",
        "_text",
        "audit",
        "cached_tokens",
        "encoder",
        "log",
        "request",
        "resume_grace_seconds",
        "timing",
    )

    def __init__(
        self,
        request: Request,
        text: TextModel,
        stops: tuple[str, ...],
        log: StreamLog,
        encoder: Encoder | None,
        client: EngineClient,
        intake: IntakeTimeline,
        *,
        continues_prompt: bool = False,
        grace: float = 0.0,
        on_start: Callable[[Generation], None] = lambda generation: None,
        on_end: Callable[[Generation], None] = lambda generation: None,
        on_token: Callable[[float | None, float | None], None] = lambda gap, waited: None,
    ) -> None:
        """continues_prompt: the answer continues the text of the prompt. on_token is called with the seconds since the
        previous token of its choice, if there was one, and, for the first token of the request, the seconds since the
        whole request had arrived.
        """
        self.request = request
        self.log = log
        self.encoder = encoder  # encodes the stream for a reader that resumes it; None: it cannot be resumed
        self.resume_grace_seconds = grace  # seconds that it continues without a reader
        self.timing = Timing(intake.received_at, time.monotonic())
        self.audit = RequestTimeline(request.n, intake, self.timing.submitted)
        self.cached_tokens = 0
        self._text = text
        self._client = client
        stops_from = request.sampling.min_tokens  # as in vLLM
        before = request.prompt if continues_prompt else ()
        self._choices = [_Choice(Detokenizer(text, before), StopMatcher(stops), stops_from) for _ in range(request.n)]
        self._on_start = on_start
        self._on_end = on_end
        self._on_token = on_token
        self._abandon_timer: asyncio.TimerHandle | None = None
        self._deadline_timer: asyncio.TimerHandle | None = None

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
            return
        try:
            self._take(event)
        except Exception:
            log_request(log, logging.ERROR, self.request, "an event could not be handled", has_traceback=True)
            self.fail(
                f"Internal server error; see the server log for request ID {self.request.log_id}.", "internal_error"
            )
        self.log.notify()

    def _take(self, event: Event) -> None:
        match event:
            case TokenEvent():
                self._take_token(event)
            case StatusEvent():
                self._take_status(event)
            case EndEvent(_, choice, finish, message, code, param):
                if finish is FinishReason.ERROR:
                    is_single_choice = code == "not_a_number"  # the only error that concerns a single choice
                    if is_single_choice and self._choices[choice].finished:
                        return  # a stop string was found; the engine's event and this abort crossed
                    log_request(
                        log, logging.ERROR if is_single_choice else logging.INFO, self.request, "%s (%s)", message, code
                    )
                    self._client.abort(self.request.id)  # ends the other choices
                    self._close(Failure(message, code, param))
                else:
                    self._finish(choice, "abort")

    def _take_status(self, event: StatusEvent) -> None:
        self.audit.add(event)
        if event.phase is Phase.ENDED:
            return
        self._choices[event.choice].status = event
        if event.choice == 0 and event.state == "running" and self.timing.started is None:
            self.timing.started = event.monotonic_time
            self.cached_tokens = event.cached_tokens
            self._on_start(self)
        self._publish_status()

    def _publish_status(self) -> None:
        """Publish the status of the first unfinished choice, because further choices wait for the first."""
        status = next(choice.status for choice in self._choices if not choice.finished)
        if status is not None and (self.log.status is None or status_view(status) != status_view(self.log.status)):
            self.log.status = status

    def cancel(self) -> None:
        """Stop now: slot and pages are free before the engine's next step."""
        self._client.abort(self.request.id)
        for choice in range(len(self._choices)):
            if not self.log.is_closed:
                self._finish(choice, "abort")
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
            self.audit.record_delivery(time.monotonic())
        elif self.resume_grace_seconds <= 0:
            self._abandon()
        else:
            self._cancel_abandon_timer()
            self._abandon_timer = asyncio.get_running_loop().call_later(
                self.resume_grace_seconds, self._abandon_if_unread
            )

    def _abandon_if_unread(self) -> None:
        self._abandon_timer = None
        if not self.log.readers and not self.log.is_closed:
            self._abandon()

    def _abandon(self) -> None:
        """End with an error instead of `cancel`, so that a reader that returns late does not take the answer for
        complete.
        """
        self.fail("The answer was given up before it was complete, because no client was reading it.", ABANDONED_CODE)

    def _take_token(self, event: TokenEvent) -> None:
        choice = self._choices[event.choice]
        if choice.finished:
            return  # a stop string was found; the engine's abort and this token crossed
        choice.generated += 1
        self._clock_token(choice)
        self._open(event.choice, choice)
        choice.tokens += 1
        ended_by_token = event.finish is FinishReason.STOP
        text = "" if ended_by_token else choice.detokenizer.push(event.token_id)
        if event.finish is not None:
            text += choice.detokenizer.flush()
        if event.logprob is not None:
            choice.infos.append(TokenInfo(event.token_id, event.logprob, event.top, choice.characters))
            choice.characters += len(text)
        shown, stop = choice.stops.push(text, counts=choice.generated >= choice.stops_from)
        if stop is None and event.finish is not None:
            shown += choice.stops.flush()
        if shown or stop is not None or event.finish is not None:
            self._append_text(event.choice, choice, shown, is_whole=stop is None and event.finish is not None)
        if stop is not None:
            if event.finish is None:
                self._client.abort(self.request.id, event.choice)
            self._finish(event.choice, "stop", stop)
        elif event.finish is not None:
            self._finish(event.choice, event.finish.value)

    def _clock_token(self, choice: _Choice) -> None:
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

    def _open(self, index: int, choice: _Choice) -> None:
        if not choice.opened:
            choice.opened = True
            self.log.append(ChoiceStarted(index))

    def _append_text(self, index: int, choice: _Choice, text: str, *, is_whole: bool = False) -> None:
        """Append a piece of text with the log-probabilities of the tokens that begin in it. With `is_whole`, which
        completes the answer, append those of all remaining tokens. Those of text after a stop string are never written.
        """
        choice.shown += len(text)
        infos = choice.infos
        begun = len(infos) if is_whole else sum(info.offset < choice.shown for info in infos)
        self.log.append(Delta(index, text, choice.tokens, tuple(infos[:begun])))
        del infos[:begun]
        choice.tokens = 0

    def _finish(self, index: int, reason: str, stop: str | None = None) -> None:
        choice = self._choices[index]
        if choice.finished:
            return
        choice.finished = True
        self._open(index, choice)
        if reason == "abort" and (held := choice.stops.flush()):
            self._append_text(index, choice, held)  # generated text that only might have begun a stop string
        self.log.append(ChoiceFinished(index, reason, stop))
        if all(c.finished for c in self._choices):
            now = time.monotonic()
            self.audit.close(now, is_read=self.log.readers > 0)
            spent = self.audit.totals_ms(now)
            self._close(Usage(len(self.request.prompt), self.completion_tokens, self.cached_tokens, spent))
        else:
            self._publish_status()

    def _cancel_abandon_timer(self) -> None:
        if self._abandon_timer is not None:
            self._abandon_timer.cancel()
            self._abandon_timer = None

    def _close(self, record: Usage | Failure) -> None:
        self._cancel_abandon_timer()
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
        self.audit.close(time.monotonic(), is_read=self.log.readers > 0)
        self.log.append(record)
        self._on_end(self)
