"""The store as the scheduler uses it: moves and their order, failures of the disk, marks and the end."""

from __future__ import annotations

import errno
import logging
import os
import resource
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.kv_disk.folder import CAUTIOUS_BYTES_PER_SECOND
from engine.kv_disk.run_file import Geometry
from engine.kv_disk.store import FORGET_SECONDS, PAUSE_SECONDS
from engine.prefixes import MARK_PAGES
from engine.scheduling.page_store import MovedPage, PageRun
from tests.engine.kv_disk.disk import Clock, Disk, assert_set, content, digests, run_bytes
from tests.limits import HANG_SECONDS

A, B, C = digests("a", 3), digests("b", 3), digests("c", 3)


def test_pages_are_read_as_they_were_written(tmp_path: Path):
    """In any order, from several runs, and again after they were read."""
    with Disk(tmp_path) as disk:
        assert disk.write(A) and disk.write(B, first=3)
        assert disk.stored([*A, *B, *C]) == [True] * 6 + [False] * 3
        for order in ([*A, *B], [B[2], A[0], A[1], B[0]], [A[2], A[0]]):
            assert disk.read(order) == [True] * len(order)
        counts = disk.store.counts
        assert (counts.files, counts.pages, counts.stored_bytes) == (2, 6, 2 * run_bytes(3))
        assert (counts.pages_written, counts.pages_read) == (6, 12)


def test_large_pages_are_moved_in_several_batches(tmp_path: Path):
    """With a page of 5 MiB a batch has one."""
    geometry = Geometry(5 << 20, 16)
    with Disk(tmp_path, geometry=geometry, limit_bytes=1 << 30) as disk:
        expected = [os.urandom(geometry.page_bytes) for _ in A]
        for page, data in enumerate(expected):
            disk.host_page(page)[:] = data
        disk.store.write(PageRun(0, A, (0, 1, 2)), lambda: None)
        disk.moved(3)
        disk.store.read([(digest, 10 + place) for place, digest in enumerate(A)])
        assert all(page.has_succeeded for page in disk.moved(3))
        assert [bytes(disk.host_page(10 + place)) for place in range(3)] == expected


def shortened(move: Callable[[int, list[memoryview], int], int]) -> Callable[[int, list[memoryview], int], int]:
    """Return a function of the system that moves the first buffer, or a part of it, and the beginning of the second."""

    def move_less(descriptor: int, views: list[memoryview], offset: int) -> int:
        return move(descriptor, [views[0], views[1][:7]] if len(views) > 1 else [views[0][:9]], offset)

    return move_less


def test_short_moves_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The system may move less than it was given."""
    for name in ("pwritev", "preadv"):
        monkeypatch.setattr(os, name, shortened(getattr(os, name)))
    with Disk(tmp_path) as disk:
        assert disk.write(A)
        assert disk.read(A) == [True] * 3


def test_contents_are_written_after_the_wait(tmp_path: Path):
    """The copy from the device may end late."""
    may_end = threading.Event()
    with Disk(tmp_path) as disk:

        def wait() -> None:
            assert may_end.wait(HANG_SECONDS)
            disk.host_page(0)[:] = content(A[0])

        disk.begin_write(A[:1], wait=wait)
        disk.host_page(0)[:] = bytes(40)
        may_end.set()
        assert disk.moved(1) == [MovedPage(A[0], 0, was_read=False, has_succeeded=True)]
        assert disk.read(A[:1]) == [True]


def test_a_wait_that_fails_fails_its_pages_alone(tmp_path: Path):
    """The thread goes on."""

    def wait() -> None:
        raise RuntimeError("device lost")

    clock = Clock()
    with Disk(tmp_path, clock=clock) as disk:
        disk.begin_write(A, wait=wait)
        assert [page.has_succeeded for page in disk.moved(3)] == [False] * 3
        clock.now += PAUSE_SECONDS
        assert disk.write(B)


def test_reads_go_before_writes_that_wait(tmp_path: Path):
    """And between the batches of a write that has begun."""
    with Disk(tmp_path) as disk:
        disk.write(A)
        begun, may_end = threading.Event(), threading.Event()

        def wait() -> None:
            begun.set()
            assert may_end.wait(HANG_SECONDS)

        disk.begin_write(B, wait=wait)
        assert begun.wait(HANG_SECONDS)
        disk.begin_write(C)
        disk.store.read([(A[0], 20)])
        may_end.set()
        order = [page.digest for page in disk.moved(7)]
        assert order == [A[0], *B, *C]


def test_pages_that_are_stored_are_not_written_again(tmp_path: Path):
    """A run with one new page is."""
    with Disk(tmp_path) as disk:
        assert disk.write(A) and disk.write(A) and disk.write(A[1:], first=1)
        assert disk.store.counts.files == 1
        assert disk.write([*A, *B])
        assert (disk.store.counts.files, disk.store.counts.pages) == (2, 6)
        assert disk.read([*A, *B]) == [True] * 6


def test_pages_in_two_files_survive_the_older_one(tmp_path: Path):
    """They are found in the newer one."""
    chain = digests("chain", 6)
    with Disk(tmp_path, limit_bytes=run_bytes(3) + run_bytes(6)) as disk:
        assert disk.write(chain[:3]) and disk.write(chain)
        assert disk.write(A)
        assert (disk.store.counts.dropped_pages, disk.store.counts.files) == (0, 2)
        assert disk.read(chain) == [True] * 6


@pytest.mark.parametrize("is_reversed", [False, True])
def test_pages_in_two_files_are_found_in_the_newer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_reversed: bool
):
    """After a restart too, in any order in which the system lists them."""
    chain = digests("chain", 6)
    with Disk(tmp_path) as disk:
        assert disk.write(chain[:3]) and disk.write(chain)
    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", lambda folder: sorted(listdir(folder), reverse=is_reversed))
    with Disk(tmp_path) as disk:
        (older,) = (file for file in disk.files() if file.stat().st_size == run_bytes(3))
        older.write_bytes(b"")
        assert disk.read(chain) == [True] * 6


def test_files_of_the_same_time_are_all_found(tmp_path: Path):
    """File systems round times."""
    with Disk(tmp_path) as disk:
        for chain in (A, B, C):
            disk.write(chain)
    for file in disk.files():
        os.utime(file, ns=(10**18, 10**18))
    with Disk(tmp_path) as disk:
        assert disk.read([*A, *B, *C]) == [True] * 9
        assert disk.store.counts.files == 3


def test_the_number_of_files_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Each is opened at the start."""
    monkeypatch.setattr("engine.kv_disk.store.MAX_FILES", 2)
    with Disk(tmp_path) as disk:
        for chain in (A, B, C):
            disk.write(chain)
        assert disk.stored([*A, *B, *C]) == [False] * 3 + [True] * 6


