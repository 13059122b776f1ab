"""Tiny random checkpoints written by transformers, and transformers' results for them."""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from engine.execution.models import Model, load_model
from engine.model_files.open_model import open_model
from tests.profiles import examples

VOCAB = 300
PROMPT = 77  # not a multiple of any page or chunk size in use
TEXT_TOKENS = examples(200)

SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    # Large enough that the two largest logits of a position are never close.
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}

LLAMA3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 128}
LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "long_factor": [2.0] * 8, "short_factor": [1.0] * 8}
FACTORS = [1.0 + 0.25 * pair for pair in range(8)]
PHI3_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": FACTORS,
    "long_factor": [4.0 * factor for factor in FACTORS],
}
GRANITE = {
    "attention_multiplier": 0.2,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.55,
    "logits_scaling": 3.0,
}

# name -> (transformers' name of the family, differences from SMALL)
DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-tied-mha": ("Llama", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    "llama-biases": ("Llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 32}),
    "llama-ragged": ("Llama", {"intermediate_size": 88}),  # not a multiple of any panel size
    # Not a multiple of any tile size either: rows of 80 and 112 numbers end within a tile.
    "llama-odd": (
        "Llama",
        {"hidden_size": 80, "intermediate_size": 112, "num_attention_heads": 5, "num_key_value_heads": 1},
    ),
    "llama-linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}}),
    "llama-llama3": ("Llama", {"rope_parameters": LLAMA3 | {"original_max_position_embeddings": 64}}),
    "llama-yarn": ("Llama", {"rope_parameters": YARN | {"attention_factor": 1.3}}),
    "mistral-window": ("Mistral", {"sliding_window": 24}),
    "mistral": ("Mistral", {"sliding_window": None, "head_dim": 20}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2-window": ("Qwen2", {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1}),
    "qwen3": ("Qwen3", {"head_dim": 32, "num_attention_heads": 6}),
    "qwen3-yarn": ("Qwen3", {"head_dim": 16, "attention_bias": True, "rope_parameters": YARN}),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 5}),
    "smollm3-window": (
        "SmolLM3",
        {"no_rope_layers": [1, 0], "use_sliding_window": True, "sliding_window": 20, "tie_word_embeddings": False},
    ),
    "smollm3-biases": ("SmolLM3", {"no_rope_layer_interval": 2, "attention_bias": True, "mlp_bias": True}),
    "phi3-window": ("Phi3", {"sliding_window": 20}),
    "phi3-half": ("Phi3", {"partial_rotary_factor": 0.5, "tie_word_embeddings": True, "num_key_value_heads": 4}),
    "phi3-three-quarters": ("Phi3", {"partial_rotary_factor": 0.75, "intermediate_size": 88}),
    # The prompt is longer than 64 tokens, and the context as long as the original one of 512.
    "phi3-long": ("Phi3", {"original_max_position_embeddings": 64, "rope_parameters": PHI3_ROPE}),
    "phi3-short": ("Phi3", {"original_max_position_embeddings": 512, "rope_parameters": PHI3_ROPE}),
    "granite": ("Granite", GRANITE),
    "granite-biases": (
        "Granite",
        GRANITE | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "intermediate_size": 88},
    ),
    "granite-odd": (
        "Granite",
        GRANITE | {"hidden_size": 80, "intermediate_size": 112, "num_attention_heads": 5, "num_key_value_heads": 1},
    ),
}

# Families that the decoder does not implement, served through transformers.
FALLBACKS: dict[str, tuple[str, dict[str, Any]]] = {
    "olmo2": ("Olmo2", {}),
    "starcoder2-window": ("Starcoder2", {"sliding_window": 20, "tie_word_embeddings": False}),
    "gpt-neox": ("GPTNeoX", {}),
    "nanochat-capped": ("NanoChat", {"final_logit_softcapping": 5.0}),
    "granite-moe": ("GraniteMoe", GRANITE | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "gemma3-nested": (
        "Gemma3",
        {
            "sliding_window": 20,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
                "full_attention": LLAMA3 | {"original_max_position_embeddings": 64},
            },
        },
    ),
    "gemma3": ("Gemma3", {"sliding_window": 20, "layer_types": ["sliding_attention", "full_attention"]}),
}

