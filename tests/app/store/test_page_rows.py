"""Rows of the chat page in the store: joins, pages of what has changed, bounds, and files of an earlier version."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.__main__ import main
from app.admission.thread_queue import Caller
from app.conversations.page_rows import ROW_BYTES, NumberedRow, PageRow, RowList
from app.errors import ApiError
from app.store import page_part
from app.store.database import SCHEMA_VERSION, connect
from app.store.page_part import TOMBSTONE_SECONDS, TooManyBytes, join, rows_after
from app.store.page_rows import PageRows
from app.store.parts import PARTS
from app.store.state_file import StateFile
from tests.limits import HANG_SECONDS
from tests.profiles import examples

MANY = 1 << 30
OWNER = "a"
VERSIONS = st.builds(
    PageRow,
    st.sampled_from(["x", "y", "z", "ü\0"]),
    st.integers(0, 3),
    st.sampled_from(["A", "B", "a"]),
    st.none(),
).map(lambda row: PageRow(row.id, row.revision, row.writer, None if row.revision == 2 else f"{row}"))


@contextlib.contextmanager
def empty() -> Iterator[sqlite3.Connection]:
    """Yield the tables in memory."""
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE state (name, value)")
        connection.executescript(page_part.SCHEMA)
        yield connection


@pytest.fixture
def memory() -> Iterator[sqlite3.Connection]:
    with empty() as connection:
        yield connection


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a new store."""
    connect(tmp_path / "s.db").close()
    return tmp_path / "s.db"


def value(text: str | None, revision: int = 1, row_id: str = "x", writer: str = "w") -> PageRow:
    return PageRow(row_id, revision, writer, text)


def versions(found: RowList) -> dict[str, tuple[int, str, str | None]]:
    """Return the rows by id, without their numbers."""
    return {row.id: (row.revision, row.writer, row.value) for row in found.rows}


def put(connection: sqlite3.Connection, *rows: PageRow, owner: str = OWNER, most: int = MANY, now: float = 0.0) -> int:
    return join(connection, owner, rows, most, now)


async def follow(rows: PageRows, after: int, limit: int) -> tuple[list[NumberedRow], int]:
    """Return all rows after a number, in pages, and the number after them."""
    found: list[NumberedRow] = []
    while True:
        page = await rows.after(after, limit, OWNER, Caller())
        found += page.rows
        after = page.last
        if not page.has_more:
            return found, after


@given(st.lists(st.lists(VERSIONS, max_size=5), max_size=5), st.randoms())
@settings(max_examples=examples(300))
def test_joins_in_any_order_give_the_same_rows(joins: list[list[PageRow]], chance: random.Random):
    """Each row has its highest (revision, writer), and repeated joins change nothing, not even the counter."""
    seen = []
    for repetitions in (1, 2):
        with empty() as connection:
            for rows in chance.sample(joins * repetitions, len(joins) * repetitions):
                put(connection, *chance.sample(rows, len(rows)))
            found = rows_after(connection, OWNER, 0, 100)
            assert [put(connection, *rows) for rows in joins] == [found.last] * len(joins)
            assert rows_after(connection, OWNER, 0, 100).rows == found.rows
            assert sum(row.size for row in found.rows) == connection.execute(page_part.TOTAL).fetchone()[0]
        seen.append(versions(found))
    highest: dict[str, PageRow] = {}
    for row in sorted((row for rows in joins for row in rows), key=lambda row: (row.revision, row.writer)):
        highest[row.id] = row
    expected = {row.id: (row.revision, row.writer, row.value) for row in highest.values()}
    assert seen == [expected, expected]


def test_rows_belong_to_one_owner(memory: sqlite3.Connection):
    """The same id is another row, and each owner has a counter of its own."""
    assert put(memory, value("of a"), value("of a", row_id="y")) == 2
    assert put(memory, value("of b"), owner="b") == 1
    assert versions(rows_after(memory, "b", 0, 9)) == {"x": (1, "w", "of b")}
    assert rows_after(memory, OWNER, 2, 9).rows == [] and rows_after(memory, "c", 0, 9).last == 0


