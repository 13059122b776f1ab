"""Answers of OpenAI's protocols."""

from __future__ import annotations

import json

import pytest

from app.generation.request import AnswerHead
from app.protocols.answers import OpenAIEncoder, UsageReports
from app.protocols.chat import ChatEncoder
from app.protocols.completions import CompletionEncoder
from app.streams.stream_log import ChoiceFinished, ChoiceStarted, Delta, LogEntry, StreamLog, Usage
from tests.app.text_models import MODEL


@pytest.mark.parametrize("kind", [ChatEncoder, CompletionEncoder])
@pytest.mark.parametrize(("reason", "shown"), [("abort", "stop"), ("stop", "stop"), ("length", "length")])
def test_an_answer_that_was_stopped_is_a_complete_one(kind: type[OpenAIEncoder], reason: str, shown: str):
    """The protocols have no reason for it, and clients refuse unknown ones."""
    log = StreamLog("a1", "e", "")
    for record in (ChoiceStarted(0), Delta(0, "A", 1), ChoiceFinished(0, reason), Usage(1, 1, 0)):
        log.append(record)
    encoder = kind(AnswerHead("m", "default", MODEL, 1), UsageReports())
    sent = encoder.encode(log, [LogEntry(seq, record) for seq, record in enumerate(log.records, 1)]).decode()
    chunks = [json.loads(line[6:]) for line in sent.splitlines() if line.startswith("data: {")]
    assert chunks[-1]["choices"][0]["finish_reason"] == shown
    assert encoder.body(log, 1)["choices"][0]["finish_reason"] == shown
