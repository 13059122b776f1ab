"""Sessions: what is kept of conversations that wait for a tool, within bounds, and never another text."""

from __future__ import annotations

import random

import pytest

from engine.prefixes import CachedMarks, chain_next, chain_start
from engine.scheduling.pages import HostPool, Rank
from engine.scheduling.sequence import Sequence
from engine.scheduling.sessions import HALF_LIFE_SECONDS, TOOL_SECONDS
from engine.types import FinishReason, Request, SamplingParams, ServiceClass
from tests.engine.scheduling.history import PAGE_SIZE, History
from tests.profiles import examples

CASES, BLOCKS = examples(3000), 10


class Talk:
    """Conversation of a tenant, which goes on after its last answer."""

    def __init__(self, history: History, tenant: str, tokens: int, first: int = 100) -> None:
        self.history = history
        self.tenant = tenant
        self.prompt = list(range(first, first + tokens))
        self.name = ""

    def ask(self, tokens: int = 4, **more: object) -> None:
        """Send the next turn; does nothing while the last one is answered, or beyond the context."""
        history = self.history
        if self.name:
            if history.ends.get((self.name, 0)) is not FinishReason.LENGTH:
                return
            self.prompt += [*history.texts[self.name, 0], len(self.prompt)]
        if len(self.prompt) + tokens <= min(60, history.engine.info.num_pages * PAGE_SIZE):
            self.name = history.arrive(self.prompt, tokens, tenant=self.tenant, cache_salt=self.tenant, **more)

    def move(self, history: History) -> None:
        """Go on with another engine; an answer that did not end is asked for again."""
        if self.history is not history and self.name:
            if self.history.ends.get((self.name, 0)) is FinishReason.LENGTH:
                self.prompt += [*self.history.texts[self.name, 0], len(self.prompt)]
            self.name = ""
        self.history = history

    def wait(self) -> None:
        """Wait for the result of a tool."""
        self.history.engine.keep(self.name, 0)

    @property
    def cached(self) -> int:
        """Prompt tokens of the last turn that were in the cache."""
        return max(status.cached_tokens for status in self.history.statuses[self.name])


def flood(history: History, requests: int, tokens: int = 20, **more: object) -> None:
    """Serve requests of another tenant with prompts that never come back."""
    for number in range(requests):
        start = 500 + number
        history.arrive([start, *range(tokens - 1)], 2, tenant="flood", cache_salt=f"flood {number}", **more)
        finish(history)


def finish(history: History) -> None:
    while history.engine.has_work or history.preparing:
        history.step()


