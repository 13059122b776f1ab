"""CallParser: the part that all parsers of tool calls share: text around calls, the decision on each, and the output.

Rules of all families:
- A call names a tool of the request, and its arguments begin as the format demands. It is reported from then on:
  id and name once, then the arguments as they arrive. If the answer is cut, its arguments are cut.
- Text that only resembles a call is content, character by character: a start marker without a call, JSON without a
  name, an unknown name, a second call if the request allows only one. Text inside of such a call starts no other call.
- After a call's arguments its markup is dropped up to the end marker; other text there is content.
- White space before a call and between calls is dropped, and white space between the last call and the end. More than
  `MAX_SPACE` characters of it are content.
"""

from __future__ import annotations

import enum
import itertools
import re
from collections.abc import Callable
from typing import NamedTuple

from app.streams.stream_log import ToolCallPiece
from app.text.output_parser import ParsedText
from app.text.tools.definitions import Tool, ToolUse
from app.text.tools.text_reader import Steps, TextReader

MAX_SPACE = 256  # characters of white space that are held back because a call may follow
MAX_NAME = 256  # characters of a tool's name, an argument's name or another key of a call


class _Text(NamedTuple):
    """Piece of content or reasoning."""

    text: str
    is_reasoning: bool


class _State(enum.Enum):
    UNDECIDED = enum.auto()  # text is held back
    CALL = enum.auto()
    TEXT = enum.auto()  # no call, or one that is refused


