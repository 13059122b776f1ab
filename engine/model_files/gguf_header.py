"""Parsing of the header of one GGUF file, with bounds on the memory and time that a hostile file can cause.

The format (docs/gguf.md of ggml): magic, version, numbers of tensors and keys, keys with typed values, descriptions of
tensors, padding, the tensors' bytes. Strings and arrays have 64-bit lengths. Each length is compared with the bytes of
the file before its content is read. Plain reads, because a memory map raises SIGBUS if the file shrinks meanwhile.
"""

from __future__ import annotations

import math
import stat
import struct
import sys
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeAlias

from engine.model_files.errors import ModelFileError, shown
from engine.model_files.gguf_types import TENSOR_TYPES, TensorType

Value: TypeAlias = "int | float | bool | str | list[Value]"

MAGIC = b"GGUF"
VERSIONS = (2, 3)
# Budgets, some times beyond any published model: 8 MB of header, 1.4 million array entries, 3,000 tensors, 100 keys.
MAX_HEADER_BYTES = 64 << 20
MAX_ARRAY_ENTRIES = 1 << 22  # of all arrays together
MAX_TENSORS = 1 << 16
MAX_KEYS = 1 << 14
MAX_NAME_BYTES = (1 << 16) - 1  # the format's own limit for keys
MAX_ARRAY_DEPTH = 4
MAX_DIMENSIONS = 4
MAX_ALIGNMENT = 1 << 16
DEFAULT_ALIGNMENT = 32
FIRST_READ_BYTES = 1 << 20

FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d"}  # of `struct`, by type
SIZES = {kind: struct.calcsize(f"<{code}") for kind, code in FORMATS.items()}
BOOL, STRING, ARRAY = 7, 8, 9
VOCABULARY_PREFIX = "tokenizer."  # of keys whose arrays are the vocabulary
FETCH_AGAIN = "the file is truncated or damaged; fetch it again"

