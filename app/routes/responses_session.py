"""Session of a WebSocket to /v1/responses: responses in lanes, and input that steers them.

Requests of one lane are served one after another, those of several lanes at once.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import count

from app.admission.body_budget import BodyMemory
from app.admission.tenants import Tenant
from app.admission.thread_queue import Caller
from app.conversations.connection_memory import ConnectionMemory
from app.errors import ApiError
from app.generation.request import GenerationRequest
from app.http.json_body import MAX_INLINE_BYTES
from app.protocols.responses import ResponsesRequest
from app.protocols.responses_encoder import ResponsesEncoder
from app.protocols.responses_events import (
    EventRefused,
    FrameEncoder,
    ResponseCancel,
    ResponseCreate,
    ResponseSteer,
    body_of,
    error_frame,
    parse_event,
    parse_long_event,
    steer_frame,
)
from app.routes import adopt_missing, log_ignored_tools, parse_stream_id
from app.routes.elsewhere import Elsewhere
from app.routes.frame_pace import FramePace
from app.routes.openai_responses import live_response, response_not_found
from app.routes.responses_lane import MAX_STEERS, STEER_EVENTS, Lane, Steer, Turn
from app.routes.socket_loop import Send, Write, cancel_all
from app.routes.stored_context import complete_response
from app.routes.text import Arrived
from app.service import Service
from app.store.entries import Origin
from app.streams.tail import stream_chunks
from app.streams.timeline import IntakeTimeline

MAX_RESPONSES = 16  # of one connection that run or wait in their lane
MAX_WAITING_PARENTS = 16  # responses whose steering input waits for the outputs of calls


@dataclass(eq=False)
class ResponsesSession:
    """Responses of one client over one connection. `send` waits until a message can be sent; `write` writes messages at
    once or not at all (`app.streams.tail`).

    resume_seconds: for which its responses continue after the connection. detach_memory: returns the memory of the
    frame that is being handled. elsewhere: other API processes, if there are some.
    """

    service: Service
    tenant: Tenant
    send: Send
    write: Write
    request_id: str
    resume_seconds: float = 0.0
    detach_memory: Callable[[], BodyMemory | None] = lambda: None
    elsewhere: Elsewhere | None = None
    _pace: FramePace = field(default_factory=FramePace)
    _lanes: dict[str | None, Lane] = field(default_factory=dict)
    # input that waits for the outputs of a response's calls, with the lane, by the response's id
    _waiting: OrderedDict[str, tuple[str | None, list[Steer]]] = field(default_factory=OrderedDict)
    _steer_numbers: count[int] = field(default_factory=count)
    _failed: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    memory: ConnectionMemory = field(init=False)

    def __post_init__(self) -> None:
        self.memory = ConnectionMemory(self.service.unstored)

    @property
    def idle_seconds(self) -> float:
        """Return the time since the last frame of the client or the end of the last response; 0 during a response."""
        return 0.0 if self._lanes else self._pace.idle_seconds

    async def open(self) -> None:
        """Send nothing: the client begins."""

    async def ended(self) -> str:
        """Raise the error of a lane that failed, such as `WebSocketDisconnect` if the client accepts no more data."""
        return await self._failed

    async def detach(self) -> None:
        """Stop sending. A response without another reader ends, unless it may continue for a while."""
        tasks = [lane.task for lane in self._lanes.values() if lane.task is not None]
        try:
            await cancel_all(tasks)
        finally:
            for _, steers in self._waiting.values():
                _release(steers)
            self._waiting.clear()
            await self.memory.close()

    def release(self, *, is_lost: bool) -> None:
        """Do nothing: a session ends with its connection."""

    async def handle_frame(self, text: str) -> None:
        """Handle one frame from the client. A refused frame gets an error, and the session continues."""
        await self._pace.wait_turn(len(text), self.service.pacer)
        try:
            if len(text) <= MAX_INLINE_BYTES:
                event = parse_event(text, self.service.check_model)
            else:
                event = await self.service.prompts.body_queue.run(
                    lambda: parse_long_event(text, self.service.check_model),
                    Caller(self.tenant.id, self.tenant.highest_class),
                    size=len(text),
                )
        except EventRefused as refused:
            await self._refuse_event(refused)
            return
        except ApiError as error:
            await self._emit(error_frame(error))
            return
        match event:
            case ResponseCreate():
                await self._create(event, text)
            case ResponseCancel():
                await self._cancel(event)
            case ResponseSteer():
                await self._steer(event, len(text))

    async def _create(self, event: ResponseCreate, text: str) -> None:
        """Put a request at the end of its lane."""
        running = sum(not turn.is_over for lane in self._lanes.values() for turn in lane.turns)
        if running >= MAX_RESPONSES:
            message = (
                f"{running} responses of this connection run or wait in their lane (stream_id), and at most "
                f"{MAX_RESPONSES} may; wait until one has ended, or cancel one"
            )
            error = ApiError(429, message, param="stream_id", code="too_many_responses")
            self.service.metrics.count_refusal(self.tenant, self.tenant.highest_class, "too_many_responses")
            await self._emit(error_frame(error, event.stream_id, event.event_id))
            return
        lane = self._lanes.setdefault(event.stream_id, Lane(event.stream_id))
        lane.turns.append(Turn(event, text, len(text), self._frame_memory()))
        if lane.task is None:
            lane.task = asyncio.create_task(self._serve_lane(lane))
            lane.task.add_done_callback(self._on_lane_done)

    async def _cancel(self, event: ResponseCancel) -> None:
        """End a response, of any API process. One that has ended stays as it is."""
        given = event.response_id
        try:
            try:
                await self._cancel_own(given)
            except ApiError:
                if self.elsewhere is None or not await self.elsewhere.cancel(given):
                    raise
        except ApiError as error:
            await self._emit(error_frame(error, event_id=event.event_id))

    async def _cancel_own(self, given: str) -> None:
        """End a response of this process. Raises `ApiError` (404, 503)."""
        owner = self.tenant.owner
        await adopt_missing(self.service, parse_stream_id(given), owner)
        if (live := live_response(self.service, owner, given)) is not None:
            live[0].cancel()
        elif await self.service.store.response(given, owner) is None:
            raise response_not_found(given)

    async def _steer(self, event: ResponseSteer, size: int) -> None:
        """Accept input for a running response, and end that one, so that another continues it with the input."""
        self._pace.count_events(STEER_EVENTS)
        found = self._turn_of(event.previous_response_id)
        if found is None:
            has_ended = live_response(self.service, self.tenant.owner, event.previous_response_id) is not None
            code = "response_already_completed" if has_ended else "response_not_found"
            state = "has ended" if has_ended else "does not run on this connection"
            message = f"response {event.previous_response_id!r} {state}; send response.create instead"
            await self._fail_steer(event, None, None, code, message)
            return
        lane, turn = found
        if turn.body.conversation_id is not None:
            message = "a response of a conversation cannot be steered; cancel it, and send response.create"
            await self._fail_steer(event, None, lane.stream_id, "steering_not_supported", message)
            return
        if len(turn.steers) >= MAX_STEERS:
            message = f"{MAX_STEERS} inputs wait for the end of this response, and at most {MAX_STEERS} may"
            await self._fail_steer(event, None, lane.stream_id, "too_many_pending_steers", message)
            return
        steer = Steer(event, size, self._frame_memory())
        turn.steers.append(steer)
        await self._emit(steer_frame("accepted", next(self._steer_numbers), steer.names, lane.stream_id))
        # A call that has begun is completed: no conversation goes on from a part of a call.
        if turn.generation is not None and not turn.is_over and not turn.generation.is_calling:
            turn.generation.cancel("steered")

    def _turn_of(self, response_id: str) -> tuple[Lane, Turn] | None:
        """Return the running response with this id, and its lane."""
        for lane in self._lanes.values():
            if lane.turns and lane.turns[0].response_id == response_id and lane.turns[0].accepts_steers:
                return lane, lane.turns[0]
        return None

    async def _serve_lane(self, lane: Lane) -> None:
        """Serve the requests of a lane until there is none."""
        try:
            while lane.turns:
                successor = await self._serve(lane, lane.turns[0])
                turn = lane.turns.popleft()
                if successor is None:
                    turn.release()
                else:
                    lane.turns.appendleft(successor)
        finally:
            for turn in lane.turns:
                turn.release()
                if turn.response_id is not None:
                    await self.memory.drop(turn.response_id)
            del self._lanes[lane.stream_id]
            self._pace.mark_active()

    def _on_lane_done(self, task: asyncio.Task[None]) -> None:
        """End the session, not only the lane, if the client accepts no more data."""
        if not task.cancelled() and (error := task.exception()) is not None and not self._failed.done():
            self._failed.set_exception(error)

    async def _serve(self, lane: Lane, turn: Turn) -> Turn | None:
        """Serve one request. Return the one that continues it with the input that steered it, if there is any."""
        try:
            await self._start(lane, turn)
        except ApiError as error:
            turn.accepts_steers = False
            await self._emit(error_frame(error, lane.stream_id, turn.body.event_id))
            await self._fail_steers(turn.committed, lane, "successor_creation_failed", str(error))
            return None
        await self._stream(lane, turn)
        if not turn.body.is_stored and turn.response_id is not None:
            if turn.failed:
                await self.memory.drop(turn.response_id)
            else:
                await self.memory.keep(lane.stream_id, turn.response_id)
        return await self._after(lane, turn)

    async def _start(self, lane: Lane, turn: Turn) -> None:
        """Queue a request. Raises `ApiError`."""
        waiting = self._waiting.get(turn.body.previous_response_id or "")
        if waiting is not None and waiting[0] == lane.stream_id:
            del self._waiting[turn.body.previous_response_id or ""]
            turn.with_steers(waiting[1])
        service, tenant, now = self.service, self.tenant, time.monotonic()
        intake = IntakeTimeline(now, self.request_id)
        intake.body_received(now)
        body: ResponsesRequest = turn.body
        arrived = Arrived(body, turn.size, service, tenant, intake, turn.memory, self.memory, self.elsewhere)
        completed = await complete_response(arrived)
        [request] = completed.generation_requests(self.resume_seconds, "X-Carousel-Resume")
        turn.begin(await service.generate(await self._with_origin(request, turn), tenant, intake))
        if completed.ignored_tools:
            log_ignored_tools(self.request_id, completed.ignored_tools)

    async def _with_origin(self, request: GenerationRequest, turn: Turn) -> GenerationRequest:
        """Return a request that may continue after a restart of the server with the body that it is made from."""
        body = turn.body
        is_resumable = self.resume_seconds or body.is_stored
        if not is_resumable or not self.service.keeps_origins or not turn.text:
            return request
        text = turn.text
        content = body_of(text) if len(text) <= MAX_INLINE_BYTES else await asyncio.to_thread(body_of, text)
        return replace(request, origin=Origin(ResponsesRequest.__name__, content, self.resume_seconds))

    async def _stream(self, lane: Lane, turn: Turn) -> None:
        """Send the events of a response during generation."""
        generation = turn.generation
        assert generation is not None and isinstance(generation.encoder, ResponsesEncoder)
        frames = FrameEncoder(generation.encoder.for_reader(resumes=False), lane.stream_id)
        try:
            for message in frames.opening(generation.log):
                await self._emit(message)
            async with aclosing(stream_chunks(generation.log, 0, frames, self)) as chunks:
                async for messages in chunks:
                    for message in messages:
                        await self.send(message)
        finally:
            generation.on_reader_left()

    async def _after(self, lane: Lane, turn: Turn) -> Turn | None:
        """Return the request that continues an ended response with the input that steered it, if there is any."""
        turn.accepts_steers = False
        if not turn.steers:
            return None
        match turn.finish:
            case "error" | "abort":
                await self._fail_steers(
                    turn.steers, lane, "response_not_active", "the response has failed, or was cancelled"
                )
                return None
            case "tool_calls":
                await self._wait_for_outputs(lane, turn)
                return None
        return turn.successor()

    async def _wait_for_outputs(self, lane: Lane, turn: Turn) -> None:
        """Keep the input that steers a response until its calls have outputs."""
        assert turn.response_id is not None
        steers, turn.steers = turn.steers, []
        self._waiting[turn.response_id] = lane.stream_id, steers
        required = turn.required_input()
        for steer in steers:
            number = next(self._steer_numbers)
            fields = {"reason": "waiting_for_required_input", "required_input": required}
            await self._emit(steer_frame("pending", number, steer.names, lane.stream_id, **fields))
        if len(self._waiting) > MAX_WAITING_PARENTS:
            _, (stream_id, oldest) = self._waiting.popitem(last=False)
            message = f"the input of {MAX_WAITING_PARENTS} other responses waits for outputs of calls"
            await self._fail_steers(oldest, Lane(stream_id), "too_many_pending_steers", message)

    async def _fail_steers(self, steers: Sequence[Steer], lane: Lane, code: str, message: str) -> None:
        """Return accepted input to the client."""
        for steer in steers:
            steer.memory.keep(0)
            await self._fail_steer(steer.event, steer.id, lane.stream_id, code, message)

    async def _fail_steer(
        self, event: ResponseSteer, steer_id: str | None, stream_id: str | None, code: str, message: str
    ) -> None:
        steer = {"previous_response_id": event.previous_response_id, "input": event.given}
        if steer_id is not None:
            steer["id"] = steer_id
        error = {"type": "invalid_request_error", "code": code, "message": message}
        await self._emit(steer_frame("failed", next(self._steer_numbers), steer, stream_id, error=error))

    async def _refuse_event(self, refused: EventRefused) -> None:
        """Send the error of an event, in the form for its type."""
        fields = refused.fields
        parent = fields.get("previous_response_id")
        if fields.get("type") == "response.steer" and isinstance(parent, str):
            steer = {"previous_response_id": parent[:128], "input": fields.get("input")}
            error = {"type": "invalid_request_error", "code": "invalid_input", "message": str(refused)}
            await self._emit(steer_frame("failed", next(self._steer_numbers), steer, None, error=error))
            return
        names = [fields.get(name) for name in ("stream_id", "event_id")]
        stream_id, event_id = (name[:512] if isinstance(name, str) else None for name in names)
        await self._emit(error_frame(refused.error, stream_id, event_id))

    async def _emit(self, message: bytes) -> None:
        self._pace.count_sent(len(message))
        if not self.write([message]):
            await self.send(message)

    def _frame_memory(self) -> BodyMemory:
        """Return the memory of the frame that is being handled."""
        return self.detach_memory() or self.service.bodies.memory(self.tenant.id)


def _release(steers: Sequence[Steer]) -> None:
    for steer in steers:
        steer.memory.keep(0)
