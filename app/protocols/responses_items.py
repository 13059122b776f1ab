"""Output items of `/v1/responses`: messages, reasoning and function calls. Independent of logs."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import msgspec

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class ItemKind:
    """Kind of output item. part: type of its content part; empty if it has none. events: prefix of the types of events
    with its text.
    """

    type: str
    id_prefix: str
    part: str
    events: str


MESSAGE = ItemKind("message", "msg", "output_text", "response.output_text")
REASONING = ItemKind("reasoning", "rs", "reasoning_text", "response.reasoning_text")
CALL = ItemKind("function_call", "fc", "", "response.function_call_arguments")


class OutputItem:
    """Output item that grows. text: content, or the arguments of a call."""

    __slots__ = (
        "_joined",
        "call_id",
        "delta",
        "delta_kind",
        "first_record",
        "id",
        "index",
        "kind",
        "name",
        "namespace",
        "pieces",
    )

    def __init__(self, kind: ItemKind, stream_id: str, index: int, first_record: int) -> None:
        """index: position in the output. first_record: number of records of the log before the item's own."""
        self.kind = kind
        self.id = f"{kind.id_prefix}_{stream_id}_{index}"
        self.index = index
        self.first_record = first_record
        self.call_id = ""  # of a call, as are the name of its function, and the namespace of that, if any
        self.name = ""
        self.namespace: str | None = None
        self.pieces: list[str] = []
        self._joined = 0  # number of pieces that `join` has made
        self.delta_kind = f"{kind.events}.delta"
        # JSON of a delta before and after its number, which is the same for all deltas of the item.
        start = b'{"type":"%s","sequence_number":' % self.delta_kind.encode()
        self.delta = start, b',%s,"delta":' % _encode(self.location)[1:-1]

    @property
    def location(self) -> dict[str, Any]:
        """Return the fields that locate its text in the response."""
        located = {"item_id": self.id, "output_index": self.index}
        return located | {"content_index": 0} if self.kind.part else located

    @property
    def text(self) -> str:
        """Return the text so far."""
        return "".join(self.pieces)

    def join(self) -> None:
        """Join the pieces that were added since the last call."""
        self.pieces[self._joined :] = ["".join(self.pieces[self._joined :])]
        self._joined = len(self.pieces)

    def copy(self) -> Self:
        """Return a copy that grows independently."""
        other = copy.copy(self)
        other.pieces = list(self.pieces)
        return other

    def part(self, text: str, logprobs: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
        """Return the content part in the protocol's format."""
        part: dict[str, Any] = {"type": self.kind.part, "text": text}
        return part | {"annotations": [], "logprobs": logprobs} if self.kind is MESSAGE else part

    def view(self, status: str, text: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the item in the protocol's format."""
        fields: dict[str, Any] = {"id": self.id, "type": self.kind.type, "status": status}
        if self.kind is CALL:
            fields |= {} if self.namespace is None else {"namespace": self.namespace}
            return fields | {"call_id": self.call_id, "name": self.name, "arguments": text}
        if self.kind is REASONING:
            return fields | {"summary": [], "content": parts, "encrypted_content": None}
        return fields | {"role": "assistant", "content": parts}
