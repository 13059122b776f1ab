"""Every family in every layout of its files gives transformers' tokens and log-probabilities, alone and in a batch of
eight."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, Gemma3Config, Gemma3ForConditionalGeneration

from engine.types import Request, TokenEvent
from tests.engine.models.checkpoints import DECODERS, FALLBACKS, LLAMA3, SMALL, VOCAB, YARN, save
from tests.engine.same import alone, make_engine, requests, run
from tests.profiles import nightly

LENGTHS = (1, 2, 7, 19, 23, 38, 61, 90)
NEW_TOKENS = 6
TOLERANCE = 2e-3  # of a log-probability in float32
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}

# Further families that transformers implements, in the layout that it writes.
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512}),
    "gpt-bigcode": ("GPTBigCode", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512}),
    "opt": ("OPT", {"ffn_dim": 96, "word_embed_proj_dim": 64}),
    "biogpt": ("BioGpt", {}),
    "gemma": ("Gemma", {"head_dim": 16}),
    "cohere": ("Cohere", {"logit_scale": 0.5}),
    "cohere2-window": ("Cohere2", {"sliding_window": 20, "head_dim": 16}),
    "starcoder2": ("Starcoder2", {"sliding_window": None}),
    "olmo": ("Olmo", {"clip_qkv": 4.0}),
    "olmo3": ("Olmo3", {"sliding_window": 20, "layer_types": ["sliding_attention", "full_attention"]}),
    "phi": ("Phi", {}),
    "persimmon": ("Persimmon", {}),
    "glm": ("Glm", {"head_dim": 16}),
    "glm4": ("Glm4", {"head_dim": 16}),
    "exaone4": ("Exaone4", {"sliding_window": 20, "layer_types": ["sliding_attention", "full_attention"]}),
    "ernie4.5": ("Ernie4_5", {"head_dim": 16}),
    "hunyuan": ("HunYuanDenseV1", {"head_dim": 16}),
    "arcee": ("Arcee", {}),
    "apertus": ("Apertus", {}),
    "helium": ("Helium", {"head_dim": 16}),
    "seed-oss": ("SeedOss", {"head_dim": 16}),
    "bitnet": ("BitNet", {}),
    "mixtral": ("Mixtral", EXPERTS),
    "qwen2-moe": ("Qwen2Moe", EXPERTS | {"shared_expert_intermediate_size": 32}),
}
FAMILIES = DECODERS | FALLBACKS | OTHERS
# transformers computes short texts with other factors than long ones, the server all texts alike: see test_families.py.
del FAMILIES["phi3-long"]
TIED = [name for name in FAMILIES if name not in ("persimmon", "phi", "biogpt")]  # the others have no tied form


def compare_with_transformers(path: Path) -> None:
    """Assert that eight greedy texts, each alone and in one batch, are those of the model that transformers loads."""
    generator = torch.Generator().manual_seed(5)
    prompts = [torch.randint(1, VOCAB, (length,), generator=generator).tolist() for length in LENGTHS]
    greedy = [
        replace(
            one,
            sampling=replace(one.sampling, temperature=0.0, repetition_penalty=1.0, frequency_penalty=0.0, logprobs=0),
        )
        for one in requests(prompts, NEW_TOKENS)
    ]
    reference = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    engine = make_engine(path, num_pages=120, kv_cache_dtype="float32")
    for texts in (run(engine, greedy, value_of=token_and_logprob), alone(engine, greedy, value_of=token_and_logprob)):
        for one in greedy:
            compare_text(reference, one, texts[one.id, 0])


def token_and_logprob(event: TokenEvent) -> tuple[int, float]:
    assert event.logprob is not None
    return event.token_id, event.logprob


def compare_text(reference: Any, one: Request, text: list[tuple[int, float]]) -> None:
    """Assert that each token is transformers' most probable one after its predecessors, with its log-probability."""
    assert len(text) == NEW_TOKENS
    ids = [*one.prompt, *(token_id for token_id, _ in text[:-1])]
    with torch.inference_mode():
        logits = reference(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -NEW_TOKENS:]
    expected = logits.float().log_softmax(-1)
    chosen = expected.gather(1, torch.tensor([[token_id] for token_id, _ in text])).squeeze(1)
    assert float((expected.max(dim=1).values - chosen).max()) < TOLERANCE, f"{len(one.prompt)} tokens: another text"
    ours = torch.tensor([logprob for _, logprob in text])
    torch.testing.assert_close(ours, chosen, atol=TOLERANCE, rtol=0)


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
def test_a_checkpoint_as_transformers_writes_it(tmp_path: Path, name: str):
    """Some families are saved as a single file, others as shards."""
    shards = {"max_shard_size": "60KB"} if len(name) % 2 else {}
    save(tmp_path, *FAMILIES[name], **shards)
    assert bool(shards) is (tmp_path / "model.safetensors.index.json").exists()
    compare_with_transformers(tmp_path)


