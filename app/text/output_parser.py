"""Separation of generated text into content, reasoning and tool calls."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from app.streams.stream_log import ToolCallPiece


class Tags(NamedTuple):
    """Texts around the reasoning at the beginning of an answer."""

    open: str
    close: str


THINK_TAGS = Tags("<think>", "</think>")  # DeepSeek-R1, Qwen3, GLM-4.5 and most others
OPEN, CLOSE = THINK_TAGS
MISTRAL_TAGS = Tags("[THINK]", "[/THINK]")  # Magistral from version 1.1 on
MAX_LEADING_SPACE = 256  # characters of white space before a block; all of it is searched again with each token


class ParsedText(NamedTuple):
    """Output that can be shown. In the order of generation: reasoning, content, tool calls."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCallPiece, ...] = ()


class _Stage(enum.Enum):
    BEGINNING = enum.auto()  # an opening tag may come
    REASONING = enum.auto()
    GAP = enum.auto()  # white space after the closing tag
    CONTENT = enum.auto()


class OutputParser(Protocol):
    """Incremental parser of one choice's text, after detokenization and stop strings."""

    @property
    def is_finished(self) -> bool:
        """Return whether all further text is content, so that it need not be parsed."""

    @property
    def is_reasoning(self) -> bool:
        """Return whether the text so far ends in reasoning."""

    @property
    def is_inside_call(self) -> bool:
        """Return whether the text so far ends inside of a tool call."""

    @property
    def is_complete(self) -> bool:
        """Return whether the answer is complete, although the model may go on."""

    def push(self, token_id: int, text: str) -> list[ParsedText]:
        """Return the output that can be shown now, in the order of generation; possibly empty.

        text: the next piece, in which `token_id` is the newest token; possibly empty.
        """

    def flush(self) -> list[ParsedText]:
        """Return held-back output at the end."""


class ThinkTagParser:
    """Parser for models that write their reasoning between tags, such as `<think>`, before the answer.

    Only a block at the beginning counts, so that an answer may mention the tags; at most `MAX_LEADING_SPACE` characters
    of white space may precede it. White space around the block and at the beginning of the reasoning belongs to neither
    part. Text that may be the beginning of a tag is held back.
    """

    __slots__ = ("_begins_reasoning", "_closing", "_drops_cut_tag", "_held", "_is_open", "_stage", "_tags")

    def __init__(
        self, *, is_open: bool = False, tags: Sequence[Tags] = (THINK_TAGS,), drops_cut_tag: bool = False
    ) -> None:
        """is_open: the prompt ends with an opening tag, so that the text begins as reasoning; some models repeat it.
        tags: the pairs of tags that the model may write. drops_cut_tag: no content begins like a tag, so that the
        beginning of an opening tag, where the answer is cut, is no content.
        """
        self._drops_cut_tag = drops_cut_tag
        self._stage = _Stage.BEGINNING
        self._tags = tags
        self._closing = tuple(pair.close for pair in tags)  # tags that may end the block
        self._is_open = is_open
        self._held = ""
        self._begins_reasoning = True  # no reasoning was returned yet

    @property
    def is_finished(self) -> bool:
        """Return whether the block has ended, or there is none."""
        return self._stage is _Stage.CONTENT

    @property
    def is_reasoning(self) -> bool:
        """Return whether the block is open."""
        return self._stage is _Stage.REASONING or (self._is_open and self._stage is _Stage.BEGINNING)

    @property
    def is_inside_call(self) -> bool:
        """Return False: calls are not parsed."""
        return False

    @property
    def is_complete(self) -> bool:
        """Return False: the end is the model's choice."""
        return False

    def push(self, token_id: int, text: str) -> list[ParsedText]:
        """Return the text that can be shown now; `token_id` is ignored."""
        self._held += text
        if self._stage is _Stage.BEGINNING:
            self._read_opening()
        reasoning = self._take_reasoning() if self._stage is _Stage.REASONING else ""
        if self._stage is _Stage.GAP:
            self._held = self._held.lstrip()
            if self._held:
                self._stage = _Stage.CONTENT
        content = self._take_held() if self._stage is _Stage.CONTENT else ""
        return [ParsedText(content, reasoning)] if content or reasoning else []

    def flush(self) -> list[ParsedText]:
        """Return held-back text at the end."""
        held = self._take_held()
        if not held or (self._drops_cut_tag and self._stage is _Stage.BEGINNING and not self._is_open):
            return []
        return [ParsedText(reasoning=held) if self.is_reasoning else ParsedText(held)]

    def _read_opening(self) -> None:
        """Enter the next stage if the held text shows whether it begins with a tag."""
        begun = self._held.lstrip()
        is_possible = len(self._held) - len(begun) <= MAX_LEADING_SPACE
        found = next((pair for pair in self._tags if begun.startswith(pair.open)), None)
        if is_possible and found is not None:
            self._held = begun[len(found.open) :]
            self._closing = (found.close,)
            self._stage = _Stage.REASONING
        elif not (is_possible and any(pair.open.startswith(begun) for pair in self._tags)):
            self._stage = _Stage.REASONING if self._is_open else _Stage.CONTENT

    def _take_reasoning(self) -> str:
        """Return the reasoning in the held text, and enter the next stage at a closing tag."""
        if self._begins_reasoning:
            self._held = self._held.lstrip()
        found = min(((end, tag) for tag in self._closing if (end := self._held.find(tag)) >= 0), default=None)
        if found is not None:
            end, tag = found
            reasoning, self._held = self._held[:end], self._held[end + len(tag) :]
            self._stage = _Stage.GAP
        else:
            shown = len(self._held) - max(_overlap(self._held, tag) for tag in self._closing)
            reasoning, self._held = self._held[:shown], self._held[shown:]
        self._begins_reasoning = self._begins_reasoning and not reasoning
        return reasoning

    def _take_held(self) -> str:
        held, self._held = self._held, ""
        return held


