"""Tool formats: choice by name or by chat template, ids, visible tokens, and the parser of a request."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import get_args

import pytest

from app.settings import ToolParser
from app.text.output_parser import ParsedText, ThinkTagParser
from app.text.tools.definitions import Tool, ToolUse
from app.text.tools.formats import FORMAT_NAMES, FORMATS, NO_FORMAT, ToolFormat, find_format, format_by_name

USE = ToolUse((Tool("ping"),))

# lines of the templates of real checkpoints that show how they write calls
TEMPLATES = {
    "hermes": r"{{- '<tool_call>\n{\"name\": \"' }}{{- tool_call.name }}{{- '\", \"arguments\": ' }}",
    "qwen3_coder": r"{{- '<tool_call>\n<function=' + tool_call.name + '>\n' }}{{- '<parameter=' + args_name + '>\n' }}",
    "llama3_json": """{{- '{"name": "' + tool_call.name + '", ' }}{{- '"parameters": ' }} <|start_header_id|>""",
    "pythonic": "- Use exact format: [func_name1(param1=value1, param2=value2), func_name2(...)]",
    "mistral": "{{- '[TOOL_CALLS]' + tool.name + '[ARGS]' + arguments }}",
    "deepseek": "{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + tool['function']['name'] + '<｜tool▁sep｜>'}}",
    "glm": "{{ '<tool_call>' + tc.name }}<arg_key>{{ k }}</arg_key><arg_value>{{ v }}</arg_value></tool_call>",
    "harmony": "{{- '<|start|>assistant<|channel|>commentary to=functions.' + tool_call.name + '<|message|>' }}",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_shows_its_format(name: str):
    """Each family's way to write calls in history identifies it, although families share some markers."""
    found = find_format(TEMPLATES[name])
    assert found is not None and found.name == name and format_by_name(name) is found


def test_a_template_without_calls_has_no_format():
    """The server's own prompt is used then, unless special tokens show the format of a template that reads tools."""
    assert find_format("{% for message in messages %}{{ message.content }}{% endfor %}", ["[TOOL_CALLS]"]) is None
    for tokens, name in (
        (["[TOOL_CALLS]"], "mistral"),
        (["<tool_call>"], "hermes"),
        (["<tool_call>", "<arg_key>"], "glm"),
    ):
        found = find_format("{{ tools | tojson }}", ["<s>", *tokens])
        assert found is not None and found.name == name
    assert find_format("{{ tools | tojson }}", ["<s>"]) is None


def test_names_of_formats():
    """The option offers each format once, and none."""
    assert sorted(TEMPLATES) == sorted(each.name for each in FORMATS) == sorted({*FORMAT_NAMES} - {NO_FORMAT})
    assert format_by_name(NO_FORMAT) is None


@pytest.mark.parametrize("tool_format", FORMATS, ids=lambda each: each.name)
def test_call_ids(tool_format: ToolFormat):
    """Of a call with a name. Mistral's templates accept only nine letters and digits."""
    pattern = "[a-zA-Z0-9]{9}" if tool_format.name == "mistral" else "call_[0-9a-f]{24}"
    names = [f"request-{number}" for number in range(50)]
    ids = {tool_format.call_id(name) for name in names}
    assert ids == {tool_format.call_id(name) for name in names}
    assert len(ids) == 50 and all(re.fullmatch(pattern, call_id) for call_id in ids)


@pytest.mark.parametrize("tool_format", FORMATS, ids=lambda each: each.name)
def test_markers_are_visible(tool_format: ToolFormat):
    """The parser sees each start marker and the tags of reasoning, which may be special tokens."""
    if tool_format.calls is not None:
        assert {calls.start for calls in tool_format.calls.lists} & tool_format.visible_tokens
    assert (
        {tag for pair in tool_format.tags for tag in pair} <= tool_format.reasoning_tokens <= tool_format.visible_tokens
    )


