"""In float32 on a CPU a row's logits are bitwise independent of the rest of the step."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.execution.models import Model
from kernels.cpu.backend import CpuKernels
from kernels.decoder import DecoderShape, DecoderWeights, ForwardPass
from kernels.interface import Kernels
from tests import requirements
from tests.engine.models.checkpoints import Checkpoint
from tests.engine.models.driver import Driver, Row


class SingleOperations(CpuKernels):
    """Kernels without a fused decoder."""

    def prepare_decoder(self, shape: DecoderShape, weights: DecoderWeights) -> ForwardPass | None:
        return None


MORE_CHECKPOINTS = [
    "llama-biases", "llama-ragged", "llama-odd", "qwen2", "smollm3-biases", "smollm3-window", "phi3-half",
    "phi3-three-quarters", "granite-biases", "granite-odd",
]  # fmt: skip
CHECKPOINTS = [
    "llama", "llama-tied-mha", "mistral-window", "qwen2-window", "qwen3", "llama-llama3", "smollm3", "phi3-long",
    "granite",
]  # fmt: skip


def alone(model: Model, kernels: Kernels, tokens: list[int]) -> Tensor:
    """Return the logits of the last of `tokens`, prefilled in one chunk without other rows."""
    return Driver(model, kernels).prefill(Row(list(tokens)), 10_000)


@pytest.mark.parametrize("checkpoint", CHECKPOINTS, indirect=True)
def test_logits_do_not_depend_on_chunk_sizes_or_decode_steps(checkpoint: Checkpoint, kernels: Kernels):
    """A prompt in chunks of any size, or as single decode steps, has the same logits at its end."""
    model = checkpoint.load()
    tokens = checkpoint.prompt * 4  # beyond one tile of 256 positions
    expected = alone(model, kernels, tokens)
    for chunk in (1, 3, 64, 100, 257):
        assert torch.equal(Driver(model, kernels).prefill(Row(list(tokens)), chunk), expected), chunk
    driver = Driver(model, kernels)
    row = Row(list(tokens))
    for _ in tokens:
        logits = driver.step([row], [])
    assert torch.equal(logits[0], expected)


@pytest.mark.parametrize("checkpoint", CHECKPOINTS, indirect=True)
def test_logits_do_not_depend_on_other_rows(checkpoint: Checkpoint, kernels: Kernels):
    """A decode row runs beside 0 to 20 others of all lengths and beside prefill chunks, with wide and narrow page
    tables."""
    model = checkpoint.load()
    tokens = checkpoint.prompt * 4
    lengths = [1, 2, 15, 16, 17, 33, 64, 77, 100, 255, 256, 257, 300]
    expected = {length: alone(model, kernels, tokens[:length]) for length in lengths}
    for table_width, count in ((0, 1), (40, 2), (0, 5), (0, 13), (30, 21)):
        driver = Driver(model, kernels, num_pages=400, table_width=table_width)
        rows = [Row(tokens[: lengths[i * 5 % 13]]) for i in range(count)]
        for row in rows:
            row.tokens, last = row.tokens[:-1], row.tokens[-1]
            driver.prefill(row, 50)
            row.tokens.append(last)
        chunked = [Row(list(tokens)), Row(tokens[5:])]
        logits = driver.step(rows, [(chunked[0], 33), (chunked[1], 1)])
        for row, result in zip(rows, logits, strict=False):
            assert torch.equal(result, expected[len(row.tokens)]), (count, len(row.tokens))
        assert torch.equal(logits[-2], expected[33])
        assert torch.equal(driver.step([], [(chunked[0], 224)])[0], expected[257])


@requirements.a_compiler
@pytest.mark.parametrize("checkpoint", ["llama", "mistral-window", "qwen3"], indirect=True)
def test_logits_with_a_bfloat16_cache_do_not_depend_on_chunks(checkpoint: Checkpoint):
    """Rounded keys and values are attended to by all rows, including the chunk that computed them."""
    model, tokens = checkpoint.load(), checkpoint.prompt * 4
    expected: Tensor | None = None
    for chunk in (10_000, 1, 3, 64, 257):
        logits = Driver(model, CpuKernels(), cache_dtype=torch.bfloat16).prefill(Row(list(tokens)), chunk)
        expected = logits if expected is None else expected
        assert torch.equal(logits, expected), chunk
    driver, row = Driver(model, CpuKernels(), cache_dtype=torch.bfloat16), Row(list(tokens))
    for _ in tokens:
        logits = driver.step([row], [])[0]
    assert torch.equal(logits, expected)
    exact = alone(model, CpuKernels(), tokens)
    assert not torch.equal(logits, exact)
    torch.testing.assert_close(logits, exact, atol=0.1, rtol=0.05)


@requirements.a_compiler
@pytest.mark.parametrize("allow_bf16", [False, True])
@pytest.mark.parametrize("checkpoint", ["llama", "llama-ragged", "llama-odd", "qwen3"], indirect=True)
def test_bfloat16_logits_do_not_depend_on_chunks_or_other_rows(checkpoint: Checkpoint, allow_bf16: bool):
    """Rounding applies to each row by itself."""
    model, kernels, tokens = checkpoint.load(torch.bfloat16), CpuKernels(allow_bf16), checkpoint.prompt * 4
    assert (model.weights_dtype, model.dtype) == (torch.bfloat16, torch.float32)
    expected: Tensor | None = None
    for chunk in (10_000, 1, 3, 64, 257):
        logits = Driver(model, kernels, cache_dtype=torch.bfloat16).prefill(Row(list(tokens)), chunk)
        expected = logits if expected is None else expected
        assert torch.equal(logits, expected), chunk
    driver = Driver(model, kernels, num_pages=400, cache_dtype=torch.bfloat16)
    rows = [Row(tokens[:length]) for length in (5, 40, len(tokens), 100)]
    for row in rows:
        row.tokens, last = row.tokens[:-1], row.tokens[-1]
        driver.prefill(row, 50)
        row.tokens.append(last)
    assert torch.equal(driver.step(rows, [(Row(tokens[5:]), 33)])[2], expected)


@requirements.a_compiler
@pytest.mark.parametrize(
    ("dtype", "cache_dtype", "allow_bf16"),
    [
        (torch.float32, torch.float32, False),
        (torch.float32, torch.bfloat16, False),
        (torch.bfloat16, torch.bfloat16, False),
        (torch.bfloat16, torch.bfloat16, True),
    ],
)
@pytest.mark.parametrize("checkpoint", [*CHECKPOINTS, *MORE_CHECKPOINTS], indirect=True)
def test_the_fused_decoder_equals_its_single_operations(
    checkpoint: Checkpoint, dtype: torch.dtype, cache_dtype: torch.dtype, allow_bf16: bool
):
    """Decode rows and chunks through the fused decoder are bitwise equal to the single operations."""
    model = checkpoint.load(dtype)
    tokens = checkpoint.prompt * 4
    results = []
    for kernels in (CpuKernels(allow_bf16), SingleOperations(allow_bf16)):
        driver = Driver(model, kernels, cache_dtype=cache_dtype)
        rows = [Row(tokens[:40]), Row(tokens[3:290])]
        for row in rows:
            driver.prefill(row, 100)
            row.tokens.append(7)
        results.append(driver.step(rows, [(Row(list(tokens)), 33), (Row(tokens[5:]), 1)]))
    assert torch.equal(*results)
