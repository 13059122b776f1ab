"""Rendering of conversations with a checkpoint's Jinja template, in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import compress, product
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

# A text that a template's filters leave recognizable, and the conversations that probe in which form contents are read:
# a role with the roles of the turns before and after it. User first, because other probes have user turns.
PROBE = "probe7f3a"
PROBES = (("user", (), ()), ("system", (), ("user",)), ("assistant", ("user",), ("user",)))
CALL = "assistant with calls"  # which templates often read in another place than other messages of this role


class MessagesRefused(Exception):
    """The model's chat template does not accept these messages; the message gives the reason."""


class InvalidTemplate(Exception):
    """The chat template is not text or not valid Jinja; the message gives the location."""


class ReservedVariable(Exception):
    """A template variable of the caller has a reserved name; the message gives the name."""


# Appended to a message that is to be continued, to find its end in the rendered text. The trailing space shows whether
# the template trims messages (as transformers does for `continue_final_message`).
END_MARK = "CAROUSEL-END-OF-FINAL-MESSAGE "


class ChatTemplate:
    """A compiled chat template. Safe to use from several threads.

    literal_text: all text and string constants of the template.
    """

    def __init__(self, source: str, special: dict[str, str]) -> None:
        """special: the tokenizer's special tokens by name, such as `bos_token`. Raises `InvalidTemplate`."""
        self._special = special
        environment = _environment()
        try:
            self._template = environment.from_string(source)
            self.literal_text = _literal_text(environment.parse(source))
        except TemplateSyntaxError as error:
            raise InvalidTemplate(f"chat template, line {error.lineno}: {error.message}") from None
        except (SyntaxError, RecursionError) as error:  # raised by Python, whose own nesting is limited
            raise InvalidTemplate(f"chat template: {error}") from None
        self._reads_arguments_as_text = False
        self._reads_parts: frozenset[str] = frozenset()  # roles and `CALL`; grows while the probes are rendered
        for role, before, after in PROBES:
            if self._loses_text(role, before, after):
                self._reads_parts |= {role}
        self.reads_tools = self._reads_tools()
        if self.reads_tools:
            self._probe_calls()

    def render(
        self,
        messages: Sequence[dict[str, Any]],
        variables: Mapping[str, Any] | None = None,
        *,
        tools: Sequence[dict[str, Any]] = (),
        add_generation_prompt: bool = True,
    ) -> str:
        """Return the text of a conversation, ready for an answer.

        variables: further template variables, such as `enable_thinking`. tools: in OpenAI's format. Raises
        `MessagesRefused` if the template does not accept the messages, and `ReservedVariable`.
        """
        arguments = {
            "messages": [self._shaped(message) for message in messages],
            "add_generation_prompt": add_generation_prompt,
            "tools": list(tools) or None,
            "documents": None,
        }
        context = self._special | arguments
        for name in variables or {}:
            if name in context or name in self._template.globals:
                raise ReservedVariable(f"{name[:80]!r} is a reserved variable of chat templates; choose another name")
        try:
            text = self._template.render({**context, **(variables or {})})
            text.encode()  # a lone surrogate is not text, and no tokenizer accepts it
        except SecurityError as error:
            raise MessagesRefused(f"the chat template did something that is not allowed: {error}") from error
        except TemplateError as error:
            raise MessagesRefused(str(error)) from error
        except Exception as error:  # a template can raise any exception of Python
            raise MessagesRefused(f"the chat template failed with {type(error).__name__}: {error}") from error
        return text

    def render_open(
        self,
        messages: Sequence[dict[str, Any]],
        variables: Mapping[str, Any] | None = None,
        *,
        tools: Sequence[dict[str, Any]] = (),
    ) -> str:
        """Return the text of a conversation up to the end of its last message, which the model continues. A template
        that trims messages trims that end too. Raises the same errors as `render`.
        """
        *before, last = messages
        content = str(last["content"])
        marked = [*before, {**last, "content": content + END_MARK}]
        text = self.render(marked, variables, tools=tools, add_generation_prompt=False)
        end = text.rfind(END_MARK.strip())
        if end < 0 or content.strip() not in text:
            raise MessagesRefused("the chat template changes the last message, so that it cannot be continued")
        is_trimmed = not text.startswith(END_MARK, end)
        return text[:end].rstrip() if is_trimmed else text[:end]

    def _shaped(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return a message with content and arguments of calls in the form that the template reads."""
        if self._reads_arguments_as_text and message.get("tool_calls"):
            message = {**message, "tool_calls": [_with_text_arguments(call) for call in message["tool_calls"]]}
        if (CALL if message.get("tool_calls") else message.get("role")) not in self._reads_parts:
            return message
        return {**message, "content": [{"type": "text", "text": message["content"]}]}

    def _reads_tools(self) -> bool:
        """Return whether the template writes the tools into the prompt."""
        function = {"name": PROBE, "description": "x", "parameters": {"type": "object", "properties": {}}}
        try:
            text = self.render([{"role": "user", "content": "x"}], tools=[{"type": "function", "function": function}])
        except MessagesRefused:
            return False
        return PROBE in text

    def _probe_calls(self) -> None:
        """Find the forms in which the template renders most of a call's text, arguments and result, plain forms first.

        They are probed together, because a template may render one only if the others have their forms: DeepSeek's
        reads arguments as text, others read results as lists of parts.
        """
        text, arguments, result = (f"{PROBE}{suffix}" for suffix in "abc")
        call = {"id": "a" * 9, "type": "function", "function": {"name": "f", "arguments": {arguments: 1}}}
        turns: list[dict[str, Any]] = [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": text, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "a" * 9, "name": "f", "content": result},
        ]
        plain, most, best = self._reads_parts, 0, (frozenset[str](), False)
        for as_text, *in_parts in product((False, True), repeat=3):
            roles = frozenset(compress((CALL, "tool"), in_parts))
            self._reads_parts, self._reads_arguments_as_text = plain | roles, as_text
            written = self._written(turns, (text, arguments, result))
            if written > most:
                most, best = written, (roles, as_text)
        self._reads_parts, self._reads_arguments_as_text = plain | best[0], best[1]

    def _loses_text(self, role: str, before: tuple[str, ...], after: tuple[str, ...]) -> bool:
        """Return whether the template renders a text of `role` only if its content is a list of parts."""
        turns = [{"role": other, "content": "x"} for other in before]
        turns += [{"role": role, "content": PROBE}]
        turns += [{"role": other, "content": "x"} for other in after]
        if self._written(turns, (PROBE,)):
            return False
        turns[len(before)]["content"] = [{"type": "text", "text": PROBE}]  # type: ignore[assignment]
        return self._written(turns, (PROBE,)) > 0

    def _written(self, turns: list[dict[str, Any]], probes: Sequence[str]) -> int:
        """Return how many of `probes` the template renders; 0 if it refuses the conversation."""
        try:
            text = self.render(turns).lower()
        except MessagesRefused:
            return 0
        # Exclude lists and objects themselves, as Python prints them.
        return sum(probe in text and not any(f"{key}'{probe}" in text for key in ("'text': ", "{")) for probe in probes)


def join_system_turns(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a conversation with all its system messages joined at its beginning."""
    system = [message for message in messages if message["role"] == "system"]
    if len(system) < 2:
        return list(messages)
    first = {**system[0], "content": "\n\n".join(str(message["content"]) for message in system)}
    return [first, *(message for message in messages if message["role"] != "system")]


def _with_text_arguments(call: dict[str, Any]) -> dict[str, Any]:
    """Return a call with the arguments as the text of a JSON object."""
    function = call["function"]
    if isinstance(function["arguments"], str):
        return call
    return {**call, "function": {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)}}


def _literal_text(template: nodes.Template) -> str:
    """Return all text and string constants of a template, with a null character between any two."""
    literals = [node.data for node in template.find_all(nodes.TemplateData)]
    literals += [node.value for node in template.find_all(nodes.Const) if isinstance(node.value, str)]
    return "\0".join(literals)


class _Generation(Extension):
    """`{% generation %}`, which marks text for training in templates. Does not change the rendered text."""

    tags = {"generation"}  # noqa: RUF012 - as in the base class

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def _environment() -> ImmutableSandboxedEnvironment:
    """Return an environment with the functions that chat templates expect, as in transformers."""

    def raise_exception(message: str) -> NoReturn:
        raise TemplateError(message)

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    extensions = [loopcontrols, _Generation]
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    environment.filters["tojson"] = tojson
    return environment
