"""Rules of one schema's translation: which keywords must be enforced, and how much work it may take."""

from __future__ import annotations

from collections.abc import Collection

from app.text.schemas.errors import InvalidFormat

MAX_STEPS = 30_000  # nodes that are read, copied or merged; about 5 us each


class Enforcement:
    """Decision on keywords that cannot be enforced, and a count of the work.

    is_strict: such a keyword is an error; otherwise it is dropped. lenient: keywords that are dropped nevertheless.
    """

    def __init__(self, *, is_strict: bool, lenient: Collection[str] = ()) -> None:
        self._is_strict = is_strict
        self._lenient = lenient
        self._steps = 0

    def drop(self, keyword: str, place: str, reason: str = "cannot be enforced") -> None:
        """Return if a keyword may be dropped. Raises `InvalidFormat`."""
        if self._is_strict and keyword not in self._lenient:
            raise InvalidFormat(f"{keyword} {at(place)} {reason}")

    def step(self, count: int = 1) -> None:
        """Count some work. Raises `InvalidFormat` when there is too much."""
        self._steps += count
        if self._steps > MAX_STEPS:
            raise InvalidFormat("the schema is too complex: its combinations have too many parts; simplify it")


def at(place: str) -> str:
    """Return a place in a schema as part of a sentence."""
    return f"at {place}" if place else "at the root"


def below(place: str, *names: str | int) -> str:
    """Return a place below another one."""
    return ".".join([*([place] if place else []), *map(str, names)])
