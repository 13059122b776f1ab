"""Just enough of PromQL to know whether a query can give anything: its grammar, its types and its labels.

Reads what the dashboard uses and refuses the rest: number, selector, range, rate and increase, aggregation with `by`,
histogram_quantile, arithmetic between vectors of the same labels.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

VARIABLES = {"$__rate_interval": "5m", "$__range": "30m"}  # Grafana's, where a duration stands
AGGREGATIONS = ("sum", "avg", "min", "max")
TOKEN = re.compile(
    r"""\s*(?:(?P<number>\d+(?:\.\d+)?)|(?P<name>[a-zA-Z_:][\w:]*)|(?P<text>"[^"\\]*")|(?P<range>\[\d+[smhd]\])"""
    r"""|(?P<match>=~|!~|!=|=)|(?P<sign>[-+*/(){},]))"""
)


class Wrong(Exception):
    """The query gives nothing, or not what was meant."""


@dataclass
class Series:
    """One name of an exposition."""

    counts: bool  # it only grows: rate() makes sense of it, and nothing else does
    labels: set[str] = field(default_factory=set)
    values: dict[str, set[str]] = field(default_factory=dict)


def catalogue(exposition: str) -> dict[str, Series]:
    """The series of an exposition that have a sample, by name."""
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
    """What an expression gives. A scalar has no labels, nor has a sum over everything."""

    kind: str  # scalar, vector, range
    labels: set[str] = field(default_factory=set)


class Query:
    """One parsed expression. Raises `Wrong`."""

    def __init__(self, text: str, known: Mapping[str, Series]) -> None:
        self.names: set[str] = set()  # of series
        self._known = known
        for variable, duration in VARIABLES.items():
            text = text.replace(f"[{variable}]", f"[{duration}]")
        self._tokens: list[tuple[str, str]] = []
        at, text = 0, text.rstrip()
        while at < len(text):
            found = TOKEN.match(text, at)
            if found is None or found.lastgroup is None:
                raise Wrong(f"cannot be read from here on: {text[at:]!r}")
            self._tokens.append((found.lastgroup, found[found.lastgroup]))
            at = found.end()
        value = self._sum()
        if self._tokens:
            raise Wrong(f"goes on after its end: {self._tokens}")
        if value.kind == "range":
            raise Wrong("gives a range, which cannot be drawn")
        self.labels = value.labels

    def _next(self, *wanted: str) -> str | None:
        """The next token if it is one of those, by its text or its kind."""
        if self._tokens and (self._tokens[0][1] in wanted or self._tokens[0][0] in wanted):
            return self._tokens.pop(0)[1]
        return None

    def _need(self, *wanted: str) -> str:
        token = self._next(*wanted)
        if token is None:
            raise Wrong(f"needs one of {wanted} before {self._tokens[:3]}")
        return token

    def _sum(self) -> Value:
        value = self._product()
        while self._next("+", "-"):
            value = self._both(value, self._product())
        return value

    def _product(self) -> Value:
        value = self._one()
        while self._next("*", "/"):
            value = self._both(value, self._one())
        return value

    def _both(self, left: Value, right: Value) -> Value:
        kinds = {left.kind, right.kind}
        if "range" in kinds or (kinds == {"vector"} and left.labels != right.labels):
            raise Wrong(f"no sample of one side matches the other's: {left} and {right}")
        return max(left, right, key=lambda value: value.kind)  # vector, where there is one

    def _one(self) -> Value:
        if self._next("("):
            value = self._sum()
            self._need(")")
            return value
        if self._next("number"):
            return Value("scalar")
        name = self._need("name")
        if name in AGGREGATIONS:
            return self._aggregation()
        if name in ("rate", "increase"):
            value = self._argument()
            if value.kind != "range":
                raise Wrong(f"{name} needs a range")
            return Value("vector", value.labels)
        if name == "histogram_quantile":
            self._need("(")
            self._need("number")
            self._need(",")
            value = self._sum()
            self._need(")")
            if "le" not in value.labels:
                raise Wrong("histogram_quantile needs the label le")
            return Value("vector", value.labels - {"le"})
        return self._selector(name)

    def _argument(self) -> Value:
        self._need("(")
        value = self._sum()
        self._need(")")
        return value

    def _aggregation(self) -> Value:
        by: set[str] = set()
        if self._next("by"):
            self._need("(")
            by.add(self._need("name"))
            while self._next(","):
                by.add(self._need("name"))
            self._need(")")
        value = self._argument()
        if value.kind != "vector" or not by <= value.labels:
            raise Wrong(f"by {by} of what has {value}")
        return Value("vector", by)

    def _selector(self, name: str) -> Value:
        if name not in self._known:
            raise Wrong(f"there is no metric {name}")
        self.names.add(name)
        series = self._known[name]
        if self._next("{"):
            while not self._next("}"):
                self._matcher(name, series)
                if not self._next(","):
                    self._need("}")
                    break
        is_range = self._next("range") is not None
        if is_range != series.counts:
            raise Wrong(
                f"{name} {'only grows: take its rate' if series.counts else 'goes up and down: it has no rate'}"
            )
        return Value("range" if is_range else "vector", series.labels)

    def _matcher(self, name: str, series: Series) -> None:
        label, operator, text = self._need("name"), self._need("match"), self._need("text")[1:-1]
        if label not in series.labels:
            raise Wrong(f"{name} has no label {label}")
        if "$" in text:
            if operator != "=~":
                raise Wrong(f"{label}: a variable of several values needs =~")
        elif text not in series.values[label]:
            raise Wrong(f"{name} has no {label} {text!r}, but {series.values[label]}")
