"""Folders that are unpacked from GGUF files, for servers that read none."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

from app.text.text_model import TextModel
from benchmarks.peers.unpacked import unpack
from tests.gguf_export import Type, export_gguf

TEXT = "Owls hunt at night, and sleep by day."


def test_an_unpacked_file_has_the_weights_and_tokens_of_its_folder(demo: Path, tmp_path: Path):
    """A wrong order of heads would only make the other server say nonsense."""
    file = export_gguf(demo, tmp_path / "demo.gguf", lambda name: Type.BF16)
    unpack(file, tmp_path / "unpacked")
    expected, found = (load_file(folder / "model.safetensors") for folder in (demo, tmp_path / "unpacked"))
    assert found.keys() == expected.keys()
    for name, weights in expected.items():
        assert torch.equal(found[name], weights.to(torch.bfloat16)), name
    one, other = TextModel.load(file), TextModel.load(tmp_path / "unpacked")
    assert one.encode(TEXT) == other.encode(TEXT) and one.eos_token_ids == other.eos_token_ids
