"""Parsers of the families that write calls as JSON: Hermes, Llama 3, Mistral, DeepSeek.

The text of the arguments is passed on verbatim, whether it is valid JSON or not. It ends with the brace that closes it,
or at an end marker outside of strings.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable

from app.text.tools.call_parser import MAX_NAME, CallParser
from app.text.tools.text_reader import Steps

ARGUMENTS = frozenset({"arguments", "parameters"})
MAX_BRACES = 8  # superfluous closing braces after a call, as models write them now and then

_OUTSIDE_STRINGS = re.compile(r'[^"{}\[\]<]+')
_INSIDE_STRING = re.compile(r'[^"\\]+')
_ATOM = re.compile(r'[^\s,{}\[\]"<]+')
_NAME = re.compile(r"[\w.\-]+")
_LINE = re.compile(r"[^\n<`{]+")
_HIGH_SURROGATE = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}")
_ESCAPE = re.compile(r"\\(?:u[dD][89abAB]\w\w\\u[dD][c-fC-F]\w\w|u[0-9a-fA-F]{4}|.)", re.DOTALL)


class JsonCallParser(CallParser):
    """Base of these families: reading of JSON, and of calls such as {"name": "f", "arguments": {"a": 1}}.

    In a call, members may be in any order, and those that are neither name nor arguments are dropped. `parameters` is
    the same as `arguments`. Arguments may be missing or null, which is {}, or a string of JSON, which is decoded.
    """

    ends: tuple[str, ...] = ()  # end markers of a call
    members: frozenset[str] | None = None  # the only members that a call may have; None: any
    may_omit_arguments = True

    def _read_json_call(self) -> Steps[bool]:
        """Read a call. Return whether it is complete."""
        if not (yield from self._reader.accept("{")):
            return False
        name, has_arguments = None, False
        while (yield from self._reader.skip_space()) != "}":
            key = yield from self._read_key()
            if key is None:
                return False
            if key == "name" and name is None:
                name = yield from self._read_name()
                if name is None:
                    return False
                if has_arguments or name not in self._tools:
                    self._decide(name)
            elif key in ARGUMENTS and not has_arguments:
                has_arguments = yield from self._read_arguments(name)
                if not has_arguments:
                    return False
            elif not (yield from self._read_value(self._drop)):
                return False
            if not (yield from self._read_separator(",")):
                break
        if not (yield from self._reader.accept("}")) or name is None or not (has_arguments or self.may_omit_arguments):
            return False
        self._decide(name)
        self._add_arguments("" if has_arguments else "{}")
        return True

    def _read_key(self) -> Steps[str | None]:
        """Read the key of a member, and the colon after it. Return the key; None if there is none that is allowed."""
        key = yield from self._read_name()
        if key is None or (self.members is not None and key not in self.members):
            return None
        return key if (yield from self._read_separator(":")) else None

    def _read_separator(self, character: str) -> Steps[bool]:
        """Read one character with white space around it. Return whether it is there."""
        if (yield from self._reader.skip_space()) != character:
            return False
        self._reader.take(1)
        yield from self._reader.skip_space()
        return True

    def _read_name(self) -> Steps[str | None]:
        """Read and return a string of at most `MAX_NAME` characters; None if there is none."""
        pieces: list[str] = []
        if (yield from self._reader.peek()) != '"':
            return None
        if not (yield from self._read_string(pieces.append, MAX_NAME)):
            return None
        try:
            return str(json.loads("".join(pieces), strict=False))
        except ValueError:
            return None

    def _read_arguments(self, name: str | None) -> Steps[bool]:
        """Read the value of the arguments, and decide on the call if its name is known. Return whether the value is
        complete.
        """
        begin = yield from self._reader.find("{", '"{', '""', "null")
        if not begin:
            return False
        if name is not None:
            self._decide(name)
        if begin == "{":
            return (yield from self._read_nested(self._add_arguments))
        if begin == '"{':
            return (yield from self._read_encoded())
        self._reader.take(len(begin))
        self._add_arguments("{}")
        return True

    def _read_value(self, put: Callable[[str], None]) -> Steps[bool]:
        """Read any value and pass its text to `put`. Return whether it is complete."""
        begin = yield from self._reader.peek()
        if begin == '"':
            return (yield from self._read_string(put))
        if begin in ("{", "["):
            return (yield from self._read_nested(put))
        atom = yield from self._reader.read_while(_ATOM, MAX_NAME)
        put(atom)
        return 0 < len(atom) <= MAX_NAME

    def _read_nested(self, put: Callable[[str], None]) -> Steps[bool]:
        """Read an object or array, pass its text to `put`. Return whether it is complete; it ends without its brace at
        an end marker outside of strings.
        """
        reader, depth = self._reader, 0
        while True:
            put(reader.take_match(_OUTSIDE_STRINGS))
            begin = yield from reader.peek()
            if begin == '"':
                if not (yield from self._read_string(put)):
                    return False
            elif begin == "<" and self.ends and (yield from reader.find(*self.ends)):
                return False
            elif begin:
                put(reader.take(1))
                depth += (begin in "{[") - (begin in "}]")
                if depth == 0:
                    return True
            else:
                return False

    def _read_string(self, put: Callable[[str], None], limit: int = sys.maxsize) -> Steps[bool]:
        """Read a string with its quotes, pass its text to `put`. Return whether it is complete and not longer than
        `limit`.
        """
        reader, length = self._reader, 0
        put(reader.take(1))
        while True:
            text = reader.take_match(_INSIDE_STRING, limit - length)
            put(text)
            length += len(text)
            begin = yield from reader.peek()
            if begin == "\\":
                begin = yield from reader.peek(2)
            if begin != '"' and length >= limit:
                return False
            put(reader.take(len(begin)))
            length += len(begin)
            if begin in ('"', ""):
                return bool(begin)

    def _read_encoded(self) -> Steps[bool]:
        """Read an object in a string, pass its text to the arguments. Return whether the string is complete."""
        reader = self._reader
        reader.take(1)
        while True:
            self._add_arguments(reader.take_match(_INSIDE_STRING))
            begin = yield from reader.peek()
            if begin == "\\":
                self._add_arguments((yield from self._read_escape()))
            elif begin in ('"', ""):
                reader.take(1)
                return bool(begin)

    def _read_escape(self) -> Steps[str]:
        """Read an escape sequence of a string and return its characters; an invalid sequence is unchanged."""
        ahead = yield from self._reader.peek(2)
        if ahead == "\\u":
            ahead = yield from self._reader.peek(6)
        if _HIGH_SURROGATE.fullmatch(ahead):
            ahead = yield from self._reader.peek(12)
        found = _ESCAPE.match(ahead)
        text = self._reader.take(found.end() if found else 1)
        try:
            decoded = str(json.loads(f'"{text}"'))
            decoded.encode()
        except ValueError:
            return text
        return decoded


class HermesParser(JsonCallParser):
    """Parser of <tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call> (Hermes, Qwen2.5, Qwen3)."""

    starts = ("<tool_call>",)
    ends = ("</tool_call>",)

    def _read_calls(self, start: str) -> Steps[None]:
        yield from self._reader.skip_space()
        yield from self._read_json_call()
        if self._is_decided:
            yield from self._read_end(self.ends, MAX_BRACES)


class Llama3Parser(JsonCallParser):
    """Parser of {"name": "f", "parameters": {"a": 1}} (Llama 3.1 to 4), at the beginning of the answer or anywhere
    after a start marker. Further calls follow directly, with a semicolon or white space between them. JSON with other
    members, without arguments or without a tool's name is content.
    """

    starts = ("<|python_tag|>", "<|python_start|>")
    ends = ("<|python_end|>",)
    members = ARGUMENTS | {"name", "type", "id"}
    may_omit_arguments = False

    def _read_all(self) -> Steps[None]:
        self._begin_call()
        yield from self._read_calls("")
        self._end_call()
        yield from super()._read_all()

    def _read_calls(self, start: str) -> Steps[None]:
        reader = self._reader
        while (yield from reader.skip_space()) == "{":
            yield from self._read_json_call()
            if not self._is_call:
                return
            self._end_call()
            self._begin_call()
            yield from reader.skip_space()
            if (yield from reader.accept(*self.ends)):
                self._held.clear()
            yield from reader.accept(";")


class MistralParser(JsonCallParser):
    """Parser of Mistral's calls: [TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}], and in newer models
    [TOOL_CALLS]f[ARGS]{"a": 1}, with or without [ARGS], and with [CALL_ID] and an id before it. The id is dropped.
    """

    starts = ("[TOOL_CALLS]",)

    def _read_calls(self, start: str) -> Steps[None]:
        begin = yield from self._reader.skip_space()
        if (yield from self._reader.find(*self.starts)):
            return
        if begin == "[":
            self._reader.take(1)
            yield from self._read_list()
        elif begin == "{":
            yield from self._read_json_call()
        else:
            yield from self._read_named_call()

    def _read_list(self) -> Steps[None]:
        while True:
            yield from self._reader.skip_space()
            if not (yield from self._read_json_call()):
                return
            was_call = self._is_call
            self._end_call()
            self._begin_call()
            if (yield from self._read_separator(",")):
                continue
            if (yield from self._reader.accept("]")) and was_call:
                self._held.clear()
            return

    def _read_named_call(self) -> Steps[None]:
        reader = self._reader
        name = yield from reader.read_while(_NAME, MAX_NAME)
        if (yield from reader.accept("[CALL_ID]")):
            yield from reader.read_while(_NAME, MAX_NAME)
        yield from reader.accept("[ARGS]")
        if (yield from reader.skip_space()) == "{":
            self._decide(name)
            yield from self._read_nested(self._add_arguments)


class DeepSeekParser(JsonCallParser):
    """Parser of DeepSeek's calls. In V3 and R1, the type of the call, its name and a block of JSON:
    function<｜tool▁sep｜>f, a line break, and the arguments between ```json and ```. In V3.1: f<｜tool▁sep｜>{"a": 1}.
    The markers around the list of calls may be missing.
    """

    starts = ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>")
    ends = ("<｜tool▁call▁end｜>",)

    def _read_calls(self, start: str) -> Steps[None]:
        reader, (list_begin, call_begin) = self._reader, self.starts
        if start == list_begin:
            yield from reader.skip_space()
            if not (yield from reader.accept(call_begin)):
                return
        while True:
            yield from self._read_call()
            if not self._is_decided:
                return
            was_call = self._is_call
            yield from self._read_end(self.ends, MAX_BRACES)
            self._end_call()
            self._begin_call()
            yield from reader.skip_space()
            following = yield from reader.accept(call_begin, "<｜tool▁calls▁end｜>")
            if following != call_begin:
                if following and was_call:
                    self._held.clear()
                return

    def _read_call(self) -> Steps[None]:
        reader = self._reader
        name = yield from reader.read_while(_LINE, MAX_NAME)
        if not (yield from reader.accept("<｜tool▁sep｜>")):
            return
        if (yield from reader.skip_space()) != "{":
            name = yield from reader.read_while(_LINE, MAX_NAME)
            yield from reader.skip_space()
            yield from reader.accept("```")
            yield from reader.accept("json")
        if (yield from reader.skip_space()) == "{":
            self._decide(name.strip())
            yield from self._read_nested(self._add_arguments)
            yield from reader.skip_space()
            yield from reader.accept("```")
