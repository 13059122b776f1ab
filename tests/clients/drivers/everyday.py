"""Everyday types of pydantic models, with a value of each, for libraries that take a model as the form of an answer.

The scripted model writes the value as pydantic does, under the grammar of the schema that the library has sent. The
library must return an equal one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal, Optional, Union
from uuid import UUID

from pydantic import AnyUrl, BaseModel, Field


class Invoice(BaseModel):
    """Identifiers, amounts and moments."""

    id: UUID
    issued: datetime
    due: date
    total: Decimal
    paid: bool = False


class Meeting(BaseModel):
    """Times of a day and spans of time."""

    begins: time
    lasts: timedelta
    repeated: list[date]


class Person(BaseModel):
    """Values that may be absent."""

    name: str
    nickname: Optional[str] = None  # noqa: UP045 - one of the two ways to write it
    age: int | None
    height: float | None = None


class Status(Enum):
    """States of a ticket."""

    OPEN = "open"
    CLOSED = "closed"


class Priority(IntEnum):
    """Priorities of a ticket."""

    LOW = 1
    HIGH = 2


class Ticket(BaseModel):
    """Enumerations and literals."""

    status: Status
    priority: Priority
    kind: Literal["bug", "question"]
    watchers: list[int]


class Address(BaseModel):
    """Part of a customer."""

    street: str
    postcode: Annotated[str, Field(pattern=r"^\d{5}$")]


class Customer(BaseModel):
    """Models in models, lists and dictionaries."""

    home: Address
    others: list[Address]
    by_name: dict[str, Address]
    notes: dict[str, str]


class Limits(BaseModel):
    """Numbers and texts with bounds."""

    percent: Annotated[int, Field(ge=0, le=100)]
    ratio: Annotated[float, Field(gt=0, lt=1)]
    code: Annotated[str, Field(min_length=2, max_length=4)]
    points: Annotated[list[float], Field(min_length=1, max_length=3)]


class Cat(BaseModel):
    """One kind of pet."""

    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    """Another kind of pet."""

    kind: Literal["dog"]
    tricks: list[str]


class Pets(BaseModel):
    """Unions, with and without a discriminator."""

    first: Annotated[Union[Cat, Dog], Field(discriminator="kind")]  # noqa: UP007 - one of the two ways to write it
    others: list[Cat | Dog]
    number: int | str


class Comment(BaseModel):
    """A model that contains itself."""

    text: str
    replies: list[Comment] = []


class Place(BaseModel):
    """Tuples and addresses."""

    position: tuple[float, float]
    route: list[tuple[int, str]]
    page: AnyUrl


class Described(BaseModel):
    """Fields with a title, a description, an example, an alias and a default."""

    amount: int = Field(title="Amount", description="How much", examples=[3])
    unit: str = Field("kg", alias="unitName")


class Labels(BaseModel):
    """Sets, which have `uniqueItems` in their schema."""

    names: set[str]
    numbers: frozenset[int]


class Empty(BaseModel):
    """No field."""


class Free(BaseModel):
    """Values of any form."""

    anything: Any
    mapping: dict[str, Any]
    things: list


# They have no form that OpenAI's strict schemas allow, so that some libraries refuse them.
LOOSE = (Free(anything=[1, None], mapping={"a": {"b": [1.5]}}, things=["a", 1]),)
SETS = Labels(names={"a", "b"}, numbers=frozenset({3, 4}))
EXAMPLES = (
    Invoice(
        id=UUID("8b0ddeb6-4d55-4c1c-9a9e-3f5f0a4a9c11"),
        issued=datetime(2026, 3, 14, 15, 9, 26, 535897, tzinfo=UTC),
        due=date(2026, 4, 1),
        total=Decimal("1234.50"),
    ),
    Meeting(
        begins=time(9, 30, tzinfo=UTC),
        lasts=timedelta(hours=1, minutes=30),
        repeated=[date(2026, 3, 14), date(2026, 3, 21)],
    ),
    Person(name='Zoë "Z" O\'Neil', age=None, height=1.75),
    Ticket(status=Status.OPEN, priority=Priority.HIGH, kind="bug", watchers=[3, 4]),
    Customer(
        home=Address(street="Main St. 1", postcode="12345"),
        others=[Address(street="Élysée", postcode="75008")],
        by_name={"work": Address(street="", postcode="00000")},
        notes={"a": "b", "c d": ""},
    ),
    Limits(percent=100, ratio=0.25, code="abc", points=[1.0, -2.5]),
    Pets(first=Dog(kind="dog", tricks=["sit"]), others=[Cat(kind="cat", lives=9)], number="seven"),
    Comment(text="a", replies=[Comment(text="b", replies=[Comment(text="c")])]),
    Place(position=(41.9, 12.5), route=[(1, "left")], page=AnyUrl("https://example.org/a?b=c")),
    Described(amount=3, unitName="g"),
    Empty(),
)


def json_of(value: BaseModel) -> str:
    """Return the JSON that the model has to write."""
    return value.model_dump_json(by_alias=True)


def check_examples(
    ask: Callable[[BaseModel], object], *, but: Collection[type[BaseModel]] = (), extra: Collection[BaseModel] = ()
) -> None:
    """Check that `ask` returns each example that it is given. Raises `AssertionError`, which names all that fail.

    but: models that a client cannot send. extra: further examples.
    """
    failures = []
    for value in (*EXAMPLES, *extra):
        if type(value) not in but:
            try:
                answer = ask(value)
                assert answer == value, f"got {answer!r}"
            except Exception as error:
                failures.append(f"{json_of(value)}: {type(error).__name__}: {error}")
    assert not failures, "\n".join(failures)