@pytest.mark.parametrize("name", ["hermes", "harmony"])
@pytest.mark.parametrize("use", [None, ToolUse(USE.tools, choice="none")])
def test_without_tools_only_reasoning_is_parsed(name: str, use: ToolUse | None):
    """After the reasoning of other formats the pipeline can bypass the parser."""
    tool_format = format_by_name(name)
    assert tool_format is not None
    parser = tool_format.answer(use).parser()
    assert parser is not None
    if name == "hermes":
        assert isinstance(parser, ThinkTagParser)
    call = (
        "<|channel|>commentary to=functions.ping<|message|>{}" if name == "harmony" else '<tool_call>{"name": "ping"}'
    )
    assert parser.push(1, call) + parser.flush() == [ParsedText(call)]


def test_a_continued_answer_does_not_begin_to_reason():
    """The rest of a message that has content may mention the tags, and may have calls."""
    hermes = format_by_name("hermes")
    assert hermes is not None and hermes.answer(None, may_reason=False).parser() is None
    parser = hermes.answer(USE, may_reason=False).parser()
    assert parser is not None and parser.push(1, "<think>a</think>.") == [ParsedText("<think>a</think>.")]


@pytest.mark.parametrize(
    ("name", "prompt", "is_reasoning"),
    [
        ("hermes", "[assistant]<think>\n", True),
        ("hermes", "[assistant]<think>\n\n</think>\n\n", False),
        ("mistral", "[/INST][THINK]", True),
        ("mistral", "[/INST]", False),
        ("harmony", "<|start|>assistant<|channel|>analysis<|message|>", True),
        ("harmony", "<|start|>assistant", False),
    ],
)
def test_prompts_that_open_reasoning(name: str, prompt: str, is_reasoning: bool):
    """The end of a prompt shows whether the answer begins as reasoning."""
    tool_format = format_by_name(name)
    assert tool_format is not None and tool_format.opens_reasoning(prompt) == is_reasoning
    parser = tool_format.answer(USE, is_reasoning=is_reasoning).parser()
    assert parser is not None and parser.is_reasoning == is_reasoning


def test_the_stage_of_an_answer_is_known():
    """Reasoning tokens are counted by it; an answer with tools is never finished."""
    for name, pieces in (
        ("hermes", ["<think>", "a", "</think>", "b"]),
        (
            "harmony",
            ["<|channel|>analysis<|message|>", "a", "<|end|>", "<|start|>assistant<|channel|>final<|message|>b"],
        ),
    ):
        tool_format = format_by_name(name)
        assert tool_format is not None
        parser = tool_format.answer(USE).parser()
        assert parser is not None
        parts, stages = [], []
        for piece in pieces:
            parts += parser.push(1, piece)
            stages.append(parser.is_reasoning)
        assert stages == [True, True, False, False] and not parser.is_finished
        assert parts + parser.flush() == [ParsedText(reasoning="a"), ParsedText("b")]


def test_a_call_is_reported_as_its_arguments_begin():
    """Id and name come first, then the arguments with each piece of text."""
    hermes = format_by_name("hermes")
    assert hermes is not None
    parser = replace(hermes.answer(USE, may_reason=False), call_id=lambda name: "call_1").parser()
    assert parser is not None
    assert parser.push(1, 'Hi <tool_call>\n{"name": "ping", "arguments": ') == [ParsedText("Hi")]
    [begin] = parser.push(1, "{")
    assert [(piece.index, piece.id, piece.name, piece.arguments) for piece in begin.calls] == [
        (0, "call_1", "ping", "{")
    ]
    [more] = parser.push(1, '"a')
    assert [(piece.index, piece.id, piece.name, piece.arguments) for piece in more.calls] == [(0, "", "", '"a')]


def test_plain_text_is_not_held_back():
    """Text without the first character of a marker passes at once, and white space at its end waits for the next."""
    for tool_format in FORMATS:
        parser = tool_format.answer(USE).parser()
        assert parser is not None
        parser.push(1, "Hi")
        assert parser.push(1, " there.") == [ParsedText(" there.")], tool_format.name
        assert parser.push(1, " \n") == [] and parser.push(1, "So") == [ParsedText(" \nSo")]


def test_the_option_has_the_names_of_all_formats():
    """And the choice by the template."""
    assert sorted(get_args(ToolParser)) == sorted((*FORMAT_NAMES, "auto"))
