"""Parsers of all tool formats on recorded outputs: whole, at every split, and character by character."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

import pytest

from app.text.tools.definitions import ToolUse
from app.text.tools.formats import FORMATS, format_by_name
from tests.app.text.tools.corpus import TOOLS, Case

CORPUS = [
    (each.name, case)
    for each in FORMATS
    for case in importlib.import_module(f"tests.app.text.tools.corpus.{each.name}").CASES
]
Parsed = tuple[str, str, tuple[tuple[str, str], ...]]


def parse(name: str, pieces: Sequence[str], use: ToolUse | None, *, is_open: bool = False) -> Parsed:
    """Return content, reasoning and calls of an answer that arrives in pieces. Checks the form of the pieces."""
    tool_format = format_by_name(name)
    assert tool_format is not None
    parser = tool_format.answer(use, is_reasoning=is_open).parser()
    assert parser is not None
    content, reasoning, names, arguments = "", "", [], []
    for part in [part for piece in pieces for part in parser.push(7, piece)] + parser.flush():
        assert part.content or part.reasoning or part.calls
        content += part.content
        reasoning += part.reasoning
        for call in part.calls:
            if call.index == len(names):
                assert call.id and call.name
                names.append(call.name)
                arguments.append("")
            assert call.index == len(names) - 1 and (call.name == names[-1] or not (call.name or call.id))
            arguments[call.index] += call.arguments
    return content, reasoning, tuple(zip(names, arguments, strict=True))


def use_of(case: Case) -> ToolUse | None:
    """Return the tools that the request of a case has."""
    return ToolUse(TOOLS, parallel=case.parallel) if case.has_tools else None


@pytest.mark.parametrize(("name", "case"), CORPUS, ids=[f"{name}: {case.kind}" for name, case in CORPUS])
def test_an_output_has_the_same_parts_however_it_is_split(name: str, case: Case):
    """Whole, in two pieces split anywhere, and character by character, the output has the expected parts."""
    expected = (case.content, case.reasoning, case.calls)
    splits = [[case.text[:at], case.text[at:]] for at in range(1, len(case.text))]
    for pieces in [[case.text], [*case.text], *splits]:
        assert parse(name, pieces, use_of(case), is_open=case.is_open) == expected, pieces


def test_the_corpus_covers_all_formats():
    """Each format has at least 20 outputs, all together at least 150."""
    names = [name for name, _ in CORPUS]
    assert len(names) >= 150 and min(names.count(each.name) for each in FORMATS) >= 20
