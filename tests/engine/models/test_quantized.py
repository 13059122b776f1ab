"""Models that are quantised at load: the same bits in every batch, and logits near those of their checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.build import build_engine
from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.execution.models import Model, load_model
from engine.fingerprint import fingerprint
from engine.model_files.open_model import open_model
from kernels.cpu.backend import CpuKernels
from kernels.decoder import DecoderShape, DecoderWeights, ForwardPass
from tests import requirements
from tests.engine.models.checkpoints import Checkpoint
from tests.engine.models.driver import Driver, Row


class SingleOperations(CpuKernels):
    """Kernels without a fused decoder."""

    def prepare_decoder(self, shape: DecoderShape, weights: DecoderWeights) -> ForwardPass | None:
        return None


def load(checkpoint: Checkpoint, kernels: CpuKernels) -> Model:
    return load_model(open_model(checkpoint.path), torch.float32, torch.device("cpu"), lambda *_: None, kernels=kernels)


KINDS = pytest.mark.parametrize(("allow_bf16", "bits"), [(True, 4), (True, 8), (False, 8)])


@requirements.a_compiler
@KINDS
@pytest.mark.parametrize("checkpoint", ["llama", "llama-ragged", "llama-odd", "qwen3", "qwen2"], indirect=True)
def test_the_fused_decoder_equals_its_single_operations(checkpoint: Checkpoint, allow_bf16: bool, bits: int):
    """Norms, the gate and attention quantise rows where they store them, as separate operations do."""
    model, tokens = load(checkpoint, CpuKernels(allow_bf16, bits)), checkpoint.prompt * 4
    results = []
    for kernels in (CpuKernels(allow_bf16), SingleOperations(allow_bf16)):
        driver = Driver(model, kernels)
        rows = [Row(tokens[:40]), Row(tokens[3:290])]
        for row in rows:
            driver.prefill(row, 100)
            row.tokens.append(7)
        results.append(driver.step(rows, [(Row(list(tokens)), 33), (Row(tokens[5:]), 1)]))
    assert torch.equal(*results)


@requirements.a_compiler
@KINDS
@pytest.mark.parametrize("checkpoint", ["llama", "llama-odd"], indirect=True)
def test_logits_do_not_depend_on_chunks_or_other_rows(checkpoint: Checkpoint, allow_bf16: bool, bits: int):
    """Each row is rounded by itself."""
    kernels = CpuKernels(allow_bf16, bits)
    model, tokens = load(checkpoint, kernels), checkpoint.prompt * 4
    expected: Tensor | None = None
    for chunk in (10_000, 1, 3, 64, 257):
        logits = Driver(model, kernels).prefill(Row(list(tokens)), chunk)
        expected = logits if expected is None else expected
        assert torch.equal(logits, expected), chunk
    driver = Driver(model, kernels, num_pages=400)
    rows = [Row(tokens[:length]) for length in (5, 40, len(tokens), 100)]
    for row in rows:
        row.tokens, last = row.tokens[:-1], row.tokens[-1]
        driver.prefill(row, 50)
        row.tokens.append(last)
    assert torch.equal(driver.step(rows, [(Row(tokens[5:]), 33)])[2], expected)


@requirements.a_compiler
@pytest.mark.parametrize(("allow_bf16", "bits", "tolerance"), [(True, 4, 0.5), (True, 8, 0.04), (False, 8, 0.03)])
@pytest.mark.parametrize("checkpoint", ["llama"], indirect=True)
def test_logits_stay_close_to_those_of_the_checkpoint(
    checkpoint: Checkpoint, allow_bf16: bool, bits: int, tolerance: float
):
    """Random weights are the worst case for few bits."""
    kernels = CpuKernels(allow_bf16, bits)
    logits = Driver(load(checkpoint, kernels), kernels).prefill(Row(list(checkpoint.prompt)), 10_000)
    expected = checkpoint.logits(checkpoint.prompt)[-1]
    assert (logits - expected).norm() < tolerance * expected.norm()


@pytest.mark.parametrize("options", [{"kernels": "torch"}, {"dtype": "float16"}])
def test_quantisation_that_is_not_available_is_refused_by_name(demo: Path, options: dict[str, str]):
    """The error names the option, the device and the dtype."""
    config = EngineConfig(model=str(demo), device="cpu", num_pages=4, quantization="int4", **options)
    with pytest.raises(ConfigError, match=f"quantization int4.*cpu.*{next(iter(options.values()))}"):
        build_engine(config)


def test_the_fingerprint_depends_on_quantisation_and_arithmetic(demo: Path):
    """Other weights, and rows of another precision, give other texts."""
    configs = [
        EngineConfig(model=str(demo), quantization=quantization, dtype=dtype)
        for quantization in ("none", "int8", "int4")
        for dtype in ("auto", "float32")
    ]
    files = open_model(demo)
    assert len({fingerprint(files, config, "torch.float32", "CpuKernels") for config in configs}) == len(configs)
