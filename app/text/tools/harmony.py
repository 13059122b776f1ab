"""The harmony format of gpt-oss: messages in channels, for reasoning, calls and content. Its grammar and its parser.

An answer is a sequence of messages such as <|start|>assistant<|channel|>analysis<|message|>Hm.<|end|>; the prompt ends
after the role of the first one. It ends with its only call or with the final message.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from app.text.marks import NO_MARKS, Marks
from app.text.tools.argument_schema import parameters_of
from app.text.tools.call_parser import CallParser
from app.text.tools.definitions import ToolOffer
from app.text.tools.grammar_rules import GrammarRules, any_of, naming
from app.text.tools.json_arguments import read_json
from app.text.tools.text_reader import Literals, Steps

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
END, ENDS = "<|end|>", ("<|end|>", "<|call|>", "<|return|>")
MARKERS = frozenset({START, CHANNEL, CONSTRAIN, MESSAGE, *ENDS})
ANALYSIS, COMMENTARY, FINAL = (f"{CHANNEL}{name}{MESSAGE}" for name in ("analysis", "commentary", "final"))
NEXT_ROLE = f"{START}assistant"
TO_FUNCTION = "functions."
FORMATS = ("", f" {CONSTRAIN}json")  # of the arguments, in the header of a call
MAX_HEADER = 512  # characters before the text of a message

_HEADER_TEXT = re.compile("[^<\udc00-\udfff]+")  # without markers
_CHANNEL_NAME = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")


def call_expression(rules: GrammarRules, offer: ToolOffer) -> str:
    """Return an expression for one call."""
    expressions = []
    for tool in offer.tools:
        recipient = rules.marked(f"{rules.marks.encode(CHANNEL)}commentary to={TO_FUNCTION}{tool.name}")
        header = f"{recipient} {any_of(map(rules.text, FORMATS))} {rules.text(MESSAGE)}"
        schema = parameters_of(tool) if offer.is_constrained(tool) else {"type": "object"}
        with naming(tool, "harmony"):
            expressions.append(f"{header} {rules.json_value(schema, is_strict=tool.strict)}")
    return any_of(rules.add(f"call_{index}", each) for index, each in enumerate(expressions))


def final_message(rules: GrammarRules, content: str | None) -> str:
    """Return an expression for the final message. content: expression for its text; None: any text."""
    any_text = "text?" if rules.marks.ids else rules.add("final_text", "/([^<]|<+[^<|])*<*/")  # without markers
    return f"{rules.text(FINAL)} {content or any_text}"


def preamble(rules: GrammarRules) -> str:
    """Return an expression for a message before a call."""
    return f"({rules.text(COMMENTARY)} {_rest(rules)})?"


def analysis(rules: GrammarRules, *, is_open: bool) -> str:
    """Return an expression for messages of the analysis channel. is_open: the first one is begun."""
    rest = _rest(rules)
    return f"{rest if is_open else ''} ({rules.text(ANALYSIS)} {rest})*"


def _rest(rules: GrammarRules) -> str:
    """Return an expression for the text of a message, and the role of the next one."""
    return f"{rules.until('message_text', END)} {rules.text(NEXT_ROLE)}"


class HarmonyParser(CallParser):
    """Parser of messages. It reads more than the grammar admits, since answers without tools have none.

    Messages of the channel analysis are reasoning. A message to functions.NAME is a call, in any channel; its arguments
    are JSON. Messages of the channels final and commentary are content, and so is text outside of messages. A message
    to another recipient or in another channel is content with its header.
    """

    def __init__(
        self,
        offer: ToolOffer | None,
        new_id: Callable[[int], str],
        marks: Marks = NO_MARKS,
        *,
        is_reasoning: bool = False,
    ) -> None:
        """offer: None: no message is a call. is_reasoning: the prompt ends with the beginning of an analysis."""
        self._tools = {tool.name: tool for tool in offer.tools} if offer is not None else {}
        self._is_parallel = offer is not None and offer.use.allows_several
        self._marks = marks
        self._encoded_ends = frozenset(map(marks.encode, ENDS))
        self._ends = Literals(self._encoded_ends)
        self._message = marks.encode(MESSAGE)
        self._header_markers = Literals(map(marks.encode, (MESSAGE, CHANNEL, CONSTRAIN)))
        max_forced_calls = offer.max_forced_calls if offer is not None else 0
        super().__init__(Literals(map(marks.encode, (START, CHANNEL, *ENDS))), new_id, max_forced_calls)
        if is_reasoning:
            self._begin_text(self._add_reasoning)

    @property
    def is_reasoning(self) -> bool:
        """Return whether the text so far ends in an analysis message."""
        return self._add_plain == self._add_reasoning

    def _read_all(self) -> Steps[None]:
        if not self.is_reasoning:
            self._hold()
            yield from self._reader.skip_space()
            if (yield from self._reader.find(Literals(["to="]))):
                yield from self._read_message()
            self._release()
        yield from super()._read_all()

    def _read_calls(self, start: str) -> Steps[None]:
        self._add_plain = self._add_content
        if start in self._encoded_ends:
            self._held.clear()
        else:
            yield from self._read_message()

    def _read_message(self) -> Steps[None]:
        """Read the header of a message, and its text if it is a call. A header that is cut is dropped."""
        if not (yield from self._read_header()):
            if self._reader.is_ended:
                self._drop_rest()
            return
        header = self._marks.decode("".join(self._held))
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
            marker = yield from reader.accept(self._header_markers)
            if not marker or marker == self._message:
                return bool(marker)
            length += len(text) + len(marker)
        return False

    def _read_call(self, recipient: str) -> Steps[None]:
        tool = self._tools.get(recipient.removeprefix(TO_FUNCTION)) if recipient.startswith(TO_FUNCTION) else None
        if tool is None or (self._reported and not self._is_parallel):
            return
        begin = yield from self._reader.skip_space()
        if begin not in ("{", ""):
            return
        self._open_call(tool)
        if not (yield from read_json(self._reader, self._add_arguments)):
            return
        self._close_call()
        yield from self._reader.skip_space()
        if not (yield from self._reader.accept(self._ends)) and self._reader.is_ended:
            self._drop_rest()

    def _begin_text(self, add: Callable[[str], None]) -> None:
        """Pass the following text to `add`."""
        self._add_plain = self._reader.sink = add
