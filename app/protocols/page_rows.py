"""`/v1/page/rows`: requests, and rows as clients see them. Values are texts of the page, and are not parsed."""

from __future__ import annotations

from typing import Annotated

import msgspec
from pydantic import Field

from app.conversations.page_rows import Joined, PageRow, RowList
from app.protocols.schema import Strict

MAX_ROWS = 1000  # of one join or page
DEFAULT_ROWS = 100  # of a page
MAX_NUMBER = (1 << 53) - 1  # greatest integer that JavaScript counts exactly


class PageRowFields(Strict):
    """Version of a row."""

    id: str = Field(min_length=1, max_length=200)
    revision: int = Field(ge=0, le=MAX_NUMBER)
    # Printable ASCII, of which every language has the same order.
    writer: str = Field(min_length=1, max_length=64, pattern=r"^[!-~]+$")
    value: str | None = Field(max_length=1 << 20)


class PageRowsRequest(Strict):
    """Body of `POST /v1/page/rows`."""

    rows: Annotated[list[PageRowFields], Field(fail_fast=True, max_length=MAX_ROWS)]

    def page_rows(self) -> list[PageRow]:
        """Return the rows for the store."""
        return [PageRow(row.id, row.revision, row.writer, row.value) for row in self.rows]


def joined_body(joined: Joined) -> bytes:
    """Return the result of a join as clients see it."""
    return msgspec.json.encode({"object": "page.rows", "last": joined.last, "epoch": joined.epoch})


def list_body(found: RowList) -> bytes:
    """Return rows as clients see them."""
    counts = {"last": found.last, "has_more": found.has_more, "epoch": found.epoch}
    return msgspec.json.encode({"object": "list", "data": found.rows, **counts})
