"""Reads the tensors of a checkpoint, one at a time, straight into memory the caller owns.

The format (github.com/huggingface/safetensors): 8 bytes little-endian header length, a JSON header, the tensors'
bytes. It is read with plain file reads: the usual memory map keeps every page it touched resident beside the copy
made of it, so loading would take the size of the weights twice.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.execution.models.errors import WeightsError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000  # the format's own limit
COMPARED_BYTES = 16 << 20  # read of each of two tensors at once

DTYPES = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F64": torch.float64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}


@dataclass(frozen=True)
class TensorEntry:
    """Where a tensor's bytes are. begin: absolute offset in the file."""

    file: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    size: int

    def read_into(self, out: Tensor) -> None:
        """Fill `out`, any dtype and device, with the tensor; converts where they differ."""
        direct = out.dtype == self.dtype and out.device.type == "cpu" and out.is_contiguous()
        target = out if direct else torch.empty(self.shape, dtype=self.dtype)
        buffer = target.flatten().view(torch.uint8).numpy()
        try:
            with self.file.open("rb") as file:
                file.seek(self.begin)
                count = file.readinto(buffer.data)
        except OSError as error:
            raise WeightsError(f"{self.file}: cannot be read: {error}") from error
        if count != self.size:
            raise WeightsError(f"{self.file}: truncated: {count} of {self.size} bytes at offset {self.begin}")
        if not direct:
            out.copy_(target)

    def rows(self, first: int, last: int) -> TensorEntry:
        """Return the entry of rows `first` to `last` (excluded) of a tensor of at least one dimension."""
        row_bytes = self.size // self.shape[0]
        begin = self.begin + first * row_bytes
        return replace(self, shape=(last - first, *self.shape[1:]), begin=begin, size=(last - first) * row_bytes)


def have_same_values(first: TensorEntry, second: TensorEntry, dtype: torch.dtype) -> bool:
    """Return whether two tensors are equal once loaded in `dtype`. Reads both, `COMPARED_BYTES` at a time."""
    if not first.shape or first.shape != second.shape:
        return False
    step = max(1, COMPARED_BYTES // max(1, first.size // max(1, first.shape[0])))
    for begin in range(0, first.shape[0], step):
        parts = [entry.rows(begin, min(begin + step, first.shape[0])) for entry in (first, second)]
        one, other = (torch.empty(part.shape, dtype=dtype) for part in parts)
        parts[0].read_into(one)
        parts[1].read_into(other)
        if not torch.equal(one, other):
            return False
    return True


def list_tensors(directory: Path) -> dict[str, TensorEntry]:
    """All tensors of a checkpoint directory, single or sharded, by name. Raises WeightsError naming the file to
    blame.
    """
    single, index_file = directory / SINGLE_FILE, directory / INDEX_FILE
    if single.exists():  # before an index, as in transformers: what lies beside it is from an earlier save
        return dict(_read_header(single))
    if index_file.exists():
        return _list_sharded(directory, index_file)
    raise WeightsError(f"{directory}: neither {SINGLE_FILE} nor {INDEX_FILE} is there; only safetensors are read")


def find_not_finite(directory: Path) -> tuple[str, TensorEntry] | None:
    """Return the first tensor of a checkpoint that contains NaN or infinity, with its name. Reads all of them."""
    for name, entry in list_tensors(directory).items():
        if entry.dtype.is_floating_point:
            tensor = torch.empty(entry.shape, dtype=entry.dtype)
            entry.read_into(tensor)
            if not tensor.float().isfinite().all():
                return name, entry
    return None


def _list_sharded(directory: Path, index_file: Path) -> dict[str, TensorEntry]:
    weight_map = _read_index(index_file)
    tensors: dict[str, TensorEntry] = {}
    for file_name in sorted(set(weight_map.values())):
        if Path(file_name).name != file_name:
            raise WeightsError(f"{index_file}: {file_name!r} is not the name of a file in the same directory")
        tensors.update(_read_header(directory / file_name))
    for name, file_name in weight_map.items():
        if name not in tensors or tensors[name].file.name != file_name:
            raise WeightsError(
                f"{directory / file_name}: tensor {name} is missing, though {INDEX_FILE} places it there"
            )
    return tensors


def _read_index(index_file: Path) -> Mapping[str, str]:
    try:
        weight_map = json.loads(index_file.read_bytes())["weight_map"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise WeightsError(f"{index_file}: not a safetensors index: {error!r}") from error
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise WeightsError(f"{index_file}: weight_map does not map tensor names to file names")
    return weight_map


def _read_header(path: Path) -> Iterator[tuple[str, TensorEntry]]:
    """Every tensor of one file, checked to lie inside it."""
    try:
        file_size = path.stat().st_size
        with path.open("rb") as file:
            header_size = int.from_bytes(file.read(8), "little")
            if file_size < 8 or header_size > min(MAX_HEADER_BYTES, file_size - 8):
                raise WeightsError(
                    f"{path}: header of {header_size} bytes in a file of {file_size}: truncated or damaged"
                )
            header = json.loads(file.read(header_size))
    except FileNotFoundError as error:
        raise WeightsError(f"{path}: missing") from error
    except (OSError, ValueError) as error:
        raise WeightsError(f"{path}: header cannot be read: {error!r}") from error
    if not isinstance(header, dict):
        raise WeightsError(f"{path}: header is not a JSON object")
    for name, fields in header.items():
        if name != "__metadata__":
            yield name, _entry(path, name, fields, 8 + header_size, file_size)


def _entry(path: Path, name: str, fields: Any, data_begin: int, file_size: int) -> TensorEntry:
    try:
        dtype = DTYPES[fields["dtype"]]
        shape = tuple(int(length) for length in fields["shape"])
        begin, end = (int(offset) for offset in fields["data_offsets"])
    except (KeyError, TypeError, ValueError) as error:
        raise WeightsError(f"{path}: tensor {name}: bad header entry {fields!r}: {error!r}") from error
    if begin < 0 or end - begin != math.prod(shape) * dtype.itemsize:
        raise WeightsError(f"{path}: tensor {name}: {end - begin} bytes do not hold {shape} of {dtype}")
    if data_begin + end > file_size:
        raise WeightsError(f"{path}: truncated: tensor {name} ends at byte {data_begin + end} of a file of {file_size}")
    return TensorEntry(path, dtype, shape, data_begin + begin, end - begin)