# Failures of the disk ---------------------------------------------------------------------------------------------


def test_a_full_disk_is_counted_and_left_alone_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """One line of the log until a write succeeds; reads go on."""
    calls = []

    def refuse(*args: object) -> int:
        calls.append(args)
        raise OSError(errno.ENOSPC, "No space left on device")

    clock = Clock()
    with Disk(tmp_path, clock=clock) as disk, caplog.at_level(logging.WARNING):
        disk.write(A)
        with monkeypatch.context() as context:
            context.setattr(os, "pwritev", refuse)
            assert not disk.write(B)
            clock.now += PAUSE_SECONDS - 1
            assert not disk.write(B)
            assert len(calls) == 1
            clock.now += 1
            assert not disk.write(B)
            assert len(calls) == 2
        assert not disk.write(C), "the time without writes begins again"
        assert disk.store.counts.write_failures == 12
        assert disk.read(A) == [True] * 3
        assert [path.suffix for path in disk.folder.path.iterdir() if path.name != "lock"] == [".kv"]
        clock.now += PAUSE_SECONDS
        assert disk.write(B)
        (line,) = caplog.messages
        assert "No space left on device" in line and str(disk.folder.path) in line


def test_a_limit_of_the_process_for_files_is_no_error(tmp_path: Path):
    """The system refuses in the middle of a file, of which nothing stays."""
    geometry = Geometry(1 << 20, 16)
    with Disk(tmp_path, geometry=geometry, limit_bytes=1 << 30) as disk:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 19, hard))
        try:
            disk.store.write(PageRun(0, A, (0, 1, 2)), lambda: None)
            assert [page.has_succeeded for page in disk.moved(3)] == [False] * 3
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert [path.name for path in disk.folder.path.iterdir()] == ["lock"]
        assert disk.store.counts.write_failures == 3


def test_a_removed_folder_is_no_error(tmp_path: Path):
    """Pages are then lost, and new ones are not written."""
    with Disk(tmp_path / "parent") as disk:
        disk.write(A)
        for file in disk.folder.path.iterdir():
            file.unlink()
        disk.folder.path.rmdir()
        assert disk.read(A) == [False] * 3
        assert not disk.write(B)


# Speed, marks, end ------------------------------------------------------------------------------------------------


def test_the_expected_time_follows_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """From the first measurement to reads that take two seconds for a page; a minute later one is worth a try again."""
    monkeypatch.setattr("engine.kv_disk.store.HALF_LIFE_BYTES", 1 << 20)
    monkeypatch.setattr("engine.kv_disk.folder.SAMPLE_BYTES", 1 << 20)
    clock, geometry = Clock(), Geometry(1 << 20, 16)
    preadv = os.preadv
    with Disk(tmp_path, geometry=geometry, limit_bytes=1 << 30, clock=clock) as disk:
        disk.store.write(PageRun(0, A, (0, 1, 2)), lambda: None)
        disk.moved(3)
        first = disk.store.read_seconds(1)
        assert first > 0
        assert disk.store.read_seconds(10) == pytest.approx(10 * first)

        def slow(descriptor: int, views: list[memoryview], offset: int) -> int:
            clock.now += 2.0 * len(views)
            return preadv(descriptor, views, offset)

        monkeypatch.setattr(os, "preadv", slow)
        estimates = [first]
        for _ in range(12):
            disk.store.read([(digest, 10 + place) for place, digest in enumerate(A)])
            disk.moved(3)
            estimates.append(disk.store.read_seconds(1))
        assert estimates == sorted(estimates)
        assert estimates[-1] == pytest.approx(2.0, rel=0.1)
        clock.now += FORGET_SECONDS + 1.0
        assert disk.store.read_seconds(1) == pytest.approx(first)


