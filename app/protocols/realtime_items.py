"""Items of a realtime conversation as clients send them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from app.protocols.media import MEDIA_TAG, MediaPart, is_media, joined_text, refused_media
from app.protocols.schema import MAX_CONTENT_PARTS, Lenient

MAX_ITEMS = 1024  # of a conversation


class ContentPart(Lenient):
    """A piece of an item's text."""

    type: Literal["input_text", "output_text", "text"]
    text: str


def _part_tag(value: Any) -> str:
    return MEDIA_TAG if is_media(value) else "[text]"


AnyPart = Annotated[
    Annotated[ContentPart, Tag("[text]")] | Annotated[MediaPart, Tag(MEDIA_TAG)], Discriminator(_part_tag)
]


class ItemFields(Lenient):
    """Message of the conversation."""

    id: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    type: Literal["message"]
    role: Literal["system", "user", "assistant"]
    content: Annotated[list[AnyPart], Field(fail_fast=True, max_length=MAX_CONTENT_PARTS)]
    status: Literal["completed", "incomplete", "in_progress"] | None = None

    @property
    def text(self) -> str:
        """Return the text of all parts, with a short text in place of each medium."""
        return joined_text(self.content)

    def check_newest(self, path: str) -> None:
        """Raise `ApiError` (400) for media in a message that is the newest of the user."""
        for at, part in enumerate(self.content):
            if self.role == "user" and isinstance(part, MediaPart):
                raise refused_media(f"{path}.content.{at}", part.type)


def _check_parts(items: list[ItemFields]) -> list[ItemFields]:
    if sum(len(item.content) for item in items) > MAX_CONTENT_PARTS:
        raise PydanticCustomError("too_long", "at most {most} content parts in all", {"most": MAX_CONTENT_PARTS})
    return items


few_parts = AfterValidator(_check_parts)


def check_newest_item(items: Sequence[ItemFields]) -> None:
    """Raise `ApiError` (400) for media in the newest message of the user in the input of a response."""
    newest = max((index for index, item in enumerate(items) if item.role == "user"), default=None)
    if newest is not None:
        items[newest].check_newest(f"response.input.{newest}")