@pytest.mark.parametrize("block", range(BLOCKS))
def test_random_conversations_have_the_same_texts(block: int) -> None:
    """Whatever is kept, evicted, moved to host memory and back: every text is that of a run alone."""
    restored = 0
    for case in range(CASES // BLOCKS):
        rng = random.Random(block * 1_000_000 + case)
        history = History(
            slots=rng.randint(1, 4),
            pages=rng.randint(8, 20),
            host=rng.choice([0, 6, 12, 30]),
            runs_ahead=rng.random() < 0.5,
            session_share=rng.choice([0.0, 0.2, 0.5, 1.0]),
            swap_speed=rng.choice([1.0, 1e9]),
        )
        talks = [Talk(history, tenant, rng.randint(4, 30), 100 + 100 * i) for i, tenant in enumerate("aabc")]
        for _ in range(rng.randint(10, 50)):
            match rng.choice(["ask", "ask", "wait", "step", "step", "step", "flood", "flood", "time", "abort"]):
                case "ask":
                    rng.choice(talks).ask(rng.randint(1, 6), service_class=rng.choice(list(ServiceClass)))
                case "wait":
                    rng.choice(talks).wait()
                case "step":
                    for _ in range(rng.randint(1, 20)):
                        history.step()
                case "flood":
                    for _ in range(rng.randint(1, 3)):
                        history.arrive([rng.randint(500, 900), *range(rng.randint(1, 28))], 3, tenant="flood")
                case "time":
                    history.now += rng.choice([0.1, 10.0, 100.0, HALF_LIFE_SECONDS])
                case "abort" if rng.random() < 0.2:
                    history.abort(rng.choice(talks).name)
        history.end()
        restored += history.engine.load().counters.restored_tokens
    assert restored, "no page came back from host memory"


def test_a_session_that_waits_for_a_tool_outlives_a_flood() -> None:
    """Without it, the same flood evicts its pages."""
    cached = []
    for waits in (False, True):
        history = History(slots=2, pages=24, host=0)
        talk = Talk(history, "agent", 30)
        talk.ask()
        finish(history)
        if waits:
            talk.wait()
        flood(history, 12)
        talk.ask()
        finish(history)
        cached.append(talk.cached)
        history.end()
    assert cached == [0, 32]


def test_pages_of_flex_work_are_evicted_first() -> None:
    """A flood of flex work does not evict what standard requests have cached."""
    history = History(slots=2, pages=24, host=0)
    talk = Talk(history, "person", 30)
    talk.ask()
    finish(history)
    flood(history, 12, service_class=ServiceClass.BATCH)
    talk.ask()
    finish(history)
    assert talk.cached == 32


def test_a_kept_page_is_evicted_if_a_running_sequence_needs_it() -> None:
    """Sessions reserve nothing: a request that needs the whole pool runs at once."""
    history = History(slots=2, pages=12, host=0, session_share=1.0)
    talk = Talk(history, "agent", 30)
    talk.ask()
    finish(history)
    talk.wait()
    history.arrive(list(range(500, 540)), 4, tenant="person")
    history.step()
    assert [sequence.request.tenant for sequence in history.scheduler.running] == ["person"]
    history.end()


def test_an_evicted_session_comes_back_from_host_memory() -> None:
    """Its pages are copied there before they are lost, and its next turn computes no token of them again."""
    history = History(slots=2, pages=12, host=12, session_share=1.0)
    talk = Talk(history, "agent", 30)
    talk.ask()
    finish(history)
    talk.wait()
    flood(history, 3, tokens=44)
    assert history.scheduler.kv_manager.host.cached == 8
    talk.ask()
    finish(history)
    assert talk.cached == 32
    assert history.engine.load().counters.restored_tokens == 32
    history.end()


def test_sessions_give_way_to_preempted_sequences_in_host_memory() -> None:
    """Host pages that sequences need are taken from sessions."""
    host = HostPool(4, CachedMarks())
    for number in range(4):
        assert host.store(bytes([number]), Rank.SESSION if number else Rank.WAITING) is not None
    assert (host.cached, host.used, host.available) == (4, 0, 4)
    pages = host.allocate(3)
    assert (host.cached, host.used) == (1, 3)
    assert bytes([0]) in host, "the lowest rank goes first"
    host.check_integrity([pages])
    assert host.store(b"x", Rank.SESSION) is None, "a page of a higher rank does not give way"
    assert host.store(b"x", Rank.WAITING) is not None
    assert bytes([0]) not in host


def test_a_tenant_with_many_sessions_gives_up_its_oldest() -> None:
    """The share is divided by max-min fairness: the tenant with one session keeps it."""
    history = History(slots=2, pages=40, host=0, session_share=0.5)
    small, talks = Talk(history, "small", 14), [Talk(history, "big", 14, 200 + 50 * i) for i in range(6)]
    for talk in (small, *talks):
        talk.ask()
        finish(history)
        talk.wait()
    ranks = history.scheduler.kv_manager.sessions
    waiting = [ranks.rank(first_digest(talk)) is Rank.WAITING for talk in (small, *talks)]
    assert waiting == [True, False, False, True, True, True, True]


def first_digest(talk: Talk) -> bytes:
    """Return the digest of the first page of a conversation."""
    return chain_next(chain_start(talk.tenant), talk.prompt[:PAGE_SIZE])


def test_a_session_waits_for_a_time_and_then_loses_half_of_its_pages_at_a_time() -> None:
    """After the time of its tool it is an ordinary session; after each half-life the end of it is given up."""
    history = History(slots=2, pages=24, host=0)
    talk = Talk(history, "agent", 30)
    talk.ask()
    finish(history)
    talk.wait()
    sessions, kept = history.scheduler.kv_manager.sessions, []
    for seconds in (0.0, TOOL_SECONDS, HALF_LIFE_SECONDS, HALF_LIFE_SECONDS, HALF_LIFE_SECONDS, HALF_LIFE_SECONDS):
        history.now += seconds
        history.step()
        kept.append((len(sessions.kept(Rank.WAITING)), len(sessions.kept(Rank.SESSION))))
    assert kept == [(8, 0), (0, 8), (0, 4), (0, 2), (0, 1), (0, 0)]


def test_an_answer_that_extends_another_is_a_session_of_its_own_accord() -> None:
    """A conversation is kept from its second answer on, and the longer one takes the place of the shorter one."""
    history = History(slots=2, pages=24, host=0)
    talk = Talk(history, "person", 14)
    sessions, kept = history.scheduler.kv_manager.sessions, []
    for _ in range(3):
        talk.ask()
        finish(history)
        kept.append(len(sessions.kept(Rank.SESSION)))
    assert kept == [0, 5, 6]


def test_what_is_kept_counts_as_service() -> None:
    """A tenth of a prompt token for each kept token in a half-life, charged with the owner's next request."""
    history = History(slots=2, pages=24, host=0, session_share=1.0)
    talk = Talk(history, "agent", 30)
    talk.ask()
    finish(history)
    talk.wait()
    history.now += HALF_LIFE_SECONDS
    history.step()
    manager, (agent, other) = history.scheduler.kv_manager, map(sequence_of, ("agent", "other"))
    assert manager.take_charge(agent) == pytest.approx(0.1 * 32, rel=1e-3)
    assert manager.take_charge(agent) == manager.take_charge(other) == 0.0


def sequence_of(owner: str) -> Sequence:
    """Return a sequence of an owner."""
    request = Request(id=owner, prompt=(1,), sampling=SamplingParams(max_tokens=1), cache_salt=owner)
    return Sequence(request, 0, 0, 0.0, PAGE_SIZE, 8)


def test_a_page_that_is_computed_again_has_the_rank_of_its_session() -> None:
    """A session outlives the eviction of its pages."""
    history = History(slots=2, pages=12, host=0, session_share=1.0)
    talk = Talk(history, "agent", 30)
    talk.ask()
    finish(history)
    talk.wait()
    flood(history, 3, tokens=44)
    assert not history.scheduler.kv_manager.pool.lookup([first_digest(talk)])
    history.arrive(talk.prompt, 1, tenant="agent", cache_salt="agent")
    finish(history)
    assert history.scheduler.kv_manager.pool.ranks()[first_digest(talk)] is Rank.WAITING


def test_pages_are_computed_again_if_that_takes_less_time_than_a_copy() -> None:
    """A slow copy from host memory delays no turn."""
    restored = []
    for swap_speed in (1e9, 0.01):
        history = History(slots=2, pages=12, host=12, session_share=1.0, swap_speed=swap_speed)
        talk = Talk(history, "agent", 30)
        talk.ask()
        finish(history)
        talk.wait()
        flood(history, 3, tokens=44)
        talk.ask()
        finish(history)
        restored.append(history.engine.load().counters.restored_tokens)
        history.end()
    assert restored == [32, 0]
