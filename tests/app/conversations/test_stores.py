"""Stores of conversations: the same answers from memory and from a file, also after the file is opened again."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from app.conversations.memory_store import MemoryStore
from app.conversations.shelf import Limits
from app.conversations.store import (
    CompletionWindow,
    ConversationStore,
    StoredCompletion,
    StoredConversation,
    StoredItem,
    StoredResponse,
)
from app.errors import ApiError
from app.routes.completion_list import list_part
from app.store import record_file as record_file_module
from app.store import writer as writer_module
from app.store.conversations import FileStore
from app.store.database import connect
from app.store.record_changes import FileLimits, remove
from app.store.record_file import RecordFile
from app.store.writer import Writer
from tests.app.store.test_journal import FullDisk, wait_until
from tests.profiles import examples

Answer = TypeVar("Answer")

MANY = 1 << 30
AMPLE = FileLimits(MANY, 1e9)


class OpenFile:
    """Store in a file that a test closes and opens again. Its memory has almost no room."""

    def __init__(self, path: Path, limits: FileLimits = AMPLE, records: int = 1) -> None:
        self.path = path
        self.is_full = threading.Event()
        self.writer = Writer(path, lambda path: FullDisk(connect(path), self.is_full))
        self.file = RecordFile(path, self.writer, limits)
        self.store = FileStore(self.file, MemoryStore(Limits(records=records)))
        self.unfinished = self.file.read_unfinished()
        self.writer.start()

    async def written(self) -> None:
        """Wait until all changes so far are on disk, however slow it is."""
        last = self.writer.queued
        await wait_until(lambda: self.writer.written >= last)

    def close(self) -> None:
        self.file.close()
        self.writer.close()


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path):
    if request.param == "memory":
        yield MemoryStore()
    else:
        with closing(OpenFile(tmp_path / "s.db")) as opened:
            yield opened.store


@pytest.fixture
def opened(tmp_path: Path):
    with closing(OpenFile(tmp_path / "s.db")) as opened:
        yield opened


def item(name: str, size: int = 2) -> StoredItem:
    return StoredItem(name, b'"%s"' % (b"x" * size))


def response(name: str, previous: str | None = None, owner: str = "a", size: int = 2) -> StoredResponse:
    own = (item(f"in_{name}", size),)
    return StoredResponse(id=name, owner=owner, tenant=owner, created=0.0, previous_id=previous, input=own)


def add(
    store: ConversationStore,
    name: str,
    previous: str | None = None,
    size: int = 2,
    owner: str = "a",
    before: Sequence[StoredItem] = (),
) -> None:
    """Add a response that has ended."""
    store.add_response(response(name, previous, owner, size), before)
    store.end_response(name, b'{"id":1}', (item(f"out_{name}"),))


def completion(name: str, at: float = 0.0, owner: str = "a", **fields: object) -> StoredCompletion:
    return StoredCompletion(id=name, owner=owner, tenant=owner, created=at, **{"model": "m", "body": b"{}", **fields})


async def chain(store: ConversationStore, name: str, owner: str = "a") -> list[StoredItem] | None:
    record = await store.response(name, owner)
    found = None if record is None else await store.history(record)
    return None if found is None else list(found)


async def history(store: ConversationStore, name: str, owner: str = "a") -> list[str] | None:
    found = await chain(store, name, owner)
    return None if found is None else [each.id for each in found]


async def listed(
    store: ConversationStore, owner: str = "a", limit: int = 100, after: str | None = None, **fields: object
) -> list[str] | None:
    part = await list_part(store, owner, CompletionWindow(limit=limit, **fields), after)
    return None if part is None else [record.id for record in part.records]


async def test_a_chain_has_the_items_of_all_its_responses(store: ConversationStore):
    """Also of one that was deleted."""
    add(store, "r1")
    add(store, "r2", "r1")
    add(store, "r3", "r2")
    whole = ["in_r1", "out_r1", "in_r2", "out_r2", "in_r3", "out_r3"]
    assert await history(store, "r3") == whole
    assert await store.delete_response("r1", "a") and await store.delete_response("r2", "a")
    assert await history(store, "r3") == whole and await history(store, "r1") is None
    assert await store.item("in_r1", "a") is None and await store.item("in_r3", "a") == item("in_r3")
    assert store.usage()["responses"].records == 1
    assert await store.delete_response("r3", "a")
    assert store.usage()["responses"].bytes == 0 and not await store.delete_response("r3", "a")


async def test_a_response_that_continues_one_that_is_gone_keeps_its_items(store: ConversationStore):
    store.add_response(response("r2", "gone"), [item("x"), item("y")])
    assert await history(store, "r2") == ["x", "y", "in_r2"]


async def test_a_record_of_another_owner_looks_as_an_unknown_one(store: ConversationStore):
    """It can be neither read, listed nor deleted, and neither can its items."""
    add(store, "r1")
    store.add_conversation(StoredConversation(id="c1", owner="a", tenant="a", created=0.0, items=(item("i"),)))
    store.add_completion(completion("k1"))
    for other in ("r1", "unknown", "ünknown"):
        assert await store.response(other, "b") is None and not await store.delete_response(other, "b")
    for other in ("c1", "unknown", "ünknown"):
        assert await store.conversation(other, "b") is None and not await store.delete_conversation(other, "b")
    for other in ("k1", "unknown", "ünknown"):
        assert await store.completion(other, "b") is None and not await store.delete_completion(other, "b")
        assert await listed(store, "b", after=other) is None
    assert await listed(store, "b") == []
    for name in ("in_r1", "out_r1", "i", "unknown", "ünknown"):
        assert await store.item(name, "b") is None
    assert await store.response("r1", "a") and await store.conversation("c1", "a") and await store.completion("k1", "a")


async def test_an_answer_is_added_once(store: ConversationStore):
    """A restored answer may end again."""
    add(store, "r1")
    store.end_response("r1", b'{"id":2}', (item("again"),))
    store.add_completion(completion("k1", body=b""))
    assert await store.completion("k1", "a") is None
    store.end_completion("k1", b'{"id":1}')
    store.end_completion("k1", b"")
    add(store, "other")  # the file's store has only the last one in memory
    store.add_completion(completion("other"))
    record = await store.response("r1", "a")
    assert record is not None and record.fields == b'{"id":1}' and [each.id for each in record.output] == ["out_r1"]
    kept = await store.completion("k1", "a")
    assert kept is not None and kept.body == b'{"id":1}'


async def test_a_write_to_a_record_that_is_gone_does_nothing(store: ConversationStore):
    store.end_response("gone", b"{}", (item("x"),))
    store.extend_conversation("gone", [item("x")])
    store.remove_conversation_item("gone", "x")
    store.update_conversation("gone", b"{}")
    store.end_completion("gone", b"{}")
    store.update_completion("gone", {"a": "b"})
    assert await store.item("x", "a") is None and await store.response("gone", "a") is None
    assert [usage.records for usage in store.usage().values()] == [0, 0, 0]


async def test_a_conversation_keeps_the_order_of_its_items(store: ConversationStore):
    """An item is in it once, and has gone when it was removed."""
    store.add_conversation(StoredConversation(id="c1", owner="a", tenant="a", created=0.0, items=(item("1"),)))
    store.extend_conversation("c1", [item("1"), item("2"), item("3")])
    store.remove_conversation_item("c1", "2")
    store.extend_conversation("c1", [item("4")])
    store.update_conversation("c1", b'{"topic":"x"}')
    found = await store.conversation("c1", "a")
    assert found is not None and found.metadata == b'{"topic":"x"}'
    assert [each.id for each in found.items] == ["1", "3", "4"] and await store.item("2", "a") is None
    assert await store.delete_conversation("c1", "a") and await store.item("1", "a") is None


async def test_completions_are_listed_in_pages(store: ConversationStore):
    """By time and id, selected by model and metadata."""
    for at in (3, 1, 2):
        store.add_completion(completion(f"k{at}", at, metadata={"a.b": "1", "n": str(at)}))
    store.add_completion(completion("other", 4.0, model="o"))
    store.add_completion(completion("running", 5.0, body=b""))
    assert await listed(store) == ["k1", "k2", "k3", "other"]
    assert await listed(store, is_ascending=False, limit=2) == ["other", "k3"]
    assert await listed(store, after="k1", limit=2) == ["k2", "k3"]
    assert await listed(store, after="k2", is_ascending=False) == ["k1"]
    assert await listed(store, metadata={"a.b": "1"}, model="m") == ["k1", "k2", "k3"]
    assert await listed(store, metadata={"n": "2"}) == ["k2"] and await listed(store, metadata={"n": "4"}) == []
    assert await listed(store, after="other", model="m") is None and await listed(store, after="gone") is None
    store.update_completion("k2", {"n": "4"})
    assert await listed(store, metadata={"n": "4"}) == ["k2"]
    page = await store.completions("a", CompletionWindow(limit=4))
    assert not page.has_more


async def same(stores: Sequence[ConversationStore], ask: Callable[[ConversationStore], Awaitable[Answer]]) -> Answer:
    """Return the answer of all stores to a question."""
    answers = [await ask(store) for store in stores]
    assert all(answer == answers[0] for answer in answers), answers
    return answers[0]


class Actions:
    """Random operations on several stores, whose answers are compared."""

    def __init__(self, seed: int, stores: list[ConversationStore]) -> None:
        self.chance = random.Random(seed)
        self.stores = stores
        self.names = {"r": ["r"], "c": ["c"], "k": ["k"]}

    def new(self, kind: str) -> str:
        self.names[kind].append(f"{kind}{len(self.names[kind])}")
        return self.names[kind][-1]

    def some(self, kind: str) -> str:
        return self.chance.choice(self.names[kind][-8:])

    async def write(self) -> None:
        """Do one operation."""
        owner, action, size = self.chance.choice("ab"), self.chance.randrange(12), self.chance.randrange(3000)
        response_id, conversation_id, completion_id = (self.some(kind) for kind in "rck")
        if action < 3:
            previous = self.chance.choice([None, response_id])
            before = await same(self.stores, lambda store: chain(store, previous or "", owner))
            name = self.new("r")
            for store in self.stores:
                add(store, name, None if before is None else previous, size, owner, before or ())
        elif action == 3:
            await same(self.stores, lambda store: store.delete_response(response_id, owner))
        elif action == 4:
            record = StoredConversation(id=self.new("c"), owner=owner, tenant=owner, created=0.0)
            self.each(lambda store: store.add_conversation(record))
        elif action < 7:
            items = [item(f"i{self.chance.randrange(9)}", 5) for _ in range(2)]
            self.each(lambda store: store.extend_conversation(conversation_id, items[:1]))
            self.each(lambda store: store.update_conversation(conversation_id, b'{"s":"%d"}' % size))
        elif action == 7:
            self.each(lambda store: store.remove_conversation_item(conversation_id, f"i{size % 9}"))
        elif action == 8:
            await same(self.stores, lambda store: store.delete_conversation(conversation_id, owner))
        elif action == 9:
            record = completion(self.new("k"), self.chance.random(), owner, body=b"")
            self.each(lambda store: store.add_completion(record))
        elif action == 10:
            self.each(lambda store: store.end_completion(completion_id, self.chance.choice((b"{}", b"{}", b""))))
        else:
            await same(self.stores, lambda store: store.delete_completion(completion_id, owner))

    def each(self, act: Callable[[ConversationStore], None]) -> None:
        state = self.chance.getstate()
        for store in self.stores:
            self.chance.setstate(state)
            act(store)

    async def read(self) -> None:
        """Compare all that can be read."""
        for owner in "ab":
            for name in self.names["r"]:
                await same(self.stores, lambda store: history(store, name, owner))  # noqa: B023
                await same(self.stores, lambda store: store.item(f"in_{name}", owner))  # noqa: B023
            for name in self.names["c"]:
                await same(self.stores, lambda store: store.conversation(name, owner))  # noqa: B023
            for at in range(9):
                await same(self.stores, lambda store: store.item(f"i{at}", owner))  # noqa: B023
            await same(self.stores, lambda store: listed(store, owner))  # noqa: B023
        usages = [{kind: (usage.records, usage.bytes) for kind, usage in s.usage().items()} for s in self.stores]
        assert usages[0] == usages[1], usages


@pytest.mark.parametrize("seed", range(examples(8)))
async def test_a_file_answers_as_memory_does(seed: int, tmp_path: Path):
    """After any operations, and after the file was opened again."""
    opened = OpenFile(tmp_path / "s.db", records=random.Random(seed).choice((1, 3, 1000)))
    actions = Actions(seed, [MemoryStore(), opened.store])
    for _ in range(3):
        for _ in range(40):
            await actions.write()
        await actions.read()
        await asyncio.to_thread(opened.close)
        opened = OpenFile(tmp_path / "s.db")
        actions.stores[1] = opened.store
        await actions.read()
    check_sums(opened)
    await asyncio.to_thread(opened.close)


def check_sums(opened: OpenFile) -> None:
    """Check that sums are those of the records, and that each ancestor and item is needed."""
    with closing(sqlite3.connect(opened.path)) as db:

        def one(query: str) -> object:
            return db.execute(query).fetchone()[0]

        kinds = db.execute("SELECT kind, sum(is_ancestor = 0), sum(size) FROM record GROUP BY kind ORDER BY kind")
        totals = db.execute("SELECT kind, records, bytes FROM total WHERE bytes > 0 ORDER BY kind")
        assert kinds.fetchall() == totals.fetchall()
        shares = db.execute("SELECT tenant, sum(is_ancestor = 0), sum(size) FROM record GROUP BY tenant ORDER BY 1")
        assert shares.fetchall() == db.execute("SELECT tenant, records, bytes FROM share ORDER BY 1").fetchall()
        assert one("SELECT count(*) FROM item WHERE record NOT IN (SELECT id FROM record)") == 0
        unused = "SELECT count(*) FROM record AS own WHERE is_ancestor = 1 AND NOT EXISTS "
        assert one(f"{unused} (SELECT 1 FROM record WHERE previous_id = own.id)") == 0


def pages(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA page_count").fetchone()[0])


async def test_many_small_responses_stay_within_the_size(tmp_path: Path):
    """File and memory are bounded, and the tenant with the largest share loses its own records only."""
    limit = 1 << 20
    with closing(OpenFile(tmp_path / "s.db", FileLimits(limit, 1e9), records=100)) as opened:
        store, sizes = opened.store, []
        add(store, "mine", owner="b")
        for at in range(6000):
            add(store, f"r{at}", owner="a")
            if at % 500 == 499:
                await opened.written()
                sizes.append(await opened.file.read(pages))
                assert sum(usage.bytes for usage in store.usage().values()) <= limit
        assert store.usage()["responses"].evicted > 5000 and max(sizes[6:]) <= 1.1 * max(sizes[:6])
        assert (tmp_path / "s.db-wal").stat().st_size < 8 << 20 and opened.writer.lost == 0
        assert await history(store, "mine", "b") == ["in_mine", "out_mine"] and await history(store, "r0") is None
        assert await history(store, "r5999") is not None
        check_sums(opened)


async def test_a_change_examines_as_much_in_a_large_file_as_in_a_small_one(opened: OpenFile):
    """Its cost is that of the records it changes."""

    async def steps(first: int) -> int:
        count = 0

        def step() -> int:
            nonlocal count
            count += 1
            return 0

        await opened.written()
        opened.writer.connection.set_progress_handler(step, 1)
        for at in range(first, first + 10):
            add(opened.store, f"r{at}", f"r{at - 1}" if at % 10 else None)
        await opened.written()
        opened.writer.connection.set_progress_handler(None, 1)
        return count

    few = await steps(0)
    for at in range(10, 1500):
        add(opened.store, f"r{at}", owner=str(at % 97))
    assert await steps(1500) < 1.2 * few


async def test_a_smaller_size_is_reached_without_further_records(tmp_path: Path):
    """A server may be started again with a lower limit."""
    with closing(OpenFile(tmp_path / "s.db")) as opened:
        for at in range(1000):
            add(opened.store, f"r{at}", f"r{at - 1}" if at % 2 else None)
    limit = 100_000
    with closing(OpenFile(tmp_path / "s.db", FileLimits(limit, 1e9))) as opened:
        await wait_until(lambda: opened.file.totals["response"][1] <= limit)
        check_sums(opened)


async def test_a_record_expires_after_its_last_change(tmp_path: Path, monkeypatch):
    """What others continue stays as a part of them."""
    now = [1000.0]
    monkeypatch.setattr("app.store.conversations.time.time", lambda: now[0])
    with closing(OpenFile(tmp_path / "s.db", FileLimits(MANY, 10.0))) as opened:
        add(opened.store, "r1")
        add(opened.store, "other")
        now[0] = 1009.0
        add(opened.store, "r2", "r1", before=await chain(opened.store, "r1") or ())
        add(opened.store, "another")
        now[0] = 1011.0
        assert await history(opened.store, "r1") is None and await history(opened.store, "other") is None
        assert await history(opened.store, "r2") == ["in_r1", "out_r1", "in_r2", "out_r2"]
        add(opened.store, "r3")
        await opened.written()
        assert opened.file.totals["response"][0] == 3
        check_sums(opened)


async def test_a_long_chain_is_read_and_released(opened: OpenFile):
    """It is longer than Python's stack is deep."""
    for at in range(4096):
        opened.store.add_response(response(f"r{at}", f"r{at - 1}" if at else None), ())
    assert len(await history(opened.store, "r4095") or ()) == 4096
    for at in range(4096):
        opened.file.remove(f"r{at}", partial(remove, record_id=f"r{at}"))
    await opened.written()
    assert opened.file.totals["response"][:2] == (0, 0)
    check_sums(opened)


