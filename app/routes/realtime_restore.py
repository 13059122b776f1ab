"""Realtime sessions of an earlier process, which wait for their clients as after a lost connection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from app.protocols.conversation import Conversation
from app.protocols.realtime_fields import SessionFields
from app.protocols.realtime_saved import read_items
from app.routes import parse_stream_id
from app.routes.realtime_session import Session
from app.service import Service
from app.store.entries import tenant_of
from app.store.sessions import SavedSession, SessionRecorder
from app.streams.stream_log import CursorError

log = logging.getLogger("carousel.recovery")


async def restore_sessions(service: Service, found: Sequence[tuple[SavedSession, SessionRecorder]]) -> None:
    """Restore sessions once their answers are."""
    for saved, recorder in found:
        try:
            session = await restored_session(service, saved, recorder)
        except Exception:
            log.exception("the realtime session %s of an earlier process could not be restored", saved.id)
            session = None
        service.sessions.awaited.discard(saved.id)
        if session is None:
            recorder.delete()
        else:
            service.sessions.keep(session)


async def restored_session(service: Service, saved: SavedSession, recorder: SessionRecorder) -> Session | None:
    """Return a session without a connection; None if its key was revoked."""
    tenant = tenant_of(saved.key_digest, saved.network, service.settings)
    if tenant is None:
        return None
    conversation = Conversation()
    for item in await asyncio.to_thread(read_items, saved.items):
        conversation.insert(item)
    fields = SessionFields.model_validate_json(saved.fields)
    session = Session(service, tenant, _send, _write, "", saved.id, fields, conversation, recorder)
    for response in saved.responses:
        try:
            generation = service.registry.get(parse_stream_id(response.id), tenant.owner)
        except CursorError:  # its tokens would have been another text, or its time is over
            recorder.drop_response(response.id)
        else:
            session.restore(response, generation)
    return session


async def _send(message: bytes) -> None:
    raise AssertionError("a session without a connection sends nothing")


def _write(messages: list[bytes]) -> bool:
    return False
