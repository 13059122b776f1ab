"""GGUF models: one file, or the shards `NAME-00001-of-000NN.gguf` of one, without their weights in memory.

Knows nothing about models, text or torch; both processes use it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from engine.model_files.errors import ModelFileError, shown
from engine.model_files.gguf_header import Header, TensorInfo, Value, check_regular, read_header

SHARD_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)
MAX_SHARDS = 1024
SHARD_NUMBER, SHARD_COUNT, TENSOR_COUNT = "split.no", "split.count", "split.tensors.count"


@dataclass(frozen=True, slots=True)
class GGUFModel:
    """Metadata and tensors of all shards. file: the path that was given."""

    file: Path
    metadata: dict[str, Value]
    tensors: dict[str, TensorInfo]


def open_gguf(file: Path, *, with_vocabulary: bool = True) -> GGUFModel:
    """Return the headers of a GGUF file, and of the other shards if its name is that of one.

    with_vocabulary: as of `read_header`. Raises ModelFileError with the file, and the tensor or key, that is the cause.
    """
    shards = shard_files(file)
    for shard in shards:
        check_regular(shard)
    metadata: dict[str, Value] = {}
    tensors: dict[str, TensorInfo] = {}
    for number, shard in enumerate(shards):
        header = read_header(shard, with_vocabulary=with_vocabulary)
        _check_shard(shard, header, number, len(shards))
        metadata = metadata or header.metadata  # only the first shard describes the model
        for name, info in header.tensors.items():
            if name in tensors:
                raise info.error(f"is in {tensors[name].file.name} too; fetch all shards of one conversion")
            tensors[name] = info
    _check_total(file, metadata, len(tensors))
    return GGUFModel(file, metadata, tensors)


def shard_files(file: Path) -> list[Path]:
    """Return all shards of the model of `file`, or `file` alone. Raises ModelFileError for an impossible count."""
    match = SHARD_NAME.fullmatch(file.name)
    if match is None:
        return [file]
    number, count = int(match[2]), int(match[3])
    if not 1 <= number <= count <= MAX_SHARDS:
        raise ModelFileError(file, f"shard {number} of {count}: the name must count from 1 to at most {MAX_SHARDS}")
    return [file.with_name(f"{match[1]}-{shard:05}-of-{match[3]}.gguf") for shard in range(1, count + 1)]


def read_rows(info: TensorInfo, first: int, last: int) -> bytearray:
    """Return the bytes of rows `first` to `last` (excluded). Raises ModelFileError if the file was changed."""
    row_bytes = info.size // info.rows
    buffer = bytearray((last - first) * row_bytes)
    try:
        with info.file.open("rb", buffering=0) as opened:
            opened.seek(info.offset + first * row_bytes)
            done = 0
            while done < len(buffer) and (count := opened.readinto(memoryview(buffer)[done:])):
                done += count
    except OSError as error:
        raise info.error(f"cannot be read: {error.strerror or error}") from error
    if done < len(buffer):
        raise info.error("ends after the end of the file, which became shorter; fetch it again")
    return buffer


def _check_shard(shard: Path, header: Header, number: int, count: int) -> None:
    given = {SHARD_NUMBER: header.metadata.get(SHARD_NUMBER, 0), SHARD_COUNT: header.metadata.get(SHARD_COUNT, 1)}
    if given[SHARD_COUNT] == 0:  # written for a model that was not split
        given[SHARD_COUNT] = 1
    for key, expected in ((SHARD_COUNT, count), (SHARD_NUMBER, number)):
        if given[key] != expected:
            raise ModelFileError(
                shard,
                f"key {key!r} must be {expected} by the file's name, got {shown(given[key])}; "
                "keep the names NAME-00001-of-000NN.gguf of shards, in one folder",
            )


def _check_total(file: Path, metadata: dict[str, Value], found: int) -> None:
    total = metadata.get(TENSOR_COUNT, found)
    if total != found:
        raise ModelFileError(
            file, f"key {TENSOR_COUNT!r} is {shown(total)}, but there are {found} tensors; fetch all shards again"
        )