_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Description of a tensor. shape: outputs before inputs, as in torch. offset: of its bytes in `file`."""

    file: Path
    name: str
    type: TensorType
    shape: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        """Return the number of bytes."""
        return math.prod(self.shape) // self.type.block * self.type.size

    @property
    def rows(self) -> int:
        """Return the number of rows, each of which is contiguous in the file."""
        return math.prod(self.shape[:-1])

    def error(self, reason: str) -> ModelFileError:
        """Return an error about this tensor."""
        return ModelFileError(self.file, f"tensor {shown(self.name)} {reason}")


@dataclass(frozen=True, slots=True)
class Header:
    """Keys with their values, and tensors by name, of one file."""

    metadata: dict[str, Value]
    tensors: dict[str, TensorInfo]


def read_header(file: Path, *, with_vocabulary: bool = True) -> Header:
    """Return the header of one GGUF file, after checking that every tensor lies inside the file.

    with_vocabulary: False leaves out the arrays of the tokenizer's keys. Their sizes are checked, their text is not.
    Raises ModelFileError.
    """
    try:
        with file.open("rb", buffering=0) as opened:
            return _parse(_Reader(file, opened), with_vocabulary)
    except OSError as error:
        raise ModelFileError(file, f"cannot be read: {error.strerror or error}") from error


def starts_as_gguf(file: Path) -> bool:
    """Return whether the first bytes of a file are those of the format."""
    try:
        with file.open("rb", buffering=0) as opened:
            return opened.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def check_regular(file: Path) -> None:
    """Raise ModelFileError for a file that does not exist or is not regular, such as a pipe, which is not opened."""
    try:
        mode = file.stat().st_mode
    except OSError as error:
        raise ModelFileError(file, f"cannot be read: {error.strerror or error}") from error
    if not stat.S_ISREG(mode):
        raise ModelFileError(file, "is not a regular file; give the path of a GGUF file")


class _Reader:
    """Position in a header that is read in growing pieces."""

    def __init__(self, path: Path, opened: BinaryIO) -> None:
        self.path = path
        self.size = opened.seek(0, 2)
        opened.seek(0)
        self.entries_left = MAX_ARRAY_ENTRIES
        self.at = 0
        self._opened = opened
        self._data = b""

    def error(self, reason: str) -> ModelFileError:
        return ModelFileError(self.path, reason)

    def take(self, count: int, subject: str) -> bytes:
        """Return the next `count` bytes. subject: the part of the header that they are, for messages."""
        begin, end = self.at, self.at + count
        if end > len(self._data):
            self._grow(end, subject)
        self.at = end
        return self._data[begin:end]

    def u32(self, subject: str) -> int:
        return int(_U32.unpack(self.take(4, subject))[0])

    def u64(self, subject: str) -> int:
        return int(_U64.unpack(self.take(8, subject))[0])

    def check_count(self, count: int, least_bytes: int, most: int, subject: str) -> None:
        """Raise if `count` entries of at least `least_bytes` each cannot be in the rest, or are more than `most`."""
        if count > most:
            raise self.error(f"{subject}: {count} entries, but at most {most} are supported; {FETCH_AGAIN}")
        if count * least_bytes > self.size - self.at:
            raise self.error(f"{subject}: {count} entries do not fit into {self.size} bytes; {FETCH_AGAIN}")

    def text(self, subject: str, most: int = MAX_HEADER_BYTES) -> str:
        length = self.u64(subject)
        if length > most:
            raise self.error(f"{subject}: {length} bytes of text, but at most {most} are supported; {FETCH_AGAIN}")
        try:
            return self.take(length, subject).decode()
        except UnicodeDecodeError as error:
            raise self.error(f"{subject}: is not valid UTF-8; {FETCH_AGAIN}") from error

    def texts(self, count: int, subject: str) -> list[Value]:
        """Return `count` strings: the loop of 100,000 tokens and merges, without a call for each."""
        found: list[Value] = []
        data, at, unpack = self._data, self.at, _U64.unpack_from
        for index in range(count):
            begin = at + 8
            if begin > len(data):
                data = self._grow(begin, subject)
            end = begin + unpack(data, at)[0]
            if end > len(data):
                data = self._grow(end, subject)
            try:
                found.append(data[begin:end].decode())
            except UnicodeDecodeError as error:
                raise self.error(f"{subject}: entry {index} is not valid UTF-8; {FETCH_AGAIN}") from error
            at = end
        self.at = at
        return found

    def skip_texts(self, count: int, subject: str) -> None:
        """Skip `count` strings."""
        data, at, unpack = self._data, self.at, _U64.unpack_from
        for _ in range(count):
            if at + 8 > len(data):
                data = self._grow(at + 8, subject)
            at += 8 + unpack(data, at)[0]
        self.at = at
        self.take(0, subject)  # the last one must end inside the file

    def _grow(self, end: int, subject: str) -> bytes:
        """Read at least up to `end`, and return all bytes since the begin of the file."""
        if end > self.size:
            raise self.error(f"{subject}: ends after byte {self.size}, the end of the file; {FETCH_AGAIN}")
        if end > MAX_HEADER_BYTES:
            raise self.error(f"{subject}: the header is longer than {MAX_HEADER_BYTES} bytes, the most supported")
        wanted = min(max(end, 2 * len(self._data), FIRST_READ_BYTES), self.size, MAX_HEADER_BYTES)
        pieces = [self._data]
        have = len(self._data)
        while have < wanted and (piece := self._opened.read(wanted - have)):
            pieces.append(piece)
            have += len(piece)
        self._data = b"".join(pieces)
        if have < end:
            raise self.error(f"{subject}: the file became shorter while it was read; fetch it again")
        return self._data


def _parse(reader: _Reader, with_vocabulary: bool) -> Header:
    _check_start(reader)
    num_tensors, num_keys = reader.u64("number of tensors"), reader.u64("number of keys")
    reader.check_count(num_tensors, 24, MAX_TENSORS, "tensors")
    reader.check_count(num_keys, 13, MAX_KEYS, "keys")
    metadata = _metadata(reader, num_keys, with_vocabulary)
    alignment = _alignment(reader, metadata.get("general.alignment", DEFAULT_ALIGNMENT))
    tensors: dict[str, TensorInfo] = {}
    for index in range(num_tensors):
        info = _tensor(reader, f"tensor {index} of {num_tensors}", alignment)
        if info.name in tensors:
            raise info.error("occurs twice; convert the model again")
        tensors[info.name] = info
    data_begin = -(-reader.at // alignment) * alignment
    tensors = {name: _moved(info, data_begin) for name, info in tensors.items()}
    _check_places(tensors, reader.size)
    return Header(metadata, tensors)


def _metadata(reader: _Reader, num_keys: int, with_vocabulary: bool) -> dict[str, Value]:
    metadata: dict[str, Value] = {}
    skipped: set[str] = set()
    for index in range(num_keys):
        key = reader.text(f"key {index} of {num_keys}", MAX_NAME_BYTES)
        subject = f"key {shown(key)}"
        if key in metadata or key in skipped:
            raise reader.error(f"{subject} occurs twice; convert the model again")
        kind = reader.u32(subject)
        if kind == ARRAY and key.startswith(VOCABULARY_PREFIX) and not with_vocabulary:
            _skip_array(reader, subject, 1)
            skipped.add(key)
        else:
            metadata[key] = _value(reader, kind, subject, 0)
    return metadata


def _check_start(reader: _Reader) -> None:
    magic = reader.take(min(4, reader.size), "magic")
    if magic != MAGIC:
        raise reader.error(f"is not a GGUF file: it begins with {magic!r} instead of {MAGIC!r}")
    version = reader.u32("version")
    if version & 0xFFFF == 0:
        raise reader.error("is a big-endian GGUF file, and only little-endian ones are supported; convert it again")
    if version not in VERSIONS:
        raise reader.error(
            f"has GGUF version {version}, but {VERSIONS[0]} and {VERSIONS[1]} are supported; convert it again"
        )


def _value(reader: _Reader, kind: int, subject: str, depth: int) -> Value:
    if kind == ARRAY:
        return _array(reader, subject, depth + 1)
    if kind == STRING:
        return reader.text(subject)
    return _numbers(reader, kind, 1, subject)[0]


def _array(reader: _Reader, subject: str, depth: int) -> list[Value]:
    kind, count = _array_start(reader, subject, depth)
    if kind == ARRAY:
        return [_array(reader, subject, depth + 1) for _ in range(count)]
    if kind == STRING:
        return reader.texts(count, subject)
    return _numbers(reader, kind, count, subject)


def _skip_array(reader: _Reader, subject: str, depth: int) -> None:
    kind, count = _array_start(reader, subject, depth)
    if kind == ARRAY:
        for _ in range(count):
            _skip_array(reader, subject, depth + 1)
    elif kind == STRING:
        reader.skip_texts(count, subject)
    else:
        _numbers(reader, kind, count, subject)  # for its checks


def _array_start(reader: _Reader, subject: str, depth: int) -> tuple[int, int]:
    """Return the type and the number of an array's entries, after comparing them with all bounds."""
    if depth > MAX_ARRAY_DEPTH:
        raise reader.error(f"{subject}: arrays are nested more than {MAX_ARRAY_DEPTH} levels deep; convert it again")
    kind, count = reader.u32(subject), reader.u64(subject)
    least_bytes = {ARRAY: 12, STRING: 8}.get(kind, SIZES.get(kind, 1))
    reader.check_count(count, least_bytes, reader.entries_left, subject)
    reader.entries_left -= count
    return kind, count


