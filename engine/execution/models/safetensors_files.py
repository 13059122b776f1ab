"""Reading of checkpoint tensors, one at a time, straight into memory that the caller owns.

The format (github.com/huggingface/safetensors): 8 bytes little-endian header length, a JSON header, the tensors' bytes.
Files are read with plain reads. A memory map would keep every touched page resident beside the copy made of it, so that
loading would take the size of the weights twice.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.execution.models.errors import WeightsError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000  # the format's own limit
COMPARE_CHUNK_BYTES = 16 << 20  # of each of two tensors that are read and compared at a time

# Beyond any weight, norm or bias of published models, which stay below thousands. A flipped high bit of an exponent
# makes 1e17 or more of most values in float32 and bfloat16.
MAX_MAGNITUDE = 1e6
# Signed and unsigned integers of the same size.
INTEGERS: dict[torch.dtype, tuple[type[np.signedinteger[Any]], type[np.unsignedinteger[Any]]]] = {
    torch.float64: (np.int64, np.uint64),
    torch.float32: (np.int32, np.uint32),
    torch.float16: (np.int16, np.uint16),
    torch.bfloat16: (np.int16, np.uint16),
}

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
    """Location of a tensor's bytes. begin: absolute offset in the file."""

    file: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    size: int

    def read_into(self, out: Tensor) -> float:
        """Fill `out`, of any dtype and device, with the tensor, converting the dtype if it differs.

        Returns the largest magnitude of the stored values.
        """
        direct = out.dtype == self.dtype and out.device.type == "cpu" and out.is_contiguous()
        target = out if direct else torch.empty(self.shape, dtype=self.dtype)
        buffer = target.flatten().view(torch.uint8).numpy()
        try:
            with self.file.open("rb") as file:
                file.seek(self.offset)
                count = file.readinto(buffer.data)
        except OSError as error:
            raise WeightsError(f"{self.file}: cannot be read: {error}") from error
        if count != self.size:
            raise WeightsError(
                f"{self.file}: the file is truncated: {count} of {self.size} bytes at offset {self.offset}"
            )
        if not direct:
            out.copy_(target)
        return largest_magnitude(target)

    def rows(self, first: int, last: int) -> TensorEntry:
        """Return the entry of rows `first` to `last` (excluded) of a tensor of at least one dimension."""
        row_bytes = self.size // self.shape[0]
        begin = self.offset + first * row_bytes
        return replace(self, shape=(last - first, *self.shape[1:]), offset=begin, size=(last - first) * row_bytes)


