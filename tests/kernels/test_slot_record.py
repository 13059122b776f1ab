"""One dtype describes a slot's parameters on the host, on a device and in C."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.execution.slots import SlotState
from engine.scheduling.batch import Batch, Join
from engine.types import SamplingParams
from kernels.cpu.compiler import CompileError, find_compiler
from kernels.cpu.slot_record import FILE_NAME, header
from kernels.slots import SamplingTensors, SlotRecord, as_bytes
from tests.conftest import ROOT
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


# Sampling parameters that act elsewhere than in a back end, and the module that reads them.
ELSEWHERE = {
    "max_tokens": "engine/scheduling/sequence.py",
    "stop_token_ids": "engine/scheduling/sequence.py",
    "has_stop_strings": "engine/scheduling/sequence.py",
    "logit_bias": "engine/execution/logit_edits.py",
    "prompt_logprobs": "engine/scheduling/sequence.py",
    "grammar": "engine/constraints/compiler.py",
    "reasoning_limit": "engine/constraints/compiler.py",
}
# Parameters of a record that torch applies to the logits beforehand, on every device.
BY_TORCH = {"min_tokens", "logprobs"}
PENALTIES = {"frequency_penalty", "presence_penalty", "repetition_penalty"}
BACK_ENDS = ("kernels/cpu/source", "kernels/reference", "kernels/triton")


def code(path: str) -> str:
    """Return the source of a file, or of all files below a folder."""
    place = ROOT / path
    files = [place] if place.is_file() else [file for file in place.rglob("*") if file.suffix in (".py", ".cpp", ".h")]
    return "\n".join(file.read_text() for file in files)


def test_every_sampling_parameter_is_in_the_record_or_acts_elsewhere():
    """A new one in neither place would be accepted and have no effect."""
    fields = set(SamplingParams.__struct_fields__)
    in_record = fields & set(SlotRecord.names)
    assert in_record | set(ELSEWHERE) == fields and in_record.isdisjoint(ELSEWHERE)
    for name, path in ELSEWHERE.items():
        assert re.search(rf"\b{name}\b", code(path)), (name, path)


@pytest.mark.parametrize("name", SlotRecord.names)
def test_every_back_end_reads_a_field_of_the_record(name: str):
    """Filters and noise are parts of each back end, and penalties have a common default; other edits of logits and
    log-probabilities are the same for all.
    """
    if name in PENALTIES:
        assert all(re.search(rf"\b{name}\b", code(path)) for path in ("kernels/cpu/source", "kernels/unfused.py"))
        return
    if name in BY_TORCH or name == "prompt_len":
        assert re.search(rf"\b{name}\b", code("engine/execution"))
        return
    for back_end in BACK_ENDS:
        assert re.search(rf"\b{name}\b", code(back_end)), back_end


@pytest.mark.parametrize("name", sorted(set(SamplingParams.__struct_fields__) & set(SlotRecord.names)))
def test_a_joining_sequence_fills_its_record(name: str):
    """Each field has the value of the request."""
    different = SamplingParams(
        max_tokens=9, seed=5, min_tokens=2, logprobs=3, temperature=0.5, top_k=7, top_p=0.25, min_p=0.125,
        top_n_sigma=1.5, frequency_penalty=0.5, presence_penalty=-0.5, repetition_penalty=1.25,
    )  # fmt: skip
    slots = SlotState(2, 64, 16)
    slots.apply(Batch(step=0, joins=(Join(1, (4, 5, 6), 3, 0, different, (0,)),)))
    assert slots.records[1][name] == getattr(different, name)
    assert getattr(different, name) != getattr(SamplingParams(max_tokens=9), name), "the test would see no change"