def _numbers(reader: _Reader, kind: int, count: int, subject: str) -> list[Value]:
    if kind == BOOL:
        flags = reader.take(count, subject)
        if flags.strip(b"\0\1"):
            raise reader.error(f"{subject}: a bool must be stored as 0 or 1; {FETCH_AGAIN}")
        return list(map(bool, flags))
    if kind not in FORMATS:
        known = ", ".join(map(str, sorted({*FORMATS, BOOL, STRING, ARRAY})))
        raise reader.error(f"{subject}: value type {kind} is unknown; the supported types are {known}")
    numbers = array(FORMATS[kind], reader.take(count * SIZES[kind], subject))
    if sys.byteorder == "big":
        numbers.byteswap()
    return [*numbers]


def _alignment(reader: _Reader, alignment: Value) -> int:
    if isinstance(alignment, int) and 8 <= alignment <= MAX_ALIGNMENT and alignment & (alignment - 1) == 0:
        return alignment
    raise reader.error(
        f"key 'general.alignment' must be a power of two between 8 and {MAX_ALIGNMENT}, got {shown(alignment)}; "
        "convert the model again"
    )


def _tensor(reader: _Reader, subject: str, alignment: int) -> TensorInfo:
    name = reader.text(subject, MAX_NAME_BYTES)
    subject = f"tensor {shown(name)}"
    num_dimensions = reader.u32(subject)
    if not 1 <= num_dimensions <= MAX_DIMENSIONS:
        raise reader.error(f"{subject} must have 1 to {MAX_DIMENSIONS} dimensions, got {num_dimensions}; {FETCH_AGAIN}")
    shape = tuple(reader.u64(subject) for _ in range(num_dimensions))[::-1]
    number, offset = reader.u32(subject), reader.u64(subject)
    if number not in TENSOR_TYPES:
        known = ", ".join(f"{known.name} ({key})" for key, known in TENSOR_TYPES.items())
        raise reader.error(f"{subject} has type {number}, which is unknown; the known types are {known}")
    info = TensorInfo(reader.path, name, TENSOR_TYPES[number], shape, offset)
    if 0 in shape or shape[-1] % info.type.block:
        raise info.error(
            f"has shape {shape}, but a row of type {info.type.name} must be a multiple of {info.type.block} elements, "
            "and not empty; convert the model again"
        )
    if offset % alignment:
        raise info.error(
            f"begins at offset {offset}, which is not a multiple of the alignment {alignment}; {FETCH_AGAIN}"
        )
    return info


def _moved(info: TensorInfo, data_begin: int) -> TensorInfo:
    return TensorInfo(info.file, info.name, info.type, info.shape, data_begin + info.offset)


def _check_places(tensors: dict[str, TensorInfo], size: int) -> None:
    """Raise for a tensor that ends after the file, or begins before the end of another."""
    before: TensorInfo | None = None
    for info in sorted(tensors.values(), key=lambda info: info.offset):
        if info.offset + info.size > size:
            raise info.error(f"ends at byte {info.offset + info.size} of {size}; {FETCH_AGAIN}")
        if before is not None and info.offset < before.offset + before.size:
            raise info.error(f"overlaps tensor {shown(before.name)}; {FETCH_AGAIN}")
        before = info
