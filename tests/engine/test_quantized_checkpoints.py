"""Checkpoints with quantised matrices: the answers of their weights, in every batch, whatever preempts them."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from app.text.text_model import TextModel
from engine.execution.models import load_model
from engine.execution.models.errors import ModelConfigError, WeightsError
from engine.model_files.open_model import open_model
from kernels.cpu.backend import CpuKernels
from kernels.interface import Kernels
from kernels.reference.backend import ReferenceKernels
from tests import requirements
from tests.engine.models.driver import Driver, Row
from tests.engine.models.quantized_tensors import KINDS, Kind
from tests.engine.same import check_any_batch, conversations, make_engine, run
from tests.kernels.conftest import cpu_kernels
from tests.profiles import nightly

STREAMS, TOKENS = 64, 24
AWQ = "AWQ in groups of 64"
# One of each way of packing; `test_quantized_formats.py` compares the weights of all.
EACH_WAY = (AWQ, "GPTQ of 8 bits in groups of 64", "GPTQ with desc_act", "packed, with zero points", "int8 by channel",
            "FP8 in blocks")  # fmt: skip
kinds = pytest.mark.parametrize(
    "kind", [pytest.param(kind, id=name, marks=() if name in EACH_WAY else nightly) for name, kind in KINDS.items()]
)
HEAD = "lm_head.weight"
EMBEDDING = "model.embed_tokens.weight"


@pytest.fixture(scope="module")
def text(demo: Path) -> TextModel:
    return TextModel.load(demo)


@pytest.fixture(scope="module")
def streams(text: TextModel):
    """Return conversations, many of which share a prefix."""
    return conversations(text, STREAMS, TOKENS)


def write(demo: Path, folder: Path, tensors: dict[str, Tensor], **entries: Any) -> Path:
    """Write a copy of the demo model with other tensors and entries of config.json."""
    folder.mkdir()
    for file in demo.glob("*.json"):
        shutil.copy(file, folder)
    config = json.loads((demo / "config.json").read_text()) | entries
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


def export(demo: Path, folder: Path, kind: Kind, more: Iterable[str] = (), **entries: Any) -> tuple[Path, Path]:
    """Write the demo model with quantised layers, and with the weights that these mean in float32.

    more: other matrices that are quantised.
    """
    stored: dict[str, Tensor] = {}
    plain: dict[str, Tensor] = {}
    for name, weights in load_file(demo / "model.safetensors").items():
        stored[name] = plain[name] = weights
        if name == EMBEDDING and HEAD in more:
            stored[HEAD] = plain[HEAD] = weights.clone()
    for name in [name for name in stored if "_proj" in name or name in more]:
        parts, meaning = kind.store(stored.pop(name).float())
        plain[name] = meaning.float()
        stored |= {f"{name.removesuffix('.weight')}.{suffix}": part for suffix, part in parts.items()}
    quantised = write(demo, folder / "quantised", stored, quantization_config=dict(kind.config), **entries)
    return quantised, write(demo, folder / "plain", plain, **entries)


@kinds
def test_texts_are_those_of_a_folder_with_the_same_weights(kind: Kind, demo: Path, tmp_path: Path, streams):
    """Torch's kernels compute with the same numbers."""
    quantised, plain = export(demo, tmp_path, kind)
    some = streams[:4]
    assert run(make_engine(quantised, kernels="torch"), some) == run(make_engine(plain, kernels="torch"), some)


def logits(model: Path, kernels: Kernels, prompt: list[int]) -> Tensor:
    loaded = load_model(open_model(model), torch.float32, torch.device("cpu"), lambda *_: None, kernels=kernels)
    return Driver(loaded, kernels).prefill(Row(list(prompt)), 10_000)


@requirements.a_compiler
@kinds
def test_logits_of_quantised_products_are_close(kind: Kind, demo: Path, tmp_path: Path, streams):
    """They differ by the rounding of rows to 15 bits, and of dequantised weights to bfloat16."""
    cpu_kernels()
    quantised, plain = export(demo, tmp_path, kind)
    prompt = list(streams[1].prompt)
    expected = logits(plain, ReferenceKernels(), prompt)
    found = logits(quantised, CpuKernels(), prompt)
    assert (found - expected).norm() < (2e-2 if kind.is_dense else 1e-3) * expected.norm()


