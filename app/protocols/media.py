"""Images, audio, video and files in conversations with a model that reads text only.

In history, which clients send again with every request, a short text replaces them. In the newest message of the user
they are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Protocol

from pydantic import Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from app.errors import ApiError
from app.protocols.schema import Lenient
from app.protocols.typed_objects import tag_of, type_of

MAX_DETAIL_CHARACTERS = 80  # of a name or media type
TEXT_ONLY = "this model reads text only"
MEDIA_TAG = "[media]"

# Kinds of media by the types of parts in all protocols.
KINDS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("image", "image_url", "image_file", "input_image", "output_image"), "image"),
        **dict.fromkeys(("image_generation_call", "computer_screenshot"), "image"),
        **dict.fromkeys(("audio", "audio_url", "input_audio", "output_audio"), "audio"),
        **dict.fromkeys(("video", "video_url", "input_video"), "video"),
        **dict.fromkeys(("document", "document_url"), "document"),
        **dict.fromkeys(("file", "file_url", "input_file", "container_upload"), "file"),
    }
)
NAME_FIELDS = ("filename", "file_name", "title", "name")
MEDIA_TYPE_FIELDS = ("media_type", "mediaType", "mime_type", "mimeType", "contentType", "content_type", "format")


class Part(Protocol):
    """Content part with a text for the model."""

    @property
    def text(self) -> str:
        """Return the text."""


class MediaPart(Lenient):
    """Content part that is no text. text: the one that replaces it in history."""

    type: Annotated[str, Field(json_schema_extra={"enum": sorted(KINDS)})]
    text: SkipJsonSchema[str] = ""

    @model_validator(mode="before")
    @classmethod
    def _one_unknown_is_enough(cls, fields: Any) -> Any:
        """Make the text from all fields: the transcript of speech, else a placeholder."""
        if not is_media(fields):
            return fields
        kind, transcript = fields["type"], fields.get("transcript")
        is_spoken = isinstance(transcript, str) and transcript
        return {"type": kind, "text": transcript if is_spoken else placeholder(KINDS[kind], fields)}


def is_media(value: Any) -> bool:
    """Return whether an object of a protocol is an image, audio, video or a file."""
    kind = type_of(value)
    return isinstance(kind, str) and kind in KINDS


def part_tag(value: Any) -> str:
    """Return the tag of the schema for a content part, which is the same for all media."""
    return MEDIA_TAG if is_media(value) else tag_of(value)


def placeholder(kind: str, value: Any) -> str:
    """Return the text for a medium, with its name and media type if they are known.

    value: the fields of the medium, or of objects in it; or its URL.
    """
    fields = value if isinstance(value, dict) else {"url": value}
    texts: dict[str, str] = {}
    for group in (*(each for each in fields.values() if isinstance(each, dict)), fields):
        texts |= {name: text for name, text in group.items() if isinstance(text, str)}
    name = next((texts[field] for field in NAME_FIELDS if field in texts), "")
    media_type = next((texts[field] for field in MEDIA_TYPE_FIELDS if field in texts), "") or _type_of_urls(texts)
    details = ", ".join(filter(None, map(_shown, (name, media_type))))
    return f"[{kind} omitted{f' ({details})' if details else ''}: {TEXT_ONLY}]"


def _type_of_urls(texts: Mapping[str, str]) -> str:
    """Return the media type of the first data URL, if there is one."""
    starts = (text[5 : 5 + MAX_DETAIL_CHARACTERS] for text in texts.values() if text.startswith("data:"))
    return next((start.partition(",")[0].partition(";")[0] for start in starts), "")


def _shown(detail: str) -> str:
    """Return a name or media type without characters that would end the placeholder."""
    shortened = detail[:MAX_DETAIL_CHARACTERS]
    return "".join(character for character in shortened if character.isprintable() and character not in "[]()").strip()


def joined_text(parts: Iterable[Part]) -> str:
    """Return the text of content parts, with media on lines of their own."""
    pieces: list[str] = []
    follows_media = False
    for part in parts:
        is_medium = isinstance(part, MediaPart)
        if pieces and (is_medium or follows_media):
            pieces.append("\n")
        pieces.append(part.text)
        follows_media = is_medium
    return "".join(pieces)


def refused_media(path: str, kind: str, param: str | None = None) -> ApiError:
    """Return the error (400) for a medium in the newest message of the user.

    path: where it is in the request. kind: its type. param: the parameter, if that is not the whole path.
    """
    message = f"unsupported parameter: {path}, the type {kind!r} is not supported; {TEXT_ONLY}"
    return ApiError(400, message, param=param or path, code="unsupported_parameter")
