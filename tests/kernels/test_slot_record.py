"""One dtype describes a slot's parameters on the host, on a device and in C."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from kernels.cpu.compiler import CompileError, find_compiler
from kernels.cpu.slot_record import FILE_NAME, header
from kernels.slots import SamplingTensors, SlotRecord, as_bytes
from tests.kernels.conftest import cpu_kernels
from tests.requirements import is_strict

EXTENDED = np.dtype([*((name, SlotRecord[name]) for name in SlotRecord.names), ("added", np.float32)], align=True)


def compiled_offsets(dtype: np.dtype, folder: Path) -> list[int]:
    """Return the offsets of all fields, then the size of the record, as a compiled C++ function reports them."""
    offsets = ", ".join(f"offsetof(SlotRecord, {name})" for name in dtype.names)
    (folder / FILE_NAME).write_text(header(dtype))
    source, library = folder / "offsets.cpp", folder / "offsets.so"
    source.write_text(
        f'#include "{FILE_NAME}"\nextern "C" int64_t offset(int64_t field) {{\n'
        f"    const int64_t all[] = {{{offsets}, sizeof(SlotRecord)}};\n    return all[field];\n}}\n"
    )
    try:
        command = [*find_compiler().command, "-shared", "-fPIC", f"-I{folder}", str(source), "-o", str(library)]
    except CompileError as error:
        if is_strict():
            raise
        pytest.skip(f"needs a C++ compiler: {error}")
    subprocess.run(command, check=True)
    function = ctypes.CDLL(str(library)).offset
    function.argtypes, function.restype = (ctypes.c_int64,), ctypes.c_int64
    return [function(field) for field in range(len(dtype.names) + 1)]


@pytest.mark.parametrize("dtype", [SlotRecord, EXTENDED], ids=["record", "with one more field"])
def test_c_lays_out_a_record_as_numpy_does(dtype: np.dtype, tmp_path: Path):
    """The generated header has every field of the dtype at the dtype's offset."""
    expected = [dtype.fields[name][1] for name in dtype.names]
    assert compiled_offsets(dtype, tmp_path) == [*expected, dtype.itemsize]


def test_bytes_of_a_record_are_its_fields_on_a_device():
    """Each field is read back from the bytes of the host's records; a seed keeps all its 64 bits."""
    records = np.zeros(3, SlotRecord)
    for number, name in enumerate(SlotRecord.names, 1):
        records[name] = np.arange(3) + 10 * number
    records["seed"][2] = 2**64 - 5
    sampling = SamplingTensors(torch.from_numpy(as_bytes(records)), torch.arange(3))
    for name in SlotRecord.names:
        expected = records[name].astype(np.int64) if name == "seed" else records[name]
        assert sampling.field(name).tolist() == expected.tolist(), name
    assert sampling.field("seed")[2] == -5


def test_a_field_added_to_the_record_recompiles_the_library(monkeypatch: pytest.MonkeyPatch):
    """The library's file name depends on the generated header."""
    from kernels.cpu import cache, slot_record

    cpu_kernels()  # needs a compiler
    before = cache.Target.current()
    monkeypatch.setattr(slot_record, "header", lambda: header(EXTENDED))
    assert cache.Target.current().file_name != before.file_name
