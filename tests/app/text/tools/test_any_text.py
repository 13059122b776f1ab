"""Parsers of all tool formats on arbitrary mixes of a format's fragments."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.text.tools.call_parser import MAX_SPACE, CallParser
from app.text.tools.definitions import Tool, ToolUse
from app.text.tools.formats import FORMATS, format_by_name
from app.text.tools.syntax import MAX_NAME
from tests.app.text.tools.corpus import TOOLS
from tests.app.text.tools.test_corpus import parse

FORMAT_NAMES = [each.name for each in FORMATS]
COMMON = [" ", "\n", "text", "é😀", "<", "[", "<think>", "</think>", " " * MAX_SPACE, "a" * (MAX_NAME + 1)]
JSON = ["{", "}", "[", "]", '"', "\\", ":", ", ", '"name": ', '"arguments": ', '"parameters": ', '"add"', '"x"', "null"]
JSON += ['{"x": 1}', r'"a\"b"', r'"{\"x\": \"\\u00e9 \ud83d\ude00\"}"', '{"name": "add", "arguments": {"x": 1}}', "7"]
DEEPSEEK = ["<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"]
QWEN3_CODER = ["<tool_call>", "</tool_call>", "<function=add>", "<function=", "</function>", "<parameter=x>"]
QWEN3_CODER += ["5", "<parameter=", "\n</parameter>", "</parameter>", "add", ">", "<function=run>\n<parameter=code>"]
GLM = ["<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "x", "add", "3"]
PYTHONIC = ["<|python_start|>", "<|python_end|>", "[add(x=1)", "add(", "x=", ")", "]", ", ", "{", "}", "True", ":", "="]
PYTHONIC += ["'", '"', '"""', "(1, 2)", "-3.5", r"\x41", r"\u00e9", "\\", r"\U0001F600", "1:"]
PYTHONIC += [r"\U00FFFFFF"]
HARMONY = ["<|start|>", "assistant", "<|channel|>", "analysis", "final", "commentary", " to=functions.add"]
HARMONY += [" to=x", "to=functions.fly", "<|constrain|>json", "<|message|>", "<|end|>", "<|call|>", "<|return|>"]
FRAGMENTS = {
    "hermes": ["<tool_call>", "</tool_call>", "<tool", *JSON],
    "llama3_json": ["<|python_tag|>", "<|python_start|>", "<|python_end|>", ";", '"type": ', *JSON],
    "mistral": ["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]", "[TOOL_", "add", *JSON],
    "deepseek": [*DEEPSEEK, "<｜tool▁calls▁end｜>", "function", "add", "```json\n", "```", *JSON],
    "qwen3_coder": QWEN3_CODER,
    "glm": [*GLM, "<tool_call>run\n<arg_key>code</arg_key>\n<arg_value>"],
    "pythonic": PYTHONIC,
    "harmony": [*HARMONY, "<|channel|>analysis<|message|>", "<|channel|>final<|message|>", *JSON],
}


@pytest.mark.parametrize("name", FORMAT_NAMES)
@given(data=st.data())
def test_no_split_changes_the_parts(name: str, data: st.DataObject):
    """A mix of fragments has the same content, reasoning and calls whole and in pieces; it has no calls without tools,
    and at most one if the request allows only one.
    """
    text = "".join(data.draw(st.lists(st.sampled_from([*FRAGMENTS[name], *COMMON]), max_size=25)))
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=6))
    parallel, is_open = data.draw(st.booleans()), data.draw(st.booleans())
    edges = sorted({0, len(text), *cuts})
    pieces = [text[begin:end] for begin, end in itertools.pairwise(edges)]
    use = ToolUse(TOOLS, parallel=parallel)
    whole = parse(name, [text], use, is_open=is_open)
    assert parse(name, pieces, use, is_open=is_open) == parse(name, [*text], use, is_open=is_open) == whole
    assert parallel or len(whole[2]) <= 1
    assert parse(name, pieces, None, is_open=is_open)[2] == ()
    assert parse(name, pieces, ToolUse(TOOLS, choice="none"), is_open=is_open)[2] == ()


@pytest.mark.parametrize("name", sorted({*FORMAT_NAMES} - {"harmony"}))
@given(data=st.data())
def test_text_without_a_known_tool_is_content(name: str, data: st.DataObject):
    """If no tool's name occurs, every character is shown, in order, but for the beginning of a call at the end."""
    fragments = [each for each in [*FRAGMENTS[name], *COMMON] if "think" not in each.lower()]
    text = "".join(data.draw(st.lists(st.sampled_from(fragments), max_size=25)))
    text += "~"
    assert parse(name, [*text], ToolUse((Tool("other"),))) == (text, "", ())


@pytest.mark.parametrize("name", ["qwen3_coder", "glm", "pythonic"])
@given(data=st.data())
def test_every_word_is_shown(name: str, data: st.DataObject):
    """A word between any fragments is part of the content, of the reasoning, or of a call."""
    fragments = data.draw(st.lists(st.sampled_from([*FRAGMENTS[name], *COMMON]), max_size=20))
    words = [f"w{index}w" for index in range(len(fragments))]
    text = "".join(itertools.chain.from_iterable(zip(fragments, words, strict=True)))
    content, reasoning, calls = parse(name, [text], ToolUse(TOOLS))
    shown = " ".join([content, reasoning, *itertools.chain.from_iterable(calls)])
    assert [word for word in words if word not in shown] == []


@pytest.mark.parametrize(
    ("name", "begin", "piece"),
    [
        ("hermes", "", "<tool_call>"),
        ("hermes", '<tool_call>{"name": "run", "arguments": {"code": "', "<tool_call>\\n"),
        ("hermes", '<tool_call>{"arguments": {"code": "', "\\n"),
        ("hermes", '<tool_call>{"a": ', "["),
        ("llama3_json", "", " "),
        ("llama3_json", "", '{"name": "ping", "parameters": {}}; '),
        ("mistral", "[TOOL_CALLS][", '{"name": "fly"}, '),
        ("deepseek", "", "<｜tool▁calls▁begin｜>"),
        ("qwen3_coder", "<function=run><parameter=code>", "\n<"),
        ("glm", "<tool_call>note<arg_key>tags</arg_key><arg_value>", "["),
        ("pythonic", "[note(tags=", "["),
        ("pythonic", '[run(code="""', '"" '),
        ("harmony", "", "<|channel|>a"),
        ("harmony", "<|channel|>analysis<|message|>", "<"),
    ],
)
def test_work_for_a_character_does_not_grow(name: str, begin: str, piece: str):
    """Unread text stays short, so that reading does not scan it again and again, however long the answer is."""
    tool_format = format_by_name(name)
    assert tool_format is not None
    content = tool_format.answer(ToolUse(TOOLS), may_reason=False).parser()
    assert isinstance(content, CallParser)
    for character in begin + piece * 2000:
        content.push(1, character)
        assert len(content._reader._text) <= 2 * MAX_NAME + 2
