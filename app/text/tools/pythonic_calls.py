"""Parser of calls in Python's syntax: [f(a=1, b="x"), g()], as Llama 3.2 and Llama 4 write them."""

from __future__ import annotations

import json
import re

from app.text.tools.argument_types import escape
from app.text.tools.call_parser import MAX_NAME, CallParser
from app.text.tools.text_reader import Steps

_NAME = re.compile(r"[\w.\-]+")
_ATOM = re.compile(r"""[^\s,:=()\[\]{}"'<]+""")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_CONSTANTS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_CLOSING = {"[": "]", "(": ")", "{": "}"}
_INSIDE_STRING = {'"': re.compile(r'[^"\\]+'), "'": re.compile(r"[^'\\]+")}
_ESCAPE = re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U00[0-9a-fA-F]{6})")
_ESCAPE_LENGTHS = {"x": 4, "u": 6, "U": 10}
_ESCAPES = {"'": "'", "a": "\\u0007", "v": "\\u000b", "0": "\\u0000", "\n": ""} | {c: f"\\{c}" for c in '"\\nrtbf'}


class PythonicParser(CallParser):
    """Parser of a list of calls at the beginning of the answer, or anywhere after a start marker.

    Values become JSON as they arrive: strings, numbers, True, False, None, lists, tuples and dictionaries; any other
    word is a string. At text that is not valid in a call, such as an argument without a name, the call is cut off and
    the rest is content; if it is the first argument, there is no call.
    """

    starts = ("<|python_start|>",)

    def _read_all(self) -> Steps[None]:
        self._begin_call()
        yield from self._read_calls("")
        self._end_call()
        yield from super()._read_all()

    def _read_calls(self, start: str) -> Steps[None]:
        reader = self._reader
        if (yield from reader.skip_space()) != "[":
            return
        reader.take(1)
        while True:
            yield from reader.skip_space()
            if not (yield from self._read_call()):
                return
            was_call = self._is_call
            self._end_call()
            self._begin_call()
            if (yield from reader.skip_space()) == "]":
                break
            if not (yield from reader.accept(",")):
                return
        reader.take(1)
        if was_call:
            self._held.clear()
        yield from reader.skip_space()
        if (yield from reader.accept("<|python_end|>")) and was_call:
            self._held.clear()

    def _read_call(self) -> Steps[bool]:
        """Read one call. Return whether it is complete."""
        reader, is_empty = self._reader, True
        tool = yield from reader.read_while(_NAME, MAX_NAME)
        if not (yield from reader.accept("(")):
            return False
        while (yield from reader.skip_space()) != ")":
            name = yield from reader.read_while(_NAME, MAX_NAME)
            yield from reader.skip_space()
            if not (yield from reader.accept("=")):
                return False
            self._decide(tool)
            self._add_arguments(("{" if is_empty else ", ") + json.dumps(name, ensure_ascii=False) + ": ")
            is_empty = False
            if not (yield from self._read_value()):
                return False
            yield from reader.skip_space()
            if not (yield from reader.accept(",")):
                break
        if (yield from reader.skip_space()) != ")":
            return False
        reader.take(1)
        self._decide(tool)
        self._add_arguments("{}" if is_empty else "}")
        return True

    def _read_value(self) -> Steps[bool]:
        """Read a literal and append it to the arguments as JSON. Return whether it is complete."""
        reader = self._reader
        closing: list[str] = []  # brackets that close the open ones
        before = "["  # the token before the next one; "," is written with the value after it
        while True:
            begin = yield from reader.skip_space()
            if before == "value" and (begin == "," or (begin == ":" and closing[-1] == "}")):
                reader.take(1)
                self._add_arguments(": " if begin == ":" else "")
                before = begin
                continue
            if closing and begin == closing[-1] and before != ":":
                reader.take(1)
                self._add_arguments("}" if closing.pop() == "}" else "]")
                before = "value"
            elif before == "value" or not begin:
                return False
            else:
                self._add_arguments(", " if before == "," else "")
                is_key = closing[-1:] == ["}"] and before != ":"
                if begin in _CLOSING:
                    reader.take(1)
                    closing.append(_CLOSING[begin])
                    self._add_arguments("{" if begin == "{" else "[")
                    before = "["
                    continue
                if not (yield from self._read_scalar(begin, is_key=is_key)):
                    return False
                before = "value"
            if not closing:
                return True

    def _read_scalar(self, begin: str, *, is_key: bool) -> Steps[bool]:
        """Read a string, number or word. Return whether it is complete and valid."""
        if begin in _INSIDE_STRING:
            return (yield from self._read_string(begin))
        atom = yield from self._reader.read_while(_ATOM, MAX_NAME)
        value = _json_of(atom)
        self._add_arguments(json.dumps(atom) if is_key and value[:1] != '"' else value)
        return 0 < len(atom) <= MAX_NAME

    def _read_string(self, quote: str) -> Steps[bool]:
        """Read a string and append it to the arguments as JSON. Return whether it is complete."""
        reader, inside = self._reader, _INSIDE_STRING[quote]
        end = quote * 3 if (yield from reader.peek(3)) == quote * 3 else quote
        reader.take(len(end))
        self._add_arguments('"')
        while True:
            self._add_arguments(escape(reader.take_match(inside)))
            begin = yield from reader.peek()
            if not begin:
                return False
            if begin == "\\":
                self._add_arguments((yield from self._read_escape()))
            elif (yield from reader.accept(end)):
                self._add_arguments('"')
                return True
            else:
                self._add_arguments(escape(reader.take(1)))

    def _read_escape(self) -> Steps[str]:
        """Read an escape sequence. Return the same in JSON; the backslash of an unknown one is kept, as in Python."""
        reader = self._reader
        kind = (yield from reader.peek(2))[1:]
        if kind in _ESCAPES:
            reader.take(2)
            return _ESCAPES[kind]
        ahead = yield from reader.peek(_ESCAPE_LENGTHS.get(kind, 1))
        if not _ESCAPE.fullmatch(ahead):
            reader.take(1)
            return "\\\\"
        reader.take(len(ahead))
        code = int(ahead[2:], 16)
        return f"\\u{code:04x}" if code < 0x10000 else escape(chr(code)) if code < 0x110000 else "\\ufffd"


def _json_of(atom: str) -> str:
    """Return a number or word of Python as JSON."""
    if atom in _CONSTANTS or _NUMBER.fullmatch(atom):
        return _CONSTANTS.get(atom, atom)
    for convert in (lambda text: int(text, 0), float):
        try:
            return json.dumps(convert(atom), allow_nan=False)
        except (ValueError, OverflowError):
            continue
    return json.dumps(atom, ensure_ascii=False)
