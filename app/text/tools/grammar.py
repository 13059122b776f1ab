"""Grammars of answers with tool calls, in llguidance's variant of Lark.

If a call is required, the answer is one call, or several if the request allows it. Otherwise it is free text, and from
the start marker of a call on the call must be well-formed and name a known tool. Arguments satisfy the tool's schema if
the tool is strict, if a call is required, or if all tools are constrained; otherwise they are any JSON object.
Reasoning before the answer is free. An answer without calls may have to have a format.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from app.text.output_parser import Tags
from app.text.tools.definitions import Tool, ToolUse
from app.text.tools.grammar_rules import GrammarRules, any_of, literal

GAP = "/[ \\n]{0,4}/"  # white space after reasoning
LEADING_SPACE = "/[ \\n]{0,2}/"


class CallSyntax(ABC):
    """Expressions for the answers of one family."""

    @abstractmethod
    def required(self, rules: GrammarRules, use: ToolUse) -> str:
        """Return an expression for one call or, if the request allows it, several."""

    @abstractmethod
    def optional(self, rules: GrammarRules, use: ToolUse) -> str:
        """Return an expression for text in which there may be calls."""

    def content(self, rules: GrammarRules, content: str) -> str:
        """Return an expression for an answer with this content and no call."""
        return rules.add("content", content)

    def reasoning(self, rules: GrammarRules, tags: Sequence[Tags], *, is_open: bool) -> str:
        """Return an expression for reasoning before the answer; optional unless the prompt ends with its beginning.

        tags: the pairs of tags around it.
        """
        blocks = []
        for index, pair in enumerate(tags):
            block = rules.until(f"reasoning_{index}", pair.close)
            if not is_open:
                begin = rules.marker(pair.open)
                if not rules.is_special(pair.open):
                    begin = rules.add_lazy(f"open_{index}", begin)
                block = f"({begin} {block})"
            blocks.append(block)
        return f"({any_of(blocks)} {rules.add('gap', GAP)}){'' if is_open else '?'}"


def answer_grammar(
    syntax: CallSyntax,
    use: ToolUse | None,
    content: str | None,
    special_tokens: Mapping[str, int],
    *,
    tags: Sequence[Tags],
    is_reasoning: bool,
    may_reason: bool,
    constrains_all: bool,
) -> str:
    """Return the grammar of an answer with tools, a content of a given format, or a choice between both.

    content: expression for the content; None: any text. special_tokens: ids of the tokenizer's special tokens by text.
    tags, is_reasoning, may_reason: as in `ToolFormat`. constrains_all: the schemas of all tools hold.
    """
    is_required = use is not None and use.choice == "required"
    rules = GrammarRules(special_tokens, constrains_arguments=constrains_all or is_required)
    expressions: list[str] = []
    if use is not None and (is_required or content is not None):
        expressions.append(syntax.required(rules, use))
    elif use is not None:
        expressions.append(syntax.optional(rules, use))
    if content is not None and not is_required:
        expressions.append(syntax.content(rules, content))
    answer = any_of(expressions)
    before = syntax.reasoning(rules, tags, is_open=is_reasoning) if is_reasoning or may_reason else ""
    rules.add("start", f"{before} {answer}")
    return str(rules)


def offered(use: ToolUse) -> list[Tool]:
    """Return the tools that an answer may call."""
    tools = [tool for tool in use.tools if use.name in (None, tool.name)]
    assert tools, f"no tool is named {use.name}"
    return tools


def by_tool(rules: GrammarRules, tools: Sequence[Tool], write: Callable[[GrammarRules, Tool], str]) -> str:
    """Return an expression for one of the tools. write: returns the expression for one tool."""
    return rules.add("tool", any_of(rules.add(f"tool_{at}", write(rules, tool)) for at, tool in enumerate(tools)))


@dataclass(frozen=True, slots=True)
class MarkedSyntax(CallSyntax):
    """Syntax of families that begin each call, or each list of calls, with a marker.

    write_body: returns an expression for the text after the marker: one call, or a list; its last argument is whether
    the list may have several calls. has_list: all calls are in one list; otherwise they are repeated, on lines or not.
    """

    start: str
    write_body: Callable[[GrammarRules, Sequence[Tool], bool], str]
    has_list: bool = False

    def required(self, rules: GrammarRules, use: ToolUse) -> str:
        """Return an expression for calls without text around them."""
        body = rules.add("body", self.write_body(rules, offered(use), use.parallel))
        call = f"{rules.marker(self.start)} {body}"
        return call if self.has_list or not use.parallel else f'{call} ("\\n"? {call})*'

    def optional(self, rules: GrammarRules, use: ToolUse) -> str:
        """Return an expression for text and calls in any order; nothing follows the only call that is allowed."""
        body = rules.add("body", self.write_body(rules, use.tools, use.parallel))
        call = f"{rules.until('before_call', self.start)} {body}"
        return f"({call})* text?" if use.parallel else f"({call} | text?)"


@dataclass(frozen=True, slots=True)
class LeadingSyntax(CallSyntax):
    """Syntax of families that have no marker: calls are at the beginning of the answer, or after an optional token.

    open, separator, close: texts around and between calls. begin: returns the text of a call before its arguments.
    write_rest: returns an expression for its arguments and its end. token: a special token that may precede calls.
    """

    open: str
    separator: str
    close: str
    begin: Callable[[Tool], str]
    write_rest: Callable[[GrammarRules, Tool], str]
    token: str

    def required(self, rules: GrammarRules, use: ToolUse) -> str:
        """Return an expression for calls without text around them."""
        token = f"{rules.marker(self.token)}?" if rules.is_special(self.token) else ""
        return f"{token} {self._calls(rules, offered(use), use)}"

    def optional(self, rules: GrammarRules, use: ToolUse) -> str:
        """Return an expression for calls or text. Text at the beginning is a call from a known tool's name on."""
        calls = self._calls(rules, use.tools, use)
        choices = ["text?", f"{rules.until('before_call', self.token)} {calls}"]
        for index, tool in enumerate(use.tools):
            begin = rules.add_lazy(f"first_{index}", f"{LEADING_SPACE} {literal(self.open + self.begin(tool))}")
            choices.append(
                f"{begin} {rules.add(f'rest_{index}', self.write_rest(rules, tool))} {self._more(rules, use)}"
            )
        return any_of(choices)

    def _calls(self, rules: GrammarRules, tools: Sequence[Tool], use: ToolUse) -> str:
        call = by_tool(rules, tools, lambda rules, tool: f"{literal(self.begin(tool))} {self.write_rest(rules, tool)}")
        return f"{literal(self.open) if self.open else ''} {call} {self._more(rules, use)}"

    def _more(self, rules: GrammarRules, use: ToolUse) -> str:
        """Return an expression for the text after the first call."""
        more = f"({literal(self.separator)} tool)*" if use.parallel else ""
        return f"{more} {literal(self.close) if self.close else ''}"