def test_a_page_ends_at_its_bytes(memory: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch):
    """It has one row in any case, and the next page begins after it."""
    monkeypatch.setattr(page_part, "MAX_PAGE_BYTES", 3 * ROW_BYTES)
    put(memory, *(value("v" * size, row_id=f"{at}") for at, size in enumerate((1, 1, 5000, 5000, 1))))
    after, pages = 0, []
    while True:
        page = rows_after(memory, OWNER, after, 100)
        pages.append([row.id for row in page.rows])
        after = page.last
        if not page.has_more:
            break
    assert pages == [["0", "1"], ["2"], ["3"], ["4"]] and after == 5


def test_a_join_beyond_the_bytes_of_its_owner_is_refused(memory: sqlite3.Connection):
    """One whose rows do not grow is accepted, also if a lower limit is exceeded already."""
    put(memory, value("v" * 1000))
    with pytest.raises(TooManyBytes) as refused:
        put(memory, value("v" * 1001, 2), most=1000)
    assert refused.value.size == value("v" * 1001).size
    with pytest.raises(TooManyBytes):
        put(memory, value(None, row_id="another"), most=ROW_BYTES)
    memory.rollback()
    put(memory, value("v" * 1000))
    assert put(memory, value("w" * 1000, 2), most=1000) == 2
    assert put(memory, value(None, 3), most=1000) == 3
    assert put(memory, value("v" * 1000, row_id="y"), most=10_000, owner="b") == 1


def test_deletions_are_forgotten_after_their_time(memory: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch):
    """The oldest first, some with each join; rows with a value stay."""
    monkeypatch.setattr(page_part, "MAX_FORGOTTEN", 2)
    put(memory, value("kept", row_id="kept"))
    for at in range(4):
        put(memory, value(None, row_id=f"{at}"), now=float(at))
    put(memory, value(None, row_id="owned by b"), owner="b")
    put(memory, now=2.0 + TOMBSTONE_SECONDS)
    assert list(versions(rows_after(memory, OWNER, 0, 9))) == ["kept", "2", "3"]
    put(memory, now=4.0 + TOMBSTONE_SECONDS)
    found = rows_after(memory, OWNER, 0, 9)
    assert (list(versions(found)), found.last) == (["kept"], 5)
    assert len(rows_after(memory, "b", 0, 9).rows) == 1


@pytest.mark.parametrize("seed", range(examples(12)))
async def test_a_reader_misses_no_change_of_several_processes(path: Path, seed: int):
    """Each has connections of its own; a row that changes between two pages comes later once more."""
    chance = random.Random(seed)
    writers, reader = [PageRows(path, MANY) for _ in range(3)], PageRows(path, MANY)
    is_done = asyncio.Event()

    async def write(name: str, rows: PageRows) -> None:
        for revision in range(20):
            ids = chance.sample("abcdefghij", 3)
            joined = [PageRow(each, revision, name, f"{name}{revision}") for each in ids]
            await rows.join(joined, OWNER, Caller())

    async def read() -> dict[str, NumberedRow]:
        seen: dict[str, NumberedRow] = {}
        after = 0
        while True:
            was_done = is_done.is_set()
            found, after = await follow(reader, after, chance.choice([1, 2, 5]))
            numbers = [row.number for row in found]
            assert numbers == sorted(set(numbers))
            for row in found:
                assert row.id not in seen or row.number > seen[row.id].number
                seen[row.id] = row
            if was_done:
                return seen

    async with asyncio.timeout(HANG_SECONDS):
        reading = asyncio.create_task(read())
        await asyncio.gather(*(write(name, rows) for name, rows in zip("ABC", writers, strict=True)))
        is_done.set()
        seen = await reading
        whole, _ = await follow(reader, 0, 100)
    assert sorted(seen.values(), key=lambda row: row.number) == whole


async def test_a_refused_join_changes_nothing(path: Path):
    """Its error names the limit, it is counted, and others are accepted."""
    rows = PageRows(path, 3 * ROW_BYTES)
    few, many = ([value("v", row_id=f"{at}") for at in range(count)] for count in (2, 3))
    await rows.join(few, OWNER, Caller())
    with pytest.raises(ApiError, match=r"--page-bytes allows 600\. Delete conversations first") as refused:
        await rows.join(many, OWNER, Caller())
    assert (refused.value.status, refused.value.code, rows.refused) == (413, "page_rows_full", 1)
    assert rows.bytes == sum(row.size for row in few)
    assert len((await rows.after(0, 9, OWNER, Caller())).rows) == 2
    assert (await rows.join(few, "b", Caller())).last == 2


