"""Laws that hold the grammar and the parser of each family together, over random tools and random accepted texts."""

from __future__ import annotations

import itertools
import json
import os
import random
from collections.abc import Sequence

import jsonschema
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from app.text.schemas.errors import InvalidFormat
from app.text.tools.answer import AnswerSyntax, TaggedAnswer
from app.text.tools.definitions import Tool, ToolUse
from app.text.tools.formats import FORMATS
from tests.app.text.tools.random_calls import FRAGMENTS, is_json, pieces_of, random_tokens, tools
from tests.app.text.tools.test_grammar import FIRST_SPECIAL, compile_grammar, get_format
from tests.profiles import examples

NAMES = [each.name for each in FORMATS]
# `make laws` sets more: 420 for each of 48 combinations of law, family and kind of markers are 20,160.
EXAMPLES = int(os.environ.get("LAW_EXAMPLES", examples(12)))
MAX_CUTS = 24
LAW = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
SPECIAL = pytest.mark.parametrize("has_special", [False, True], ids=["text", "special"])
Parsed = tuple[str, str, list[tuple[str, str]]]


def special_tokens(name: str, has_special: bool) -> list[str]:
    """Return the special tokens of a model of a family."""
    return sorted(get_format(name).visible_tokens) if has_special else []


def answer_of(name: str, use: ToolUse, special: Sequence[str], *, may_reason: bool = False) -> AnswerSyntax:
    """Return the syntax of an answer."""
    ids = {text: FIRST_SPECIAL + index for index, text in enumerate(special)}
    return get_format(name).answer(use, special_tokens=ids, may_reason=may_reason)


def enforceable_grammar(answer: AnswerSyntax) -> str | None:
    """Return the grammar of an answer. Skips the example if the family cannot enforce the schema of a strict tool."""
    try:
        return answer.grammar()
    except InvalidFormat:
        assert isinstance(answer, TaggedAnswer) and answer.calls.name in ("qwen3_coder", "glm", "pythonic")
        assume(False)
        raise


def parse(answer: AnswerSyntax, pieces: Sequence[str], *, is_ended: bool = True) -> Parsed:
    """Return content, reasoning and calls of an answer in pieces, up to the point where the parser ends it, or, unless
    the answer is ended, up to the text that is held back.
    """
    parser = answer.parser()
    assert parser is not None
    content, reasoning, calls = "", "", []
    output = []
    for piece in pieces:
        output += parser.push(7, piece)
        if parser.is_complete:
            break
    for part in output + (parser.flush() if is_ended else []):
        content += answer.marks.decode(part.content)
        reasoning += part.reasoning
        for call in part.calls:
            if call.index == len(calls):
                calls.append((call.name, ""))
            calls[call.index] = (calls[call.index][0], calls[call.index][1] + call.arguments)
    return content, reasoning, calls


def check_calls(calls: Sequence[tuple[str, str]], offered: Sequence[Tool]) -> None:
    """Check that all arguments satisfy the schemas of their tools."""
    schemas = {tool.name: tool.parameters for tool in offered}
    for name, arguments in calls:
        jsonschema.validate(json.loads(arguments), schemas[name])


def check_beginning(cut: Parsed, whole: Parsed) -> None:
    """Check that the parts of a cut answer are beginnings of those of the whole one, and no call is shorter."""
    assert whole[0].startswith(cut[0]) and whole[1].startswith(cut[1])
    assert len(cut[2]) <= len(whole[2]) and cut[2][:-1] == whole[2][: len(cut[2])][:-1]
    for (name, arguments), (whole_name, whole_arguments) in zip(cut[2][-1:], whole[2][len(cut[2]) - 1 :], strict=False):
        assert name == whole_name and whole_arguments.startswith(arguments)
        assert arguments == whole_arguments or not is_json(arguments)


def cuts(pieces: Sequence[str], rng: random.Random) -> list[int]:
    """Return the lengths at which an answer is cut: all, or some of many."""
    lengths = range(len(pieces))
    return list(lengths) if len(pieces) <= MAX_CUTS else rng.sample(lengths, MAX_CUTS)


