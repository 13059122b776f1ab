"""Every family in every layout in which its files come: the logits of transformers, alone and eight at once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from engine.execution.models import load_model
from kernels.interface import load
from tests.engine.models.checkpoints import DECODERS, FALLBACKS, VOCAB, save
from tests.engine.models.driver import Driver, Row

CPU = torch.device("cpu")
LENGTHS = (1, 2, 7, 19, 23, 38, 61, 90)
FAMILIES = DECODERS | FALLBACKS


def compare_with_transformers(path: Path) -> None:
    """Assert that the model in `path` has transformers' logits after eight prompts, one by one and in one batch."""
    generator = torch.Generator().manual_seed(5)
    prompts = [torch.randint(1, VOCAB, (length,), generator=generator).tolist() for length in LENGTHS]
    reference = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.inference_mode():
        expected = torch.stack(
            [reference(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1] for ids in prompts]
        )
    model = load_model(path, torch.float32, CPU, lambda done, total: None)
    kernels = load(CPU, torch.float32)
    alone = torch.stack([Driver(model, kernels).prefill(Row(list(ids)), 1000) for ids in prompts])
    torch.testing.assert_close(alone, expected, atol=2e-4, rtol=1e-3)
    driver = Driver(model, kernels, num_pages=80)
    rows = [Row(ids[:-1]) for ids in prompts]
    driver.step([], [(row, len(row.tokens)) for row in rows[1:]])
    for row, ids in zip(rows, prompts, strict=True):
        row.tokens.append(ids[-1])
    torch.testing.assert_close(driver.step(rows, []), expected, atol=2e-4, rtol=1e-3)


def change_tensors(path: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    """Rewrite the single weight file of a checkpoint."""
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path / "model.safetensors")


def save_tied(path: Path, name: str) -> tuple[str, str]:
    """Write a checkpoint whose configuration ties its embeddings. Return the names of the head and of the table."""
    family, changes = FAMILIES[name]
    made = save(path, family, changes | {"tie_word_embeddings": True})
    [(head, table)] = made.reference.all_tied_weights_keys.items()
    return head, table


@pytest.mark.parametrize("name", FAMILIES)
def test_a_head_with_other_values_than_the_table_it_is_tied_to_is_used(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
):
    """A stored output projection counts more than `tie_word_embeddings`, and a warning is logged."""
    head, table = save_tied(tmp_path, name)
    change_tensors(tmp_path, lambda tensors: tensors.update({head: torch.randn_like(tensors[table])}))
    with caplog.at_level(logging.WARNING):
        compare_with_transformers(tmp_path)
    assert name not in DECODERS or f"the stored {head} is used" in caplog.text


@pytest.mark.parametrize("name", FAMILIES)
def test_a_copy_of_the_tied_table_stays_tied(tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture):
    """Equal values in both places need no warning."""
    head, table = save_tied(tmp_path, name)
    change_tensors(tmp_path, lambda tensors: tensors.update({head: tensors[table].clone()}))
    with caplog.at_level(logging.WARNING):
        compare_with_transformers(tmp_path)
    assert "is used" not in caplog.text


@pytest.mark.parametrize("name", FAMILIES)
def test_a_tied_table_may_be_stored_as_the_head_alone(tmp_path: Path, name: str):
    """One tensor serves both places, whatever name it was saved under."""
    head, table = save_tied(tmp_path, name)
    change_tensors(tmp_path, lambda tensors: tensors.update({head: tensors.pop(table)}))
    compare_with_transformers(tmp_path)