async def test_a_full_disk_stops_neither_reads_nor_the_newest_chains(tmp_path: Path, monkeypatch):
    """A deleted record is absent although the file still has it; all is written once the disk has room."""
    monkeypatch.setattr(writer_module, "RETRY_SECONDS", 0.05)
    opened = OpenFile(tmp_path / "s.db", records=2)
    store = opened.store
    for at in range(5):
        add(store, f"old{at}")
    store.add_conversation(StoredConversation(id="c1", owner="a", tenant="a", created=0.0, items=(item("i"),)))
    store.add_conversation(StoredConversation(id="c2", owner="a", tenant="a", created=0.0))
    store.add_conversation(StoredConversation(id="c3", owner="a", tenant="a", created=0.0))
    await opened.written()
    opened.is_full.set()
    add(store, "new1")
    await wait_until(lambda: opened.writer.is_failing)
    add(store, "new2", "new1")
    assert await history(store, "new2") == ["in_new1", "out_new1", "in_new2", "out_new2"]
    assert await history(store, "old0") == ["in_old0", "out_old0"]
    assert await store.delete_response("old0", "a") and await history(store, "old0") is None
    assert await store.item("in_old0", "a") is None
    store.remove_conversation_item("c1", "i")
    found = await store.conversation("c1", "a")
    assert found is not None and found.items == () and await store.item("i", "a") is None
    opened.is_full.clear()
    await wait_until(lambda: not opened.writer.is_failing)
    await asyncio.to_thread(opened.close)
    opened = OpenFile(tmp_path / "s.db")
    assert await history(opened.store, "new2") == ["in_new1", "out_new1", "in_new2", "out_new2"]
    assert await history(opened.store, "old0") is None
    await asyncio.to_thread(opened.close)


