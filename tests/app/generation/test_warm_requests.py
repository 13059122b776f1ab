"""Ended requests that engines still have in their caches: bounds, answers that are left out, and several engines."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from app.engine_client.prefix_index import PrefixIndex
from app.generation import warm_requests
from app.generation.warm_requests import ENTRY_BYTES, NEXT_TOKENS, WarmRequest, WarmRequests
from app.streams.stream_log import Failure, Usage
from engine.prefixes import MARK_PAGES, PrefixChanges
from engine.prompt_pace import PromptPace
from engine.types import Request, SamplingParams

PAGE = 16
MARK = PAGE * MARK_PAGES  # tokens
PROMPT = tuple(range(5 * MARK))
PACES = {0: PromptPace(0.0, 1e9, 0.001, 0.0), 1: PromptPace(0.0, 1e9, 0.002, 0.0)}


class Fakes:
    """A client with two engines, and a registry in which each request is found, with the end that the test sets."""

    def __init__(self) -> None:
        self.prefixes = PrefixIndex()
        self.prefixes.update(0, PrefixChanges(b"", b"", True), PAGE)
        self.end: Any = Usage(0, 0, 0)
        self.warm = WarmRequests(self, self)  # type: ignore[arg-type]

    def follow_ends(self, on_end: Any) -> None:
        self.on_end = on_end

    def prompt_pace(self, index: int | None) -> PromptPace | None:
        return PACES[index or 0]

    def get_any_owner(self, _: str) -> Any:
        return SimpleNamespace(resume_grace_seconds=60.0, log=SimpleNamespace(records=[self.end]))

    def cache(self, member: int, tokens: tuple[int, ...]) -> None:
        """Let a member report these tokens."""
        self.prefixes.update(member, PrefixChanges(self.prefixes.marks(tokens, "me"), b"", True), PAGE)


def request(name: str, prompt: tuple[int, ...] = PROMPT, tenant: str = "me", n: int = 1) -> Request:
    sampling = SamplingParams(max_tokens=9)
    return Request(id=name, prompt=prompt, sampling=sampling, n=n, cache_salt=tenant, tenant=tenant)


def test_the_engine_with_the_longest_prefix_counts():
    """Its pace is that of the estimate; a next message has some tokens of its own."""
    fakes = Fakes()
    fakes.on_end(request("r"), [1, 2, 3])
    tokens = len(PROMPT) + 3
    cold = tokens + NEXT_TOKENS
    assert fakes.warm.find("r", "me") == WarmRequest(0, tokens, cold, cold)
    fakes.cache(0, PROMPT[: 2 * MARK])
    fakes.cache(1, PROMPT[: 4 * MARK])
    assert fakes.warm.find("r", "me") == WarmRequest(4 * MARK, tokens, 2 * (cold - 4 * MARK), 2 * cold)
    fakes.prefixes.forget(1)
    assert fakes.warm.find("r", "me") == WarmRequest(2 * MARK, tokens, cold - 2 * MARK, cold)
    assert fakes.warm.find("r", "you") is None


@pytest.mark.parametrize(
    ("end", "n", "has_answer"),
    [
        (Usage(0, 0, 0), 1, True),
        (Usage(0, 0, 0, reasoning_tokens=5), 1, False),
        (Usage(0, 0, 0), 2, False),
        (Failure("no", "engine_died", None), 1, False),
    ],
)
def test_an_answer_counts_if_the_next_prompt_repeats_it(end: Usage | Failure, n: int, has_answer: bool):
    """One with reasoning, one of several and one that failed are left out."""
    fakes = Fakes()
    fakes.end = end
    answer = tuple(range(1000, 1000 + MARK))
    fakes.cache(0, PROMPT + answer)
    fakes.on_end(request("r", n=n), answer)
    expected = len(PROMPT) + MARK * has_answer
    found = fakes.warm.find("r", "me")
    assert found is not None and (found.cached_tokens, found.tokens) == (expected, expected)


def test_ten_thousand_requests_stay_within_the_bytes_of_a_tenant_and_of_all(monkeypatch: pytest.MonkeyPatch):
    """A tenant that sends too many loses its own; of all, those that were used least recently go first."""
    size = ENTRY_BYTES + 73  # with the five marks of a prompt
    monkeypatch.setattr(warm_requests, "MAX_TENANT_BYTES", 100 * size)
    monkeypatch.setattr(warm_requests, "MAX_BYTES", 250 * size)
    fakes = Fakes()
    warm = fakes.warm
    fakes.on_end(request("used", tenant="you"), ())
    fakes.on_end(request("old", tenant="you"), ())
    for number in range(10_000):
        fakes.on_end(request(f"r{number}"), ())
    assert (len(warm), warm.bytes, warm.evicted) == (102, 102 * size, 9_900)
    assert warm.find("r9899", "me") is None and warm.find("r9900", "me") is not None
    assert warm.find("used", "you") is not None
    for number in range(148):
        fakes.on_end(request(f"t{number}", tenant=f"t{number % 2}"), ())
    assert warm.find("old", "you") is not None  # there was room for all
    assert warm.find("used", "you") is not None
    for number in range(100):
        fakes.on_end(request(f"u{number}", tenant="u"), ())
        assert warm.bytes <= 250 * size
    assert warm.find("used", "you") is not None and warm.find("r9901", "me") is None
    assert sum(map(len, warm._tenants.values())) == len(warm) == 250
    assert sum(warm._tenant_bytes.values()) == warm.bytes


def test_a_request_that_ends_again_replaces_its_earlier_end():
    """An answer that another process has continued has the same id."""
    fakes = Fakes()
    for _ in range(3):
        fakes.on_end(request("r"), ())
    assert len(fakes.warm) == 1 and fakes.warm.bytes == ENTRY_BYTES + 73 and fakes.warm.evicted == 0
