"""CallParser: the part that all parsers of tool calls share: text around calls, and the output.

Rules of all families:
- A call is reported when its arguments begin: id and name once, then the arguments as they arrive. If the answer is
  cut, its arguments are cut. Markup of a call is never content, also where the answer is cut inside of it.
- Text that only resembles a call is content, character by character.
- White space before a call and between calls is dropped, and white space between the last call and the end. More than
  `MAX_SPACE` characters of it are content.
- An answer that must have calls ends before a call that it has had already, and after as many as it may have.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable
from typing import NamedTuple

from app.streams.stream_log import ToolCallPiece
from app.text.output_parser import ParsedText
from app.text.tools.definitions import Tool
from app.text.tools.text_reader import Literals, Steps, TextReader

MAX_SPACE = 256  # characters of white space that are held back because a call may follow


class _Text(NamedTuple):
    """Piece of content or reasoning."""

    text: str
    is_reasoning: bool


class CallParser:
    """Base of the parsers of one choice's content. A family implements `_read_calls`."""

    def __init__(self, starts: Literals, new_id: Callable[[int], str], max_forced_calls: int = 0) -> None:
        """starts: texts at which a call may begin. new_id: returns the id of the call with a number. max_forced_calls:
        number of calls after which an answer ends that must have calls; 0 for others.
        """
        self._starts = starts
        self._new_id = new_id
        self._max_forced_calls = max_forced_calls
        self._calls: list[tuple[str, str]] = []  # names and arguments of the complete calls of a forced answer
        self._reported = 0  # calls
        self._name = ""  # of the current call
        self._arguments: list[str] = []  # of the current call, until it is reported, or to compare later ones
        self._length = 0  # characters of the arguments so far
        self._repeatable: list[str] = []  # arguments of earlier calls that the current one may repeat
        self._is_reported = False  # the current call is
        self._held: list[str] = []  # text that may be the beginning of a call
        self._space = ""  # held-back white space
        self._passes_space = False  # the current run of white space is too long to be held back
        self._follows_call = False  # only white space since the last call
        self._output: list[_Text | ToolCallPiece] = []
        self._add_plain: Callable[[str], None] = self._add_content  # receives text outside of calls
        self._reader = TextReader(self._add_content)
        self._plain = re.compile(f"[^{re.escape(starts.first_characters)}]+")
        self._is_plain = False  # text in which no call begins needs no parsing
        self.is_inside_call = False  # the text so far ends inside of a call
        self.is_complete = False  # the answer has all of its calls
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
        if self._is_plain and text and not text[-1].isspace() and self._plain.fullmatch(text):
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
        if not (self._follows_call or self.is_inside_call):
            self._output.append(_Text(self._space, False))
        self._space = ""
        return self._take_output()

    def _read_all(self) -> Steps[None]:
        """Read the whole answer."""
        while not self.is_complete and (start := (yield from self._read_text())):
            yield from self._read_calls(start)
            self._release()

    def _read_calls(self, start: str) -> Steps[None]:
        """Read one or more calls after a text of `starts`, which is held back."""
        raise NotImplementedError

    def _read_text(self) -> Steps[str]:
        """Read text up to the next start, and hold that back. Return it; empty at the end of the answer."""
        reader = self._reader
        while True:
            reader.take_match(self._plain)
            if not reader.is_empty:
                self._hold()
                if start := (yield from reader.accept(self._starts)):
                    return start
                self._release()
                reader.take(1)
            elif reader.is_ended:
                return ""
            else:
                self._is_plain = not self._space and not self._passes_space
                yield
                self._is_plain = False

    def _hold(self) -> None:
        """Hold back all text from here on, which may be the beginning of a call."""
        self._held = []
        self._reader.sink = self._held.append

    def _release(self) -> None:
        """Continue with plain text, to which the held-back text belongs."""
        held, self._held = "".join(self._held), []
        self._reader.sink = self._add_plain
        self.is_inside_call = self.is_inside_call and self._reader.is_ended
        if held:
            self._add_plain(held)

    def _open_call(self, tool: Tool) -> None:
        """Drop the held-back text, which is markup, and begin a call."""
        self._drop_markup()
        self._name, self._arguments, self._length, self._is_reported = tool.name, [], 0, False
        self._repeatable = [arguments for name, arguments in self._calls if name == tool.name]

    def _drop_markup(self) -> None:
        """Drop the held-back text and all text from here on."""
        self._held = []
        self._reader.sink = _drop
        self.is_inside_call = True

    def _drop_rest(self) -> None:
        """Drop the text at the end of the answer, which is the beginning of markup."""
        self._held = []
        self._reader.sink = _drop
        self._reader.take(sys.maxsize)

    def _close_call(self) -> None:
        """End a complete call, and the answer if it has all of its calls."""
        self.is_inside_call = False
        if not self._max_forced_calls:
            return
        call = self._name, "".join(self._arguments)
        if call in self._calls:
            self.is_complete = True
        else:
            self._report()
            self._calls.append(call)
            self.is_complete = len(self._calls) >= self._max_forced_calls

    def _add_arguments(self, text: str) -> None:
        """Append to the arguments of the current call. Hold them back while they may repeat an earlier call."""
        if not text:
            return
        if self._is_reported:
            self._output.append(ToolCallPiece(self._reported - 1, text))
            if self._max_forced_calls:
                self._arguments.append(text)
            return
        self._arguments.append(text)
        self._repeatable = [each for each in self._repeatable if each.startswith(text, self._length)]
        self._length += len(text)
        if not self._repeatable:
            self._report()

    def _report(self) -> None:
        """Report the current call with its arguments so far, unless it is reported."""
        if self._is_reported:
            return
        self._is_reported = True
        self._space = ""
        self._passes_space = False
        self._follows_call = True
        self._output.append(
            ToolCallPiece(self._reported, "".join(self._arguments), self._new_id(self._reported), self._name)
        )
        self._reported += 1

    def _add_content(self, text: str) -> None:
        """Append content, and hold back white space at its end."""
        if self._max_forced_calls:
            return  # in a forced answer, text outside of calls can only be the beginning of one
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


def _drop(text: str) -> None:
    """Ignore markup of a call."""


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
