"""The decoder agrees with transformers: logits and greedy text of tiny random checkpoints of every supported family."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.execution.models import load_model
from engine.execution.models.decoder import Decoder
from engine.model_files.open_model import open_model
from kernels.decoder import EmbeddingTable
from kernels.interface import Kernels
from kernels.reference.backend import ReferenceKernels
from tests.engine.models.checkpoints import DECODERS, TEXT_TOKENS, Checkpoint, Checkpoints, save
from tests.engine.models.driver import Driver, Row

EVERY = pytest.mark.parametrize("checkpoint", DECODERS, indirect=True)


@EVERY
def test_logits_agree_with_transformers(checkpoint: Checkpoint, kernels: Kernels):
    """After a prompt, and at each of 30 decode steps after another, logits equal transformers' up to rounding."""
    expected = checkpoint.logits(checkpoint.prompt)
    model = checkpoint.load()
    assert isinstance(model, Decoder)
    assert model.num_parameters == checkpoint.reference.num_parameters()
    driver = Driver(model, kernels)
    logits = driver.prefill(Row(checkpoint.prompt), 1000)
    torch.testing.assert_close(logits, expected[-1], atol=2e-4, rtol=1e-3)
    row = Row(checkpoint.prompt[:47])
    torch.testing.assert_close(driver.prefill(row, 20), expected[46], atol=2e-4, rtol=1e-3)
    for position in range(47, len(checkpoint.prompt)):
        row.tokens.append(checkpoint.prompt[position])
        torch.testing.assert_close(driver.step([row], [])[0], expected[position], atol=2e-4, rtol=1e-3)


@EVERY
def test_greedy_text_is_that_of_transformers(checkpoint: Checkpoint, kernels: Kernels):
    """Token IDs equal generate's, with the prompt prefilled whole or in chunks of odd sizes."""
    model = checkpoint.load()
    for chunk in (1000, 7):
        assert Driver(model, kernels).generate(checkpoint.prompt, TEXT_TOKENS, chunk) == checkpoint.text


@pytest.mark.parametrize("checkpoint", ["llama", "mistral-window", "qwen3"], indirect=True)
def test_pages_may_be_shared(checkpoint: Checkpoint, kernels: Kernels):
    """A row that starts on another's full pages, as with a prefix cache, is bitwise equal to one that computed them
    itself."""
    driver = Driver(checkpoint.load(), kernels)
    first = Row(list(checkpoint.prompt))
    driver.prefill(first, 1000)
    prompt = checkpoint.prompt[:48] + checkpoint.prompt[:20]
    shared = Row(prompt, pages=first.pages[:3], computed=48)
    assert torch.equal(driver.prefill(shared, 1000), driver.prefill(Row(list(prompt)), 1000))


def test_a_sharded_checkpoint_is_the_same_model(tmp_path: Path, kernels: Kernels, checkpoints: Checkpoints):
    """Weights split over several files by an index load like those of one file."""
    whole = checkpoints["llama"]
    sharded = save(tmp_path, "Llama", {}, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    results = [Driver(made.load(), kernels).prefill(Row(whole.prompt), 1000) for made in (whole, sharded)]
    assert torch.equal(*results)


def test_weights_are_converted_to_the_requested_dtype(tmp_path: Path, kernels: Kernels):
    """A bfloat16 checkpoint in float32 is exact, a float32 checkpoint in bfloat16 has close logits, and None keeps the
    stored dtype."""
    save(tmp_path, "Llama", {}).reference.to(torch.bfloat16).save_pretrained(tmp_path)
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    checkpoint = Checkpoint(tmp_path, reference)
    expected = checkpoint.logits(checkpoint.prompt)[-1]
    exact = Driver(checkpoint.load(torch.float32), kernels).prefill(Row(checkpoint.prompt), 1000)
    torch.testing.assert_close(exact, expected, atol=2e-4, rtol=1e-3)
    as_stored = load_model(
        open_model(tmp_path), None, torch.device("cpu"), lambda done, total: None, kernels=ReferenceKernels()
    )
    assert as_stored.dtype == torch.bfloat16
    close = Driver(as_stored, kernels).prefill(Row(checkpoint.prompt), 1000)
    assert close.dtype == torch.bfloat16
    assert float((close - expected).abs().max()) < 0.1 * float(expected.abs().max())


class HalvedTable:
    """Embedding that is no plain table: even and odd rows are stored apart."""

    def __init__(self, table: torch.Tensor) -> None:
        self._halves, self.shape, self.dtype = (
            (table[::2].clone(), table[1::2].clone()),
            tuple(table.shape),
            table.dtype,
        )

    def lookup(self, token_ids: torch.Tensor) -> torch.Tensor:
        even, odd = (half[(token_ids // 2).clamp(max=len(half) - 1)] for half in self._halves)
        return torch.where((token_ids % 2 == 0).unsqueeze(1), even, odd)


@pytest.mark.parametrize("checkpoint", ["llama"], indirect=True)
def test_an_embedding_need_not_be_a_table(checkpoint: Checkpoint, kernels: Kernels):
    """Kernels that read a table's memory leave other lookups to single operations, with the same logits."""
    model = checkpoint.load()
    assert isinstance(model, Decoder) and isinstance(model._weights.embedding, EmbeddingTable)
    expected = Driver(model, kernels).prefill(Row(list(checkpoint.prompt)), 20)
    embedding = HalvedTable(model._weights.embedding.table)
    other = Decoder(model.config, replace(model._weights, embedding=embedding))
    torch.testing.assert_close(Driver(other, kernels).prefill(Row(list(checkpoint.prompt)), 20), expected)
