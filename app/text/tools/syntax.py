"""Syntax of tool calls: one description for each model family, of which its grammar and its parser are both made.

A description has texts only. Those of its markers that are special tokens of the model become marks (`app.text.marks`).
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, NamedTuple

from app.text.marks import NO_MARKS, Marks
from app.text.schemas.nodes import Node
from app.text.tools.argument_schema import object_schema
from app.text.tools.definitions import Tool, ToolOffer
from app.text.tools.grammar_rules import GrammarRules
from app.text.tools.text_reader import Literals, Steps, TextReader

MAX_NAME = 256  # characters of a tool's name, of an argument's name or of another word of a call
MAX_LEADING_SPACE = 2  # characters before a call at the beginning of an answer


class OpenCall(NamedTuple):
    """Call whose arguments are being read. put: receives them as JSON. end: the text after them, with marks."""

    reader: TextReader
    tool: Tool
    schema: Node | None  # of the arguments; None: any are possible
    marks: Marks
    end: str
    put: Callable[[str], None]


class ArgumentSyntax(ABC):
    """Way to write the arguments of a call. includes_end: they are complete only with the text that ends the call."""

    includes_end: ClassVar[bool] = True

    def schema(self, tool: Tool) -> Node:
        """Return the schema of the arguments of a call of `tool`, as the other methods read it. Raises `InvalidFormat`
        for a strict tool with a schema that cannot be enforced.
        """
        return object_schema(tool)

    @abstractmethod
    def expression(self, rules: GrammarRules, schema: Node | None, *, is_strict: bool) -> str:
        """Return an expression for the arguments of a call, without the end of the call.

        schema: None: any arguments. is_strict: raise `InvalidFormat` if it cannot be enforced.
        """

    @abstractmethod
    def read(self, call: OpenCall) -> Steps[bool]:
        """Read the arguments of a call, and its end if it is included. Return whether they are complete."""


@dataclass(frozen=True, slots=True)
class CallForm:
    """One way to write a call: a text, the tool's name, a text of `after`, the arguments, `end`, and `tail` or nothing.

    quotes_name: the name is a string in JSON. is_spontaneous: models write it now and then where text is possible, so
    that it is read there; calls that are forced, or begun by a marker of another form, do not have it.
    """

    before: str
    after: tuple[str, ...]
    end: str
    tail: str = ""
    quotes_name: bool = False
    is_spontaneous: bool = False

    def name(self, tool: Tool) -> str:
        """Return the name of a tool as it is written in a call."""
        return json.dumps(tool.name, ensure_ascii=False) if self.quotes_name else tool.name

    def heads(self, tool: Tool, marks: Marks) -> list[str]:
        """Return the possible texts of a call of `tool` up to its arguments, with marks."""
        return [f"{marks.encode(self.before)}{self.name(tool)}{marks.encode(after)}" for after in self.after]


@dataclass(frozen=True, slots=True)
class CallList:
    """Calls that stand together: `start`, a text of `opens`, calls with a text of `separators` between, and `close`.

    start: marker at which a call begins wherever it is. separators: empty if there is one call only.
    """

    start: str
    forms: tuple[CallForm, ...]
    opens: tuple[str, ...] = ("",)
    separators: tuple[str, ...] = ()
    close: str = ""


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """Syntax of one family. name: for errors.

    markers: texts that may be special tokens. is_leading: a list may also be at the beginning of an answer, without its
    start, after at most `MAX_LEADING_SPACE` blanks and line breaks; nothing follows it. may_repeat: several lists may
    follow each other, with a line break or nothing between them.
    """

    name: str
    lists: tuple[CallList, ...]
    arguments: ArgumentSyntax
    markers: frozenset[str]
    is_leading: bool = False
    may_repeat: bool = True


class Head(NamedTuple):
    """Beginning of a call, as a parser finds it."""

    tool: Tool
    form: CallForm
    list: CallList


@dataclass(frozen=True, kw_only=True)
class CallOffer(ToolOffer):
    """Calls that an answer may have: for its grammar, and for the parsers of all its choices."""

    syntax: CallSyntax
    marks: Marks = NO_MARKS
    _schemas: dict[str, Node | None] = field(default_factory=dict)
    _following: dict[int, tuple[Literals, dict[str, Head]]] = field(default_factory=dict)

    def prepare(self) -> None:
        """Make the tables of the parsers, which take some time if there are many tools."""
        for calls in self.lists:
            self.following(calls)
        assert self.leading if self.syntax.is_leading else self.first

    def schema(self, tool: Tool) -> Node | None:
        """Return the schema of the arguments of a call; None if any are possible. Raises `InvalidFormat`."""
        if tool.name not in self._schemas:
            self._schemas[tool.name] = self.syntax.arguments.schema(tool) if self.is_constrained(tool) else None
        return self._schemas[tool.name]

    def forms(self, calls: CallList) -> list[CallForm]:
        """Return the forms in which a call of a list may be written."""
        regular = [form for form in calls.forms if not form.is_spontaneous]
        return regular or ([] if self.is_forced else list(calls.forms))

    def leading_forms(self, calls: CallList) -> Sequence[CallForm]:
        """Return the forms of a call at the beginning of an answer, without a marker before it."""
        return self.forms(calls) if self.is_forced else calls.forms

    @cached_property
    def lists(self) -> list[CallList]:
        """Return the lists of calls that are possible. If a start is a special token, no text is a start."""
        lists = [calls for calls in self.syntax.lists if self.forms(calls)]
        return [calls for calls in lists if self.marks.encode(calls.start) in self.marks.ids] or lists

    @cached_property
    def starts(self) -> Literals:
        """Return the markers at which a call begins, with marks."""
        return Literals(self.marks.encode(calls.start) for calls in self.lists)

    @cached_property
    def first(self) -> dict[str, tuple[Literals, dict[str, Head]]]:
        """Return the beginnings of a list of calls, by the marker before it, with marks."""
        starts = {calls.start for calls in self.lists}
        return {
            self.marks.encode(start): self._table(
                (calls, opening) for calls in self.lists if calls.start == start for opening in calls.opens
            )
            for start in starts
        }

    @cached_property
    def leading(self) -> tuple[Literals, dict[str, Head]]:
        """Return the beginnings of a list of calls at the beginning of an answer, with marks."""
        return self._table(((calls, opening) for calls in self.lists for opening in calls.opens), self.leading_forms)

    def following(self, calls: CallList) -> tuple[Literals, dict[str, Head]]:
        """Return the beginnings of further calls of a list, and its end, with marks."""
        at = self.syntax.lists.index(calls)
        if at not in self._following:
            separators = calls.separators if self.use.allows_several else ()
            literals, heads = self._table((calls, separator) for separator in separators)
            if calls.close:
                literals = Literals([*heads, self.marks.encode(calls.close)])
            self._following[at] = literals, heads
        return self._following[at]

    def _table(
        self,
        beginnings: Iterable[tuple[CallList, str]],
        forms: Callable[[CallList], Sequence[CallForm]] | None = None,
    ) -> tuple[Literals, dict[str, Head]]:
        forms = forms or self.forms
        heads = {
            self.marks.encode(before) + head: Head(tool, form, calls)
            for calls, before in beginnings
            for form in forms(calls)
            for tool in self.tools
            for head in form.heads(tool, self.marks)
        }
        return Literals(heads), heads
