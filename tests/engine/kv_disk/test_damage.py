"""Damaged files: what is read is right, or reported as failed."""

from __future__ import annotations

import logging
import os
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.kv_disk.run_file import START, UnusableFile, read_header, read_pages, write_run
from tests.engine.kv_disk.disk import FINGERPRINT, GEOMETRY, Disk, content, digests, run_bytes, write_once
from tests.profiles import examples

CHAIN = digests("chain", 3)
FILE_BYTES = run_bytes(len(CHAIN))


def flip(position: int, bits: int) -> Callable[[bytes], bytes]:
    """Return a change of one byte."""
    return lambda data: data[:position] + bytes([data[position] ^ bits]) + data[position + 1 :]


def cut(length: int) -> Callable[[bytes], bytes]:
    """Return a change that leaves the beginning."""
    return lambda data: data[:length]


def clear(begin: int, end: int) -> Callable[[bytes], bytes]:
    """Return a change to zeros, as of blocks that never reached the disk."""
    return lambda data: data[:begin] + bytes(len(data[begin:end])) + data[end:]


positions = st.integers(0, FILE_BYTES - 1)
changes = st.one_of(
    st.builds(flip, positions, st.integers(1, 255)),
    st.builds(cut, positions),
    st.builds(clear, positions, positions),
    st.binary(min_size=1).map(lambda more: lambda data: data + more),
    st.binary().map(lambda other: lambda data: other),
)


def test_each_flipped_bit_is_found(tmp_path: Path):
    """In the header the file is unusable; in a page that page is not intact, and the others are."""
    original, buffers = run_file(tmp_path)
    for position in range(FILE_BYTES):
        for bit in range(8):
            with (tmp_path / "file").open("r+b") as file:
                os.pwrite(file.fileno(), flip(position, 1 << bit)(original), 0)
                try:
                    header = read_header(file.fileno(), GEOMETRY)
                except UnusableFile:
                    assert position < FILE_BYTES - len(CHAIN) * GEOMETRY.page_bytes
                    continue
                damaged = (position - (FILE_BYTES - len(CHAIN) * GEOMETRY.page_bytes)) // GEOMETRY.page_bytes
                intact = list(read_pages(file.fileno(), GEOMETRY, header, list(enumerate(buffers))))
                assert intact == [place != damaged for place in range(len(CHAIN))], position


def run_file(folder: Path) -> tuple[bytes, list[memoryview]]:
    """Write a file; return its bytes and buffers for its pages."""
    with (folder / "file").open("w+b") as file:
        pages = [memoryview(bytearray(content(digest))) for digest in CHAIN]
        write_run(file.fileno(), GEOMETRY, 0, CHAIN, pages, lambda: None)
    return (folder / "file").read_bytes(), pages


def test_a_page_with_the_digest_of_another_is_not_intact(tmp_path: Path):
    """Also if the header's checksum is right."""
    original, buffers = run_file(tmp_path)
    entries = [original[START.size + place * 20 :][:20] for place in range(len(CHAIN))]
    exchanged = [entries[1][:16] + entries[0][16:], entries[0][:16] + entries[1][16:], entries[2]]
    header = original[: START.size] + b"".join(exchanged)
    with (tmp_path / "file").open("r+b") as file:
        file.write(header + zlib.crc32(header).to_bytes(4, "little"))
        file.flush()
        pages = list(enumerate(buffers))
        read = read_pages(file.fileno(), GEOMETRY, read_header(file.fileno(), GEOMETRY), pages)
        assert list(read) == [False, False, True]


@settings(max_examples=examples(600))
@given(change=changes, is_open=st.booleans())
def test_damage_is_reported_or_harmless(change: Callable[[bytes], bytes], is_open: bool):
    """Before and after the store opens the file. `Disk.read` compares contents."""
    with tempfile.TemporaryDirectory() as folder:
        parent = Path(folder)
        data, _ = run_file(parent)
        name = f"carousel-kv-{FINGERPRINT}-{GEOMETRY.page_bytes}x{GEOMETRY.page_size}-0"
        path = parent / name / "0123456789abcdef.kv"
        path.parent.mkdir()
        path.write_bytes(data if is_open else change(data))
        with Disk(parent, limit_bytes=FILE_BYTES) as disk:
            assert disk.folder.path == path.parent
            if is_open:
                path.write_bytes(change(data))
            read = disk.read(CHAIN)
            assert all(read) or change(data) != data
            assert disk.stored(CHAIN) == [all(read)] * 3, "a damaged file stays in the index"
            assert path.exists() == all(read)


