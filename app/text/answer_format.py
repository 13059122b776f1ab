"""Format that an answer must have, independent of protocols."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """Constraint on the content of an answer; reasoning before it is free.

    kind and value: `json_schema` with a schema (a dict or a bool), `regex` with a pattern that matches the whole
    content, `choice` with a list of texts, or `grammar` with a grammar in Lark's syntax. param: the protocol's name of
    the parameter, for errors.
    """

    kind: Literal["json_schema", "regex", "choice", "grammar"]
    value: Any
    param: str
