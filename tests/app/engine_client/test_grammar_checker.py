"""The process that compiles grammars: verdicts, limits, and its replacement."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import time
import warnings
from collections.abc import AsyncIterator

import psutil
import pytest

from app.engine_client import grammar_checker
from app.engine_client.checker_process import CheckerProcess
from app.engine_client.grammar_checker import MAX_PENDING_PER_TENANT, GrammarChecker
from app.errors import ApiError
from app.protocols.chat import ChatRequest
from app.protocols.schema import validate
from app.text.content_format import InvalidFormat
from app.text.tools.formats import format_by_name
from benchmarks.hostile_formats import FORMATS
from engine.constraints.checks import Verdict
from engine.host import NICENESS
from engine.types import Vocabulary
from tests.engine.test_host import MAX_NICENESS

BYTES = Vocabulary((b"<eos>", *(bytes([byte]) for byte in range(256))), (0,), (0,))
SLOW = 'start: %json {{"type": "integer", "multipleOf": {0}}}'.format  # takes several seconds to compile
PRIME = 999983  # it and PRIME + 10 i share no factor with 10, which would make it faster


@pytest.fixture
async def checker(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[GrammarChecker]:
    """Yield a checker with limits that a busy machine does not reach."""
    monkeypatch.setattr(grammar_checker, "MAX_COMPILE_SECONDS", 60.0)
    monkeypatch.setattr(grammar_checker, "MAX_WAIT_SECONDS", 60.0)
    made = GrammarChecker(lambda: BYTES)
    yield made
    await made.close()


async def test_a_verdict_is_remembered(checker: GrammarChecker):
    """The same grammar is compiled once, also if several requests bring it at the same time."""
    await asyncio.gather(*(checker.check('start: "a"', "t", "response_format") for _ in range(20)))
    assert checker._process is not None
    await checker._process.kill()
    await checker.check('start: "a"', "t", "response_format")
    for _ in range(2):
        with pytest.raises(ApiError, match="response_format: unknown name") as refused:
            await checker.check("start: b", "t", "response_format")
        assert (refused.value.status, refused.value.param) == (400, "response_format")


async def test_a_process_that_is_lost_is_replaced(checker: GrammarChecker):
    """If it died while it was idle, no grammar is blamed."""
    await checker.check('start: "a"', "t", "p")
    assert checker._process is not None
    await checker._process.kill()
    await checker.check('start: "b"', "t", "p")


class Killed(CheckerProcess):
    """A process that is killed at the beginning of its next checks, as by an operator or for memory."""

    kills = 0

    async def check(self, grammar: str) -> Verdict:
        """Kill the process first, `kills` times in all."""
        if Killed.kills:
            Killed.kills -= 1
            self.process.kill()
        return await super().check(grammar)


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> type[Killed]:
    monkeypatch.setattr(grammar_checker, "CheckerProcess", Killed)
    return Killed


async def test_a_kill_during_a_compilation_is_no_verdict(checker: GrammarChecker, killed: type[Killed]):
    """The grammar is compiled again by another process, and nobody notices."""
    killed.kills = 1
    await checker.check('start: "a"', "t", "p")
    assert killed.kills == 0


async def test_two_kills_are_an_error_that_is_not_remembered(checker: GrammarChecker, killed: type[Killed]):
    """The message does not blame the format, and the next request has it compiled."""
    killed.kills = 2
    with pytest.raises(ApiError, match="was killed; retry") as refused:
        await checker.check('start: "a"', "t", "p")
    assert refused.value.status == 503
    await checker.check('start: "a"', "t", "p")


async def test_the_process_is_started_before_the_first_grammar(checker: GrammarChecker):
    """At the priority of the server, because that waits for it; then steps of the engine go first."""
    checker.start()
    assert checker.is_starting
    await checker.started()
    assert not checker.is_starting and checker._process is not None
    first = checker._process.process.pid
    niceness = min(MAX_NICENESS, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)
    assert os.getpriority(os.PRIO_PROCESS, first) == niceness
    await checker.check('start: "a"', "t", "p")
    assert checker._process.process.pid == first


async def test_a_process_that_ended_is_replaced_before_the_next_grammar(checker: GrammarChecker):
    """A check that ends the process begins to start another one."""
    with pytest.raises(ApiError):
        await checker.check(SLOW(PRIME), "t", "p")
    await checker.started()
    assert checker._process is not None and checker._process.is_running


async def test_a_process_that_cannot_be_started_is_a_temporary_error(
    checker: GrammarChecker, monkeypatch: pytest.MonkeyPatch
):
    """Such as at the limit of processes; the server starts nevertheless."""
    with monkeypatch.context() as limited:
        limited.setattr(asyncio, "create_subprocess_exec", _refuse)
        checker.start()
        await checker.started()
        with pytest.raises(ApiError, match="cannot be started: Resource temporarily unavailable") as refused:
            await checker.check('start: "a"', "t", "p")
    assert refused.value.status == 503
    await checker.check('start: "a"', "t", "p")


async def _refuse(*command: str, **options: object) -> None:
    raise BlockingIOError("Resource temporarily unavailable")


async def test_a_grammar_with_expensive_masks_is_refused_early(monkeypatch: pytest.MonkeyPatch):
    """It compiles, and a random walk finds the cost, which depends on the machine and is not remembered."""
    words = ("".join(letters).encode() for letters in itertools.product("abcdefghijklmnopqrstuvwxyz ", repeat=3))
    tokens = (*BYTES.tokens, *words)
    monkeypatch.setattr(grammar_checker, "MAX_COMPILE_SECONDS", 60.0)
    checker = GrammarChecker(lambda: Vocabulary(tokens, (0,), (0,)))
    with pytest.raises(ApiError, match="response_format: its tokens take more than") as refused:
        await checker.check("start: x\nx: x x | x x x | /[a-z ]/ |", "t", "response_format")
    assert (refused.value.status, refused.value.code) == (400, "grammar_too_expensive")
    assert not checker._checks
    await checker.close()


async def test_a_grammar_that_kills_the_process_is_refused(checker: GrammarChecker):
    """It is too deep for the stack; the next one is compiled by another process."""
    rules = "".join(f'r{i}: r{i + 1} "a" | r{i + 1} "b"\n' for i in range(4000))
    with pytest.raises(ApiError, match="too large or too deep"):
        await checker.check(f'start: r0\n{rules}r4000: "x"', "t", "p")
    await checker.check('start: "b"', "t", "p")


async def test_a_slow_grammar_is_refused_and_others_are_compiled(checker: GrammarChecker):
    """Its processor time is limited, however busy the machine is. A faster machine might accept it."""
    with pytest.raises(ApiError, match=r"takes more than 0\.3 s") as refused:
        await checker.check(SLOW(PRIME), "t", "response_format")
    assert (refused.value.status, refused.value.param) == (400, "response_format")
    assert not checker._checks, "not remembered"
    await checker.check('start: "b"', "t", "p")


async def test_a_check_that_takes_too_long_is_not_the_fault_of_the_grammar(
    checker: GrammarChecker, monkeypatch: pytest.MonkeyPatch
):
    """On a busy machine it may be retried, and is then accepted."""
    await checker.check('start: "a"', "t", "p")
    with monkeypatch.context() as limited:
        limited.setattr(grammar_checker, "MAX_COMPILE_SECONDS", 0.0)
        with pytest.raises(ApiError, match="retry in 1 s") as refused:
            await checker.check('start: "b"', "t", "p")
    assert refused.value.status == 503
    await checker.check('start: "b"', "t", "p")


async def test_one_key_cannot_fill_the_queue(checker: GrammarChecker):
    """Its further grammars are refused until one is compiled; another key's is compiled in turn."""
    slow = [asyncio.create_task(checker.check(SLOW(PRIME + 10 * i), "t", "p")) for i in range(MAX_PENDING_PER_TENANT)]
    await asyncio.sleep(0)
    with pytest.raises(ApiError, match="may wait") as refused:
        await checker.check('start: "a"', "t", "p")
    assert refused.value.status == 429
    await checker.check('start: "a"', "other", "p")
    assert all(isinstance(each, ApiError) for each in await asyncio.gather(*slow, return_exceptions=True))
    await checker.check('start: "b"', "t", "p")


