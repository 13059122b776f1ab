"""Expressions for the calls of each family, for its grammar."""

from __future__ import annotations

from collections.abc import Sequence

from app.text.tools import harmony
from app.text.tools.definitions import Tool
from app.text.tools.grammar import CallSyntax, HarmonySyntax, LeadingSyntax, MarkedSyntax, by_tool
from app.text.tools.grammar_rules import GrammarRules, any_of, literal
from app.text.tools.grammar_values import glm_arguments, python_arguments, qwen3_coder_arguments


def _hermes(rules: GrammarRules, tools: Sequence[Tool], is_parallel: bool) -> str:
    def write(rules: GrammarRules, tool: Tool) -> str:
        begin = f'\n{{"name": {literal(tool.name)}, "arguments": '
        return f'{literal(begin)} {rules.json_arguments(tool)} "}}\\n"'

    return f"{by_tool(rules, tools, write)} {rules.marker('</tool_call>')}"


def _mistral(rules: GrammarRules, tools: Sequence[Tool], is_parallel: bool) -> str:
    def write(rules: GrammarRules, tool: Tool) -> str:
        return f"{literal(tool.name)} {rules.marker('[ARGS]')}? {rules.json_arguments(tool)}"

    begins = ((tool, f'{{"name": {literal(tool.name)}, "arguments": ') for tool in tools)
    item = rules.add("item", any_of(f'{literal(begin)} {rules.json_arguments(tool)} "}}"' for tool, begin in begins))
    more = f'(", " {item})*' if is_parallel else ""
    return f'(" "? "[" {item} {more} "]" | {by_tool(rules, tools, write)})'


def _deepseek(rules: GrammarRules, tools: Sequence[Tool], is_parallel: bool) -> str:
    separator = rules.marker("<｜tool▁sep｜>")

    def write(rules: GrammarRules, tool: Tool) -> str:
        begin = literal(f"{tool.name}\n```json\n")
        block = f'"function" {separator} {begin} {rules.json_arguments(tool)} "\\n```"'
        return f"({block} | {literal(tool.name)} {separator} {rules.json_arguments(tool)})"

    begin, end = rules.marker("<｜tool▁call▁begin｜>"), rules.marker("<｜tool▁call▁end｜>")
    call = rules.add("call", f"{begin} {by_tool(rules, tools, write)} {end}")
    more = f'("\\n"? {call})*' if is_parallel else ""
    return f"{call} {more} {rules.marker('<｜tool▁calls▁end｜>')}"


def _qwen3_coder(rules: GrammarRules, tools: Sequence[Tool], is_parallel: bool) -> str:
    def write(rules: GrammarRules, tool: Tool) -> str:
        begin = f"\n<function={tool.name}>\n"
        return f'{literal(begin)} {qwen3_coder_arguments(rules, tool)} "</function>\\n"'

    return f"{by_tool(rules, tools, write)} {rules.marker('</tool_call>')}"


def _glm(rules: GrammarRules, tools: Sequence[Tool], is_parallel: bool) -> str:
    def write(rules: GrammarRules, tool: Tool) -> str:
        return f'{literal(tool.name)} "\\n"? {glm_arguments(rules, tool)}'

    return f"{by_tool(rules, tools, write)} {rules.marker('</tool_call>')}"


def _begin_json(tool: Tool) -> str:
    return f'{{"name": {literal(tool.name)}, "parameters": '


SYNTAXES: dict[str, CallSyntax] = {
    "hermes": MarkedSyntax("<tool_call>", _hermes),
    "qwen3_coder": MarkedSyntax("<tool_call>", _qwen3_coder),
    "glm": MarkedSyntax("<tool_call>", _glm),
    "mistral": MarkedSyntax("[TOOL_CALLS]", _mistral),
    "deepseek": MarkedSyntax("<｜tool▁calls▁begin｜>", _deepseek, has_list=True),
    "llama3_json": LeadingSyntax(
        "", "; ", "", _begin_json, lambda rules, tool: f'{rules.json_arguments(tool)} "}}"', "<|python_tag|>"
    ),
    "pythonic": LeadingSyntax(
        "[",
        ", ",
        "]",
        lambda tool: f"{tool.name}(",
        lambda rules, tool: f'{python_arguments(rules, tool)} ")"',
        "<|python_start|>",
    ),
    "harmony": HarmonySyntax(harmony.START, harmony.CHANNEL, harmony.CONSTRAIN, harmony.MESSAGE, harmony.ENDS[0]),
}
