"""Generation: one request on its way through the server, from engine events to the records of its log.

Owns detokenising and stop strings for each choice, the count of tokens, and the decision when a request whose readers
have left is given up. Knows nothing of protocols.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from app.audit import Audit, Intake
from app.client import EngineClient
from app.detokenizer import Detokenizer, StopMatcher
from app.status import status_view
from app.streams import Delta, Encoder, Failure, Finished, Opened, StreamLog, TokenInfo, Usage
from app.text import TextModel
from engine.request_logging import log_request
from engine.types import EndEvent, Event, FinishReason, Phase, Request, StatusEvent, TokenEvent

log = logging.getLogger("carousel.generation")

ABANDONED = "abandoned"  # code of the failure of an answer that lost its last reader
LATE = 0.25  # seconds behind a deadline by which the engine has said so, if there is one


@dataclass(slots=True)
class _Choice:
    detokenizer: Detokenizer
    stops: StopMatcher
    stops_from: int  # tokens; no stop string may end before
    opened: bool = False
    finished: bool = False
    status: StatusEvent | None = None
    infos: list[TokenInfo] = field(default_factory=list)  # of tokens whose text is still held back
    tokens: int = 0  # likewise
    generated: int = 0  # tokens so far
    shown: int = 0  # characters
    characters: int = 0  # so far, those that are held back too; counted with log-probabilities
    first_token: float | None = None  # when it came, in monotonic seconds
    last_token: float | None = None


@dataclass(slots=True)
class Timing:
    """When things happened, in monotonic seconds, for metrics."""

    complete: float  # all of the request was there: people's time begins
    submitted: float
    started: float | None = None
    first_token: float | None = None


class Generation:
    """Feeds one log. `take` is the sink that the engine client calls."""

    __slots__ = (
        "_choices",
        "_client",
        "_give_up",
        "_on_end",
        "_on_start",
        "_on_token",
        "_text",
        "_too_late",
        "audit",
        "cached_tokens",
        "encoder",
        "grace",
        "log",
        "request",
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
        intake: Intake,
        *,
        goes_on: bool = False,
        grace: float = 0.0,
        on_start: Callable[[Generation], None] = lambda generation: None,
        on_end: Callable[[Generation], None] = lambda generation: None,
        on_token: Callable[[float | None, float | None], None] = lambda gap, waited: None,
    ) -> None:
        """goes_on: its text continues the prompt's, and is none of its own. on_token is told the seconds since the
        token before it in its choice, if there was one; and those since the whole request was there, of its first
        token."""
        self.request = request
        self.log = log
        self.encoder = encoder  # how a reader that comes back is answered; None: not at all
        self.grace = grace  # seconds it goes on without a reader
        self.timing = Timing(intake.complete, time.monotonic())
        self.audit = Audit(request.n, intake, self.timing.submitted)
        self.cached_tokens = 0
        self._text = text
        self._client = client
        stops_from = request.sampling.min_tokens  # as in vLLM
        before = request.prompt if goes_on else ()
        self._choices = [_Choice(Detokenizer(text, before), StopMatcher(stops), stops_from) for _ in range(request.n)]
        self._on_start = on_start
        self._on_end = on_end
        self._on_token = on_token
        self._give_up: asyncio.TimerHandle | None = None
        self._too_late: asyncio.TimerHandle | None = None

    @property
    def completion_tokens(self) -> int:
        """Of all choices, so far."""
        return sum(choice.generated for choice in self._choices)

    @property
    def mean_gap(self) -> float:
        """Seconds between two tokens of a choice; 0 where none had a second one."""
        gaps, seconds = 0, 0.0
        for choice in self._choices:
            if choice.first_token is not None and choice.last_token is not None:
                gaps += choice.generated - 1
                seconds += choice.last_token - choice.first_token
        return seconds / gaps if gaps else 0.0

    @property
    def is_unread(self) -> bool:
        """True while its last reader is gone and its grace runs."""
        return self._give_up is not None and not self.log.readers

    def take(self, event: Event) -> None:
        """One event of this request, in order. Our own mistake ends this request, told to its readers, and no other."""
        if self.log.is_closed:
            return
        try:
            self._take(event)
        except Exception:
            log_request(log, logging.ERROR, self.request, "an event could not be handled", has_traceback=True)
            self.fail("the server made a mistake; its log says which", "internal_error")
        self.log.announce()

    def _take(self, event: Event) -> None:
        match event:
            case TokenEvent():
                self._take_token(event)
            case StatusEvent():
                self._take_status(event)
            case EndEvent(_, choice, finish, message, code, param):
                if finish is FinishReason.ERROR:
                    is_ours = code == "not_a_number"  # the only error of a single choice
                    if is_ours and self._choices[choice].finished:
                        return  # a stop string was met; the engine's abort and this crossed
                    log_request(log, logging.ERROR if is_ours else logging.INFO, self.request, "%s (%s)", message, code)
                    self._client.abort(self.request.id)  # its other choices, if they are still at it
                    self._close(Failure(message, code, param))
                else:
                    self._finish(choice, "abort")

    def _take_status(self, event: StatusEvent) -> None:
        self.audit.take(event)
        if event.phase is Phase.ENDED:
            return
        self._choices[event.choice].status = event
        if event.choice == 0 and event.state == "running" and self.timing.started is None:
            self.timing.started = event.at
            self.cached_tokens = event.cached_tokens
            self._on_start(self)
        self._tell_status()

    def _tell_status(self) -> None:
        """Further choices wait for the first: where the first stands that has not ended is where the request does."""
        status = next(choice.status for choice in self._choices if not choice.finished)
        if status is not None and (self.log.status is None or status_view(status) != status_view(self.log.status)):
            self.log.status = status

    def cancel(self) -> None:
        """Stop now: slot and pages are free before the engine's next step."""
        self._client.abort(self.request.id)
        for choice in range(len(self._choices)):
            if not self.log.is_closed:
                self._finish(choice, "abort")
        self.log.announce()

    def fail(self, message: str, code: str, param: str | None = None) -> None:
        """End it with an error that its readers are told."""
        if not self.log.is_closed:
            self._client.abort(self.request.id)
            self._close(Failure(message, code, param))
            self.log.announce()

    def keep_deadline(self) -> None:
        """The engine ends it when its deadline cannot be met; where no engine is there, or it hangs, this does."""
        if self.request.deadline is not None and not self.log.is_closed:
            late = self.request.deadline + LATE - time.monotonic()
            told = "the deadline has passed", "deadline_exceeded", "deadline_ms"
            self._too_late = asyncio.get_running_loop().call_later(late, self.fail, *told)

    def reader_left(self) -> None:
        """Called when a reader is gone. The last one takes the request with it, after the grace that was asked for."""
        if self.log.readers:
            return
        if self.log.is_closed:
            self.audit.delivered(time.monotonic())
        elif self.grace <= 0:
            self._abandon()
        else:
            self._keep()
            self._give_up = asyncio.get_running_loop().call_later(self.grace, self._give_up_unless_read)

    def _give_up_unless_read(self) -> None:
        self._give_up = None
        if not self.log.readers and not self.log.is_closed:
            self._abandon()

    def _abandon(self) -> None:
        """Not `cancel`: nobody asked for a shorter answer, and who comes back late must not take it for a whole one."""
        self.fail("nobody read this answer any more, so it was given up before it was complete", ABANDONED)

    def _take_token(self, event: TokenEvent) -> None:
        choice = self._choices[event.choice]
        if choice.finished:
            return  # a stop string was met; the engine's abort and this token crossed
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
            self._say(event.choice, choice, shown, is_whole=stop is None and event.finish is not None)
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
                waited = now - self.timing.complete
        choice.last_token = now
        self._on_token(gap, waited)

    def _open(self, index: int, choice: _Choice) -> None:
        if not choice.opened:
            choice.opened = True
            self.log.append(Opened(index))

    def _say(self, index: int, choice: _Choice, text: str, *, is_whole: bool = False) -> None:
        """Write a piece of text with the log-probabilities of the tokens that begin in it; of all that are left where
        it makes the answer whole. Those of a text that a stop string cuts off are never written."""
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
            self._say(index, choice, held)  # it was said; that it might have begun a stop string matters no more
        self.log.append(Finished(index, reason, stop))
        if all(c.finished for c in self._choices):
            now = time.monotonic()
            self.audit.close(now, is_read=self.log.readers > 0)
            spent = self.audit.totals(now)
            self._close(Usage(len(self.request.prompt), self.completion_tokens, self.cached_tokens, spent))
        else:
            self._tell_status()

    def _keep(self) -> None:
        if self._give_up is not None:
            self._give_up.cancel()
            self._give_up = None

    def _close(self, record: Usage | Failure) -> None:
        self._keep()
        if self._too_late is not None:
            self._too_late.cancel()
        self.audit.close(time.monotonic(), is_read=self.log.readers > 0)
        self.log.append(record)
        self._on_end(self)
