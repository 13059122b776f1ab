"""Damaged weights are found when they are loaded: by their digests where these are known, else by their values."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from pathlib import Path

import pytest
import torch

from engine.execution.models import ModelError, WeightsError, load_model
from engine.execution.models.checksums import known_digest
from engine.execution.models.safetensors_files import largest_magnitude, list_tensors
from engine.model_files.open_model import open_model
from tests.engine.models.checkpoints import Checkpoints

FILE = "model.safetensors"


@pytest.fixture(params=["llama", "gemma3"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, checkpoints: Checkpoints) -> Path:
    """Return a copy of a checkpoint that the engine runs itself, and of one that transformers runs."""
    return Path(shutil.copytree(checkpoints[request.param].path, tmp_path / "model"))


def load(path: Path) -> list[tuple[int, int]]:
    """Load a model; return the reported progress of digests."""
    seen: list[tuple[int, int]] = []
    load_model(
        open_model(path),
        torch.float32,
        torch.device("cpu"),
        lambda done, total: None,
        checksum_progress=lambda done, total: seen.append((done, total)),
    )
    return seen


def flip(folder: Path, name: str, bit: int) -> None:
    """Flip one bit of the first float32 of a tensor; the file's time stays as it was."""
    file, entry = folder / FILE, list_tensors(folder)[name]
    assert entry.dtype == torch.float32
    stamp = file.stat()
    data = bytearray(file.read_bytes())
    data[entry.offset + bit // 8] ^= 1 << bit % 8
    file.write_bytes(data)
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))


def digest_of(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def write_sums(folder: Path, digest: str) -> None:
    (folder / "SHA256SUMS").write_text(f"{'0' * 64}  README.md\n{digest}  {FILE}\n")


def write_metadata(folder: Path, digest: str) -> None:
    """As written by huggingface_hub, with the time after the download."""
    file = folder / ".cache/huggingface/download" / f"{FILE}.metadata"
    file.parent.mkdir(parents=True)
    file.write_text(f"{'a' * 40}\n{digest}\n{(folder / FILE).stat().st_mtime + 0.5}\n")


def move_to_blobs(folder: Path, digest: str) -> None:
    """As in huggingface_hub's cache."""
    blob = folder.parent / "blobs" / digest
    blob.parent.mkdir()
    (folder / FILE).rename(blob)
    (folder / FILE).symlink_to(blob)


STORES = pytest.mark.parametrize("store", [write_sums, write_metadata, move_to_blobs])


def damaged_name(folder: Path) -> str:
    return next(name for name in list_tensors(folder) if name.endswith("layers.1.mlp.down_proj.weight"))


def test_a_flipped_high_bit_is_found_without_digests(folder: Path):
    """The value is far beyond those of any model; the error names the tensor."""
    flip(folder, damaged_name(folder), bit=30)
    with pytest.raises(WeightsError, match=r"down_proj.weight contains"):
        load(folder)


@STORES
@pytest.mark.parametrize("bit", [30, 0])
def test_any_flipped_bit_is_found_with_a_digest(folder: Path, store, bit: int):
    """Also the lowest, which changes no answer."""
    store(folder, digest_of(folder / FILE))
    assert known_digest(folder / FILE) is not None
    flip(folder, damaged_name(folder), bit)
    with pytest.raises(WeightsError, match=r"its SHA-256 digest is .* fetch it again"):
        load(folder)


@STORES
def test_an_intact_file_with_a_digest_is_loaded(folder: Path, store, caplog: pytest.LogCaptureFixture):
    """The log says so in one sentence, and progress ends with all bytes."""
    caplog.set_level(logging.INFO)
    size = (folder / FILE).stat().st_size
    store(folder, digest_of(folder / FILE))
    assert load(folder)[-1] == (size, size)
    assert "The weights match their SHA-256 digests" in caplog.text


def test_without_digests_the_log_says_that_only_values_were_checked(folder: Path, caplog: pytest.LogCaptureFixture):
    """In one sentence, with the bound."""
    caplog.set_level(logging.INFO)
    assert load(folder) == []
    assert "only their values were checked: all are finite, and of a magnitude of at most 1e+06" in caplog.text


def test_a_file_that_was_replaced_after_its_download_has_no_digest(folder: Path):
    """Its metadata describe the former file, as huggingface_hub reads them too."""
    write_metadata(folder, "b" * 64)
    now = (folder / FILE).stat().st_mtime + 60
    os.utime(folder / FILE, (now, now))
    assert known_digest(folder / FILE) is None


@pytest.mark.parametrize("content", ["", "a\nb", f"a\n{'c' * 40}\n9e9", f"a\n{'c' * 64}\nsoon", "\x00"])
def test_metadata_without_a_digest_are_skipped(folder: Path, content: str):
    """Small files have shorter digests, of another kind."""
    write_metadata(folder, "")
    (folder / ".cache/huggingface/download" / f"{FILE}.metadata").write_text(content)
    assert known_digest(folder / FILE) is None


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_the_largest_magnitude_is_that_of_torch(dtype: torch.dtype):
    """Of positive and negative values, of none, and of infinity and NaN."""
    for shape in [(0,), (1,), (33, 7)]:
        for sign in (1, -1):
            values = (sign * torch.randn(shape).abs()).to(dtype)
            assert largest_magnitude(values) == (values.abs().max().item() if values.numel() else 0.0)
    assert largest_magnitude(torch.tensor([-0.0], dtype=dtype)) == 0.0
    assert largest_magnitude(torch.tensor([1.0, -torch.inf], dtype=dtype)) == torch.inf
    assert largest_magnitude(torch.tensor([-torch.nan, 1.0], dtype=dtype)) != largest_magnitude(torch.ones(1))
    assert largest_magnitude(torch.tensor([5])) == 0.0


def test_errors_of_a_damaged_checkpoint_end_its_digest_threads(folder: Path):
    """The loader's own error is the one that is raised."""
    write_sums(folder, digest_of(folder / FILE))
    (folder / FILE).write_bytes((folder / FILE).read_bytes()[:-8])
    with pytest.raises(ModelError, match=r"truncated|damaged|cannot load"):
        load(folder)
