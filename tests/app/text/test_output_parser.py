"""Separation of content and reasoning: whole texts, any split, and what is held back."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.text.output_parser import (
    CLOSE,
    MAX_LEADING_SPACE,
    MISTRAL_TAGS,
    OPEN,
    THINK_TAGS,
    ParsedText,
    ThinkTagParser,
)


def parse(pieces: list[str], *, is_open: bool = False) -> tuple[str, str]:
    """Return content and reasoning of a text that arrives in pieces."""
    parser = ThinkTagParser(is_open=is_open)
    parsed = [part for piece in pieces for part in parser.push(7, piece)] + parser.flush()
    return "".join(p.content for p in parsed), "".join(p.reasoning for p in parsed)


@pytest.mark.parametrize(
    ("text", "is_open", "content", "reasoning"),
    [
        ("Hello.", False, "Hello.", ""),
        (" \n Hello.", False, " \n Hello.", ""),
        ("", False, "", ""),
        ("<think>\nHm, 2 < 3?\n</think>\n\nYes, <b>it</b> is.", False, "Yes, <b>it</b> is.", "Hm, 2 < 3?\n"),
        ("\n<think>\n\n</think>\n\nYes.", False, "Yes.", ""),
        ("<think>Cut off </thi", False, "", "Cut off </thi"),
        ("<think>a</think>  ", False, "", "a"),
        ("<thin", False, "<thin", ""),
        ("<table> of </think> and <think>", False, "<table> of </think> and <think>", ""),
        ("<think>a</think>b<think>c</think>", False, "b<think>c</think>", "a"),
        ("Hm.</think>Yes.", True, "Yes.", "Hm."),
        ("<think>a</think>b", True, "b", "a"),
        ("<thi", True, "", "<thi"),
    ],
)
def test_a_text_has_the_same_parts_whole_and_character_by_character(
    text: str, is_open: bool, content: str, reasoning: str
):
    """Only a block at the beginning is reasoning, and no tag is shown."""
    assert parse([text], is_open=is_open) == parse(list(text), is_open=is_open) == (content, reasoning)


FRAGMENTS = st.sampled_from([OPEN, CLOSE, "<", "think>", "</thi", " ", "\n", "a", "é", " " * MAX_LEADING_SPACE])


@given(st.lists(FRAGMENTS, max_size=12), st.lists(st.integers(0, 60), max_size=6), st.booleans())
def test_no_split_changes_the_parts_and_no_text_is_lost(fragments: list[str], cuts: list[int], is_open: bool):
    """Only tags and white space around them are dropped."""
    text = "".join(fragments)
    edges = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    pieces = [text[begin:end] for begin, end in itertools.pairwise(edges)]
    content, reasoning = parse([text], is_open=is_open)
    assert parse(pieces, is_open=is_open) == (content, reasoning)
    kept = "".join((reasoning + content).split())
    begins_with_tag = text.lstrip().startswith(OPEN) and len(text) - len(text.lstrip()) <= MAX_LEADING_SPACE
    if is_open or begins_with_tag:
        without_tags = text.replace(OPEN, "", 1) if begins_with_tag else text
        assert kept == "".join(without_tags.replace(CLOSE, "", 1).split())
    else:
        assert content == text


@pytest.mark.parametrize("is_open", [False, True])
def test_a_flood_of_white_space_is_not_held_back(is_open: bool):
    """Searching all of it again with each token would take time that grows with its square."""
    parser = ThinkTagParser(is_open=is_open)
    assert parser.push(1, " " * MAX_LEADING_SPACE) == []
    shown = [] if is_open else [ParsedText(" " * (MAX_LEADING_SPACE + 1))]
    assert parser.push(2, " ") == shown and parser.flush() == []


def test_text_after_the_block_is_never_held_back():
    """The pipeline can then bypass the parser."""
    parser = ThinkTagParser()
    assert parser.push(1, "<think>a</think>") == [ParsedText(reasoning="a")] and not parser.is_finished
    assert parser.push(2, "\nb") == [ParsedText("b")] and parser.is_finished
    assert parser.push(3, "<think>") == [ParsedText("<think>")]


@pytest.mark.parametrize(
    ("text", "is_open", "parts"),
    [
        ("[THINK]a </think>[/THINK]b", False, ("b", "a </think>")),
        ("<think>a [/THINK]</think>b", False, ("b", "a [/THINK]")),
        ("a[/THINK]b</think>", True, ("b</think>", "a")),
        ("[TOOL] b", False, ("[TOOL] b", "")),
        ("[THINK]a[/THIN", False, ("", "a[/THIN")),
    ],
)
def test_a_model_may_have_several_pairs_of_tags(text: str, is_open: bool, parts: tuple[str, str]):
    """A block ends with the tag of the pair that opened it; if the prompt opened it, with any."""
    for pieces in ([text], [*text]):
        parser = ThinkTagParser(is_open=is_open, tags=(MISTRAL_TAGS, THINK_TAGS))
        parsed = [part for piece in pieces for part in parser.push(7, piece)] + parser.flush()
        assert ("".join(p.content for p in parsed), "".join(p.reasoning for p in parsed)) == parts