# Families that must be refused, and a part of the reason.
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "sparse attention": ("GlmMoeDsa", {"head_dim": 16}, "not supported over a paged cache; choose a model"),
    "a bias of its own": (
        "Mpt",
        {"n_layers": 2, "n_heads": 4, "d_model": 64},
        "inputs other than tokens and positions",
    ),
    "rotary embeddings by layer of its own": (
        "ModernBertDecoder",
        {"bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 3, "sep_token_id": 4},
        "inputs other than tokens and positions",
    ),
    "alibi": ("Bloom", {"n_layer": 2, "n_head": 4}, "attention interface"),
    "soft-capped scores": ("Gemma2", {"head_dim": 16}, "softcap"),
    "attention sinks": ("GptOss", {"head_dim": 16, "num_local_experts": 2}, "s_aux"),
    "latent attention": ("DeepseekV3", {"n_routed_experts": 8, "first_k_dense_replace": 2}, "layer 0"),
    "a step that does not reach attention": ("StableLm", {}, "attention interface"),
    "attention by a table of its own": ("Falcon", {}, "attention interface"),
    "frequencies by batch in one type of layer": (
        "Gemma3",
        {
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                "full_attention": LONGROPE | {"original_max_position_embeddings": 64},
            },
            "head_dim": 16,
        },
        r"rope_parameters\.full_attention.*other requests would change an answer",
    ),
    "frequencies by batch": (
        "Olmo2",
        {"rope_parameters": LONGROPE | {"original_max_position_embeddings": 64}},
        "other requests would change an answer",
    ),
}


@dataclass(frozen=True)
class Checkpoint:
    """Directory of a checkpoint and the model that it was saved from."""

    path: Path
    reference: Any

    def load(self, dtype: torch.dtype = torch.float32) -> Model:
        return load_model(open_model(self.path), dtype, torch.device("cpu"), lambda done, total: None)

    def logits(self, tokens: list[int]) -> Tensor:
        """Return transformers' logits, [len(tokens), V] float32."""
        with torch.inference_mode():
            logits: Tensor = self.reference(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
        return logits.float()

    @functools.cached_property
    def prompt(self) -> list[int]:
        ids: list[int] = torch.randint(1, VOCAB, (PROMPT,), generator=torch.Generator().manual_seed(3)).tolist()
        return ids

    @functools.cached_property
    def text(self) -> list[int]:
        """Greedy tokens after the prompt, by transformers' generate."""
        return self.generate(self.prompt, TEXT_TOKENS)

    def generate(self, prompt: list[int], count: int) -> list[int]:
        """Return `count` greedy tokens after a prompt, by transformers' generate."""
        ids = torch.tensor([prompt])
        out = self.reference.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, pad_token_id=0
        )
        text: list[int] = out[0, len(prompt) :].tolist()
        assert len(text) == count
        return text


class Checkpoints:
    """Checkpoints by name, each created once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._made: dict[str, Checkpoint] = {}

    def __getitem__(self, name: str) -> Checkpoint:
        if name not in self._made:
            family, changes = (DECODERS | FALLBACKS)[name]
            self._made[name] = save(self._directory / name, family, changes)
        return self._made[name]


def save(path: Path, family: str, changes: dict[str, Any], **options: Any) -> Checkpoint:
    """Save a random model of a family, identical every time. `options`: passed to save_pretrained."""
    name = f"{family}TextConfig" if family == "Gemma3" else f"{family}Config"
    config = getattr(transformers, name)(**copy.deepcopy(SMALL | changes))  # it completes dictionaries in place
    torch.manual_seed(11)
    kinds = (getattr(transformers, f"{family}{suffix}", None) for suffix in ("ForCausalLM", "LMHeadModel"))
    model = next(kind for kind in kinds if kind is not None)(config).eval()
    with torch.no_grad():
        # Biases and norms start as zeros and ones, which would hide their omission.
        for parameter_name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            assert parameter.isfinite().all(), parameter_name
    model.save_pretrained(path, **options)
    return Checkpoint(path, model)
