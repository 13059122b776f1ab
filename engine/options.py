"""Declaration of options as metadata of a configuration's fields.

A field `name: Annotated[int, Option(...)] = 5` of a struct is an option: its key, type and default are those of the
field, all else is in the declaration. `declared_options` reads the declarations; `app.options` makes flags, variables,
lines of a file and the table of the manual from them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

VARIABLE_PREFIX = "CAROUSEL_"


@dataclass(frozen=True, slots=True)
class Bound:
    """Condition on a number. `text` completes "NAME must be ..."; NaN never meets the condition."""

    text: str
    is_met: Callable[[float], bool]


def at_least(minimum: float) -> Bound:
    """Return a lower bound; infinity meets it."""
    return Bound(f"at least {minimum}", lambda value: value >= minimum)


def at_most(maximum: float) -> Bound:
    """Return an upper bound."""
    return Bound(f"at most {maximum}", lambda value: value <= maximum)


def between(minimum: float, maximum: float) -> Bound:
    """Return a bound on both sides."""
    return Bound(f"between {minimum} and {maximum}", lambda value: minimum <= value <= maximum)


FINITE = Bound("finite", lambda value: abs(value) < math.inf)
FINITE_AMOUNT = Bound("at least 0 and finite", lambda value: 0 <= value < math.inf)
POSITIVE_AMOUNT = Bound("above 0 and finite", lambda value: 0 < value < math.inf)
POSITIVE_SECONDS = Bound("a positive number of seconds", lambda value: 0 < value < math.inf)
SHARE = Bound("above 0 and at most 1", lambda value: 0 < value <= 1)
SHARE_OR_ZERO = Bound("from 0 to 1", lambda value: 0 <= value <= 1)


@dataclass(frozen=True, slots=True)
class Option:
    """Declaration of an option."""

    group: str  # heading in the help and in the manual
    help: str
    default: str = ""  # description of a default that is not a constant, or that a value would not explain
    bounds: tuple[Bound, ...] = ()
    choices: tuple[str, ...] = ()  # not needed for a Literal
    key: str = ""  # if it is not the field's name
    kind: type | None = None  # of the given value, if it is not the field's type
    alias: str = ""  # second key, such as vLLM's


@dataclass(frozen=True, slots=True)
class DeclaredOption:
    """An option with all that its field and its declaration state."""

    key: str
    kind: type
    default: str  # as text; empty: none
    group: str
    help: str
    bounds: tuple[Bound, ...] = ()
    choices: tuple[str, ...] = ()
    alias_of: str = ""  # key of the option of which this is a second name
    engine: bool = False  # field of EngineConfig

    @property
    def name(self) -> str:
        """Return the flag without its dashes."""
        return self.key.replace("_", "-")

    @property
    def variable(self) -> str:
        """Return the environment variable."""
        return f"{VARIABLE_PREFIX}{self.key.upper()}"

    def violation(self, value: Any) -> str | None:
        """Return a sentence about the first condition that `value` does not meet; None if it meets all."""
        if self.choices and value not in self.choices:
            return f"{self.key} must be one of {', '.join(self.choices)}, got {value!r}"
        for bound in self.bounds:
            if not bound.is_met(value):
                return f"{self.key} must be {bound.text}, got {value}"
        return None


@cache
def declared_options(struct: type[msgspec.Struct], *, engine: bool = False) -> tuple[DeclaredOption, ...]:
    """Return the options that the fields of `struct` declare, in order; an alias follows its option."""
    hints = get_type_hints(struct, include_extras=True)
    options: list[DeclaredOption] = []
    for field in msgspec.structs.fields(struct):
        declared = next((m for m in getattr(hints[field.name], "__metadata__", ()) if isinstance(m, Option)), None)
        if declared is None:
            continue
        value_type = get_args(hints[field.name])[0]
        kind, choices = (declared.kind, ()) if declared.kind is not None else _kind_and_choices(value_type)
        option = DeclaredOption(
            key=declared.key or field.name,
            kind=kind,
            default=declared.default or _default_text(field.default),
            group=declared.group,
            help=declared.help,
            bounds=declared.bounds,
            choices=declared.choices or choices,
            engine=engine,
        )
        assert option.kind in (str, int, float, bool), f"{option.key} needs the kind of a given value"
        options.append(option)
        if declared.alias:
            text = f"same as --{option.name}"
            options.append(replace(option, key=declared.alias, help=text, alias_of=option.key, engine=False))
    return tuple(options)


def _kind_and_choices(value_type: Any) -> tuple[type, tuple[str, ...]]:
    """Return the type of a given value, and the choices of a Literal. `T | None` counts as `T`."""
    if get_origin(value_type) in (Union, UnionType):
        (value_type,) = (part for part in get_args(value_type) if part is not NoneType)
    return (str, get_args(value_type)) if get_origin(value_type) is Literal else (value_type, ())


def _default_text(default: Any) -> str:
    if isinstance(default, bool):
        return ("off", "on")[default]
    return "" if default is None or default is msgspec.NODEFAULT or default in ("", ()) else str(default)
