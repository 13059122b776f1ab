"""`/tokenize` and `/detokenize`, in vLLM's shape."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from app.schemas.chat import Message
from app.schemas.common import Strict, TokenIds


class TokenizeRequest(Strict):
    """A text, or a conversation as it would be given to the model."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(fail_fast=True)] | None = None
    add_special_tokens: bool = True


class DetokenizeRequest(Strict):
    """Token ids."""

    model: str | None = None
    tokens: TokenIds = Field(max_length=1 << 18)
