"""Prompt of a realtime response: the conversation, or the input of the response, as turns."""

from __future__ import annotations

from app.admission.thread_queue import Caller
from app.generation.request import Turns
from app.http.json_body import MAX_INLINE_BYTES
from app.protocols.conversation import Conversation
from app.protocols.realtime_fields import ResponseFields, SessionFields
from app.protocols.realtime_items import (
    CallFields,
    ConversationItem,
    MessageFields,
    OutputFields,
    ReferenceFields,
    turns,
)
from app.protocols.realtime_saved import request_body
from app.service import Service

TURN_COST = 32  # of an item that becomes a turn, in bytes that are decoded in the same time


async def response_prompt(
    service: Service,
    caller: Caller,
    conversation: Conversation,
    session: SessionFields,
    requested: ResponseFields,
    *,
    is_stored: bool,
) -> tuple[Turns, bytes]:
    """Return the turns for a response, and the body of a `RealtimeRequest`, empty unless it is stored. Raises
    `ApiError` (400).
    """

    def item(fields: MessageFields | CallFields | OutputFields | ReferenceFields) -> ConversationItem:
        if isinstance(fields, ReferenceFields):
            return conversation.get(fields.id, "reference", "response.input")
        return fields.item(fields.id or "")

    given = conversation if requested.input is None else map(item, requested.input)
    items = [each.as_of_now() for each in given]
    instructions = session.instructions if requested.instructions is None else requested.instructions
    decoded = sum(TURN_COST + (item.size if item.type == "function_call" else 0) for item in items)
    encoded = sum(item.size for item in items) if is_stored else 0

    def work() -> tuple[Turns, bytes]:
        found = turns(items, instructions)
        return found, request_body(items, instructions, session, requested) if is_stored else b""

    if decoded + encoded <= MAX_INLINE_BYTES:
        return work()
    # Many turns, arguments of calls, which are decoded, and long texts, which are encoded, would block the event loop.
    return await service.prompts.body_queue.run(work, caller, size=decoded + encoded)
