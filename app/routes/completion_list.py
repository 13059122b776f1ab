"""List of an owner's stored chat completions: the part that a query asks for."""

from __future__ import annotations

from dataclasses import replace

from starlette.requests import Request

from app.conversations.store import CompletionWindow, ConversationStore
from app.routes.listing import parameters

METADATA_QUERY = "metadata["  # beginning of a query parameter that selects by metadata


def parse_window(request: Request) -> tuple[CompletionWindow, str | None]:
    """Return the window that a request asks for, and the id of the entry before it, if one is given. Raises `ApiError`
    (400).
    """
    given = parameters(request, "asc")
    wanted = {
        name[len(METADATA_QUERY) : -1]: value
        for name, value in request.query_params.items()
        if name.startswith(METADATA_QUERY) and name.endswith("]")
    }
    model = request.query_params.get("model")
    window = CompletionWindow(limit=given["limit"], is_ascending=given["is_ascending"], model=model, metadata=wanted)
    return window, given["after"]


async def window_after(
    store: ConversationStore, owner: str, window: CompletionWindow, entry_id: str
) -> CompletionWindow | None:
    """Return the window after an entry of its list; None if the list of this store has no entry with the id."""
    record = await store.completion(entry_id, owner)
    if record is None or not window.includes(record):
        return None
    return replace(window, after=(record.created, record.id))