async def test_keys_have_their_turns_in_rotation(checker: GrammarChecker):
    """One that has several slow grammars waiting holds up others for one of them only."""
    await checker.check('start: "a"', "t", "p")
    slow = [asyncio.create_task(checker.check(SLOW(PRIME + 10 * i), "t", "p")) for i in range(3)]
    await asyncio.sleep(0)
    await checker.check('start: "b"', "other", "p")
    assert [each.done() for each in slow] == [True, False, False]
    await asyncio.gather(*slow, return_exceptions=True)


async def test_a_check_waits_for_others_for_a_limited_time(checker: GrammarChecker, monkeypatch: pytest.MonkeyPatch):
    """It may then be retried."""
    await checker.check('start: "a"', "t", "p")
    monkeypatch.setattr(grammar_checker, "MAX_WAIT_SECONDS", 0.01)
    slow = asyncio.create_task(checker.check(SLOW(PRIME), "t", "p"))
    await asyncio.sleep(0)
    with pytest.raises(ApiError, match="earlier requests") as refused:
        await checker.check('start: "b"', "other", "p")
    assert refused.value.status == 503 and not slow.done()
    await asyncio.gather(slow, return_exceptions=True)
    await checker.check('start: "b"', "other", "p")


@pytest.mark.slow
async def test_hostile_formats_are_refused_or_compiled_one_by_one(checker: GrammarChecker):
    """A format that is fine is accepted after each of them."""
    assert len(FORMATS) >= 60
    refused, hermes = [], format_by_name("hermes")
    assert hermes is not None
    for name, fields in FORMATS.items():
        form = validate(ChatRequest, {"messages": [{"role": "user", "content": "x"}], **fields}).content_format()
        assert form is not None
        try:
            grammar = hermes.answer(None, form, may_reason=False).grammar()
            assert grammar is not None
            await checker.check(grammar, name, form.param)
        except (ApiError, InvalidFormat):
            refused.append(name)
        await checker.check(f'start: "after {len(refused)}"', "other", "p")
    assert 20 <= len(refused) < len(FORMATS)


async def test_closing_ends_checks_that_wait(checker: GrammarChecker):
    """A server that stops does not wait for a grammar."""
    checks = [asyncio.create_task(checker.check(SLOW(PRIME + 10 * i), "t", "p")) for i in range(2)]
    await asyncio.sleep(0.05)
    began = time.monotonic()
    await checker.close()
    assert all(isinstance(one, BaseException) for one in await asyncio.gather(*checks, return_exceptions=True))
    assert time.monotonic() - began < 30


def test_closing_during_a_replacement_leaves_no_process_and_no_pipe():
    """A check that took too long has killed the process, and the next one is starting."""

    async def run() -> int:
        checker = GrammarChecker(lambda: BYTES)
        await checker.check('start: "a"', "t", "p")
        assert checker._process is not None
        await checker._process.kill()
        checker.start()
        while len(psutil.Process().children()) == 0:
            await asyncio.sleep(0)
        [replacement] = psutil.Process().children()
        await checker.close()
        return replacement.pid

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pid = asyncio.run(run())
        gc.collect()
    assert [str(each.message) for each in caught] == []
    assert not psutil.pid_exists(pid)
