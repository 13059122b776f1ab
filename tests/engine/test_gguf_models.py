"""Models in GGUF files: the same answers as from a folder, in every batch, whatever preempts them."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest
import torch

from app.text.text_model import TextModel
from engine.build import build_engine
from engine.config import EngineConfig
from engine.engine import Engine
from engine.execution.models import load_model
from engine.execution.models.errors import ModelError
from engine.model_files.gguf_header import Header, read_header
from engine.model_files.open_model import open_model
from kernels.cpu.linear import PackedEmbedding
from tests import requirements
from tests.engine.same import alone, check_any_batch, conversations, make_engine, run
from tests.gguf_export import Type, export_gguf
from tests.kernels.conftest import cpu_kernels

STREAMS, TOKENS = 64, 24


def mixed(name: str) -> Type:
    """Return types of which layers have several, also in one fused matrix."""
    if "embed" in name:
        return Type.Q8_0
    return {"v_proj": Type.Q5_1, "down_proj": Type.Q5_0, "gate_proj": Type.Q4_0}.get(name.split(".")[-2], Type.Q4_1)


def k_quants(name: str) -> Type:
    """Return the types of a Q4_K_M file, in which matrices whose inputs are no whole super blocks have others."""
    if "embed" in name or name.split(".")[-2] == "v_proj":
        return Type.Q6_K
    return Type.Q5_0 if name.split(".")[-2] == "down_proj" else Type.Q4_K


KINDS = {
    "BF16": lambda name: Type.BF16,
    "Q4_1": lambda name: Type.Q4_1,
    "Q8_0": lambda name: Type.Q8_0,
    "mixed": mixed,
    "K": k_quants,
}


@pytest.fixture(scope="module")
def text(demo: Path) -> TextModel:
    return TextModel.load(demo)


@pytest.fixture(scope="module")
def streams(text: TextModel):
    """Return conversations, many of which share a prefix."""
    return conversations(text, STREAMS, TOKENS)


def exported(demo: Path, folder: Path, kind: str) -> Path:
    return export_gguf(demo, folder / f"{kind}.gguf", KINDS[kind])


def test_a_file_of_unrounded_weights_gives_the_texts_of_the_folder(demo: Path, tmp_path: Path, streams):
    """Names, the order of heads and the tied projection are those of the checkpoint."""
    some = streams[:8]
    assert run(make_engine(exported(demo, tmp_path, "BF16")), some) == run(make_engine(demo), some)


def test_the_engine_reads_the_header_once_and_without_the_vocabulary(
    demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The API process has the tokens, and sends them when a grammar needs them."""
    headers: list[Header] = []

    def read(file: Path, **options: bool) -> Header:
        headers.append(read_header(file, **options))
        return headers[-1]

    monkeypatch.setattr("engine.model_files.gguf.read_header", read)
    build_engine(EngineConfig(model=str(exported(demo, tmp_path, "Q8_0")), device="cpu", num_pages=4, swap_space=0.0))
    [header] = headers
    keys = [key for key in header.metadata if key.startswith("tokenizer.")]
    assert keys and not any(isinstance(header.metadata[key], list) for key in keys)


def test_tokens_and_template_are_those_of_the_folder(demo: Path, tmp_path: Path, text: TextModel):
    """Control tokens are recognised, and end tokens are known."""
    found = TextModel.load(exported(demo, tmp_path, "Q8_0"))
    messages = [{"role": "user", "content": "What is 12 + 30? \n  日本 🦊"}]
    assert found.render_chat(messages) == text.render_chat(messages)
    for sample in (text.render_chat(messages), "Tell me  a story\n\nof 2024's fox."):
        assert found.encode(sample) == text.encode(sample)
    assert found.eos_token_ids >= text.eos_token_ids


def test_the_engine_describes_the_files_and_the_quantisation_of_their_weights(demo: Path, tmp_path: Path):
    """Of a folder it is the dtype, unless weights are quantised at load."""
    file = exported(demo, tmp_path, "Q8_0")
    infos = [make_engine(path).info for path in (file, demo)]
    assert [(info.format, info.family, info.quantization, info.storage) for info in infos] == [
        ("gguf", "llama", "Q8_0", "Q8_0"),
        ("safetensors", "llama", "", infos[1].dtype),
    ]
    assert 0 < infos[0].file_bytes < infos[1].file_bytes == (demo / "model.safetensors").stat().st_size


@requirements.a_compiler
def test_the_engine_describes_weights_that_it_quantises(demo: Path):
    """By the value of the option."""
    assert make_engine(demo, dtype="auto", quantization="int8").info.quantization == "int8"


@requirements.a_compiler
def test_quantisation_at_load_of_a_quantised_file_is_noted(
    demo: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """The file's own matrices stay as they are, and the log says so."""
    engine = make_engine(exported(demo, tmp_path, "Q8_0"), dtype="auto", quantization="int4")
    assert engine.info.quantization == "Q8_0"
    assert "the matrices that the file has in Q8_0 stay as they are" in caplog.text


@requirements.a_compiler
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0", "mixed", "K"])
def test_64_streams_of_quantised_weights_generate_the_same_texts_as_alone(
    demo: Path, tmp_path: Path, streams, kind: str
):
    """In chunks, from a warm cache, and preempted every few steps."""
    cpu_kernels()
    model = exported(demo, tmp_path, kind)
    check_any_batch(model, streams)


@requirements.a_compiler
@pytest.mark.slow
def test_quantisation_at_load_changes_no_text_in_a_batch(demo: Path, streams):
    """The same as for files that are quantised."""
    cpu_kernels()
    some = streams[:24]

    def engine(**options: object) -> Engine:
        return make_engine(demo, dtype="auto", quantization="int4", **options)

    expected = alone(engine(), some)
    assert run(engine(prefill_chunk=7), some) == expected


def test_a_damaged_scale_is_named(demo: Path, tmp_path: Path):
    """The message has the file and its tensor."""
    file = exported(demo, tmp_path, "Q8_0")
    reader = gguf.GGUFReader(file)
    tensor = next(each for each in reader.tensors if each.name == "blk.1.ffn_up.weight")
    with file.open("r+b") as opened:
        opened.seek(tensor.data_offset)
        opened.write(b"\x00\x7e")  # NaN
    with pytest.raises(ModelError, match=r"Q8_0\.gguf: tensor blk\.1\.ffn_up\.weight contains NaN"):
        make_engine(file)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_kernels_without_quantised_products_compute_with_the_values(demo: Path, tmp_path: Path, streams, dtype: str):
    """Torch's kernels read the matrices in the requested dtype."""
    engine = make_engine(exported(demo, tmp_path, "mixed"), kernels="torch", dtype=dtype)
    assert engine.info.dtype == dtype and all(run(engine, streams[:2]).values())


@requirements.a_compiler
def test_a_tied_embedding_is_looked_up_in_the_packed_projection(demo: Path, tmp_path: Path):
    """Neither a quantised table nor a plain one is in memory twice."""
    cpu_kernels()
    for model in (exported(demo, tmp_path, "Q8_0"), demo):
        loaded = load_model(open_model(model), torch.float32, torch.device("cpu"), lambda *_: None)
        embedding = loaded._weights.embedding
        assert isinstance(embedding, PackedEmbedding) and embedding.layer is loaded._weights.head
