"""Outputs of all model families as items of a response."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.streams.stream_log import Delta
from app.text.tools.definitions import ToolUse
from app.text.tools.formats import format_by_name
from tests.app.protocols.test_responses_stream import STARTED, STOPPED, encoder, events, filled, joined
from tests.app.text.tools.corpus import TOOLS
from tests.app.text.tools.test_any_text import COMMON, FORMAT_NAMES, FRAGMENTS
from tests.app.text.tools.test_corpus import CORPUS, parse, use_of


def deltas(name: str, text: str, use: ToolUse | None, *, is_open: bool = False) -> list[Delta]:
    """Return the records of an answer that arrives character by character."""
    parser = format_by_name(name).answer(use, is_reasoning=is_open).parser()
    parts = [part for character in text for part in parser.push(7, character)] + parser.flush()
    return [Delta(0, part.content, 1, (), part.reasoning, part.calls) for part in parts]


def parts(output: list[dict]) -> tuple[str, str, tuple[tuple[str, str], ...]]:
    """Return content, reasoning and calls of output items."""
    content = "".join(item["content"][0]["text"] for item in output if item["type"] == "message")
    reasoning = "".join(item["content"][0]["text"] for item in output if item["type"] == "reasoning")
    calls = [(item["name"], item["arguments"]) for item in output if item["type"] == "function_call"]
    return content, reasoning, tuple(calls)


@pytest.mark.parametrize(("name", "case"), CORPUS, ids=[f"{name}: {case.kind}" for name, case in CORPUS])
def test_recorded_outputs_become_items(name: str, case):
    """The deltas of each item add up to its text."""
    found = events(filled(STARTED, *deltas(name, case.text, use_of(case), is_open=case.is_open), *STOPPED))
    output = found[-1]["response"]["output"]
    assert parts(output) == (case.content, case.reasoning, case.calls)
    for index, item in enumerate(output):
        kind = {"message": "output_text", "reasoning": "reasoning_text"}.get(item["type"], "function_call_arguments")
        text = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        assert joined(found, kind, index) == text


@pytest.mark.parametrize("name", FORMAT_NAMES)
@given(data=st.data())
def test_any_output_becomes_items(name: str, data: st.DataObject):
    """No mix of a format's fragments makes records that items cannot hold."""
    text = "".join(data.draw(st.lists(st.sampled_from([*FRAGMENTS[name], *COMMON]), max_size=25)))
    log = filled(STARTED, *deltas(name, text, ToolUse(TOOLS)), *STOPPED)
    assert parts(encoder().body(log, 1)["output"]) == parse(name, [text], ToolUse(TOOLS))
