"""Format of a file with one run of pages. Knows no names of files.

A header, then the bytes of the pages. Numbers are little-endian:

    8 bytes  magic
    4        version of the format
    4        tokens of a page
    8        bytes of a page
    8        index of the first page in its chain
    4        number of pages
    and for each page:
    16       digest
    4        checksum of the digest and the page
    and at last:
    4        checksum of the header before it

Checksums are CRC-32. They find damage by accident; only the user that reads a file can have written it. CRC-32 takes
0.2 ns for a byte, BLAKE2b 1.0 ns, which is longer than an NVMe disk takes for reading it.

Pages are moved between the file and host memory without copies, several by one call: each call waits for the
interpreter's lock, which the engine's thread may have.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

MAGIC = b"carslkv\n"
VERSION = 1
START = struct.Struct("<8sIIQQI")
PAGE_ENTRY = struct.Struct("<16sI")
CHECKSUM = struct.Struct("<I")

MAX_PAGES = 1 << 20  # of one file
BATCH_BYTES = 8 << 20  # moved by one call; waiting reads are served between two calls of a write
BATCH_PAGES = 512  # Linux and macOS accept 1,024 buffers


class Geometry(NamedTuple):
    """Size of a page in bytes and in tokens."""

    page_bytes: int
    page_size: int

    @property
    def batch(self) -> int:
        """Return how many pages are moved by one call."""
        return max(1, min(BATCH_PAGES, BATCH_BYTES // self.page_bytes))


class Header(NamedTuple):
    """Contents of a file. first: index of the first page in its chain."""

    first: int
    digests: tuple[bytes, ...]
    checksums: tuple[int, ...]


class UnusableFile(Exception):
    """A file is torn, or another version or geometry wrote it."""


def header_bytes(pages: int) -> int:
    """Return the size of the header of a file."""
    return START.size + pages * PAGE_ENTRY.size + CHECKSUM.size


def file_bytes(geometry: Geometry, pages: int) -> int:
    """Return the size of a file."""
    return header_bytes(pages) + pages * geometry.page_bytes


def write_run(
    descriptor: int,
    geometry: Geometry,
    first: int,
    digests: Sequence[bytes],
    pages: Sequence[memoryview],
    before_batch: Callable[[], None],
) -> None:
    """Write an empty file, its header last. before_batch: called before each batch of pages. Raises `OSError`, and what
    `before_batch` raises.
    """
    header = bytearray(START.pack(MAGIC, VERSION, geometry.page_size, geometry.page_bytes, first, len(digests)))
    offset = header_bytes(len(digests))
    for begin in range(0, len(pages), geometry.batch):
        before_batch()
        batch = pages[begin : begin + geometry.batch]
        for digest, page in zip(digests[begin : begin + geometry.batch], batch, strict=True):
            header += PAGE_ENTRY.pack(digest, _checksum(digest, page))
        _move(os.pwritev, descriptor, batch, offset)
        offset += len(batch) * geometry.page_bytes
    header += CHECKSUM.pack(zlib.crc32(header))
    _move(os.pwritev, descriptor, [memoryview(header)], 0)


def read_header(descriptor: int, geometry: Geometry) -> Header:
    """Read and check the header of a file. Raises `UnusableFile` and `OSError`."""
    start = os.pread(descriptor, START.size, 0)
    if len(start) < START.size:
        raise UnusableFile("torn")
    magic, version, page_size, page_bytes, first, count = START.unpack(start)
    if magic != MAGIC:
        raise UnusableFile("torn")
    if version != VERSION:
        raise UnusableFile("of another version")
    if Geometry(page_bytes, page_size) != geometry:
        raise UnusableFile("with pages of another size")
    if not 0 < count <= MAX_PAGES or os.fstat(descriptor).st_size != file_bytes(geometry, count):
        raise UnusableFile("torn")
    entries = os.pread(descriptor, count * PAGE_ENTRY.size, START.size)
    if os.pread(descriptor, CHECKSUM.size, START.size + len(entries)) != CHECKSUM.pack(zlib.crc32(start + entries)):
        raise UnusableFile("torn")
    digests, checksums = zip(*PAGE_ENTRY.iter_unpack(entries), strict=True)
    return Header(first, digests, checksums)


def read_pages(
    descriptor: int, geometry: Geometry, header: Header, pages: Sequence[tuple[int, memoryview]]
) -> Iterator[bool]:
    """Read pages, each by its place in the file into a buffer, and yield whether each is intact. Raises `OSError`."""
    for begin, end in _batches([place for place, _ in pages], geometry.batch):
        batch = pages[begin:end]
        offset = header_bytes(len(header.digests)) + batch[0][0] * geometry.page_bytes
        _move(os.preadv, descriptor, [page for _, page in batch], offset)
        for place, page in batch:
            yield _checksum(header.digests[place], page) == header.checksums[place]


def _batches(places: list[int], limit: int) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each part of `places` with consecutive numbers, at most `limit` of them."""
    begin = 0
    for end in range(1, len(places) + 1):
        if end == len(places) or places[end] != places[end - 1] + 1 or end - begin == limit:
            yield begin, end
            begin = end


def _checksum(digest: bytes, page: memoryview) -> int:
    return zlib.crc32(page, zlib.crc32(digest))


def _move(
    move: Callable[[int, Sequence[memoryview], int], int], descriptor: int, buffers: Sequence[memoryview], offset: int
) -> None:
    """Call `os.preadv` or `os.pwritev` until all bytes of the buffers have been moved. Raises `OSError`."""
    left = list(buffers)
    while left:
        moved = move(descriptor, left, offset)
        if moved == 0:
            raise OSError("the file ends before the page")
        offset += moved
        while left and moved >= left[0].nbytes:
            moved -= left.pop(0).nbytes
        if moved:
            left[0] = left[0][moved:]