async def test_a_file_that_cannot_be_used_is_a_refusal(path: Path, caplog: pytest.LogCaptureFixture):
    """A missing one, as before its process has started, an empty one, one of another version, and a locked one."""
    rows = PageRows(path, MANY)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for number in (SCHEMA_VERSION - 1, SCHEMA_VERSION):
            connection.execute(f"PRAGMA user_version = {number}")
            if number != SCHEMA_VERSION:
                await refuses(rows)
        connection.execute("BEGIN IMMEDIATE")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("app.store.page_rows.BUSY_SECONDS", 0.0)
            await refuses(rows)
        connection.execute("ROLLBACK")
    await rows.join([value("v")], OWNER, Caller())
    await refuses(PageRows(path.with_name("missing.db"), MANY))
    assert not path.with_name("missing.db").exists()
    path.with_name("empty.db").touch()
    await refuses(PageRows(path.with_name("empty.db"), MANY))
    assert "rows of the chat page cannot be used" in caplog.text


async def refuses(rows: PageRows) -> None:
    with pytest.raises(ApiError) as refused:
        await rows.join([value("v")], OWNER, Caller())
    assert (refused.value.status, refused.value.code) == (503, "store_unavailable")


def kept(path: Path, sent: Sequence[PageRow]) -> bool:
    """Return whether a store has rows as they were sent."""
    with contextlib.closing(connect(path)) as connection:
        return versions(rows_after(connection, OWNER, 0, 100)) == {
            row.id: (row.revision, row.writer, row.value) for row in sent
        }


async def test_another_server_has_the_rows_and_another_file_another_epoch(tmp_path: Path):
    """A server that starts again continues the counter. With a new file, clients see that it lacks their rows."""
    seen = []
    for name in ("s.db", "s.db", "t.db"):
        file = StateFile(tmp_path / name)
        file.read()
        file.start()
        await file.page_rows.join([value("v", len(seen))], OWNER, Caller())
        seen.append(await file.page_rows.after(0, 9, OWNER, Caller()))
        await asyncio.to_thread(file.close)
    assert [found.last for found in seen] == [1, 2, 1]
    assert seen[0].epoch == seen[1].epoch != seen[2].epoch and len(seen[0].epoch) == 16


def test_a_file_of_the_version_before_gets_the_tables(path: Path):
    """It keeps its other records."""
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DROP TABLE page_row")
        connection.execute("DROP TABLE page_owner")
        connection.execute("DELETE FROM state")
        connection.execute("INSERT INTO state (name, value) VALUES ('epoch', 'abc')")
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION - 1}")
    for _ in range(2):
        with contextlib.closing(connect(path)) as connection, connection:
            put(connection, value("v"))
            assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
            assert connection.execute("SELECT value FROM state WHERE name = 'epoch'").fetchone() == ("abc",)
    assert kept(path, [value("v")])


def test_the_age_limit_leaves_rows_alone(path: Path, capsys: pytest.CaptureFixture[str]):
    """Their owner deletes them, or an operator with the command, after which the counter goes on."""
    with contextlib.closing(connect(path)) as connection, connection:
        put(connection, value("v"), now=0.0)
    file = StateFile(path, max_days=1)
    file.read()
    file.close()
    assert kept(path, [value("v")])
    assert main(["store", "export", str(path)]) == 0
    assert '"kind": "page row", "id": "x", "owner": "a"' in capsys.readouterr().out
    assert main(["store", "prune", str(path), "--days", "1"]) == 0
    assert "1 page rows removed" in capsys.readouterr().out
    with contextlib.closing(connect(path)) as connection, connection:
        assert connection.execute(page_part.TOTAL).fetchone() == (0,)
        assert put(connection, value("again")) == 2
    assert [part.name for part in PARTS if not part.ages] == ["page rows"]
