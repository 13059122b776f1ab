"""Stored chat completions: their messages and answers as JSON, and the observer that stores them."""

from __future__ import annotations

import msgspec

from app.conversations.saves import Saves
from app.conversations.store import ConversationStore, StoredCompletion, StoredItem
from app.errors import ApiError
from app.generation.generation import Generation
from app.protocols.chat import ChatRequest
from app.protocols.responses_stored import MAX_INLINE_RECORDS

_encode = msgspec.json.Encoder().encode


def stored_messages(request: ChatRequest) -> list[bytes]:
    """Return the JSON of a request's messages, without ids. Texts replace media, as they do for the model."""
    return [
        _encode(message.model_dump(exclude_none=True, exclude={"extras", "content"}) | {"content": message.text})
        for message in request.messages
    ]


def completion_body(record: StoredCompletion) -> bytes:
    """Return a stored chat completion as clients see it."""
    return b'{"metadata":%s,%s' % (_encode(record.metadata), record.body[1:])


class CompletionObserver:
    """Observer that stores a chat completion: its messages when it is queued, its answer once it is complete."""

    def __init__(
        self, store: ConversationStore, saves: Saves, begun: tuple[StoredCompletion, list[bytes]] | None
    ) -> None:
        """begun: the completion without id, time and messages, and the JSON of its messages without ids; None if it is
        stored already.
        """
        self._store = store
        self._saves = saves
        self._begun = begun

    def queued(self, generation: Generation) -> None:
        """Store the messages, unless they are stored."""
        if self._begun is None:
            return
        record, messages = self._begun
        self._begun = None  # from now on the store decides how long it is kept
        log = generation.log
        identity = f"chatcmpl-{log.id}"
        items = tuple(
            StoredItem(f"{identity}-{index}", b'{"id":"%s-%d",%s' % (identity.encode(), index, message[1:]))
            for index, message in enumerate(messages)
        )
        self._store.add_completion(msgspec.structs.replace(record, id=identity, created=log.created, messages=items))

    def ended(self, generation: Generation) -> None:
        """Store the answer, or drop the record if there is none."""
        encoder, log, choices = generation.encoder, generation.log, generation.num_choices
        assert encoder is not None

        def encode() -> bytes:
            try:
                return _encode(encoder.body(log, choices))
            except ApiError:
                return b""  # it failed

        identity = f"chatcmpl-{log.id}"
        is_long = len(log.records) + log.logprob_count > MAX_INLINE_RECORDS
        self._saves.start(
            [identity], encode, lambda body: self._store.end_completion(identity, body), in_thread=is_long
        )
