"""`/tokenize` and `/detokenize`, in vLLM's shape."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from app.errors import ApiError
from app.protocols.messages import MAX_MESSAGES, Message, check_messages
from app.protocols.schema import Strict, TokenIds


class TokenizeRequest(Strict):
    """A text, or a conversation that is rendered as for the model."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES)] | None = None
    add_special_tokens: bool | None = None

    def check(self) -> None:
        """Check values that are wrong in combination. Raises `ApiError`."""
        if self.prompt is None and self.messages is None:
            raise ApiError(400, "prompt or messages is needed", param="prompt", code="missing")
        if self.messages is None:
            return
        check_messages(self.messages)
        for name in ("prompt", "add_special_tokens"):
            if getattr(self, name) is not None:
                raise ApiError(400, f"{name} cannot be combined with messages", param=name, code="invalid_value")


class DetokenizeRequest(Strict):
    """Token ids."""

    model: str | None = None
    tokens: TokenIds