@SPECIAL
@pytest.mark.parametrize("name", NAMES)
@LAW
@given(offered=tools(), parallel=st.booleans(), seed=st.integers(0, 2**32))
def test_forced_calls_are_read_as_calls_that_satisfy_their_schemas_wherever_they_are_cut(
    name: str, has_special: bool, offered: tuple[Tool, ...], parallel: bool, seed: int
):
    """A text of the grammar has no content; any beginning of it is a beginning of its calls, and of no shorter call."""
    special = special_tokens(name, has_special)
    answer = answer_of(name, ToolUse(offered, "required", parallel=parallel), special)
    ids = random_tokens(enforceable_grammar(answer), special, random.Random(seed))
    assume(ids is not None)
    pieces = pieces_of(ids, special, answer.marks)
    whole = parse(answer, pieces)
    content, reasoning, calls = whole
    assert (content, reasoning) == ("", "") and calls and (parallel or len(calls) == 1)
    assert parallel or parse(answer, ["".join(pieces)]) == whole
    assert len({*calls}) == len(calls)
    check_calls(calls, offered)
    for length in cuts(pieces, random.Random(seed)):
        check_beginning(parse(answer, pieces[:length]), whole)


def free_text(name: str, has_special: bool, rng: random.Random) -> str:
    """Return text without a start marker and without white space at its ends."""
    starts = [] if has_special else [*get_format(name).visible_tokens, "<function=", "<|", "[THINK]", "<think>"]
    fragments = [each for each in FRAGMENTS if not any(start[:2] in each for start in starts)]
    return "".join(["So", *rng.choices(fragments, k=rng.randint(0, 6)), "."])


@SPECIAL
@pytest.mark.parametrize("name", NAMES)
@LAW
@given(offered=tools(), seed=st.integers(0, 2**32))
def test_free_text_around_calls_is_content(name: str, has_special: bool, offered: tuple[Tool, ...], seed: int):
    """It is content, also if it spells the markers of calls with ordinary tokens; the calls between are read."""
    rng, special = random.Random(seed), special_tokens(name, has_special)
    forced = answer_of(name, ToolUse(offered, "required"), special)
    ids = random_tokens(enforceable_grammar(forced), special, rng)
    assume(ids is not None)
    call = pieces_of(ids, special, forced.marks)
    answer = answer_of(name, ToolUse(offered), special)
    before, after = (free_text(name, has_special, rng) for _ in "ab")
    if name == "harmony":
        before, after = "", ""
    syntax = get_format(name).calls
    if syntax is not None and syntax.is_leading:
        before, after = ("", "") if rng.random() < 0.5 or not has_special else (before, "")
        start = answer.marks.encode(syntax.lists[0].start)
        call = [start, *call] if before and call[0] != start else call
    spelled = "".join(answer.marks.decode(piece) for piece in call)
    is_quoted = has_special and name not in ("harmony", "llama3_json", "pythonic")
    texts = [before, spelled if is_quoted else "", *call, after]
    marked = "".join(texts)
    tokens: list[str] = []
    for part in answer.marks.split(marked):
        tokens += [part] if part in answer.marks.ids else part
    encoded = [[answer.marks.ids[token]] if token in answer.marks.ids else [*token.encode()] for token in tokens]
    matcher, ids = compile_grammar(answer.grammar(), special), list(itertools.chain(*encoded))
    assert matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()
    content, reasoning, calls = parse(answer, tokens)
    expected = "".join(texts[:2]) + after
    assert "".join(content.split()) == "".join(expected.split()) and reasoning == ""
    assert calls == parse(forced, call)[2]


@SPECIAL
@pytest.mark.parametrize("name", NAMES)
@LAW
@given(offered=tools(), seed=st.integers(0, 2**32), is_open=st.booleans())
def test_any_accepted_answer_may_be_cut_anywhere(
    name: str, has_special: bool, offered: tuple[Tool, ...], seed: int, is_open: bool
):
    """Reasoning, text and calls of a beginning are beginnings of those of the whole answer."""
    special = special_tokens(name, has_special)
    ids = {text: FIRST_SPECIAL + index for index, text in enumerate(special)}
    answer = get_format(name).answer(ToolUse(offered), special_tokens=ids, is_reasoning=is_open)
    tokens = random_tokens(enforceable_grammar(answer), special, random.Random(seed))
    assume(tokens is not None)
    pieces = pieces_of(tokens, special, answer.marks)
    whole = parse(answer, pieces)
    check_calls(whole[2], offered)
    assert parse(answer, ["".join(pieces)]) == whole
    for length in cuts(pieces, random.Random(seed)):
        check_beginning(parse(answer, pieces[:length], is_ended=False), whole)
        check_beginning(("", "", parse(answer, pieces[:length])[2]), whole)
