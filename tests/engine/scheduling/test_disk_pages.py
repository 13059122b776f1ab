"""Pages of sessions on disk: they outlive the engine, and never change a text or hold up a step."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from engine.cache_note import CacheMiss
from engine.prefixes import KEY_BYTES, CachedMarks, marks_of
from engine.scheduling.disk_pages import WRITING_DIVISOR
from engine.types import ServiceClass, WaitReason
from tests.engine.scheduling.history import PAGE_SIZE, History
from tests.engine.scheduling.test_sessions import Talk, finish, first_digest, flood
from tests.profiles import examples

CASES, BLOCKS = examples(1500), 10
Contents = dict[bytes, list[int]]


def idle(history: History) -> None:
    """Step until all that is to be written is on disk."""
    while history.engine.seconds_to_step() is not None:
        history.step()


def restarted(talk: Talk, disk: Contents, **options: object) -> History:
    """Return the next engine, and let a conversation go on there."""
    history = History(**{"slots": 2, "pages": 24, "host": 24, "disk": disk, **options})
    talk.move(history)
    return history


def told(disk: Contents, **options: object) -> tuple[Talk, History]:
    """Return a conversation that waits for a tool, and whose pages are on disk."""
    history = History(**{"slots": 2, "pages": 24, "host": 24, "disk": disk, **options})
    talk = Talk(history, "agent", 30)
    talk.ask()
    finish(history)
    talk.wait()
    idle(history)
    return talk, history


@pytest.mark.parametrize("block", range(BLOCKS))
def test_random_conversations_have_the_same_texts_with_a_disk_and_restarts(block: int) -> None:
    """Whatever is written, read, lost or late, in one engine or the next: every text is that of a run alone."""
    read = 0
    for case in range(CASES // BLOCKS):
        rng = random.Random(block * 1_000_000 + case)
        disk: Contents = {}
        talks: list[Talk] = []
        for _ in range(rng.randint(1, 3)):
            history = History(
                slots=rng.randint(1, 4),
                pages=rng.randint(8, 20),
                host=rng.choice([2, 6, 12, 30]),
                runs_ahead=rng.random() < 0.5,
                session_share=rng.choice([0.2, 0.5, 1.0]),
                disk=disk,
            )
            history.store.seconds_per_page = rng.choice([0.0, 0.0, 1e-3, 1e9])
            if not talks:
                talks = [Talk(history, tenant, rng.randint(4, 30), 100 + 100 * i) for i, tenant in enumerate("aabc")]
            for talk in talks:
                talk.move(history)
            for _ in range(rng.randint(10, 40)):
                match rng.choice(["ask", "ask", "wait", "step", "step", "step", "flood", "disk", "time", "abort"]):
                    case "ask":
                        rng.choice(talks).ask(rng.randint(1, 6), service_class=rng.choice(list(ServiceClass)))
                    case "wait":
                        rng.choice(talks).wait()
                    case "step":
                        for _ in range(rng.randint(1, 20)):
                            history.step()
                    case "flood":
                        history.arrive([rng.randint(500, 900), *range(rng.randint(1, 28))], 3, tenant="flood")
                    case "disk":
                        history.store.is_slow, history.store.is_broken = rng.random() < 0.3, rng.random() < 0.2
                        for digest in rng.sample(sorted(disk), rng.choice([0, 0, len(disk) // 4])):
                            del disk[digest]  # dropped for the bound of the store
                    case "time":
                        history.now += rng.choice([0.1, 10.0, 1000.0])
                    case "abort" if rng.random() < 0.2:
                        history.abort(rng.choice(talks).name)
            history.end()
            read += history.engine.load().counters.read_tokens
    assert read, "no page came back from disk"


def test_the_next_engine_finds_what_the_one_before_has_written() -> None:
    """After a restart the prompt of a conversation is read from disk, except for the new tokens."""
    disk: Contents = {}
    talk, history = told(disk)
    assert len(disk) == 8
    history.end()
    history = restarted(talk, disk)
    talk.ask()
    finish(history)
    assert talk.cached == 32
    assert history.engine.load().counters.read_tokens == 32
    history.end()


def test_a_conversation_is_on_disk_while_its_tool_works() -> None:
    """Its pages are written without a further request and before anything is evicted: a kill loses nothing of it."""
    disk: Contents = {}
    _, history = told(disk)
    assert len(disk) == 8
    assert history.engine.seconds_to_step() is None
    assert history.scheduler.kv_manager.host.available == 24


def test_only_conversations_that_go_on_are_written() -> None:
    """Pages of single requests are not."""
    disk: Contents = {}
    history = History(slots=2, pages=24, disk=disk)
    flood(history, 3)
    idle(history)
    assert not disk


def test_pages_are_written_once() -> None:
    """The next turn writes the pages that are new, in files of consecutive pages."""
    disk: Contents = {}
    talk, history = told(disk)
    talk.ask()
    finish(history)
    talk.wait()
    idle(history)
    runs = history.store.runs
    assert sum(len(run.digests) for run in runs) == len(disk) == 9
    assert [run.first for run in runs] == [0, 2, 4, 6, 8]


def test_a_chain_is_in_use_when_its_end_has_been_written() -> None:
    """Its beginning is then newer than its end, which is dropped first; also when the next turn adds a page."""
    disk: Contents = {}
    talk, history = told(disk)
    assert len(history.store.touched) == len(disk) == 8
    talk.ask()
    finish(history)
    talk.wait()
    idle(history)
    assert len(history.store.touched) == len(disk) == 9


def test_a_step_copies_a_few_pages_for_the_disk() -> None:
    """A long conversation is written over several steps, and takes a share of host memory."""
    history = History(slots=2, pages=24, host=8, disk={})
    talk = Talk(history, "agent", 40)
    talk.ask()
    finish(history)
    talk.wait()
    history.store.is_slow = True
    taken = []
    for _ in range(4):
        taken.append(8 - history.scheduler.kv_manager.host.available)
        history.step()
    assert taken == [0, 2, 2, 2]
    assert max(taken) == 8 // WRITING_DIVISOR
    history.end()


def test_an_evicted_conversation_is_read_from_disk() -> None:
    """It comes back after device and host memory have lost it, and nothing of it counts as lost."""
    talk, history = told({}, pages=12, host=8, session_share=1.0)
    other = Talk(history, "other", 30, 300)
    for _ in range(2):
        flood(history, 3, tokens=44)
        other.ask()
        finish(history)
        other.wait()
        idle(history)
    assert history.engine.load().counters.lost_tokens == 0, "they are on disk"
    talk.ask()
    finish(history)
    assert talk.cached >= 16
    assert history.engine.load().counters.read_tokens >= 16
    history.end()


def test_a_page_of_another_salt_is_never_read() -> None:
    """The same prompt of another tenant finds nothing on disk."""
    disk: Contents = {}
    talk, history = told(disk)
    history.end()
    other = Talk(talk.history, "other", 30)
    history = restarted(other, disk)
    other.ask()
    finish(history)
    assert other.cached == 0
    assert history.engine.load().counters.restored_tokens == 0


def test_reading_that_takes_longer_than_computing_is_left_out() -> None:
    """Its client reads why the cache was of no use."""
    disk: Contents = {}
    talk, history = told(disk)
    history.end()
    history = restarted(talk, disk)
    history.store.seconds_per_page = 1.0
    talk.ask()
    finish(history)
    assert talk.cached == 0
    notes = [status.cache_note for status in history.statuses[talk.name] if status.cache_note is not None]
    assert [note.reason for note in notes] == [CacheMiss.UNKNOWN], "this engine has no earlier answer"
    flood(history, 3, tokens=60)
    talk.ask()
    finish(history)
    notes = [status.cache_note for status in history.statuses[talk.name] if status.cache_note is not None]
    assert CacheMiss.DISK in [note.reason for note in notes] or talk.cached


def test_a_request_waits_for_its_pages_and_no_longer_than_computing_them_takes() -> None:
    """It is held back with the reason, while others go on; a disk that hangs costs it a bounded time."""
    disk: Contents = {}
    talk, history = told(disk)
    history.end()
    history = restarted(talk, disk)
    history.store.is_slow = True
    talk.ask()
    [(request, preparation)] = history.preparing
    assert preparation.cause is WaitReason.DISK
    history.arrive([1, 2, 3], 4, tenant="person")
    history.step()
    assert [sequence.request.tenant for sequence in history.scheduler.running] == ["person"]
    assert (request, preparation) in history.preparing
    history.now += 0.32  # 32 tokens, of which 100 are computed in a second
    history.step()
    assert not history.preparing
    assert any(sequence.request.id == talk.name for sequence in history.scheduler.running)
    finish(history)
    assert talk.cached == 0
    history.end()


def test_pages_that_cannot_be_read_are_computed() -> None:
    """A damaged file costs time and nothing else."""
    disk: Contents = {}
    talk, history = told(disk)
    history.end()
    history = restarted(talk, disk)
    history.store.is_broken = True
    talk.ask()
    finish(history)
    history.end()
    assert history.engine.load().counters.unreadable_tokens >= 32


def test_two_requests_wait_for_the_same_pages() -> None:
    """A page is read once, whoever continues it."""
    disk: Contents = {}
    talk, history = told(disk)
    history.end()
    twin = Talk(talk.history, "agent", 30)
    twin.prompt, twin.name = list(talk.prompt), talk.name
    history = restarted(talk, disk)
    twin.move(history)
    history.store.is_slow = True
    talk.ask()
    twin.ask()
    assert len(history.preparing) == 2
    history.store.is_slow = False
    finish(history)
    assert talk.cached == twin.cached == 32
    assert history.engine.load().counters.read_tokens == 32
    history.end()


def test_a_conversation_goes_on_as_one_after_a_restart() -> None:
    """What is read has the rank of a session, so that a flood evicts other pages first."""
    disk: Contents = {}
    talk, history = told(disk)
    history.end()
    history = restarted(talk, disk)
    talk.ask()
    finish(history)
    assert history.scheduler.kv_manager.sessions.rank(first_digest(talk)) is not None
    flood(history, 12)
    talk.ask()
    finish(history)
    assert talk.cached >= 32
    history.end()


def test_a_full_disk_stops_nothing() -> None:
    """Pages that cannot be written are counted, and are not tried again until the conversation goes on."""
    history = History(slots=2, pages=24, host=24, disk={})
    history.store.is_broken = True
    talk = Talk(history, "agent", 30)
    talk.ask()
    finish(history)
    talk.wait()
    idle(history)
    assert history.engine.load().counters.unstored_tokens == 32
    assert all(a != b for a, b in pairwise(history.store.runs))
    history.end()


def test_pages_that_only_host_memory_has_are_written_from_there() -> None:
    """A conversation that was evicted before it was written is not lost, and stays in host memory."""
    disk: Contents = {}
    history = History(slots=2, pages=12, host=24, session_share=1.0, disk=disk)
    talk = Talk(history, "agent", 30)
    talk.ask()
    finish(history)
    talk.wait()
    history.store.is_slow = True
    flood(history, 3, tokens=44)
    history.store.is_slow = False
    idle(history)
    assert len(disk) == 8
    assert history.scheduler.kv_manager.host.cached == 8
    assert PAGE_SIZE * 8 == 32
    history.end()


def test_api_processes_learn_what_host_memory_and_disk_have() -> None:
    """The marks of a conversation are reported until its last place has lost it, and by the next engine at once."""
    disk: Contents = {}
    talk, history = told(disk, pages=12, host=12, session_share=1.0)
    marks = history.scheduler.kv_manager.pool.marks
    before = marks_of(talk.prompt, "agent", PAGE_SIZE, 8)
    flood(history, 6, tokens=44)
    assert len(before) == 1
    assert before[0] in keys(marks)
    history.end()
    history = restarted(talk, disk)
    marks = history.scheduler.kv_manager.pool.marks
    assert keys(marks) == set()
    history.store.marked = {digest for digest in disk if digest[:KEY_BYTES] in before}
    history.scheduler.kv_manager.use_disk(history.store, pages_per_step=2)
    assert keys(marks) == set(before)
    disk.clear()
    talk.ask()
    finish(history)
    talk.wait()
    idle(history)
    history.end()
    assert set(before) < keys(marks)


def keys(marks: CachedMarks) -> set[bytes]:
    """Return all marks."""
    gained = marks.take_all().gained
    return {gained[at : at + KEY_BYTES] for at in range(0, len(gained), KEY_BYTES)}


def test_what_was_used_last_is_read_when_the_engine_starts() -> None:
    """The prompt of the next turn does not wait; free host pages are used, and no more than half of them."""
    disk: Contents = {}
    talk, history = told(disk)
    history.end()
    history = restarted(talk, disk, host=24)
    idle(history)
    assert history.scheduler.kv_manager.host.cached == 8
    talk.ask()
    assert not history.preparing
    finish(history)
    assert talk.cached == 32
    history.end()
    history = restarted(talk, disk, host=10)
    idle(history)
    assert history.scheduler.kv_manager.host.cached == 5
