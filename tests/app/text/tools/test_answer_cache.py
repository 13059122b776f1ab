"""Syntaxes of answers that are kept, so that agents do not wait for the translation of their tools in every turn."""

from __future__ import annotations

from app.text.content_format import ContentFormat
from app.text.tools.answer import AnswerSyntax
from app.text.tools.answer_cache import MAX_CACHED, MAX_CACHED_BYTES, AnswerCache
from app.text.tools.definitions import Tool, ToolUse
from app.text.tools.formats import format_by_name

HERMES = format_by_name("hermes")
assert HERMES is not None


def answer(name: str = "f", *, strict: bool = True, parallel: bool | None = None, size: int = 1) -> AnswerSyntax:
    """Return the syntax of an answer with one tool."""
    parameters = {"type": "object", "description": "x" * size, "properties": {"a": {"type": "integer"}}}
    assert HERMES is not None
    return HERMES.answer(ToolUse((Tool(name, "", parameters, strict),), parallel=parallel))


def keep(cache: AnswerCache, answer: AnswerSyntax) -> AnswerSyntax:
    """Keep an answer in the cache and return it."""
    cache.keep(answer)
    return answer


def test_equal_answers_are_shared():
    """The grammar of the first one is that of all."""
    cache, first = AnswerCache(), answer()
    assert cache.find(first) is first and not first.has_grammar
    assert first.grammar() and first.has_grammar
    assert cache.find(other := answer()) is other  # only answers that are kept are found
    keep(cache, first)
    assert cache.find(answer()) is first
    others = [answer("g"), answer(strict=False), answer(parallel=False)]
    assert all(cache.find(each) is each for each in others)
    schema = HERMES.answer(None, ContentFormat("json_schema", {"type": "integer"}, "p"))
    assert cache.find(keep(cache, schema)) is schema and cache.find(HERMES.answer()) is not schema


def test_the_cache_is_bounded():
    """By number, by size and by tools; the least recently used answers leave first."""
    cache, first = AnswerCache(), answer()
    keep(cache, first)
    for index in range(MAX_CACHED - 1):
        keep(cache, answer(f"t{index}"))
    assert cache.find(answer()) is first
    for index in range(MAX_CACHED - 1):
        keep(cache, answer(f"u{index}"))
    assert cache.find(answer()) is first
    for index in range(MAX_CACHED):
        keep(cache, answer(f"v{index}"))
    assert cache.find(answer()) is not first
    for index in range(20):
        keep(cache, answer(f"w{index}", size=MAX_CACHED_BYTES // 10))
    assert len(cache._answers) < 10
    for number in range(1000, 1020):
        keep(cache, HERMES.answer(ToolUse(tuple(Tool(f"t{index}") for index in range(number)))))
    assert len(cache._answers) < 10