@pytest.mark.parametrize("name", [pytest.param(name, marks=nightly) if name in OTHERS else name for name in TIED])
def test_a_head_with_other_values_than_the_table_it_is_tied_to_is_used(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
):
    """A stored output projection takes precedence over `tie_word_embeddings`, and a warning is logged."""
    head, table = save_tied(tmp_path, name)
    change_tensors(tmp_path, lambda tensors: tensors.update({head: torch.randn_like(tensors[table])}))
    with caplog.at_level(logging.WARNING):
        compare_with_transformers(tmp_path)
    assert name not in DECODERS or f"the stored {head} is used" in caplog.text


@pytest.mark.parametrize("name", TIED[::3])
def test_a_copy_of_the_tied_table_stays_tied(tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture):
    """Equal values in both places need no warning."""
    head, table = save_tied(tmp_path, name)
    change_tensors(tmp_path, lambda tensors: tensors.update({head: tensors[table].clone()}))
    with caplog.at_level(logging.WARNING):
        compare_with_transformers(tmp_path)
    assert "is used" not in caplog.text


@pytest.mark.parametrize("name", TIED[1::3])
def test_a_tied_table_may_be_stored_as_the_head_alone(tmp_path: Path, name: str):
    """One tensor serves both places, under either name."""
    head, table = save_tied(tmp_path, name)
    change_tensors(tmp_path, lambda tensors: tensors.update({head: tensors.pop(table)}))
    compare_with_transformers(tmp_path)


def change_config(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Rewrite config.json."""
    config = json.loads((path / "config.json").read_text())
    change(config)
    (path / "config.json").write_text(json.dumps(config))


def use_old_rope_keys(config: dict[str, Any]) -> None:
    """Write RoPE parameters as transformers 4 did."""
    given = config.pop("rope_parameters")
    if "full_attention" in given:  # Gemma 3
        config["rope_local_base_freq"] = given["sliding_attention"]["rope_theta"]
        given = given["full_attention"]
    config["rope_theta"] = given.pop("rope_theta")
    if given["rope_type"] != "default":
        config["rope_scaling"] = given


@pytest.mark.parametrize(
    "name", ["llama", "llama-llama3", "llama-linear", "llama-yarn", "qwen3-yarn", "mistral", "gemma3-nested", "olmo2"]
)
def test_rope_parameters_in_the_keys_of_transformers_4(tmp_path: Path, name: str):
    """A base and a scaling at the top level are equivalent to one object, and to one per type of layer."""
    family, changes = FAMILIES[name]
    save(tmp_path, family, {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}} | changes)
    change_config(tmp_path, use_old_rope_keys)
    compare_with_transformers(tmp_path)


@pytest.mark.parametrize("scaling", [LLAMA3 | {"original_max_position_embeddings": 64}, YARN])
def test_rope_parameters_for_each_type_of_layer(tmp_path: Path, scaling: dict[str, Any]):
    """Layers with full attention have scaled frequencies, those with a window others."""
    family, changes = FALLBACKS["gemma3-nested"]
    local = {"rope_type": "linear", "rope_theta": 700.0, "factor": 2.0}
    nested = {"sliding_attention": local, "full_attention": scaling}
    save(tmp_path, family, changes | {"rope_parameters": nested, "head_dim": 16})
    compare_with_transformers(tmp_path)


def test_a_model_of_several_modalities_keeps_its_text_in_a_section(tmp_path: Path):
    """The configuration and weights of Gemma 3's text are found beside those of its vision model."""
    text = SMALL | FALLBACKS["gemma3-nested"][1] | {"head_dim": 16}
    images = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    images |= {"image_size": 28, "patch_size": 14}
    config = Gemma3Config(text_config=text, vision_config=images, mm_tokens_per_image=1)
    torch.manual_seed(11)
    Gemma3ForConditionalGeneration(config).save_pretrained(tmp_path)
    compare_with_transformers(tmp_path)


@pytest.mark.parametrize("name", ["llama", "qwen2", "olmo2", "gemma3", "mixtral"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_in_half_precision_are_computed_in_float32(tmp_path: Path, name: str, dtype: torch.dtype):
    """The stored dtype counts, not the dtype in config.json."""
    save(tmp_path, *FAMILIES[name])
    change_tensors(tmp_path, lambda tensors: tensors.update({key: t.to(dtype) for key, t in tensors.items()}))
    change_config(tmp_path, lambda config: config.update(dtype=str(dtype).removeprefix("torch.")))
    compare_with_transformers(tmp_path)