async def test_a_removal_that_would_be_lost_is_refused(tmp_path: Path, monkeypatch):
    """The record would be there again after a restart."""
    opened = OpenFile(tmp_path / "s.db")
    add(opened.store, "r1")
    await opened.written()
    opened.is_full.set()
    monkeypatch.setattr(writer_module, "MAX_PENDING_BYTES", 0)
    with pytest.raises(ApiError) as refused:
        await opened.store.delete_response("r1", "a")
    assert (refused.value.status, refused.value.code) == (503, "store_unavailable")
    assert await history(opened.store, "r1") is not None
    await asyncio.to_thread(opened.close)


async def test_a_disk_that_does_not_respond_delays_a_read_for_a_bounded_time(opened: OpenFile, monkeypatch):
    """The read then sees what is on disk."""
    monkeypatch.setattr(record_file_module, "COMMIT_WAIT_SECONDS", 0.05)
    monkeypatch.setattr(opened.writer, "commit_soon", lambda done: None)
    opened.writer.queued += 1
    assert await opened.store.response("unknown", "a") is None


async def test_a_file_that_cannot_be_read_is_an_error_and_not_an_unknown_record(opened: OpenFile, monkeypatch):
    def broken(*_: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr("app.store.record_queries.response", broken)
    with pytest.raises(ApiError) as refused:
        await opened.store.response("unknown", "a")
    assert refused.value.status == 503


async def test_a_change_that_cannot_be_made_holds_up_no_other(opened: OpenFile, caplog):
    """Nothing of it is written."""

    def wrong(connection: sqlite3.Connection) -> None:
        connection.execute("UPDATE record SET owner = 'b'")
        connection.execute("INSERT INTO total (kind) VALUES ('response')")

    add(opened.store, "r1")
    opened.file.put(0, wrong)
    add(opened.store, "r2")
    assert await history(opened.store, "r1") is not None and await history(opened.store, "r2") is not None
    assert opened.file.totals["response"][0] == 2 and not opened.writer.is_failing
    assert "a change of stored records is dropped" in caplog.text


async def test_records_without_an_end_are_found_at_the_start(tmp_path: Path):
    with closing(OpenFile(tmp_path / "s.db")) as opened:
        add(opened.store, "r1")
        opened.store.add_response(response("r2"), ())
        opened.store.add_completion(completion("k1", body=b""))
        opened.store.add_completion(completion("k2"))
    with closing(OpenFile(tmp_path / "s.db")) as opened:
        assert sorted(each.id for each in opened.unfinished) == ["k1", "r2"]
