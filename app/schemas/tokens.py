"""`/tokenize` and `/detokenize`, in vLLM's shape."""

from __future__ import annotations

from pydantic import Field

from app.schemas.chat import Message
from app.schemas.common import Strict


class TokenizeRequest(Strict):
    """A text, or a conversation as it would be given to the model."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool = True


class DetokenizeRequest(Strict):
    """Token ids."""

    model: str | None = None
    tokens: list[int] = Field(max_length=1 << 20)
