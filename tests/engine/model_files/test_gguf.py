"""Reading of GGUF headers: valid files, shards, and files that are damaged or made to cause harm."""

from __future__ import annotations

import os
import random
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.model_files import gguf_header
from engine.model_files.errors import ModelFileError
from engine.model_files.gguf import GGUFModel, open_gguf, read_rows
from tests.engine.model_files.gguf_files import array, content, key, tensor, text, write_small

HUGE = 1 << 60
U32, STRING, ARRAY = 4, 8, 9
NAME_OF_SHARD = "model-{:05}-of-{:05}.gguf"


def opened(path: Path, data: bytes, with_vocabulary: bool = True) -> GGUFModel:
    """Write `data` as a file, and open it."""
    path.write_bytes(data)
    return open_gguf(path, with_vocabulary=with_vocabulary)


def refusal(path: Path, data: bytes, with_vocabulary: bool = True) -> str:
    """Return the message with which a file is refused, after checking its form."""
    with pytest.raises(ModelFileError) as raised:
        opened(path, data, with_vocabulary)
    message = str(raised.value)
    assert "\n" not in message
    assert message.startswith(f"{path}: ")
    return message


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def test_every_type_of_value_is_read(file: Path):
    """Numbers of all widths, text, bools and arrays have the values that package gguf wrote."""
    write_small(file)
    metadata = open_gguf(file).metadata
    kinds = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
    assert [metadata[f"number.{kind}"] for kind in kinds] == list(range(1, 9))
    assert (metadata["number.float32"], metadata["number.float64"]) == (0.5, 0.1)
    assert (metadata["flag"], metadata["text"]) == (True, "naïve ☕")
    assert metadata["texts"] == ["a", "", "ü" * 300]
    assert (metadata["integers"], metadata["floats"]) == ([1, -2, 3], [1.5, -2.5])
    assert metadata["flags"] == [True, False]


def test_tensors_have_the_bytes_that_were_written(file: Path):
    """Shapes have outputs first; whole tensors and ranges of rows are read."""
    written = write_small(file)
    tensors = open_gguf(file).tensors
    assert {name: info.shape for name, info in tensors.items()} == {"first": (3, 8), "second": (5,), "third": (2, 64)}
    assert {name: info.type.name for name, info in tensors.items()} == {
        "first": "F32",
        "second": "F16",
        "third": "Q8_0",
    }
    for name, values in written.items():
        assert bytes(read_rows(tensors[name], 0, tensors[name].rows)) == values.tobytes()
    assert bytes(read_rows(tensors["first"], 1, 3)) == written["first"][1:].tobytes()


