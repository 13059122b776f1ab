"""Journal of resumable answers: what is written is read again, in order, and nothing after a gap."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.store import writer as writer_module
from app.store.database import APPLICATION_ID, StoreError, connect
from app.store.entries import Entry, Note, Origin, Saved, Token
from app.store.state_file import StateFile
from app.store.writer import Write, Writer
from app.streams.stream_log import Cursor, CursorError, Delta, Failure, PredictionTokens, Reader, StreamLog, Usage
from engine.types import Event, FinishReason, Phase, Request, SamplingParams, ServiceClass, StatusEvent, TokenEvent
from tests.limits import HANG_SECONDS
from tests.profiles import examples

ID = "a1"


def entry(n: int = 1, **sampling) -> Entry:
    sampled = SamplingParams(max_tokens=9, seed=3, **sampling)
    request = Request(id=ID, prompt=(1, 2), sampling=sampled, n=n, prediction=(8, 9))
    origin = Origin("ChatRequest", b"{}", 60.0)
    return Entry(request, Note(origin, "o", "", "", 5.0, None, "f", "v", "e", ServiceClass.STANDARD))


def token(number: int, choice: int = 0, finish: FinishReason | None = None) -> TokenEvent:
    return TokenEvent(ID, choice, number, finish)


def reopened(path: Path) -> list[Saved]:
    file = StateFile(path)
    journal = file.journal
    found = journal.read()
    file.close()
    return found


async def recorded(path: Path, events: list[Event], n: int = 1, *, is_exact: bool = True) -> list[Event]:
    """Record events and close the journal. Return the events that were passed on."""
    passed: list[Event] = []
    file = StateFile(path)
    journal = file.journal
    file.writer.start()
    sink = journal.begin(entry(n), passed.append, is_exact=is_exact)
    for event in events:
        sink(event)
    journal.flush()
    await asyncio.to_thread(file.close)
    await asyncio.sleep(0.01)  # for callbacks of the writer
    return passed


@given(st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 3)), max_size=200), st.booleans())
@settings(max_examples=examples(60))
def test_tokens_are_read_in_order_of_arrival(tmp_path_factory, tokens: list[tuple[int, int]], is_exact: bool):
    """With any number of choices, and whether or not they are written before they are sent."""
    path = tmp_path_factory.mktemp("store") / "s.db"
    events: list[Event] = [token(number, choice) for number, choice in tokens]
    passed = asyncio.run(recorded(path, events, n=4 if any(choice for _, choice in tokens) else 1, is_exact=is_exact))
    [saved] = reopened(path)
    assert list(saved.events()) == passed == events
    assert saved.entry == entry(saved.entry.request.n) and saved.end is None and saved.starts == 1
    assert saved.output(2) == tuple(number for number, choice in tokens if choice == 2)


async def test_the_reason_of_an_end_belongs_to_its_choice(tmp_path: Path):
    events: list[Event] = [token(1), token(2, 1, FinishReason.LENGTH), token(3), token(4, 0, FinishReason.STOP)]
    await recorded(tmp_path / "s.db", events, n=2)
    assert list(reopened(tmp_path / "s.db")[0].events()) == events


async def test_tokens_after_a_gap_are_not_read(tmp_path: Path):
    """Tokens between them were lost while the disk was full, and are computed again."""
    path = tmp_path / "s.db"
    await recorded(path, [token(number) for number in range(200)])
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM tokens WHERE start = 64")
    assert reopened(path)[0].output(0) == tuple(range(64))


async def test_a_token_that_might_change_is_sent_after_it_is_written(tmp_path: Path):
    """Events after it are sent after it too."""
    file = StateFile(tmp_path / "s.db")
    journal = file.journal
    passed: list[Event] = []
    sink = journal.begin(entry(), passed.append, is_exact=False)
    events: list[Event] = [token(1), StatusEvent(ID, 0, Phase.PAUSED), token(2), StatusEvent(ID, 0, Phase.DECODE)]
    for event in events:
        sink(event)
    await asyncio.sleep(0.1)
    assert passed == []
    file.writer.start()
    async with asyncio.timeout(HANG_SECONDS):
        while len(passed) < len(events):
            await asyncio.sleep(0.01)
    assert passed == events
    journal.flush()
    await asyncio.to_thread(file.close)


async def test_the_last_record_is_kept(tmp_path: Path):
    file = StateFile(tmp_path / "s.db")
    journal = file.journal
    file.writer.start()
    journal.begin(entry(), lambda event: None, is_exact=True)
    log = StreamLog(ID, "e", "o")
    log.append(Usage(2, 3, 1, {"decode": 4.0}, prediction=PredictionTokens(1, 2)))
    journal.end(log)
    journal.flush()
    await asyncio.to_thread(file.close)
    ended = reopened(tmp_path / "s.db")[0].end
    assert ended is not None and ended.usage == log.records[-1] and ended.failure is None


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from([None, None, FinishReason.STOP])), max_size=200))
def test_adopted_choices_are_read_in_the_order_of_the_other_process(tmp_path_factory, given_turns):
    """With the ends of those that had ended, and the tokens that follow."""
    path = tmp_path_factory.mktemp("journal") / "s.db"
    tokens = [Token(choice, number, finish) for number, (choice, finish) in enumerate(given_turns)]

    async def adopt() -> None:
        file = StateFile(path)
        file.writer.start()
        sink = file.journal.adopt(Saved(entry(3), None, 1, tokens), lambda event: None, is_exact=False)
        sink(token(1000, 2))
        file.journal.flush()
        await asyncio.to_thread(file.close)
        await asyncio.sleep(0.01)  # for callbacks of the writer

    asyncio.run(adopt())
    assert reopened(path)[0].tokens == [*tokens, Token(2, 1000, None)]


async def test_a_stream_that_can_no_longer_be_read_leaves_nothing(tmp_path: Path):
    path = tmp_path / "s.db"
    file = StateFile(path)
    journal = file.journal
    file.writer.start()
    sink = journal.begin(entry(), lambda event: None, is_exact=True)
    for number in range(100):
        sink(token(number))
    journal.forget(ID)
    journal.flush()
    await asyncio.to_thread(file.close)
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM request").fetchone() == (0,)
    assert reopened(path) == []
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM tokens").fetchone() == (0,)


async def test_answers_with_log_probabilities_have_no_tokens_in_the_store(tmp_path: Path):
    path = tmp_path / "s.db"
    file = StateFile(path)
    journal = file.journal
    file.writer.start()
    passed: list[Event] = []
    journal.begin(entry(logprobs=2), passed.append, is_exact=True)(token(1))
    journal.flush()
    await asyncio.to_thread(file.close)
    assert passed == [token(1)] and reopened(path)[0].tokens == []


def test_the_epoch_of_cursors_is_that_of_the_first_process(tmp_path: Path):
    epochs: set[str] = set()
    for _ in range(2):
        file = StateFile(tmp_path / "s.db")
        epochs.add(file.epoch)
        file.close()
    assert len(epochs) == 1


def test_a_wrong_row_is_left_out(tmp_path: Path):
    file = StateFile(tmp_path / "s.db")
    journal = file.journal
    with file.writer.connection as connection:
        connection.execute("INSERT INTO request (id, owner, created, entry) VALUES ('x', 'o', 0, x'00')")
    assert journal.read() == []
    file.close()


def test_two_servers_cannot_use_one_store(tmp_path: Path):
    first = StateFile(tmp_path / "s.db")
    with pytest.raises(StoreError, match=r"s\.db: another server uses it"):
        StateFile(tmp_path / "s.db")
    first.close()
    StateFile(tmp_path / "s.db").close()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        ("CREATE TABLE other (x)", "it is a database of another application"),
        (f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = 99", "it has version 99"),
    ],
)
def test_the_file_of_another_program_or_version_is_refused(tmp_path: Path, make: str, message: str):
    with sqlite3.connect(tmp_path / "s.db") as connection:
        connection.executescript(make)
    with pytest.raises(StoreError, match=message):
        StateFile(tmp_path / "s.db")


def test_a_torn_file_is_refused(tmp_path: Path):
    (tmp_path / "s.db").write_bytes(b"SQLite format 3\0" + bytes(4080))
    with pytest.raises(StoreError, match=r"s\.db"):
        StateFile(tmp_path / "s.db")


def test_only_its_owner_can_read_the_file(tmp_path: Path):
    StateFile(tmp_path / "s.db").close()
    assert (tmp_path / "s.db").stat().st_mode & 0o077 == 0


class FullDisk:
    """Connection whose commits fail while the disk is full."""

    def __init__(self, connection: sqlite3.Connection, is_full: threading.Event) -> None:
        self._connection = connection
        self.is_full = is_full

    def __enter__(self) -> FullDisk:
        if self.is_full.is_set():
            raise sqlite3.OperationalError("database or disk is full")
        self._connection.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._connection.__exit__(*error)

    def __getattr__(self, name: str) -> object:
        return getattr(self._connection, name)


async def wait_until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(HANG_SECONDS):
        while not is_so():
            await asyncio.sleep(0.01)


async def test_a_full_disk_delays_nothing_and_is_caught_up_with(tmp_path: Path, monkeypatch, caplog):
    monkeypatch.setattr(writer_module, "RETRY_SECONDS", 0.05)
    is_full = threading.Event()
    is_full.set()
    writer = Writer(tmp_path / "s.db", lambda path: FullDisk(connect(path), is_full))
    writer.start()
    done: list[int] = []
    insert = "INSERT INTO state (name, value) VALUES (?, '')"
    for number in range(3):
        writer.put(Write(insert, (str(number),)), lambda number=number: done.append(number))
    await wait_until(lambda: writer.is_failing and len(done) == 3)
    assert caplog.text.count("cannot be written") == 1
    is_full.clear()
    await wait_until(lambda: not writer.is_failing and not writer.pending_bytes)
    assert done == [0, 1, 2] and "can be written again" in caplog.text
    await asyncio.to_thread(writer.close)
    with sqlite3.connect(tmp_path / "s.db") as connection:
        assert connection.execute("SELECT count(*) FROM state WHERE value = ''").fetchone() == (3,)


async def test_a_caller_that_waits_for_a_commit_does_not_wait_for_other_changes(tmp_path: Path, monkeypatch):
    """The changes before are on disk then."""
    monkeypatch.setattr(writer_module, "COMMIT_SECONDS", 2 * HANG_SECONDS)
    writer = Writer(tmp_path / "s.db", connect)
    writer.start()
    assert writer.put(Write("INSERT INTO state (name, value) VALUES ('x', '')", ()))
    number, done = writer.queued, threading.Event()
    writer.commit_soon(done.set)
    assert await asyncio.to_thread(done.wait, HANG_SECONDS) and writer.written >= number
    await asyncio.to_thread(writer.close)


def test_changes_in_memory_are_bounded(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(writer_module, "MAX_PENDING_BYTES", 1000)
    writer = Writer(tmp_path / "s.db", connect)
    done: list[int] = []
    for number in range(10):
        is_queued = writer.put(Write("", (b"x" * 100,)), lambda number=number: done.append(number))
        assert is_queued == (number < 3)
    assert writer.lost == 7 and writer.pending_bytes <= 1000 and done == list(range(3, 10))
    writer.close()


def test_a_reader_that_is_ahead_of_a_restored_log_waits_for_the_next_record():
    log = StreamLog(ID, "e", "o")
    reader = Reader(log, 2)
    for number in range(4):
        log.append(Delta(0, str(number), 1))
        read = [item.record.text for item in reader.read()]
        assert read == ([str(number)] if number >= 2 else [])
    log.append(Failure("x", "y", None))
    assert len(reader.read()) == 1 and reader.is_done


def test_a_stream_that_is_being_restored_is_not_reported_as_lost():
    from app.generation.registry import StreamRegistry

    registry = StreamRegistry(epoch="e", awaited={ID})
    with pytest.raises(CursorError) as waiting:
        registry.resume(ID, "o", str(Cursor(ID, "e", 3)))
    assert waiting.value.status == 503
