"""Stored records of an earlier process whose answers had not ended."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from app.admission.tenants import TIER_OF_CLASS
from app.conversations.store import StoredResponse
from app.errors import ApiError
from app.generation.request import AnswerHead, Observer
from app.protocols.chat import ChatRequest
from app.protocols.chat_stored import CompletionObserver
from app.protocols.common import TextRequest
from app.protocols.responses import ResponsesRequest
from app.protocols.responses_encoder import ResponsesEncoder
from app.protocols.responses_stored import Answer, ResponseObserver
from app.routes import parse_stream_id
from app.service import Service
from app.store.record_queries import Unfinished
from app.streams.stream_log import Failure, StreamLog
from engine.types import ServiceClass

log = logging.getLogger("carousel.recovery")

LOST = Failure("The server was restarted before the answer was complete.", "server_restarted", None)


async def restored_observer(service: Service, request: TextRequest, stream_id: str, owner: str) -> Observer | None:
    """Return the observer that stores the end of a restored answer; None if it is not stored or has its end."""
    if not request.is_stored:
        return None
    if isinstance(request, ChatRequest):
        return CompletionObserver(service.store, service.saves, None)
    record = await service.store.response(f"resp_{stream_id}", owner)
    if record is None or record.has_ended:
        return None
    return ResponseObserver(service.store, service.saves, record, None)


async def end_lost(service: Service, unfinished: Sequence[Unfinished]) -> None:
    """End the records whose answers were not restored: a response as failed, and a chat completion is dropped."""
    for record_id, owner in unfinished:
        stream_id = parse_stream_id(record_id)
        try:
            if service.registry.get_any_owner(stream_id) is None:
                await _end(service, record_id, owner)
        except ApiError as error:
            log.error("the answer %s of an earlier process could not be ended: %s", record_id, error)
        finally:
            service.registry.awaited.discard(stream_id)


async def drop_elsewhere(service: Service, stream_id: str, owner: str) -> None:
    """Drop the record of an answer that another API process has adopted and stores, with or without its end."""
    for record_id, delete in (
        (f"resp_{stream_id}", service.store.delete_response),
        (f"chatcmpl-{stream_id}", service.store.delete_completion),
    ):
        try:
            await delete(record_id, owner)
        except ApiError as error:
            log.error("the record %s, which another API process stores, could not be dropped: %s", record_id, error)
    service.store.end_completion(f"chatcmpl-{stream_id}", b"")  # one without an end is not found above


async def _end(service: Service, record_id: str, owner: str) -> None:
    record = await service.store.response(record_id, owner)
    if record is None:
        service.store.end_completion(record_id, b"")
        return
    answer = lost_answer(service, record)
    service.store.end_response(record_id, answer.fields, answer.output)


def lost_answer(service: Service, record: StoredResponse) -> Answer:
    """Return the answer of a response of which only the record is left: fields of its request have defaults."""
    fields = {"input": "", "previous_response_id": record.previous_id, "conversation": record.conversation_id}
    request = ResponsesRequest.model_validate(fields).generation_request()
    assert request.encoder is not None
    tier = TIER_OF_CLASS[ServiceClass.STANDARD]
    encoder = request.encoder(AnswerHead(service.settings.model_name, tier, service.text, 0))
    assert isinstance(encoder, ResponsesEncoder)
    stream = StreamLog(parse_stream_id(record.id), service.registry.epoch, record.owner)
    stream.created = record.created
    stream.append(LOST)
    return Answer.of(encoder, stream)
