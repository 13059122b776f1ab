"""Special tokens as marks, in answers of all kinds."""

from __future__ import annotations

import pytest

from app.text.content_format import ContentFormat
from app.text.marks import NO_MARKS, Marks
from app.text.output_parser import ParsedText
from app.text.tools.definitions import Tool, ToolUse
from app.text.tools.formats import format_by_name
from tests.app.text.tools.test_grammar import accepts

HERMES = format_by_name("hermes")
assert HERMES is not None
SPECIAL = {"<think>": 1, "</think>": 2, "<tool_call>": 3, "</tool_call>": 4, "<eos>": 5}
NUMBER = ContentFormat("json_schema", {"type": "object", "properties": {"a": {"type": "integer"}}}, "response_format")


def test_a_marked_text_can_be_read_again():
    """Each special token is one character that no UTF-8 has; other texts are unchanged."""
    marks = Marks(SPECIAL, ["<think>", "</think>", "<other>"])
    text = "a <think>b</think> <other>"
    marked = marks.encode(text)
    assert marks.decode(marked) == text and len(marked) == len(text) - len("<think></think>") + 2
    assert marks.split(marked) == ["a ", marks.encode("<think>"), "b", marks.encode("</think>"), " <other>"]
    assert sorted(marks.shown) == [1, 2] and "<eos>" not in map(marks.decode, marks.ids)
    with pytest.raises(UnicodeEncodeError):
        marked.encode()
    assert NO_MARKS.encode(text) == NO_MARKS.decode(text) == text


def test_tags_that_ordinary_tokens_spell_do_not_end_reasoning():
    """Only the special token does, so that the content after it has its format."""
    answer = HERMES.answer(None, NUMBER, special_tokens=SPECIAL)
    parser = answer.parser()
    assert parser is not None
    text = answer.marks.encode("<think>") + 'a </think> {"a": "bad"} ' + answer.marks.encode("</think>") + '{"a": 1}'
    output = parser.push(1, text) + parser.flush()
    assert output == [ParsedText('{"a": 1}', 'a </think> {"a": "bad"} ')]


def test_a_call_that_ordinary_tokens_spell_is_content():
    """As for the grammar, for which it is free text."""
    answer = HERMES.answer(ToolUse((Tool("run"),)), special_tokens=SPECIAL)
    parser = answer.parser()
    assert parser is not None
    text = '<tool_call>\n{"name": "run", "arguments": {"code": tru}}\n</tool_call>'
    assert parser.push(1, text) + parser.flush() == [ParsedText(text)]


@pytest.mark.parametrize("may_reason", [False, True])
@pytest.mark.parametrize("special", [{}, SPECIAL], ids=["text", "special"])
def test_a_pattern_that_describes_reasoning_describes_the_content(may_reason: bool, special: dict[str, int]):
    """All of its text is content, as the pattern says."""
    answer = HERMES.answer(
        None, ContentFormat("regex", "<think>.*</think>", "p"), special_tokens=special, may_reason=may_reason
    )
    text, parser = "<think>a</think>", answer.parser()
    assert accepts(answer.grammar(), text)
    output = [ParsedText(text)] if parser is None else parser.push(1, text) + parser.flush()
    assert output == [ParsedText(text)]


def test_a_pattern_of_any_text_does_not_begin_like_reasoning():
    """Text that begins with the tag is reasoning, and has to be closed; after it any content is possible."""
    grammar = HERMES.answer(None, ContentFormat("regex", ".*", "p")).grammar()
    assert accepts(grammar, "a <think>") and accepts(grammar, "<thin") and accepts(grammar, "<think>a</think><think>b")
    assert not accepts(grammar, "<think>a") and not accepts(grammar, "  <think>a")


def test_the_beginning_of_a_tag_is_no_content_where_the_content_cannot_begin_so():
    """An answer in JSON, or with a forced call, that is cut inside of its opening tag has no content."""
    for answer in (HERMES.answer(None, NUMBER), HERMES.answer(ToolUse((Tool("run"),), "required"))):
        parser = answer.parser()
        assert parser is not None and parser.push(1, "<thi") + parser.flush() == []
    free = HERMES.answer().parser()
    assert free is not None and free.push(1, "<thi") + free.flush() == [ParsedText("<thi")]