def test_a_speed_that_cannot_be_measured_is_a_cautious_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """On systems where files cannot be removed from memory."""
    monkeypatch.delattr(os, "posix_fadvise")
    with Disk(tmp_path) as disk:
        assert disk.store.read_seconds(1) == pytest.approx(disk.page_bytes / CAUTIOUS_BYTES_PER_SECOND)


def test_pages_that_wait_to_be_read_count_for_the_next(tmp_path: Path):
    """They are read before it."""
    may_end = threading.Event()
    with Disk(tmp_path) as disk:
        disk.write(A)
        alone = disk.store.read_seconds(2)
        disk.begin_write(B, wait=lambda: assert_set(may_end))
        disk.store.read([(A[0], 20), (A[1], 21)])
        assert disk.store.read_seconds(2) == pytest.approx(2 * alone)
        may_end.set()
        disk.moved(5)


def test_marks_are_taken_as_changes(tmp_path: Path):
    """The first call returns all; each `MARK_PAGES`th page of a chain is a mark."""
    chain, other = digests("long", 2 * MARK_PAGES), digests("other", MARK_PAGES)
    with Disk(tmp_path) as disk:
        disk.write(chain[:3])
        disk.write(chain[3:], first=3)
    marks = [chain[MARK_PAGES - 1], chain[2 * MARK_PAGES - 1]]
    with Disk(tmp_path, limit_bytes=run_bytes(3) + run_bytes(5)) as disk:
        gained, lost = disk.store.take_marks()
        assert (sorted(gained), lost) == (sorted(marks), [])
        assert disk.store.take_marks() == ([], [])
        disk.store.touch(chain)
        disk.write(other)  # for which the chain's end is dropped
        gained, lost = disk.store.take_marks()
        assert (gained, sorted(lost)) == ([other[-1]], sorted(marks))


def test_a_mark_that_is_written_again_is_no_change(tmp_path: Path):
    """It is still there when the older file is dropped."""
    chain = digests("chain", 2 * MARK_PAGES)
    with Disk(tmp_path, limit_bytes=run_bytes(MARK_PAGES) + run_bytes(2 * MARK_PAGES)) as disk:
        disk.write(chain[:MARK_PAGES])
        assert disk.store.take_marks() == ([chain[MARK_PAGES - 1]], [])
        disk.write(chain)
        assert disk.store.take_marks() == ([chain[-1]], [])
        disk.write(A)
        assert disk.store.counts.files == 2
        assert disk.store.take_marks() == ([], [])


def test_a_mark_that_comes_and_goes_between_two_calls_is_no_change(tmp_path: Path):
    """Nobody has been sent it."""
    first, second = digests("first", MARK_PAGES), digests("second", MARK_PAGES)
    with Disk(tmp_path, limit_bytes=run_bytes(MARK_PAGES)) as disk:
        disk.write(first)
        disk.write(second)
        assert disk.store.take_marks() == ([second[-1]], [])


def test_close_drops_what_waits_and_frees_the_folder(tmp_path: Path):
    """The thread ends, in the middle of a write too, of which nothing stays."""
    with Disk(tmp_path) as disk:
        disk.write(A)
        begun, may_end = threading.Event(), threading.Event()

        def wait() -> None:
            begun.set()
            assert may_end.wait(HANG_SECONDS)

        disk.begin_write(B, wait=wait)
        disk.begin_write(C)
        assert begun.wait(HANG_SECONDS)
        closing = threading.Thread(target=disk.store.close)
        closing.start()
        while not disk.store._is_closing:
            time.sleep(0.001)
        may_end.set()
        closing.join(HANG_SECONDS)
        assert disk.store.take_moved() == []
        disk.store.read([(A[0], 20)])
        with Disk(tmp_path) as next_disk:
            assert next_disk.folder.path == disk.folder.path
            assert next_disk.stored([*A, *B, *C]) == [True] * 3 + [False] * 6
    assert not [thread for thread in threading.enumerate() if thread.name == "kv-disk"]


def test_the_pages_that_were_used_last_come_first(tmp_path: Path):
    """Those of a chain in its order, whenever its parts were written."""
    with Disk(tmp_path) as disk:
        disk.write(A[:2])
        disk.write(B)
        disk.write(A[2:], first=2)
        disk.store.touch(A)
        assert disk.store.latest(100) == [*A, *B]
        assert disk.store.latest(3) == [*A, *B][:3]
        assert len(disk.store) == len(A) + len(B)
