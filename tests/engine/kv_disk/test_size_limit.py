"""The limit of size, and the order in which files are dropped for it."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from engine.kv_disk.store import SAVE_SECONDS
from tests.engine.kv_disk.disk import Clock, Disk, assert_set, digests, run_bytes

A, B, C = digests("a", 3), digests("b", 3), digests("c", 3)


def test_the_least_recently_used_files_make_room(tmp_path: Path):
    """A use is a write, a touch or a read."""
    with Disk(tmp_path, limit_bytes=3 * run_bytes(3)) as disk:
        for chain in (A, B, C):
            disk.write(chain)
        disk.store.touch(A)
        disk.read(B)
        for name, lost in (("d", C), ("e", A), ("f", B)):
            assert all(disk.stored(lost))
            assert disk.write(digests(name, 3))
            assert not any(disk.stored(lost))
        assert len(disk.files()) == 3
        assert disk.store.counts.stored_bytes == 3 * run_bytes(3) == sum(file.stat().st_size for file in disk.files())
        assert disk.store.counts.dropped_pages == 9


def test_the_end_of_a_chain_is_dropped_before_its_beginning(tmp_path: Path):
    """Pages after a gap cannot be used."""
    with Disk(tmp_path, limit_bytes=3 * run_bytes(3)) as disk:
        for first, chain in ((0, A), (3, B), (6, C)):
            disk.begin_write(chain, first)
            disk.store.touch([*A, *B, *C])
            disk.moved(3)
        for name, lost in (("d", C), ("e", B), ("f", A)):
            assert all(disk.stored(lost))
            disk.write(digests(name, 3))
            assert not any(disk.stored(lost))


def test_a_written_end_is_dropped_before_the_beginning_that_was_touched_meanwhile(tmp_path: Path):
    """A run is as old as the call that wrote it, however long the disk takes."""
    may_end = threading.Event()
    with Disk(tmp_path, limit_bytes=2 * run_bytes(3)) as disk:
        disk.write(A)
        disk.begin_write(B, 3, wait=lambda: assert_set(may_end))
        disk.store.touch([*A, *B])
        may_end.set()
        disk.moved(3)
        disk.write(C)
        assert all(disk.stored(A)) and not any(disk.stored(B))


def test_a_file_larger_than_the_limit_is_not_written(tmp_path: Path):
    """And nothing is dropped for it."""
    with Disk(tmp_path, limit_bytes=run_bytes(3)) as disk:
        assert disk.write(A)
        assert not disk.write([*B, *C])
        assert all(disk.stored(A))
        assert disk.store.counts.dropped_pages == 6
        assert disk.store.counts.write_failures == 0


def test_a_smaller_limit_drops_files_at_the_start(tmp_path: Path):
    """Those that were not used for the longest time."""
    with Disk(tmp_path) as disk:
        for chain in (A, B, C):
            disk.write(chain)
    with Disk(tmp_path, limit_bytes=2 * run_bytes(3)) as disk:
        assert disk.stored([*A, *B, *C]) == [False] * 3 + [True] * 6
        assert len(disk.files()) == 2


def test_the_order_of_use_survives_a_restart(tmp_path: Path):
    """Of writes, touches and reads; with the same contents on both sides."""
    with Disk(tmp_path) as disk:
        for chain in (A, B, C):
            disk.write(chain)
        disk.store.touch(A)
        disk.read(B)
    with Disk(tmp_path, limit_bytes=2 * run_bytes(3)) as disk:
        assert disk.stored([*A, *B, *C]) == [True] * 6 + [False] * 3


def test_the_order_of_use_survives_a_clock_that_goes_back(tmp_path: Path):
    """New uses are later than those of the files that were found."""
    with Disk(tmp_path) as disk:
        disk.write(A)
        disk.write(B)
    for file in disk.files():
        os.utime(file, ns=(file.stat().st_mtime_ns + 10**18, file.stat().st_mtime_ns + 10**18))
    with Disk(tmp_path, limit_bytes=2 * run_bytes(3)) as disk:
        disk.write(C)
        assert disk.stored([*A, *B, *C]) == [False] * 3 + [True] * 6
    with Disk(tmp_path, limit_bytes=run_bytes(3)) as disk:
        assert disk.stored([*B, *C]) == [False] * 3 + [True] * 3


def test_uses_are_saved_once_a_minute(tmp_path: Path):
    """However often a file is used, its time is set once."""
    clock = Clock()
    with Disk(tmp_path, clock=clock) as disk:
        disk.write(A)
        before = disk.files()[0].stat().st_mtime_ns
        for _ in range(5):
            disk.store.touch(A)
            disk.read(A)
        assert disk.files()[0].stat().st_mtime_ns == before
        clock.now += SAVE_SECONDS
        disk.read(A)
        disk.read(A)  # begins after the times have been saved
        saved = disk.files()[0].stat().st_mtime_ns
        assert saved > before
        disk.read(A)
        assert disk.files()[0].stat().st_mtime_ns == saved
    assert disk.files()[0].stat().st_mtime_ns > saved, "the end saves the rest"
