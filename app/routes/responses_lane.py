"""Turns of a WebSocket to /v1/responses: requests of one lane, one after another, and the input that steers them."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from app.admission.body_budget import BodyMemory
from app.generation.generation import Generation
from app.protocols.responses_encoder import ResponsesEncoder
from app.protocols.responses_events import ResponseCreate, ResponseSteer
from app.protocols.responses_input import FunctionCallOutput, InputItem
from app.streams.stream_log import ChoiceFinished, Failure

STEER_EVENTS = 20  # as which a steering counts: it ends one computation and begins another
MAX_STEERS = 8  # for one response that are not yet part of another


@dataclass(eq=False)
class Steer:
    """Input that steers a response. memory: reserved for it until it is part of another response."""

    event: ResponseSteer
    size: int
    memory: BodyMemory
    id: str = field(default_factory=lambda: f"steer_{secrets.token_hex(12)}")

    @property
    def names(self) -> dict[str, Any]:
        """Return the fields that name it in an event."""
        return {"id": self.id, "previous_response_id": self.event.previous_response_id}


@dataclass(eq=False)
class Turn:
    """Request of a lane.

    text: its frame, empty for one that continues a steered response. memory: reserved for it. steers: input for the
    response after it. committed: input that is part of it.
    """

    body: ResponseCreate
    text: str
    size: int
    memory: BodyMemory
    committed: Sequence[Steer] = ()
    steers: list[Steer] = field(default_factory=list)
    generation: Generation | None = None
    accepts_steers: bool = True

    @property
    def response_id(self) -> str | None:
        """Return the id of its response; None before it has one."""
        return None if self.generation is None else f"resp_{self.generation.log.id}"

    @property
    def is_over(self) -> bool:
        """Return whether its response has ended."""
        return self.generation is not None and self.generation.log.is_closed

    @property
    def failed(self) -> bool:
        """Return whether its response has ended with an error."""
        return self.generation is not None and isinstance(self.generation.log.records[-1], Failure)

    @property
    def finish(self) -> str:
        """Return why its response has ended."""
        assert self.generation is not None
        reasons = [record.reason for record in self.generation.log.records[-2:] if isinstance(record, ChoiceFinished)]
        return "error" if self.failed or not reasons else reasons[-1]

    def begin(self, generation: Generation) -> None:
        """Note that the request was queued. Its input is no longer needed."""
        self.generation, self.text = generation, ""
        self.memory.keep(self.body.settings_bytes)
        self.body = self.body.settings()
        for steer in self.committed:
            steer.memory.keep(0)

    def with_steers(self, steers: Sequence[Steer]) -> None:
        """Put input that waited for the outputs of calls after these, as chat templates need them."""
        items = list(self.body.items)
        at = next((i for i, item in enumerate(items) if not isinstance(item, FunctionCallOutput)), len(items))
        merged = [*items[:at], *_items(steers), *items[at:]]
        self.body = self.body.model_copy(update={"input": merged})
        self.committed = tuple(steers)

    def successor(self) -> Turn:
        """Return the request that continues the response with the input that steers it."""
        assert self.response_id is not None
        body = self.body.continued(self.response_id, _items(self.steers))
        size = self.body.settings_bytes + sum(steer.size for steer in self.steers)
        return Turn(body, "", size, self.memory, committed=tuple(self.steers))

    def required_input(self) -> list[dict[str, Any]]:
        """Return stubs of the outputs that the calls of the response need."""
        assert self.generation is not None and isinstance(self.generation.encoder, ResponsesEncoder)
        output = self.generation.encoder.response(self.generation.log)["output"]
        calls = [item for item in output if item["type"] == "function_call"]
        return [{"type": "function_call_output", "call_id": call["call_id"], "name": call["name"]} for call in calls]

    def release(self) -> None:
        """Return all memory."""
        self.memory.keep(0)
        for steer in (*self.committed, *self.steers):
            steer.memory.keep(0)


@dataclass(eq=False)
class Lane:
    """Requests with the same `stream_id`. The first one is served, and leaves when its response has ended."""

    stream_id: str | None
    turns: deque[Turn] = field(default_factory=deque)
    task: asyncio.Task[None] | None = None


def _items(steers: Sequence[Steer]) -> list[InputItem]:
    return [item for steer in steers for item in steer.event.items]
