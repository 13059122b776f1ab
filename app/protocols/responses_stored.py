"""Stored responses: their items and answers as JSON, and the observer that stores them."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from pydantic import TypeAdapter

from app.conversations.saves import Saves
from app.conversations.store import ConversationStore, StoredItem, StoredResponse
from app.generation.generation import Generation
from app.protocols.media import MediaPart, joined_text
from app.protocols.responses_encoder import ResponsesEncoder
from app.protocols.responses_input import (
    Content,
    FunctionCall,
    FunctionCallOutput,
    HostedCall,
    InputItem,
    ItemReference,
    Message,
    OutputText,
    Reasoning,
)
from app.streams.stream_log import StreamLog

MAX_INLINE_RECORDS = 256  # of an answer that is encoded for the store on the event loop
_ITEMS: TypeAdapter[list[InputItem]] = TypeAdapter(list[InputItem])
_encode = msgspec.json.Encoder().encode


def read_items(items: Sequence[StoredItem]) -> list[InputItem]:
    """Return stored items as those of an input."""
    return _ITEMS.validate_python([msgspec.json.decode(item.data) for item in items])


def new_items(items: Sequence[InputItem], references: Mapping[int, StoredItem]) -> tuple[StoredItem, ...]:
    """Return the items of an input for the store, with new ids. Calls of hosted tools are left out, as they are of the
    prompt, and the text that replaces a medium is stored instead of it.

    references: items by the indexes of the references that they replace.
    """
    suffix = secrets.token_hex(12)
    stored: list[StoredItem] = []
    for index, item in enumerate(items):
        if index in references:
            stored.append(references[index])
        elif (view := _view(item)) is not None:
            prefix, fields = view
            item_id = f"{prefix}_{suffix}_{index}"
            stored.append(StoredItem(item_id, _encode({"id": item_id, "status": "completed", **fields})))
    return tuple(stored)


def _view(item: InputItem) -> tuple[str, dict[str, Any]] | None:
    """Return the prefix of an item's id, and the item as clients see it."""
    match item:
        case Message():
            return "msg", {"type": "message", "role": item.role, "content": _parts(item.content, item.role)}
        case FunctionCall():
            return "fc", item.model_dump(exclude_none=True)
        case FunctionCallOutput():
            output = item.output if isinstance(item.output, str) else _parts(item.output, "user")
            return "fco", {"type": item.type, "call_id": item.call_id, "output": output}
        case Reasoning():
            return "rs", {"type": item.type, "summary": _dumped(item.summary), "content": _dumped(item.content)}
        case MediaPart():
            return "msg", {"type": "message", "role": "assistant", "content": _parts(item.text, "assistant")}
        case HostedCall() | ItemReference():
            return None


def _parts(content: Content, role: str) -> list[dict[str, Any]]:
    """Return content as a list of parts."""
    own = {"type": "output_text", "annotations": []} if role == "assistant" else {"type": "input_text"}
    if isinstance(content, str) or any(isinstance(part, MediaPart) for part in content):
        return [{**own, "text": content if isinstance(content, str) else joined_text(content)}]
    return [
        {"type": "output_text", "text": part.text, "annotations": []}
        if isinstance(part, OutputText)
        else part.model_dump()
        for part in content
    ]


def _dumped(parts: Sequence[Any] | None) -> list[dict[str, Any]]:
    return [part.model_dump() for part in parts or ()]


def response_of(item_id: str) -> str:
    """Return the id of the response that wrote an item with this id; of no response if that is another item's."""
    return f"resp_{item_id.partition('_')[2].partition('_')[0]}"


def response_body(record: StoredResponse) -> bytes:
    """Return the JSON of a response that has ended."""
    return b'{"output":[%s],%s' % (b",".join([item.data for item in record.output]), record.fields[1:])


class Answer(NamedTuple):
    """Response that has ended, for the store. fields: its JSON without the output."""

    fields: bytes
    output: tuple[StoredItem, ...]
    status: str

    @classmethod
    def of(cls, encoder: ResponsesEncoder, log: StreamLog) -> Answer:
        """Return the answer in a log. May be called in a thread."""
        view = encoder.response(log)
        output = tuple(StoredItem(item["id"], _encode(item)) for item in view.pop("output"))
        return cls(_encode(view), output, view["status"])


class ResponseObserver:
    """Observer that stores a response: its input when it is queued, its answer at its end."""

    def __init__(
        self, store: ConversationStore, saves: Saves, record: StoredResponse, history: Sequence[StoredItem] | None
    ) -> None:
        """record: the response, without id and time before it is stored. history: the items before its input; None if
        the record is stored already.
        """
        self._store = store
        self._saves = saves
        self._begun = None if history is None else (record, history)
        self._conversation_id = record.conversation_id
        self._input = record.input if record.conversation_id is not None else ()

    def queued(self, generation: Generation) -> None:
        """Store the input, unless it is stored."""
        if self._begun is None:
            return
        record, history = self._begun
        self._begun = None  # from now on the store decides how long it is kept
        log = generation.log
        named = msgspec.structs.replace(record, id=f"resp_{log.id}", created=log.created)
        self._store.add_response(named, history)

    def ended(self, generation: Generation) -> None:
        """Store the answer, and append it to the conversation unless it failed."""
        encoder, log = generation.encoder, generation.log
        assert isinstance(encoder, ResponsesEncoder)

        def save(answer: Answer) -> None:
            # The conversation first: a process that ends before the response has ended does both again, and the
            # conversation gets no item twice.
            if self._conversation_id is not None and answer.status != "failed":
                self._store.extend_conversation(self._conversation_id, (*self._input, *answer.output))
            self._store.end_response(f"resp_{log.id}", answer.fields, answer.output)

        is_long = len(log.records) + log.logprob_count > MAX_INLINE_RECORDS
        changed = [f"resp_{log.id}", *([self._conversation_id] if self._conversation_id is not None else [])]
        self._saves.start(changed, lambda: Answer.of(encoder, log), save, in_thread=is_long)
