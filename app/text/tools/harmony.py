"""Parser of the harmony format of gpt-oss: messages in channels, for reasoning, calls and content."""

from __future__ import annotations

import re
from collections.abc import Callable

from app.text.tools.definitions import ToolUse
from app.text.tools.json_calls import JsonCallParser
from app.text.tools.text_reader import Steps

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>")
MAX_HEADER = 512  # characters before the text of a message

_HEADER_TEXT = re.compile(r"[^<]+")
_CHANNEL_NAME = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")


class HarmonyParser(JsonCallParser):
    """Parser of messages such as <|start|>assistant<|channel|>analysis<|message|>Hm.<|end|>; the prompt ends after the
    role of the first one.

    Messages of the channel analysis are reasoning. A message to functions.NAME is a call, in any channel; its arguments
    are JSON, and an empty message is {}. Messages of the channels final and commentary are content, and so is text
    outside of messages. A message to another recipient or in another channel is content with its header.
    """

    starts = (START, CHANNEL, *ENDS)
    ends = (*ENDS, START, CHANNEL)

    def __init__(self, use: ToolUse | None, new_id: Callable[[], str], *, is_reasoning: bool = False) -> None:
        """is_reasoning: the prompt ends with the beginning of an analysis message."""
        super().__init__(use, new_id)
        if is_reasoning:
            self._begin_text(self._add_reasoning)

    @property
    def is_reasoning(self) -> bool:
        """Return whether the text so far ends in an analysis message."""
        return self._add_plain == self._add_reasoning

    def _read_all(self) -> Steps[None]:
        if not self.is_reasoning:
            self._begin_call()
            yield from self._reader.skip_space()
            if (yield from self._reader.find("to=")):
                yield from self._read_message()
            self._end_call()
        yield from super()._read_all()

    def _read_calls(self, start: str) -> Steps[None]:
        self._add_plain = self._add_content
        if start in ENDS:
            self._held.clear()
        else:
            yield from self._read_message()

    def _read_message(self) -> Steps[None]:
        """Read the header of a message, and its text if it is a call."""
        if not (yield from self._read_header()):
            return
        header = "".join(self._held)
        channel, recipient = _CHANNEL_NAME.search(header), _RECIPIENT.search(header)
        if recipient:
            yield from self._read_call(recipient[1])
        elif channel and channel[1] in ("analysis", "final", "commentary"):
            self._held.clear()
            self._begin_text(self._add_reasoning if channel[1] == "analysis" else self._add_content)

    def _read_header(self) -> Steps[bool]:
        """Read a header up to the beginning of the text. Return whether it is one."""
        reader, length = self._reader, 0
        while length <= MAX_HEADER:
            text = yield from reader.read_while(_HEADER_TEXT, MAX_HEADER)
            marker = yield from reader.accept(MESSAGE, CHANNEL, CONSTRAIN)
            if not marker or marker == MESSAGE:
                return bool(marker)
            length += len(text) + len(marker)
        return False

    def _read_call(self, recipient: str) -> Steps[None]:
        if not recipient.startswith("functions."):
            return
        begin = yield from self._reader.skip_space()
        is_empty = bool((yield from self._reader.find(*self.ends))) if begin == "<" else False
        if begin == "{" or is_empty:
            self._decide(recipient.removeprefix("functions."))
            self._add_arguments("{}" if is_empty else "")
        if begin == "{":
            yield from self._read_nested(self._add_arguments)
        if self._is_decided:
            yield from self._read_end(ENDS)

    def _begin_text(self, add: Callable[[str], None]) -> None:
        """Pass the following text to `add`."""
        self._end_call()
        self._add_plain = self._reader.sink = add
