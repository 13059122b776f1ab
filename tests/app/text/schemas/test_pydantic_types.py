"""Types of pydantic models, and formats of OpenAPI: each has a grammar, and pydantic reads the texts of it."""

from __future__ import annotations

import datetime
import decimal
import enum
import ipaddress
import pathlib
import random
import re
import uuid
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import pydantic
import pytest
from pydantic import BaseModel, Field, TypeAdapter
from typing_extensions import TypedDict

from tests.app.text.schemas.texts import TOKENIZER, accepts, grammar, random_text


class Color(enum.Enum):
    RED, BLUE = "red", "blue"


class Level(enum.IntEnum):
    LOW, HIGH = 1, 2


class Point(BaseModel):
    """A point\0."""

    x: int = Field(description="a \x01 control character", ge=-5)
    y: float | None = None


class Tree(BaseModel):
    value: int
    children: list[Tree] = []


class Line(BaseModel):
    points: tuple[Point, Point]
    color: Color = Color.RED
    names: dict[str, Point] = {}


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    name: str


class Movie(TypedDict, total=False):
    name: str
    year: int


@dataclass
class Book:
    title: str
    pages: int = 1


class Pair(NamedTuple):
    first: int
    second: str


TYPES: dict[str, Any] = {
    "str": str, "int": int, "float": float, "bool": bool, "None": None, "Path": pathlib.Path,
    "SecretStr": pydantic.SecretStr, "bytes": bytes, "UUID": uuid.UUID, "UUID1": pydantic.UUID1,
    "UUID3": pydantic.UUID3, "UUID4": pydantic.UUID4, "UUID5": pydantic.UUID5, "Base64Bytes": pydantic.Base64Bytes,
    "Base64UrlBytes": pydantic.Base64UrlBytes, "timedelta": datetime.timedelta, "date": datetime.date,
    "datetime": datetime.datetime, "time": datetime.time, "AwareDatetime": pydantic.AwareDatetime,
    "IPvAnyAddress": pydantic.IPvAnyAddress, "IPv4Address": ipaddress.IPv4Address,
    "IPv6Address": ipaddress.IPv6Address, "IPv4Network": ipaddress.IPv4Network,
    "IPvAnyNetwork": pydantic.IPvAnyNetwork, "IPvAnyInterface": pydantic.IPvAnyInterface, "AnyUrl": pydantic.AnyUrl,
    "Enum": Color, "IntEnum": Level, "Literal": Literal["a", 1, None, True], "Optional": int | None,
    "Union": int | str | list[bool], "list": list[int], "set of Enum": set[Color], "frozenset": frozenset[bool],
    "tuple": tuple[int, str], "tuple of any length": tuple[int, ...], "dict": dict[str, int],
    "dict of Literal": dict[Literal["a", "b"], int], "dict of UUID": dict[uuid.UUID, int],
    "dict of pattern": dict[Annotated[str, Field(pattern="^x_[a-z]+$")], int], "model": Point, "nested models": Line,
    "recursive model": Tree, "union of models": Cat | Dog,
    "discriminated union": Annotated[Cat | Dog, Field(discriminator="kind")], "TypedDict": Movie, "dataclass": Book,
    "NamedTuple": Pair, "constr": pydantic.constr(pattern="^[a-z]{2}-[0-9]+$", max_length=8),
    "constr of a length": pydantic.constr(min_length=2, max_length=4), "conint": pydantic.conint(gt=3, lt=90),
    "confloat": pydantic.confloat(ge=-0.5, lt=2.25), "conlist": pydantic.conlist(int, min_length=1, max_length=3),
    "StrictInt": pydantic.StrictInt, "PositiveInt": pydantic.PositiveInt, "Any": Any,
    "Annotated": Annotated[int, Field(multiple_of=3, description="x")],
    "discount": Annotated[float, Field(gt=0, le=1)], "list of models": list[Cat | Dog],
}  # fmt: skip
# Values of these must satisfy more than their schema states: a file exists, a date is past, a text is an expression.
OTHER_TYPES: dict[str, Any] = {
    "FilePath": pydantic.FilePath, "DirectoryPath": pydantic.DirectoryPath, "Base64Str": pydantic.Base64Str,
    "Json": pydantic.Json[list[int]], "ByteSize": pydantic.ByteSize, "PastDate": pydantic.PastDate,
    "NaiveDatetime": pydantic.NaiveDatetime, "HttpUrl": pydantic.HttpUrl, "PostgresDsn": pydantic.PostgresDsn,
    "Pattern": re.Pattern[str], "Decimal": decimal.Decimal, "SecretBytes": pydantic.SecretBytes,
    "ImportString": pydantic.ImportString, "UUID7": pydantic.UUID7,
}  # fmt: skip


@pytest.mark.parametrize("name", TYPES)
def test_pydantic_reads_the_texts_of_a_type(name: str):
    """The grammar of the type's schema has no others."""
    adapter: TypeAdapter[Any] = TypeAdapter(TYPES[name])
    start = TOKENIZER.compile(grammar(adapter.json_schema(), lenient=("uniqueItems",)))
    for seed in range(12):
        text = random_text(start, random.Random(seed))
        if text is not None:
            adapter.validate_json(text)


@pytest.mark.parametrize("name", OTHER_TYPES)
def test_types_with_conditions_outside_of_their_schema_have_a_grammar(name: str):
    """Texts of the grammar end, although not each of them is valid."""
    adapter: TypeAdapter[Any] = TypeAdapter(OTHER_TYPES[name])
    start = TOKENIZER.compile(grammar(adapter.json_schema()))
    assert any(random_text(start, random.Random(seed)) for seed in range(5))


def test_sets_of_many_values_have_a_grammar_unless_the_client_is_strict():
    """Pydantic reads a repeated item as the same member of the set."""
    adapter = TypeAdapter(set[int])
    start = TOKENIZER.compile(grammar(adapter.json_schema(), lenient=("uniqueItems",)))
    assert adapter.validate_json(random_text(start, random.Random(1)) or "[]") is not None


@pytest.mark.parametrize(
    "name",
    [
        "password",
        "byte",
        "binary",
        "int64",
        "int32",
        "float",
        "double",
        "uri-reference",
        "iri",
        "color",
        "email",
        "regex",
    ],
)
def test_formats_of_openapi_are_accepted(name: str):
    """Those which are not known have no effect."""
    for kind, text in (("string", '"YWJj"'), ("integer", "12")):
        if name != "email" or kind == "integer":
            assert accepts({"type": kind, "format": name}, text)
    assert accepts({"type": "string", "format": name}, '"a.b@example.org"') == (name != "byte")


DECIMAL = {"type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"}


@pytest.mark.parametrize(
    ("text", "is_accepted"),
    [
        ("1.50", True),
        ("-0.5", True),
        (".5", True),
        ("007", True),
        ("", False),
        ("+", False),
        (".", False),
        ("1e5", False),
    ],
)
def test_decimals_of_pydantic_are_enforced(text: str, is_accepted: bool):
    """Their pattern has a look-ahead, which has a regular translation."""
    assert accepts(DECIMAL, f'"{text}"') == is_accepted
