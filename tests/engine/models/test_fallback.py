"""Models served through transformers have transformers' text, or are refused where that is impossible."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.build import build_engine
from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.execution.models import ModelConfigError, ModelError, WeightsError, load_model
from engine.execution.models.fallback_check import check_against_own_attention, refuse_config
from engine.execution.models.transformers_model import TransformersModel
from engine.model_files.open_model import open_model
from kernels.interface import Kernels
from tests.engine.models.checkpoints import FALLBACKS, REFUSED, TEXT_TOKENS, Checkpoint, Checkpoints, save
from tests.engine.models.driver import Driver, Row

EVERY = pytest.mark.parametrize("checkpoint", FALLBACKS, indirect=True)
CPU = torch.device("cpu")


@EVERY
def test_logits_agree_with_transformers(checkpoint: Checkpoint, kernels: Kernels):
    """After a prompt, and at decode steps after another, logits equal transformers' up to rounding."""
    expected = checkpoint.logits(checkpoint.prompt)
    model = checkpoint.load()
    assert isinstance(model, TransformersModel)
    assert model.num_parameters == checkpoint.reference.num_parameters()
    driver = Driver(model, kernels)
    logits = driver.prefill(Row(checkpoint.prompt), 1000)
    torch.testing.assert_close(logits, expected[-1], atol=2e-4, rtol=1e-3)
    row = Row(checkpoint.prompt[:67])
    driver.prefill(row, 20)
    for position in range(67, len(checkpoint.prompt)):
        row.tokens.append(checkpoint.prompt[position])
        torch.testing.assert_close(driver.step([row], [])[0], expected[position], atol=2e-4, rtol=1e-3)


@EVERY
def test_greedy_text_is_that_of_transformers(checkpoint: Checkpoint, kernels: Kernels):
    """Token IDs equal generate's, with the prompt prefilled whole or in chunks."""
    model = checkpoint.load()
    for chunk in (1000, 30):
        assert Driver(model, kernels).generate(checkpoint.prompt, TEXT_TOKENS, chunk) == checkpoint.text


@pytest.mark.parametrize("checkpoint", ["olmo2"], indirect=True)
def test_batch_invariance_is_refused_for_models_of_transformers(checkpoint: Checkpoint):
    """This includes CPUs, where it is observed for these models but specified for our own decoder alone."""
    with pytest.raises(ConfigError, match="batch_invariant"):
        build_engine(EngineConfig(model=str(checkpoint.path), device="cpu", num_pages=4, batch_invariant=True))


@pytest.mark.parametrize("checkpoint", ["olmo2", "starcoder2-window"], indirect=True)
def test_rows_of_a_batch_are_independent(checkpoint: Checkpoint, kernels: Kernels):
    """Decode rows and a chunk in one flat batch are bitwise equal to a run alone."""
    model = checkpoint.load()
    prompts = [checkpoint.prompt[:length] for length in (5, 40, 77)]
    alone = [Driver(model, kernels).prefill(Row(list(prompt)), 1000) for prompt in prompts]
    driver = Driver(model, kernels)
    rows = [Row(prompt[:-1]) for prompt in prompts[:2]]
    for row, prompt in zip(rows, prompts, strict=False):
        driver.prefill(row, 16)
        row.tokens.append(prompt[-1])
    together = driver.step(rows, [(Row(list(prompts[2])), 77)])
    assert all(torch.equal(one, other) for one, other in zip(alone, together, strict=True))


@pytest.mark.parametrize("name", REFUSED)
def test_an_unsupported_model_is_refused(tmp_path: Path, name: str):
    """A model with other attention or positions is refused with the reason."""
    family, changes, reason = REFUSED[name]
    save(tmp_path, family, changes)
    with pytest.raises(ModelError, match=reason) as raised:
        load_model(open_model(tmp_path), torch.float32, CPU, lambda done, total: None)
    assert "\n" not in str(raised.value) and "Error(" not in str(raised.value)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"auto_map": {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}}, "needs custom code"),
        ({}, "does not support its model_type"),
    ],
)
@pytest.mark.parametrize("load_format", ["safetensors", "dummy"])
def test_a_model_that_transformers_does_not_support_is_refused_with_a_remedy(
    tmp_path: Path, checkpoints: Checkpoints, config: dict[str, Any], reason: str, load_format: str
):
    """The error does not name options of transformers that do not exist here."""
    shutil.copy(checkpoints["olmo2"].path / "model.safetensors", tmp_path)
    own = {"architectures": ["OwnForCausalLM"], "model_type": "own"}
    (tmp_path / "config.json").write_text(json.dumps(own | config))
    with pytest.raises(ModelError, match=reason) as raised:
        load_model(open_model(tmp_path), torch.float32, CPU, lambda done, total: None, load_format)
    assert "trust_remote_code" not in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("section", ["", "text_config", "decoder"])
@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"rope_scaling": {"type": "su"}}, "rope_scaling"),
        ({"rope_parameters": {"a": {"rope_type": "default"}, "b": {"rope_type": "dynamic"}}}, "rope_parameters.b"),
        ({"rope_parameters": {"rope_type": "longrope", "a": {"rope_type": "default"}}}, "rope_parameters"),
        ({"attention_chunk_size": 8}, "attention_chunk_size"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
    ],
)
def test_a_refused_setting_is_found_in_every_section(section: str, settings: dict[str, Any], key: str):
    """It is found at the top level and in the section of a model's text, and the error names the whole path."""
    with pytest.raises(ModelConfigError) as raised:
        refuse_config({section: settings} if section else settings)
    assert raised.value.key == (f"{section}.{key}" if section else key)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"num_attention_heads": "four"}, "num_attention_heads"),
        ({"hidden_act": "none such"}, "does not match its architecture .*none such.*; compare it with"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused_in_one_line(
    tmp_path: Path, checkpoints: Checkpoints, change: dict[str, Any], reason: str
):
    """Errors of a model's own code become a sentence that names the setting."""
    path = Path(shutil.copytree(checkpoints["olmo2"].path, tmp_path / "unfit"))
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(ModelError, match=reason) as raised:
        load_model(open_model(path), torch.float32, CPU, lambda done, total: None)
    assert "\n" not in str(raised.value) and "Error(" not in str(raised.value)


def test_the_check_notices_a_difference(checkpoints: Checkpoints):
    """A model with other paged logits, here by a factor, is refused."""
    checkpoint = checkpoints["olmo2"]
    model = checkpoint.load()
    assert isinstance(model, TransformersModel)
    check_against_own_attention(model, checkpoint.reference, {})
    model._logit_divisor = 1.01
    with pytest.raises(ModelError, match="differ from its own"):
        check_against_own_attention(model, checkpoint.reference, {})


def test_damaged_weights_are_named(tmp_path: Path, checkpoints: Checkpoints):
    """Files are checked before transformers reads them."""
    path = Path(shutil.copytree(checkpoints["olmo2"].path, tmp_path / "broken"))
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(WeightsError, match=r"model\.safetensors: the file is truncated"):
        load_model(open_model(path), torch.float32, CPU, lambda done, total: None)


def test_dummy_weights_need_no_files(tmp_path: Path, checkpoints: Checkpoints, kernels: Kernels):
    """The shapes of config.json suffice, and torch's global generator is not modified."""
    shutil.copy(checkpoints["olmo2"].path / "config.json", tmp_path)
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    model = load_model(open_model(tmp_path), torch.float32, CPU, lambda done, total: None, "dummy")
    assert torch.equal(torch.rand(1), expected)
    assert Driver(model, kernels).prefill(Row([1, 2, 3]), 10).isfinite().all()