def have_same_values(first: TensorEntry, second: TensorEntry, dtype: torch.dtype) -> bool:
    """Return whether two tensors are equal once loaded in `dtype`. Reads both, `COMPARE_CHUNK_BYTES` at a time."""
    if not first.shape or first.shape != second.shape:
        return False
    step = max(1, COMPARE_CHUNK_BYTES // max(1, first.size // max(1, first.shape[0])))
    for begin in range(0, first.shape[0], step):
        parts = [entry.rows(begin, min(begin + step, first.shape[0])) for entry in (first, second)]
        first_values, second_values = (torch.empty(part.shape, dtype=dtype) for part in parts)
        parts[0].read_into(first_values)
        parts[1].read_into(second_values)
        if not torch.equal(first_values, second_values):
            return False
    return True


def list_tensors(directory: Path) -> dict[str, TensorEntry]:
    """Return all tensors of a checkpoint directory, single-file or sharded, by name.

    Raises WeightsError with the file that is the cause.
    """
    single, index_file = directory / SINGLE_FILE, directory / INDEX_FILE
    # It takes precedence over an index, as in transformers: an index beside it is from an earlier save.
    if single.exists():
        return dict(_read_header(single))
    if index_file.exists():
        return _list_sharded(directory, index_file)
    raise WeightsError(
        f"{directory}: must contain {SINGLE_FILE} or {INDEX_FILE}; only the safetensors format is supported"
    )


def largest_magnitude(values: Tensor) -> float:
    """Return the largest absolute value of a contiguous CPU tensor; NaN or infinity if it contains one.

    The bits of a float without its sign are ordered as its magnitude, with infinity and NaN at the end. The two passes
    over integers take a third of the time of one over bfloat16.
    """
    if values.dtype not in INTEGERS:
        return 0.0
    signed, unsigned = INTEGERS[values.dtype]
    bits = values.detach().flatten().view(torch.uint8).numpy()
    sign = 1 << (8 * values.dtype.itemsize - 1)
    positive, negative = (int(bits.view(kind).max(initial=0)) for kind in (signed, unsigned))
    magnitude = max(positive, negative - sign)
    return float(torch.from_numpy(np.array([magnitude], signed)).view(values.dtype).item())


def check_magnitude(file: Path, name: str, magnitude: float, most: float) -> None:
    """Raise WeightsError for a tensor that contains NaN, infinity or a value beyond `most`."""
    if not math.isfinite(magnitude):
        raise WeightsError(f"{file}: tensor {name} contains NaN or infinity: the checkpoint is damaged")
    if magnitude > most:
        raise WeightsError(
            f"{file}: tensor {name} contains a value of magnitude {magnitude:.3g}, and at most {most:g} is plausible: "
            "the checkpoint is damaged; fetch it again"
        )


def _list_sharded(directory: Path, index_file: Path) -> dict[str, TensorEntry]:
    weight_map = _read_index(index_file)
    tensors: dict[str, TensorEntry] = {}
    for file_name in sorted(set(weight_map.values())):
        if Path(file_name).name != file_name:
            raise WeightsError(f"{index_file}: {file_name!r} must be the name of a file in the same directory")
        tensors.update(_read_header(directory / file_name))
    for name, file_name in weight_map.items():
        if name not in tensors or tensors[name].file.name != file_name:
            raise WeightsError(
                f"{directory / file_name}: tensor {name} is missing, although {INDEX_FILE} lists it there"
            )
    return tensors


def _read_index(index_file: Path) -> Mapping[str, str]:
    try:
        weight_map = json.loads(index_file.read_bytes())["weight_map"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise WeightsError(f"{index_file}: the file is not a safetensors index: {error!r}") from error
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise WeightsError(f"{index_file}: weight_map must map tensor names to file names")
    return weight_map


def _read_header(path: Path) -> Iterator[tuple[str, TensorEntry]]:
    """Yield every tensor of one file, after checking that it lies inside the file."""
    try:
        file_size = path.stat().st_size
        with path.open("rb") as file:
            header_size = int.from_bytes(file.read(8), "little")
            if file_size < 8 or header_size > min(MAX_HEADER_BYTES, file_size - 8):
                raise WeightsError(
                    f"{path}: the file is truncated or damaged: header of {header_size} bytes in {file_size} bytes"
                )
            header = json.loads(file.read(header_size))
    except FileNotFoundError as error:
        raise WeightsError(f"{path}: the file is missing") from error
    except (OSError, ValueError) as error:
        raise WeightsError(f"{path}: the header cannot be read: {error!r}") from error
    if not isinstance(header, dict):
        raise WeightsError(f"{path}: the header must be a JSON object")
    for name, fields in header.items():
        if name != "__metadata__":
            yield name, _entry(path, name, fields, 8 + header_size, file_size)


def _entry(path: Path, name: str, fields: Any, data_begin: int, file_size: int) -> TensorEntry:
    try:
        dtype = DTYPES[fields["dtype"]]
        shape = tuple(int(length) for length in fields["shape"])
        begin, end = (int(offset) for offset in fields["data_offsets"])
    except (KeyError, TypeError, ValueError) as error:
        raise WeightsError(f"{path}: tensor {name} has an invalid header entry {fields!r}: {error!r}") from error
    if begin < 0 or end - begin != math.prod(shape) * dtype.itemsize:
        raise WeightsError(f"{path}: tensor {name} has {end - begin} bytes, which do not fit {shape} of {dtype}")
    if data_begin + end > file_size:
        raise WeightsError(
            f"{path}: the file is truncated: tensor {name} ends at byte {data_begin + end} of {file_size}"
        )
    return TensorEntry(path, dtype, shape, data_begin + begin, end - begin)