class CallParser:
    """Base of the parsers of one choice's content. A family implements `_read_calls`, and names its start markers,
    which all begin with the same character.
    """

    starts: tuple[str, ...]

    def __init__(self, use: ToolUse | None, new_id: Callable[[], str]) -> None:
        """use: the tools of the request; None: nothing is a call. new_id: returns the id of a new call."""
        self._tools: dict[str, Tool] = {tool.name: tool for tool in use.tools} if use else {}
        self._is_parallel = use is None or use.parallel
        self._new_id = new_id
        self._calls = 0  # reported calls
        self._state = _State.TEXT
        self._held: list[str] = []  # text since the beginning of an undecided call
        self._early_arguments: list[str] = []  # of an undecided call with its name after them
        self._space = ""  # held-back white space
        self._passes_space = False  # the current run of white space is too long to be held back
        self._follows_call = False  # only white space since the last call
        self._output: list[_Text | ToolCallPiece] = []
        self._add_plain: Callable[[str], None] = self._add_content  # receives text outside of calls
        self._reader = TextReader(self._add_content)
        self._trigger = self.starts[0][0]
        self._plain = re.compile(f"[^{re.escape(self._trigger)}]+")
        self._is_plain = False  # text without the trigger needs no parsing
        self._steps = self._read_all()

    @property
    def is_finished(self) -> bool:
        """Return False: any text may be followed by a call."""
        return False

    @property
    def is_reasoning(self) -> bool:
        """Return whether the text so far ends in reasoning."""
        return False

    def push(self, token_id: int, text: str) -> list[ParsedText]:
        """Return the output that can be shown now; `token_id` is ignored."""
        if self._is_plain and text and self._trigger not in text and not text[-1].isspace():
            self._follows_call = False
            return [ParsedText(reasoning=text) if self.is_reasoning else ParsedText(text)]
        if not text:
            return []
        self._reader.feed(text)
        next(self._steps, None)
        return self._take_output()

    def flush(self) -> list[ParsedText]:
        """Return held-back output at the end."""
        self._reader.is_ended = True
        for _ in self._steps:
            pass
        if self._state is _State.UNDECIDED:
            self._refuse()
        if not self._follows_call:
            self._output.append(_Text(self._space, False))
        self._space = ""
        return self._take_output()

    @property
    def _is_call(self) -> bool:
        """Return whether the current call is reported."""
        return self._state is _State.CALL

    @property
    def _is_decided(self) -> bool:
        """Return whether the current call is reported or refused."""
        return self._state is not _State.UNDECIDED

    def _read_all(self) -> Steps[None]:
        """Read the whole answer."""
        while start := (yield from self._read_text(*self.starts)):
            yield from self._read_calls(start)
            self._end_call()

    def _read_calls(self, start: str) -> Steps[None]:
        """Read one or more calls after a start marker, which is held back. A return before the decision refuses the
        call; text from there on is content, in which the next start marker is looked for.
        """
        raise NotImplementedError

    def _read_text(self, *starts: str) -> Steps[str]:
        """Read text up to the next of `starts`, and hold that back. Return it; empty at the end of the answer."""
        reader = self._reader
        while True:
            reader.take_match(self._plain)
            if not reader.is_empty:
                self._begin_call()
                if start := (yield from reader.accept(*starts)):
                    return start
                self._end_call()
                reader.take(1)
            elif reader.is_ended:
                return ""
            else:
                self._is_plain = not self._space and not self._passes_space
                yield
                self._is_plain = False

    def _read_end(self, ends: tuple[str, ...], max_braces: int = 0) -> Steps[None]:
        """Read the end marker after a call, and white space and at most `max_braces` closing braces before it. If the
        marker is missing, that text is content.
        """
        reader = self._reader
        held: list[str] = []
        if self._is_call:
            reader.sink = held.append
        for _ in range(max_braces):
            if (yield from reader.skip_space()) != "}":
                break
            reader.take(1)
        yield from reader.skip_space()
        found = yield from reader.accept(*ends)
        if self._is_call:
            self._end_call()
            if not found:
                self._add_content("".join(held))

    def _begin_call(self) -> None:
        """Hold back all text from here on until the decision."""
        self._state = _State.UNDECIDED
        self._held = []
        self._early_arguments = []
        self._reader.sink = self._held.append

    def _end_call(self) -> None:
        """Continue with plain text. An undecided call is refused."""
        if self._state is _State.UNDECIDED:
            self._refuse()
        self._state = _State.TEXT
        self._reader.sink = self._add_plain

    def _decide(self, name: str) -> None:
        """Report a call of tool `name`, or refuse it. Does nothing after the first decision on a call."""
        if self._state is not _State.UNDECIDED:
            return
        if name not in self._tools or (self._calls and not self._is_parallel):
            self._refuse()
            return
        self._state = _State.CALL
        self._reader.sink = self._drop
        self._space = ""
        self._passes_space = False
        self._follows_call = True
        self._output.append(ToolCallPiece(self._calls, "", self._new_id(), name))
        self._calls += 1
        self._add_arguments("".join(self._early_arguments))

    def _refuse(self) -> None:
        """Make the held text content, and all text up to the end of this call."""
        self._state = _State.TEXT
        self._reader.sink = self._add_content
        if self._held:
            self._add_content("".join(self._held))

    def _add_arguments(self, text: str) -> None:
        """Append to the arguments of the current call, unless it is refused."""
        if self._state is _State.UNDECIDED:
            self._early_arguments.append(text)
        elif self._state is _State.CALL and text:
            self._output.append(ToolCallPiece(self._calls - 1, text))

    def _add_content(self, text: str) -> None:
        """Append content, and hold back white space at its end."""
        body = text.rstrip()
        if body:
            self._output.append(_Text(self._space + body, False))
            self._space = text[len(body) :]
            self._passes_space = self._follows_call = False
        elif self._passes_space:
            self._output.append(_Text(text, False))
        else:
            self._space += text
        if len(self._space) > MAX_SPACE:
            self._output.append(_Text(self._space, False))
            self._space = ""
            self._passes_space = True

    def _add_reasoning(self, text: str) -> None:
        self._output.append(_Text(text, True))

    def _drop(self, text: str) -> None:
        """Ignore markup of a call."""

    def _take_output(self) -> list[ParsedText]:
        """Return the new output, with adjacent pieces of one kind joined."""
        output, self._output = self._output, []
        parsed = []
        for kind, group in itertools.groupby(output, key=_kind):
            pieces = list(group)
            if kind == "calls":
                parsed.append(
                    ParsedText(calls=_join_calls([piece for piece in pieces if isinstance(piece, ToolCallPiece)]))
                )
            elif text := "".join(piece.text for piece in pieces if isinstance(piece, _Text)):
                parsed.append(ParsedText(reasoning=text) if kind == "reasoning" else ParsedText(text))
        return parsed


def _kind(piece: _Text | ToolCallPiece) -> str:
    if isinstance(piece, ToolCallPiece):
        return "calls"
    return "reasoning" if piece.is_reasoning else "content"


def _join_calls(pieces: list[ToolCallPiece]) -> tuple[ToolCallPiece, ...]:
    """Return one piece for each call."""
    joined = []
    for index, group in itertools.groupby(pieces, key=lambda piece: piece.index):
        first, *others = group
        arguments = first.arguments + "".join(piece.arguments for piece in others)
        joined.append(ToolCallPiece(index, arguments, first.id, first.name))
    return tuple(joined)
