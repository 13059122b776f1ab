"""`/v1/page/warm`: requests, and answers as clients see them."""

from __future__ import annotations

from typing import Annotated

import msgspec
from pydantic import Field

from app.generation.warm_requests import WarmRequest
from app.protocols.schema import Strict

MAX_REQUESTS = 100  # of one question
RequestId = Annotated[str, Field(min_length=1, max_length=200)]


class PageWarmRequest(Strict):
    """Body of `POST /v1/page/warm`."""

    requests: Annotated[list[RequestId], Field(fail_fast=True, max_length=MAX_REQUESTS)]


class PageWarm(msgspec.Struct, frozen=True, tag_field="object", tag="page.warm"):
    """Answer: requests by the ids by which they were asked for, without unknown ones."""

    requests: dict[str, WarmRequest]