@requirements.a_compiler
@pytest.mark.slow
@pytest.mark.parametrize("kind", [AWQ, "GPTQ of 8 bits in groups of 64", "packed, with zero points", "FP8 in blocks"])
def test_64_streams_generate_the_same_texts_as_alone(kind: str, demo: Path, tmp_path: Path, streams):
    """In chunks, from a warm cache, and preempted every few steps."""
    cpu_kernels()
    model, _ = export(demo, tmp_path, KINDS[kind])
    check_any_batch(model, streams)


@requirements.a_compiler
def test_a_quantised_output_projection_is_used(demo: Path, tmp_path: Path, streams):
    """GPTQ's lm_head, beside an embedding that is not quantised."""
    cpu_kernels()
    kind, some = KINDS["symmetric GPTQ"], streams[:4]
    quantised, plain = export(demo, tmp_path, kind, more=(HEAD,), tie_word_embeddings=False)
    expected = run(make_engine(plain, kernels="torch"), some)
    assert run(make_engine(quantised, kernels="torch"), some) == expected
    assert run(make_engine(quantised, dtype="auto"), some)


@requirements.a_compiler
def test_the_engine_reports_the_quantisation_and_the_dtype_of_the_rest(demo: Path, tmp_path: Path):
    """The cache is in the dtype of the embedding; parameters are counted by weights."""
    cpu_kernels()
    quantised, _ = export(demo, tmp_path, KINDS[AWQ])
    info, original = make_engine(quantised, dtype="auto").info, make_engine(demo, dtype="auto").info
    assert (info.dtype, info.storage, info.parameters) == ("bfloat16", "awq", original.parameters)
    assert info.fingerprint != original.fingerprint


@requirements.a_compiler
def test_keys_and_values_beside_quantised_weights_take_two_bytes(demo: Path, tmp_path: Path):
    """Most checkpoints have an embedding in float16, which kernels hold in float32."""
    cpu_kernels()
    quantised, _ = export(demo, tmp_path, KINDS[AWQ])
    tensors = load_file(quantised / "model.safetensors")
    halves = {name: part.half() if part.dtype == torch.bfloat16 else part for name, part in tensors.items()}
    save_file(halves, quantised / "model.safetensors")
    model = load_model(open_model(quantised), torch.float32, torch.device("cpu"), lambda *_: None)
    assert model.default_cache_dtype() == torch.bfloat16


@requirements.a_compiler
def test_the_log_says_what_dequantising_costs(demo: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """One line for all matrices: 2 bytes a weight."""
    cpu_kernels()
    quantised, _ = export(demo, tmp_path, KINDS["GPTQ with desc_act"])
    with caplog.at_level(logging.INFO):
        make_engine(quantised, dtype="auto")
    weights = sum(
        tensor.numel() for name, tensor in load_file(demo / "model.safetensors").items() if name.endswith("proj.weight")
    )
    [line] = [record.getMessage() for record in caplog.records if "dequantised" in record.getMessage()]
    assert line.startswith("42 matrices of which desc_act") and f"{2 * weights / 1e6:.0f} MB" in line


@requirements.a_compiler
def test_the_log_says_that_activations_are_not_rounded(demo: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """Checkpoints in FP8 are made for products in FP8."""
    cpu_kernels()
    quantised, _ = export(demo, tmp_path, KINDS["FP8 in blocks"])
    with caplog.at_level(logging.INFO):
        make_engine(quantised, dtype="auto")
    assert sum("activations" in record.getMessage() for record in caplog.records) == 1
    assert not any("dequantised" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "quant_method = 'bitsandbytes': must be one of awq"),
        ({"quant_method": "awq", "version": "gemv"}, "version = 'gemv': must be gemm"),
        ({"quant_method": "gptq", "bits": 3}, "bits = 3: must be one of 4, 8"),
    ],
)
def test_other_quantisations_are_refused_by_name(entries: dict[str, Any], message: str, demo: Path, tmp_path: Path):
    """The engine does not start."""
    folder = write(demo, tmp_path / "other", load_file(demo / "model.safetensors"), quantization_config=entries)
    with pytest.raises(ModelConfigError, match=message):
        make_engine(folder)


@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_tensors_that_belong_to_no_module_are_refused(kernels: str, demo: Path, tmp_path: Path):
    """A tensor that is left could be a part of the computation."""
    quantised, _ = export(demo, tmp_path, KINDS[AWQ])
    file = quantised / "model.safetensors"
    tensors = load_file(file)
    save_file(tensors | {"model.layers.0.mlp.up_proj.g_idx": torch.zeros(256, dtype=torch.int32)}, file)
    with pytest.raises(WeightsError, match=r"not part of this model: model\.layers\.0\.mlp\.up_proj\.g_idx"):
        make_engine(quantised, kernels=kernels)