@dataclass(frozen=True, slots=True)
class HarmonySyntax(CallSyntax):
    """Syntax of the harmony format, in which an answer ends with its only call or with the final message."""

    start: str
    channel: str
    constrain: str
    message: str
    end: str

    def required(self, rules: GrammarRules, use: ToolUse) -> str:
        """Return an expression for one call."""
        return self._call(rules, offered(use))

    def optional(self, rules: GrammarRules, use: ToolUse) -> str:
        """Return an expression for the final message, or a call with or without a message before it."""
        preamble = f"{self._header(rules, 'commentary')} {self._rest(rules)}"
        return f"({self._header(rules, 'final')} text? | ({preamble})? {self._call(rules, use.tools)})"

    def content(self, rules: GrammarRules, content: str) -> str:
        """Return an expression for a final message with this content."""
        return f"{self._header(rules, 'final')} {rules.add('content', content)}"

    def reasoning(self, rules: GrammarRules, tags: Sequence[Tags], *, is_open: bool) -> str:
        """Return an expression for messages of the analysis channel."""
        rest = self._rest(rules)
        return f"{rest if is_open else ''} ({self._header(rules, 'analysis')} {rest})*"

    def _header(self, rules: GrammarRules, channel: str) -> str:
        return f"{rules.marker(self.channel)} {literal(channel)} {rules.marker(self.message)}"

    def _rest(self, rules: GrammarRules) -> str:
        """Return an expression for the text of a message, and the role of the next one."""
        return f'{rules.until("message_text", self.end)} {rules.marker(self.start)} "assistant"'

    def _call(self, rules: GrammarRules, tools: Sequence[Tool]) -> str:
        def write(rules: GrammarRules, tool: Tool) -> str:
            recipient = literal(f"commentary to=functions.{tool.name}")
            constraint = f'(" " {rules.marker(self.constrain)} "json")?'
            message = f"{rules.marker(self.message)} {rules.json_arguments(tool)}"
            return f"{rules.marker(self.channel)} {recipient} {constraint} {message}"

        return by_tool(rules, tools, write)