class SequentialParser:
    """Parser of reasoning at the beginning of an answer, followed by a parser of the content after it."""

    __slots__ = ("_content", "_reasoning")

    def __init__(self, reasoning: OutputParser, content: OutputParser) -> None:
        self._reasoning: OutputParser | None = reasoning
        self._content = content

    @property
    def is_finished(self) -> bool:
        """Return whether all further text is content."""
        return self._reasoning is None and self._content.is_finished

    @property
    def is_reasoning(self) -> bool:
        """Return whether the text so far ends in reasoning."""
        return (self._reasoning or self._content).is_reasoning

    @property
    def is_inside_call(self) -> bool:
        """Return whether the text so far ends inside of a tool call."""
        return self._content.is_inside_call

    @property
    def is_complete(self) -> bool:
        """Return whether the content is complete."""
        return self._content.is_complete

    def push(self, token_id: int, text: str) -> list[ParsedText]:
        """Return the output that can be shown now."""
        if self._reasoning is None:
            return self._content.push(token_id, text)
        output = self._parse_content(token_id, self._reasoning.push(token_id, text))
        if self._reasoning.is_finished:
            self._reasoning = None
        return output

    def flush(self) -> list[ParsedText]:
        """Return held-back output at the end."""
        output = [] if self._reasoning is None else self._parse_content(-1, self._reasoning.flush())
        return output + self._content.flush()

    def _parse_content(self, token_id: int, parsed: list[ParsedText]) -> list[ParsedText]:
        output = []
        for part in parsed:
            if part.reasoning:
                output.append(ParsedText(reasoning=part.reasoning))
            output += self._content.push(token_id, part.content)
        return output


def _overlap(text: str, tag: str) -> int:
    """Return the length of the longest end of `text` that may begin `tag`."""
    for length in range(min(len(tag) - 1, len(text)), 0, -1):
        if tag.startswith(text[-length:]):
            return length
    return 0
