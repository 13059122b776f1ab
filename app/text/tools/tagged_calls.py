"""Parsers of the families that write each argument between tags: Qwen3-Coder and GLM-4.5.

The values are plain text. They become JSON by the tool's schema (`argument_types`): strings as they arrive, other
values when they are complete.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from app.text.tools.argument_types import STRING, argument_types, escape, json_value
from app.text.tools.call_parser import MAX_NAME, CallParser
from app.text.tools.definitions import ToolUse
from app.text.tools.text_reader import Steps

_NAME = re.compile(r"[^<>\n]+")
_VALUE = re.compile(r"[^<\n]+")


class TaggedCallParser(CallParser):
    """Base of these families: reading of one argument's value."""

    value_ends: tuple[str, ...]  # texts that end a value, each begins with "<" or a line break

    def __init__(self, use: ToolUse | None, new_id: Callable[[], str]) -> None:
        super().__init__(use, new_id)
        self._types: dict[tuple[str, str], frozenset[str]] = {}  # by tool and argument

    def _read_argument(self, tool: str, name: str, *, is_first: bool) -> Steps[str]:
        """Read the value of argument `name` up to its end, and append both to the call's arguments. Return the end,
        which is not read; empty at the end of the answer.
        """
        types = self._types_of(tool, name)
        self._add_arguments(("{" if is_first else ", ") + json.dumps(name, ensure_ascii=False) + ": ")
        if types == STRING:
            self._add_arguments('"')
            end = yield from self._read_value(lambda piece: self._add_arguments(escape(piece)))
            self._add_arguments('"' if end else "")
            return end
        pieces: list[str] = []
        end = yield from self._read_value(pieces.append)
        value = "".join(pieces)
        self._add_arguments(json_value(value, types) if end else value)
        return end

    def _types_of(self, tool: str, name: str) -> frozenset[str]:
        """Return the types that an argument may have; those of an unknown tool's arguments do not matter."""
        if tool not in self._tools:
            return STRING
        if (tool, name) not in self._types:
            self._types[tool, name] = argument_types(self._tools[tool].parameters, name)
        return self._types[tool, name]

    def _read_value(self, put: Callable[[str], None]) -> Steps[str]:
        reader = self._reader
        while True:
            put(reader.take_match(_VALUE))
            if not (yield from reader.peek()):
                return ""
            if end := (yield from reader.find(*self.value_ends)):
                return end
            put(reader.take(1))

    def _close_arguments(self, *, is_empty: bool) -> Steps[None]:
        """Complete the arguments, unless the answer has ended."""
        if (yield from self._reader.peek()):
            self._add_arguments("{}" if is_empty else "}")


class Qwen3CoderParser(TaggedCallParser):
    """Parser of <tool_call><function=f><parameter=a>1</parameter></function></tool_call> (Qwen3-Coder), with or without
    the outer tag. A line break at the beginning and one at the end of a value belong to the format. A value also ends,
    without its end tag, at a line that begins with the next parameter or with the end of the function.
    """

    starts = ("<tool_call>", "<function=")
    value_ends = ("\n</parameter>", "</parameter>", "\n<parameter=", "\n</function>")

    def _read_calls(self, start: str) -> Steps[None]:
        reader = self._reader
        if start == "<tool_call>":
            yield from reader.skip_space()
            if not (yield from reader.accept("<function=")):
                return
        tool = (yield from reader.read_while(_NAME, MAX_NAME)).strip()
        if not (yield from reader.accept(">")):
            return
        self._decide(tool)
        yield from self._read_parameters(tool)
        yield from self._read_end(("</tool_call>",))

    def _read_parameters(self, tool: str) -> Steps[None]:
        reader, is_empty = self._reader, True
        yield from reader.skip_space()
        while (yield from reader.accept("<parameter=")):
            name = (yield from reader.read_while(_NAME, MAX_NAME)).strip()
            if not (yield from reader.accept(">")):
                break
            yield from reader.accept("\n")
            end = yield from self._read_argument(tool, name, is_first=is_empty)
            is_empty = False
            reader.take(len(end) if end.endswith("</parameter>") else 0)
            yield from reader.skip_space()
        end = yield from reader.accept("</function>")
        if end:
            self._add_arguments("{}" if is_empty else "}")
        else:
            yield from self._close_arguments(is_empty=is_empty)


class GlmParser(TaggedCallParser):
    """Parser of <tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call> (GLM-4.5 and later), with or
    without line breaks between the tags.
    """

    starts = ("<tool_call>",)
    value_ends = ("</arg_value>",)

    def _read_calls(self, start: str) -> Steps[None]:
        reader, is_empty = self._reader, True
        yield from reader.skip_space()
        tool = (yield from reader.read_while(_NAME, MAX_NAME)).strip()
        yield from reader.skip_space()
        if not (yield from reader.find("<arg_key>", "</tool_call>")):
            return
        self._decide(tool)
        while (yield from reader.accept("<arg_key>")):
            name = (yield from reader.read_while(_NAME, MAX_NAME)).strip()
            if not (yield from reader.accept("</arg_key>")):
                break
            yield from reader.skip_space()
            if not (yield from reader.accept("<arg_value>")):
                break
            end = yield from self._read_argument(tool, name, is_first=is_empty)
            is_empty = False
            reader.take(len(end))
            yield from reader.skip_space()
        yield from self._close_arguments(is_empty=is_empty)
        yield from self._read_end(("</tool_call>",))
