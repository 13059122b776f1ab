"""Field `prediction`: a text that the answer is expected to repeat, as in OpenAI's chat completions."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from app.protocols.messages import TextPart
from app.protocols.schema import MAX_CONTENT_PARTS, Strict


class PredictedContent(Strict):
    """Prediction of an answer, for drafts of its tokens."""

    type: Literal["content"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True, max_length=MAX_CONTENT_PARTS)]

    @property
    def text(self) -> str:
        """Return the content as one string."""
        return self.content if isinstance(self.content, str) else "".join([part.text for part in self.content])
