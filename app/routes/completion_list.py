"""List of an owner's stored chat completions: the part that a query asks for, from the stores of all API processes.

Each process has some of the entries. The process that a client asks gets the same part of each list, one after another,
and merges them, so that it has two pages in memory at most.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial

import msgspec
from starlette.requests import Request

from app.conversations.store import CompletionWindow, ConversationStore, Page, Position, StoredCompletion
from app.http.siblings import SiblingAbsent, Siblings, sibling_absent
from app.routes import get_service
from app.routes.listing import parameters, unknown_entry

METADATA_QUERY = "metadata["  # beginning of a query parameter that selects by metadata
QUESTION = "/internal/completions"  # path at which a process asks another one for its part
CREATED_QUERY = "created"  # parameter of that question: with `after`, the position of an entry of any process


class ListPart(msgspec.Struct, frozen=True):
    """Page of one process, without messages. after: position of the entry before it."""

    records: Sequence[StoredCompletion]
    has_more: bool
    after: Position | None


# Returns part of the list of one process; None if that list has no entry with the given id, after which it begins.
Ask = Callable[[CompletionWindow, str | None], Awaitable[ListPart | None]]

_decoder = msgspec.msgpack.Decoder(ListPart)


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


async def list_completions(request: Request, owner: str) -> Page[StoredCompletion]:
    """Return the part of an owner's list that a request asks for, from all processes. Raises `ApiError`: 400 for a
    wrong parameter, 503 if a process cannot be asked.
    """
    service, (window, after) = get_service(request), parse_window(request)
    asks: list[Ask] = [partial(list_part, service.store, owner)]
    if (siblings := service.siblings) is not None:
        asks += [partial(_ask_sibling, siblings, number, request) for number in siblings.others]
    try:
        return await merge_lists(asks, window, after)
    except SiblingAbsent:
        raise sibling_absent() from None


async def merge_lists(asks: Sequence[Ask], window: CompletionWindow, after: str | None) -> Page[StoredCompletion]:
    """Return part of the list of all processes. asks: one function a process. after: id of the entry before it. Raises
    `ApiError` (400) if no process has that entry.
    """
    unasked = list(asks)
    pages: list[Page[StoredCompletion]] = []
    if after is not None:
        for ask in asks:
            if (part := await ask(window, after)) is not None:
                break
        else:
            raise unknown_entry(after)
        unasked.remove(ask)
        pages.append(Page(part.records, part.has_more))
        window = replace(window, after=part.after)
    for ask in unasked:
        if (part := await ask(window, None)) is not None:
            pages.append(Page(part.records, part.has_more))
            pages = [window.merge(pages)]
    return pages[0]


async def list_part(
    store: ConversationStore, owner: str, window: CompletionWindow, after: str | None
) -> ListPart | None:
    """Return part of the list of one store; None if it has no entry with the id `after`."""
    if after is not None:
        record = await store.completion(after, owner)
        if record is None or not window.includes(record):
            return None
        window = replace(window, after=(record.created, record.id))
    page = await store.completions(owner, window)
    records = [msgspec.structs.replace(record, messages=()) for record in page.records]
    return ListPart(records, page.has_more, window.after)


async def answer_part(request: Request, owner: str) -> ListPart | None:
    """Return the part of this process's list that another process asks for; None if it has no entry `after`."""
    service, (window, after) = get_service(request), parse_window(request)
    if after is not None and CREATED_QUERY in request.query_params:
        window, after = replace(window, after=(float(request.query_params[CREATED_QUERY]), after)), None
    return await list_part(service.store, owner, window, after)


async def _ask_sibling(
    siblings: Siblings, number: int, request: Request, window: CompletionWindow, after: str | None
) -> ListPart | None:
    """Return part of the list of another process. Raises `SiblingAbsent`."""
    query = {f"{METADATA_QUERY}{name}]": value for name, value in window.metadata.items()}
    query |= {"limit": str(window.limit), "order": "asc" if window.is_ascending else "desc"}
    if window.model is not None:
        query["model"] = window.model
    if window.after is not None:
        query |= {CREATED_QUERY: repr(window.after[0]), "after": window.after[1]}
    elif after is not None:
        query["after"] = after
    body = await siblings.ask(number, request.scope, QUESTION, query)
    return None if body is None else _decoder.decode(body)
