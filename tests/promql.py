"""Parser for the subset of PromQL that the dashboard uses; checks grammar, types and labels.

Supports numbers, selectors, ranges, rate and increase, aggregation with `by`, histogram_quantile, and arithmetic
between vectors of the same labels. Anything else is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

VARIABLES = {"$__rate_interval": "5m", "$__range": "30m"}  # Grafana's variables for durations
AGGREGATIONS = ("sum", "avg", "min", "max")
TOKEN = re.compile(
    r"""\s*(?:(?P<number>\d+(?:\.\d+)?)|(?P<name>[a-zA-Z_:][\w:]*)|(?P<text>"[^"\\]*")|(?P<range>\[\d+[smhd]\])"""
    r"""|(?P<match>=~|!~|!=|=)|(?P<sign>[-+*/(){},]))"""
)


class QueryError(Exception):
    """The query is invalid or cannot return the intended result."""


@dataclass
class Series:
    """One metric name of an exposition."""

    is_counter: bool  # a counter or histogram, which is read only through rate() or increase()
    labels: set[str] = field(default_factory=set)
    values: dict[str, set[str]] = field(default_factory=dict)


def series_by_name(exposition: str) -> dict[str, Series]:
    """Return the series of an exposition that have a sample, by name."""
    found: dict[str, Series] = {}
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            series = found.setdefault(sample.name, Series(family.type in ("counter", "histogram")))
            series.labels |= sample.labels.keys()
            for label, value in sample.labels.items():
                series.values.setdefault(label, set()).add(value)
    return found


@dataclass
class Value:
    """Result type of an expression. A scalar has no labels, nor has a sum over everything."""

    kind: str  # scalar, vector, range
    labels: set[str] = field(default_factory=set)


class Query:
    """One parsed expression.

    Raises `Wrong` for an invalid query.
    """

    def __init__(self, text: str, series: Mapping[str, Series]) -> None:
        self.names: set[str] = set()  # of series
        self._series = series
        for variable, duration in VARIABLES.items():
            text = text.replace(f"[{variable}]", f"[{duration}]")
        self._tokens: list[tuple[str, str]] = []
        at, text = 0, text.rstrip()
        while at < len(text):
            found = TOKEN.match(text, at)
            if found is None or found.lastgroup is None:
                raise QueryError(f"unexpected input: {text[at:]!r}")
            self._tokens.append((found.lastgroup, found[found.lastgroup]))
            at = found.end()
        value = self._sum()
        if self._tokens:
            raise QueryError(f"unexpected tokens after the expression: {self._tokens}")
        if value.kind == "range":
            raise QueryError("the result is a range, which cannot be drawn")
        self.labels = value.labels

    def _next(self, *expected: str) -> str | None:
        """Consume and return the next token if its text or its kind is in `expected`, else return None."""
        if self._tokens and (self._tokens[0][1] in expected or self._tokens[0][0] in expected):
            return self._tokens.pop(0)[1]
        return None

    def _expect(self, *expected: str) -> str:
        token = self._next(*expected)
        if token is None:
            raise QueryError(f"expected one of {expected} before {self._tokens[:3]}")
        return token

    def _sum(self) -> Value:
        value = self._product()
        while self._next("+", "-"):
            value = self._binary(value, self._product())
        return value

    def _product(self) -> Value:
        value = self._primary()
        while self._next("*", "/"):
            value = self._binary(value, self._primary())
        return value

    def _binary(self, left: Value, right: Value) -> Value:
        kinds = {left.kind, right.kind}
        if "range" in kinds or (kinds == {"vector"} and left.labels != right.labels):
            raise QueryError(f"no sample of one side matches the other's: {left} and {right}")
        return max(left, right, key=lambda value: value.kind)  # a vector if either is one

    def _primary(self) -> Value:
        if self._next("("):
            value = self._sum()
            self._expect(")")
            return value
        if self._next("number"):
            return Value("scalar")
        name = self._expect("name")
        if name in AGGREGATIONS:
            return self._aggregation()
        if name in ("rate", "increase"):
            value = self._argument()
            if value.kind != "range":
                raise QueryError(f"{name} needs a range")
            return Value("vector", value.labels)
        if name == "histogram_quantile":
            self._expect("(")
            self._expect("number")
            self._expect(",")
            value = self._sum()
            self._expect(")")
            if "le" not in value.labels:
                raise QueryError("histogram_quantile needs the label le")
            return Value("vector", value.labels - {"le"})
        return self._selector(name)

    def _argument(self) -> Value:
        self._expect("(")
        value = self._sum()
        self._expect(")")
        return value

    def _aggregation(self) -> Value:
        by: set[str] = set()
        if self._next("by"):
            self._expect("(")
            by.add(self._expect("name"))
            while self._next(","):
                by.add(self._expect("name"))
            self._expect(")")
        value = self._argument()
        if value.kind != "vector" or not by <= value.labels:
            raise QueryError(f"cannot aggregate by {by}: the operand is {value}")
        return Value("vector", by)

    def _selector(self, name: str) -> Value:
        if name not in self._series:
            raise QueryError(f"there is no metric {name}")
        self.names.add(name)
        series = self._series[name]
        if self._next("{"):
            while not self._next("}"):
                self._matcher(name, series)
                if not self._next(","):
                    self._expect("}")
                    break
        is_range = self._next("range") is not None
        if is_range != series.is_counter:
            raise QueryError(
                f"{name} {'is a counter: use its rate' if series.is_counter else 'is a gauge: it has no rate'}"
            )
        return Value("range" if is_range else "vector", series.labels)

    def _matcher(self, name: str, series: Series) -> None:
        label, operator, text = self._expect("name"), self._expect("match"), self._expect("text")[1:-1]
        if label not in series.labels:
            raise QueryError(f"{name} has no label {label}")
        if "$" in text:
            if operator != "=~":
                raise QueryError(f"{label}: a variable with several values needs =~")
        elif text not in series.values[label]:
            raise QueryError(f"{name} has no {label} {text!r}, but {series.values[label]}")
