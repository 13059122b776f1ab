"""GGUF files of a few hundred bytes for tests: whole ones by package gguf, and parts that it refuses to write."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np

ALIGNMENT = 32


def text(value: str | bytes) -> bytes:
    """Return a string as GGUF stores it."""
    encoded = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(encoded)) + encoded


def key(name: str, kind: int, value: bytes) -> bytes:
    """Return a key with the bytes of its value. kind: number of the value's type."""
    return text(name) + struct.pack("<I", kind) + value


def array(kind: int, count: int, values: bytes) -> bytes:
    """Return the bytes of an array value."""
    return struct.pack("<IQ", kind, count) + values


def tensor(name: str, shape: Sequence[int], kind: int = 0, offset: int = 0) -> bytes:
    """Return the description of a tensor. shape: innermost dimension first."""
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def content(
    *,
    keys: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    version: int = 3,
    num_keys: int | None = None,
    num_tensors: int | None = None,
) -> bytes:
    """Return a file's bytes. num_keys, num_tensors: as the header claims; None: the true numbers."""
    counts = (
        len(tensors) if num_tensors is None else num_tensors,
        len(keys) if num_keys is None else num_keys,
    )
    header = b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join(keys) + b"".join(tensors)
    return header + b"\0" * (-len(header) % ALIGNMENT) + data


def write_small(path: Path, *, shard: tuple[int, int] | None = None) -> dict[str, np.ndarray]:
    """Write a file with every type of value and three tensors, and return these. shard: its number and their count."""
    writer = gguf.GGUFWriter(path, "llama")
    for number, kind in enumerate(("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")):
        getattr(writer, f"add_{kind}")(f"number.{kind}", number + 1)
    writer.add_float32("number.float32", 0.5)
    writer.add_float64("number.float64", 0.1)
    writer.add_bool("flag", True)
    writer.add_string("text", "naïve ☕")
    writer.add_array("texts", ["a", "", "ü" * 300])
    writer.add_array("integers", [1, -2, 3])
    writer.add_array("floats", [1.5, -2.5])
    writer.add_array("flags", [True, False])
    if shard is not None:
        writer.add_uint16("split.no", shard[0])
        writer.add_uint16("split.count", shard[1])
    generator = np.random.default_rng(7)
    suffix = "" if shard is None else f".{shard[0]}"
    tensors = {
        f"first{suffix}": generator.standard_normal((3, 8), np.float32),
        f"second{suffix}": generator.standard_normal(5, np.float32).astype(np.float16),
        f"third{suffix}": gguf.quantize(generator.standard_normal((2, 64), np.float32), gguf.GGMLQuantizationType.Q8_0),
    }
    for name, values in tensors.items():
        raw = gguf.GGMLQuantizationType.Q8_0 if name.startswith("third") else None
        writer.add_tensor(name, values, raw_dtype=raw)
    write_all(writer)
    return tensors


def write_all(writer: gguf.GGUFWriter) -> None:
    """Write all that was added, and close the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