def test_version_2_and_another_alignment_are_read(file: Path):
    """Tensors begin at multiples of the alignment that the file states."""
    keys = [key("general.alignment", U32, struct.pack("<I", 64))]
    header = content(keys=keys, tensors=[tensor("a", [2]), tensor("b", [1], offset=64)], version=2)
    data = header.ljust(-(-len(header) // 64) * 64, b"\0") + np.array([1, 2], np.float32).tobytes().ljust(64, b"\0")
    tensors = opened(file, data + np.array([3], np.float32).tobytes()).tensors
    assert np.frombuffer(read_rows(tensors["a"], 0, 1), np.float32).tolist() == [1, 2]
    assert np.frombuffer(read_rows(tensors["b"], 0, 1), np.float32).tolist() == [3]


def test_a_vocabulary_that_is_not_needed_is_skipped(file: Path, monkeypatch: pytest.MonkeyPatch):
    """Arrays of the tokenizer's keys are left out, also across the borders of pieces; all else is the same."""
    monkeypatch.setattr(gguf_header, "FIRST_READ_BYTES", 8)
    texts = array(STRING, 3, text("a") + text("") + text("ü" * 300))
    keys = [
        key("tokenizer.ggml.model", STRING, text("gpt2")),
        key("tokenizer.ggml.tokens", ARRAY, texts),
        key("tokenizer.ggml.token_type", ARRAY, array(U32, 3, bytes(12))),
        key("tokenizer.deep", ARRAY, array(ARRAY, 2, texts * 2)),
        key("other", ARRAY, texts),
        key("tokenizer.ggml.eos_token_id", U32, struct.pack("<I", 2)),
    ]
    data = content(keys=keys, tensors=[tensor("a", [2])], data=bytes(8))
    whole, rest = opened(file, data), opened(file, data, with_vocabulary=False)
    skipped = {"tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "tokenizer.deep"}
    assert rest.metadata == {name: value for name, value in whole.metadata.items() if name not in skipped}
    assert rest.tensors == whole.tensors and len(whole.metadata) == len(keys)


def test_nested_arrays_are_read_to_a_depth(file: Path):
    """A list of lists is a value; a list of five levels is refused."""
    value = array(U32, 1, struct.pack("<I", 5))
    value = array(ARRAY, 2, value + value)
    assert opened(file, content(keys=[key("deep", ARRAY, value)])).metadata["deep"] == [[5], [5]]
    for _ in range(3):
        value = array(ARRAY, 1, value)
    assert "key 'deep': arrays are nested more than 4 levels deep" in refusal(
        file, content(keys=[key("deep", ARRAY, value)])
    )


def test_shards_are_one_model(tmp_path: Path):
    """Any shard's path opens the tensors of all; the metadata is that of the first."""
    for number in range(3):
        write_small(tmp_path / NAME_OF_SHARD.format(number + 1, 3), shard=(number, 3))
    model = open_gguf(tmp_path / NAME_OF_SHARD.format(2, 3))
    assert len(model.tensors) == 9
    assert model.tensors["third.2"].file.name == NAME_OF_SHARD.format(3, 3)
    assert model.metadata["split.no"] == 0


def test_a_missing_shard_is_named(tmp_path: Path):
    """The message has the path of the shard that does not exist."""
    first = tmp_path / NAME_OF_SHARD.format(1, 2)
    write_small(first, shard=(0, 2))
    with pytest.raises(ModelFileError, match=r"model-00002-of-00002\.gguf: cannot be read: No such file"):
        open_gguf(first)


@pytest.mark.parametrize(("shard", "key_name"), [((0, 2), "split.no"), ((1, 3), "split.count")])
def test_shards_of_other_models_are_refused(tmp_path: Path, shard: tuple[int, int], key_name: str):
    """Number and count of a shard must be those of its name."""
    write_small(tmp_path / NAME_OF_SHARD.format(1, 2), shard=(0, 2))
    write_small(tmp_path / NAME_OF_SHARD.format(2, 2), shard=shard)
    with pytest.raises(ModelFileError, match=f"00002-of-00002.gguf: key '{key_name}' must be"):
        open_gguf(tmp_path / NAME_OF_SHARD.format(1, 2))


def test_a_renamed_shard_is_refused(file: Path):
    """A file that is one of several, without the name of a shard, is not a whole model."""
    write_small(file, shard=(0, 2))
    with pytest.raises(ModelFileError, match=r"key 'split.count' must be 1 by the file's name, got 2"):
        open_gguf(file)


def test_a_tensor_of_two_shards_is_refused(tmp_path: Path):
    """The message names the tensor and both files."""
    for number in range(2):
        keys = [key("split.no", 2, struct.pack("<H", number)), key("split.count", 2, struct.pack("<H", 2))]
        (tmp_path / NAME_OF_SHARD.format(number + 1, 2)).write_bytes(
            content(keys=keys, tensors=[tensor("same", [2])], data=bytes(8))
        )
    with pytest.raises(ModelFileError, match=r"00002.gguf: tensor 'same' is in model-00001-of-00002.gguf too"):
        open_gguf(tmp_path / NAME_OF_SHARD.format(1, 2))


def test_the_number_of_tensors_of_all_shards_is_checked(file: Path):
    """A model with fewer tensors than its first shard states is refused."""
    keys = [key("split.tensors.count", U32, struct.pack("<I", 2))]
    message = refusal(file, content(keys=keys, tensors=[tensor("a", [2])], data=bytes(8)))
    assert "key 'split.tensors.count' is 2, but there are 1 tensors" in message


def test_names_of_impossible_shards_are_refused(tmp_path: Path):
    """A name cannot make the reader look for 99,999 files."""
    for number, count in ((1, 99999), (3, 2), (0, 2)):
        with pytest.raises(ModelFileError, match=f"shard {number} of {count}"):
            open_gguf(tmp_path / NAME_OF_SHARD.format(number, count))


DAMAGED = {
    "nothing": (b"", "is not a GGUF file"),
    "another format": (b"PK\3\4" + bytes(100), r"begins with b'PK\x03\x04' instead of b'GGUF'"),
    "version 1": (content(version=1), "has GGUF version 1, but 2 and 3 are supported; convert it again"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "is a big-endian GGUF file"),
    "many tensors": (content(num_tensors=HUGE), f"tensors: {HUGE} entries, but at most 65536"),
    "more tensors than bytes": (content(num_tensors=9999), "tensors: 9999 entries do not fit into 32 bytes"),
    "many keys": (content(num_keys=HUGE), f"keys: {HUGE} entries, but at most 16384"),
    "long text": (content(keys=[key("a", STRING, struct.pack("<Q", HUGE))]), f"key 'a': {HUGE} bytes of text"),
    "long name": (content(keys=[struct.pack("<Q", HUGE) + bytes(20)]), f"key 0 of 1: {HUGE} bytes of text"),
    "long array": (content(keys=[key("a", ARRAY, array(U32, HUGE, b""))]), f"key 'a': {HUGE} entries"),
    "array longer than the file": (
        content(keys=[key("a", ARRAY, array(U32, 100000, b""))]),
        "key 'a': 100000 entries do not fit into 64 bytes",
    ),
    "long text in an array": (
        content(keys=[key("a", ARRAY, array(STRING, 1, struct.pack("<Q", HUGE)))]),
        "key 'a': ends after byte",
    ),
    "array of long arrays": (
        content(keys=[key("a", ARRAY, array(ARRAY, 1, array(0, HUGE, b"")))]),
        f"key 'a': {HUGE} entries",
    ),
    "unknown value": (content(keys=[key("a", 13, bytes(8))]), "key 'a': value type 13 is unknown; the supported types"),
    "unknown value in an array": (content(keys=[key("a", ARRAY, array(99, 1, bytes(8)))]), "value type 99 is unknown"),
    "neither true nor false": (content(keys=[key("a", 7, b"\2")]), "key 'a': a bool must be stored as 0 or 1"),
    "two keys": (content(keys=[key("a", 7, b"\1")] * 2), "key 'a' occurs twice"),
    "bytes as a key": (content(keys=[text(b"\xff") + struct.pack("<I", 7) + b"\1"]), "key 0 of 1: is not valid UTF-8"),
    "bytes as text": (content(keys=[key("a", STRING, text(b"\xc3("))]), "key 'a': is not valid UTF-8"),
    "bytes among texts": (
        content(keys=[key("a", ARRAY, array(STRING, 2, text("ok") + text(b"\x80")))]),
        "key 'a': entry 1 is not valid UTF-8",
    ),
    "long text in a vocabulary": (
        content(keys=[key("tokenizer.t", ARRAY, array(STRING, 2, struct.pack("<Q", HUGE) + text("")))]),
        "key 'tokenizer.t': ends after byte",
    ),
    "long last text of a vocabulary": (
        content(keys=[key("tokenizer.t", ARRAY, array(STRING, 1, struct.pack("<Q", HUGE)))]),
        "key 'tokenizer.t': ends after byte",
    ),
    "a vocabulary longer than the file": (
        content(keys=[key("tokenizer.t", ARRAY, array(STRING, HUGE, b""))]),
        f"key 'tokenizer.t': {HUGE} entries",
    ),
    "a deep vocabulary": (
        content(
            keys=[
                key(
                    "tokenizer.t",
                    ARRAY,
                    array(ARRAY, 1, array(ARRAY, 1, array(ARRAY, 1, array(ARRAY, 1, array(0, 0, b""))))),
                )
            ]
        ),
        "key 'tokenizer.t': arrays are nested more than 4 levels deep",
    ),
    "unknown kinds of tokens": (
        content(keys=[key("tokenizer.t", ARRAY, array(99, 1, bytes(8)))]),
        "key 'tokenizer.t': value type 99 is unknown",
    ),
    "two vocabularies": (
        content(keys=[key("tokenizer.t", ARRAY, array(STRING, 1, text("")))] * 2),
        "key 'tokenizer.t' occurs twice",
    ),
    "bytes as a tensor's name": (content(tensors=[tensor("a", [1]).replace(b"a", b"\xfe")]), "tensor 0 of 1: is not"),
    "alignment of 3": (
        content(keys=[key("general.alignment", U32, struct.pack("<I", 3))]),
        "key 'general.alignment' must be a power of two between 8 and 65536, got 3",
    ),
    "alignment in words": (
        content(keys=[key("general.alignment", STRING, text("wide"))]),
        "key 'general.alignment' must be a power of two between 8 and 65536, got 'wide'",
    ),
    "no dimensions": (content(tensors=[tensor("a", [])]), "tensor 'a' must have 1 to 4 dimensions, got 0"),
    "five dimensions": (content(tensors=[tensor("a", [1] * 5)]), "tensor 'a' must have 1 to 4 dimensions, got 5"),
    "many dimensions": (
        content(tensors=[text("a") + struct.pack("<I", 2**32 - 1) + bytes(32)]),
        "tensor 'a' must have 1 to 4 dimensions, got 4294967295",
    ),
    "an empty dimension": (content(tensors=[tensor("a", [4, 0])]), "tensor 'a' has shape (0, 4)"),
    "a large dimension": (content(tensors=[tensor("a", [HUGE] * 4)]), "tensor 'a' ends at byte"),
    "unknown tensor type": (
        content(tensors=[tensor("a", [4], kind=99)]),
        "tensor 'a' has type 99, which is unknown; the known types are F32 (0), F16 (1), Q4_0 (2)",
    ),
    "half a block": (
        content(tensors=[tensor("a", [48, 2], kind=2)], data=bytes(99)),
        "tensor 'a' has shape (2, 48), but a row of type Q4_0 must be a multiple of 32 elements",
    ),
    "after the end": (content(tensors=[tensor("a", [4], offset=1 << 62)], data=bytes(16)), "tensor 'a' ends at byte"),
    "one byte short": (content(tensors=[tensor("a", [4])], data=bytes(15)), "tensor 'a' ends at byte 80 of 79"),
    "misaligned": (
        content(tensors=[tensor("a", [4], offset=8)], data=bytes(64)),
        "tensor 'a' begins at offset 8, which is not a multiple of the alignment 32",
    ),
    "overlapping": (
        content(tensors=[tensor("a", [9]), tensor("b", [4], offset=32)], data=bytes(64)),
        "tensor 'b' overlaps tensor 'a'",
    ),
    "two tensors": (
        content(tensors=[tensor("a", [1]), tensor("a", [1], offset=32)], data=bytes(64)),
        "tensor 'a' occurs twice",
    ),
    "a name with line breaks": (
        content(tensors=[tensor("a\n" * 500, [4], kind=99)]),
        r"tensor 'a\na\na\n",
    ),
}


readers = pytest.mark.parametrize("with_vocabulary", [True, False])


@readers
@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_files_are_refused_in_one_line(file: Path, case: str, with_vocabulary: bool):
    """The message names the file, the key or tensor, the value and the limit."""
    data, expected = DAMAGED[case]
    assert expected in refusal(file, data, with_vocabulary)


@readers
def test_claimed_sizes_take_no_memory(file: Path, with_vocabulary: bool):
    """A file of some bytes that claims 2^60 of anything is refused before memory is allocated."""
    tracemalloc.start()
    for data, _ in DAMAGED.values():
        refusal(file, data, with_vocabulary)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * gguf_header.FIRST_READ_BYTES


@readers
def test_all_arrays_share_one_budget(file: Path, monkeypatch: pytest.MonkeyPatch, with_vocabulary: bool):
    """Many arrays, each of which is allowed, cannot fill the memory together."""
    monkeypatch.setattr(gguf_header, "MAX_ARRAY_ENTRIES", 30)
    keys = [key(f"tokenizer.k{number}", ARRAY, array(0, 16, bytes(16))) for number in range(2)]
    message = refusal(file, content(keys=keys), with_vocabulary)
    assert "key 'tokenizer.k1': 16 entries, but at most 14 are supported" in message


@readers
def test_a_header_is_read_up_to_a_budget(file: Path, monkeypatch: pytest.MonkeyPatch, with_vocabulary: bool):
    """A header of many megabytes is refused at the key that exceeds the limit."""
    monkeypatch.setattr(gguf_header, "MAX_HEADER_BYTES", 250)
    keys = [key(f"tokenizer.k{number}", ARRAY, array(STRING, 1, text("x" * 90))) for number in range(3)]
    message = refusal(file, content(keys=keys), with_vocabulary)
    assert "key 'tokenizer.k1': the header is longer than 250 bytes" in message


def test_headers_longer_than_one_read_are_read(file: Path, monkeypatch: pytest.MonkeyPatch):
    """Strings and numbers across the borders of pieces are whole."""
    monkeypatch.setattr(gguf_header, "FIRST_READ_BYTES", 8)
    write_small(file)
    metadata = open_gguf(file).metadata
    assert metadata["texts"] == ["a", "", "ü" * 300]
    assert metadata["flags"] == [True, False]


def test_every_truncation_is_refused(file: Path):
    """A file that was cut anywhere is refused, and the message says that it is truncated."""
    write_small(file)
    whole = file.read_bytes()
    for length in random.Random(3).sample(range(8, len(whole)), 400):
        if whole[length:].strip(b"\0"):  # the last tensor may end before padding
            assert "truncated" in refusal(file, whole[:length]) or "became shorter" in refusal(file, whole[:length])


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """Folder for files, and the bytes of a valid one."""
    folder = tmp_path_factory.mktemp("flipped")
    write_small(folder / "whole.gguf")
    return folder, (folder / "whole.gguf").read_bytes()


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.lists(st.tuples(st.integers(0, 900), st.binary(min_size=1, max_size=8)), min_size=1, max_size=4),
    cut=st.integers(0, 1200) | st.none(),
    with_vocabulary=st.booleans(),
)
def test_changed_files_are_read_or_refused(
    valid: tuple[Path, bytes], changes: list[tuple[int, bytes]], cut: int | None, with_vocabulary: bool
):
    """Flipped and missing bytes give a model or a ModelFileError, nothing else, within some megabytes."""
    folder, whole = valid
    data = bytearray(whole)
    for place, replacement in changes:
        data[place : place + len(replacement)] = replacement
    path = folder / "changed.gguf"
    path.write_bytes(data[:cut])
    tracemalloc.start()
    try:
        for info in open_gguf(path, with_vocabulary=with_vocabulary).tensors.values():
            assert len(read_rows(info, 0, info.rows)) == info.size
    except ModelFileError as error:
        assert "\n" not in str(error)
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 8 * gguf_header.FIRST_READ_BYTES


def test_what_is_no_regular_file_is_refused(tmp_path: Path):
    """A pipe is not opened, which would wait for its writer; a folder and a missing file are named."""
    os.mkfifo(tmp_path / "pipe.gguf")
    for path, reason in (
        (tmp_path / "pipe.gguf", "is not a regular file"),
        (tmp_path, "is not a regular file"),
        (tmp_path / "missing.gguf", "cannot be read: No such file"),
    ):
        with pytest.raises(ModelFileError, match=reason):
            open_gguf(path)


def test_a_file_that_shrinks_is_refused(file: Path):
    """A tensor whose bytes vanish after the header was read is named."""
    write_small(file)
    info = open_gguf(file).tensors["third"]
    os.truncate(file, info.offset + 1)
    with pytest.raises(ModelFileError, match="tensor 'third' ends after the end of the file"):
        read_rows(info, 0, 2)