@pytest.mark.parametrize("place", range(3))
def test_a_page_with_wrong_contents_fails_alone_and_its_file_is_removed(tmp_path: Path, place: int):
    """The other pages of the same read are right."""
    with Disk(tmp_path) as disk:
        disk.write(CHAIN)
        (file,) = disk.files()
        data = file.read_bytes()
        file.write_bytes(flip(FILE_BYTES - 1 - (2 - place) * GEOMETRY.page_bytes, 1)(data))
        assert disk.read(CHAIN) == [other != place for other in range(3)]
        assert disk.files() == []
        counts = disk.store.counts
        assert (counts.pages_read, counts.checksum_failures, counts.read_failures) == (2, 1, 0)
        assert (counts.files, counts.pages, counts.stored_bytes) == (0, 0, 0)


def test_files_that_cannot_be_used_are_one_line_of_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """Own ones are removed, those of other programs and links stay, and nothing is an error."""
    outside = tmp_path / "outside"
    outside.write_bytes(b"precious")
    parent = tmp_path / "parent"
    folder = write_once(parent, CHAIN)
    (good,) = folder.glob("*.kv")
    data = good.read_bytes()
    for number, damaged in enumerate([b"", data[:10], data[:-1], data + b"x", b"x" + data[1:]]):
        (folder / f"{number:016x}.kv").write_bytes(damaged)
    (folder / "00000000000000aa.kv").write_bytes(flip(8, 1)(data))
    (folder / "00000000000000bb.kv").write_bytes(flip(16, 1)(data))
    (folder / "00000000000000cc.kv.tmp").write_bytes(data)
    (folder / "0123456789abcdef.kv").symlink_to(outside)
    (folder / "fedcba9876543210.kv").symlink_to(good)
    (folder / "notes.txt").write_text("mine")
    (folder / "00000000000000dd.kv").mkdir()
    os.mkfifo(folder / "00000000000000ee.kv")
    with caplog.at_level(logging.WARNING), Disk(parent) as disk:
        assert disk.read(CHAIN) == [True] * 3
        assert (disk.store.counts.torn_files, disk.store.counts.foreign_files) == (8, 5)
    (line,) = caplog.messages
    assert "6 torn" in line and "1 of another version" in line and "1 with pages of another size" in line
    assert "5 of other programs" in line
    kept = {"lock", good.name, "0123456789abcdef.kv", "fedcba9876543210.kv", "notes.txt"}
    assert {path.name for path in folder.iterdir()} == kept | {"00000000000000dd.kv", "00000000000000ee.kv"}
    assert outside.read_bytes() == b"precious"


def test_a_file_that_is_replaced_by_a_link_is_not_read(tmp_path: Path):
    """Not even if the file behind it is right."""
    with Disk(tmp_path / "parent") as disk:
        disk.write(CHAIN)
        (file,) = disk.files()
        file.rename(tmp_path / "moved")
        file.symlink_to(tmp_path / "moved")
        assert disk.read(CHAIN) == [False] * 3
        assert disk.store.counts.read_failures == 3
        assert (tmp_path / "moved").exists()


def test_a_file_that_disappears_fails_its_pages(tmp_path: Path):
    """Another program may remove it at any time."""
    with Disk(tmp_path) as disk:
        disk.write(CHAIN)
        disk.files()[0].unlink()
        assert disk.read(CHAIN) == [False] * 3
        assert disk.stored(CHAIN) == [False] * 3


def test_a_file_with_other_pages_is_not_taken_for_the_old_one(tmp_path: Path):
    """Its own checksums are right."""
    with Disk(tmp_path) as disk:
        disk.write(CHAIN)
        disk.write(digests("other", 3))
        first, second = disk.files()
        first_bytes = first.read_bytes()
        first.write_bytes(second.read_bytes())
        second.write_bytes(first_bytes)
        assert disk.read(CHAIN) == [False] * 3


def test_an_unknown_page_fails_without_a_file(tmp_path: Path):
    """It was dropped after the scheduler had found it."""
    with Disk(tmp_path) as disk:
        disk.write(CHAIN)
        assert disk.read([*CHAIN, *digests("other", 1)]) == [True, True, True, False]
