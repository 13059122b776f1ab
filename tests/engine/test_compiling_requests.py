"""Requests whose grammar is being compiled, in the engine's main loop."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import pytest

from engine.engine import Engine
from engine.errors import InvalidParameter
from engine.heartbeat import Heartbeat
from engine.ipc import Abort, EngineChannel, Submit, UseVocabulary
from engine.types import (
    EndEvent,
    Event,
    FinishReason,
    Phase,
    Request,
    SamplingParams,
    StatusEvent,
    Vocabulary,
    WaitReason,
)
from engine.worker import Worker
from tests.engine.same import make_engine

GRAMMAR = "start: /[a-z]{40}/"


def request(request_id: str = "r", grammar: str = GRAMMAR, n: int = 1) -> Request:
    return Request(id=request_id, prompt=(5, 6, 7), sampling=SamplingParams(max_tokens=4, grammar=grammar), n=n)


class Compiling:
    """A worker whose compilations end when the test says so."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.compilation: Future[Any] = Future()
        self.engine = engine
        self.worker = Worker(cast(EngineChannel, None), engine, Heartbeat())
        assert engine.constraints is not None
        self._prepare = engine.constraints.prepare
        monkeypatch.setattr(engine.constraints, "prepare", self.prepare)

    def prepare(self, request: Request) -> Future[Any] | None:
        """Compile once the test has ended the compilation."""
        if not self.compilation.done():
            return self.compilation
        if (compilation := self._prepare(request)) is not None:
            compilation.exception()  # waits
        return None

    def handle(self, *messages: Any) -> list[Event]:
        """Return the events of some messages."""
        for message in messages:
            self.worker._handle(message)
        self.worker._submit_compiled()
        events, self.worker._refusals = self.worker._refusals, []
        return events


@pytest.fixture
def compiling(demo: Path, monkeypatch: pytest.MonkeyPatch) -> Compiling:
    return Compiling(make_engine(demo), monkeypatch)


def test_a_request_waits_for_its_grammar_and_then_runs(compiling: Compiling):
    """Its status gives the reason."""
    [status] = compiling.handle(Submit(request()))
    assert isinstance(status, StatusEvent)
    assert (status.phase, status.cause) == (Phase.QUEUED, WaitReason.GRAMMAR)
    assert not compiling.engine.has_work
    compiling.compilation.set_result(None)
    assert compiling.handle() == [] and list(compiling.engine.scheduler.requests) == ["r"]


def test_an_aborted_request_never_runs(compiling: Compiling):
    """It ends at once, as when it is queued."""
    compiling.handle(Submit(request()))
    ended = compiling.handle(Abort("r"))
    assert [event.finish for event in ended if isinstance(event, EndEvent)] == [FinishReason.ABORT]
    compiling.compilation.set_result(None)
    assert compiling.handle() == [] and not compiling.engine.has_work


def test_one_choice_can_be_aborted(compiling: Compiling):
    """The others run."""
    compiling.handle(Submit(request(n=3)))
    ended = compiling.handle(Abort("r", 1))
    assert [event.choice for event in ended if isinstance(event, EndEvent)] == [1]
    compiling.compilation.set_result(None)
    compiling.handle()
    assert [sequence.choice for sequence in compiling.engine.scheduler.requests["r"]] == [0, 2]


def test_a_grammar_that_cannot_be_compiled_ends_its_request(compiling: Compiling):
    """With the reason; the checker before the engine normally finds it."""
    compiling.handle(Submit(request(grammar="start: missing", n=2)))
    compiling.compilation.set_result(None)
    ended = compiling.handle()
    errors = [event for event in ended if isinstance(event, EndEvent)]
    assert [event.choice for event in errors] == [0, 1]
    assert {event.code for event in errors} == {InvalidParameter.code} and "missing" in errors[0].message


def test_without_a_vocabulary_a_grammar_is_refused(demo: Path):
    """And with one it is compiled for that vocabulary."""
    engine = make_engine(demo)
    engine.constraints = type(engine.constraints)()  # type: ignore[assignment, call-arg]
    worker = Worker(cast(EngineChannel, None), engine, Heartbeat())
    worker._handle(Submit(request()))
    [refused] = worker._refusals
    assert isinstance(refused, EndEvent) and "vocabulary" in refused.message
    tokens = (b"<eos>", *(bytes([byte]) for byte in range(256)))
    worker._handle(UseVocabulary(Vocabulary(tokens, (0,), (0,))))
    engine.submit(request("s"))
    assert engine.has_work


def test_a_grammar_that_failed_to_compile_is_not_compiled_again(demo: Path):
    """A request would otherwise wait for the same failure forever."""
    engine = make_engine(demo)
    assert engine.constraints is not None
    wrong = request(grammar="start: missing")
    compilation = engine.constraints.prepare(wrong)
    assert compilation is None or compilation.exception() is not None
    assert engine.constraints.prepare(wrong) is None
    with pytest.raises(InvalidParameter, match="missing"):
        engine.submit(wrong)
