"""Model that every peer serves: random weights, written once in Hugging Face layout, with a tokenizer of made-up words.

The 256 byte tokens, including the end-of-sequence token, have zero rows in the embedding and so never the largest
logit. No answer ends early and no event waits for the rest of a character, even in peers without `ignore_eos`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from torch import Tensor

BYTES = 256  # byte tokens, which precede the first word
SHAPES: dict[str, dict[str, Any]] = {
    "llama-12m": {  # fast steps, for benchmarks that need many
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 320,
        "num_hidden_layers": 10,
        "num_attention_heads": 5,
        "num_key_value_heads": 5,
        "head_dim": 64,
        "intermediate_size": 864,
        "vocab_size": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "mlp_bias": False,
    },
    "llama-115m": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 576,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "intermediate_size": 1536,
        "vocab_size": 16000,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "mlp_bias": False,
    },
    "qwen3-0.6b": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 1024,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 3072,
        "vocab_size": 151936,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
    },
}
COMMON = {
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 0,
    "pad_token_id": 0,
    "torch_dtype": "bfloat16",
}


def make_model(folder: Path, shape: str) -> None:
    """Write config.json, model.safetensors and the tokenizer into `folder`, unless an earlier run did."""
    done = folder / "generation_config.json"  # written last
    if done.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    config = SHAPES[shape] | COMMON
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": config["rope_theta"]}
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    save_file(_weights(config), folder / "model.safetensors", metadata={"format": "pt"})
    make_tokenizer(folder, config["vocab_size"], config["max_position_embeddings"])
    done.write_text(json.dumps({"eos_token_id": 0, "bos_token_id": 1, "pad_token_id": 0, "do_sample": False}))


def make_tokenizer(folder: Path, size: int, max_length: int) -> None:
    """Write a tokenizer of `size` made-up words into `folder`; max_length: tokens of a context."""
    _tokenizer(size).save(str(folder / "tokenizer.json"))
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "eos_token": word(0),
        "bos_token": word(1),
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(about))


def word(token: int) -> str:
    """Return a token's entry in the vocabulary file: a byte, or a space and four letters."""
    if token < BYTES:
        return sorted(pre_tokenizers.ByteLevel.alphabet())[token]
    letters = "".join(chr(97 + (token // 26**place) % 26) for place in (3, 2, 1, 0))
    return "Ġ" + letters


def as_text(tokens: list[int]) -> str:
    """Return a prompt as text, for a peer that takes only text; the tokenizer restores the same tokens."""
    return "".join(word(token) for token in tokens).replace("Ġ", " ")


def _tokenizer(size: int) -> Tokenizer:
    vocabulary = {word(token): token for token in range(size)}
    # No merges are needed, because whole words are looked up (ignore_merges).
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _weights(config: dict[str, Any]) -> dict[str, Tensor]:
    """Return normal weights with standard deviation 0.04, and norms of one.

    At 0.02, the usual initialisation, answers repeat one token.
    """
    generator = torch.Generator().manual_seed(0)
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head

    def matrix(outputs: int, inputs: int) -> Tensor:
        return (torch.randn(outputs, inputs, generator=generator) * 0.04).bfloat16()

    def ones(size: int) -> Tensor:
        return torch.ones(size, dtype=torch.bfloat16)

    weights = {"model.embed_tokens.weight": matrix(config["vocab_size"], hidden), "model.norm.weight": ones(hidden)}
    weights["model.embed_tokens.weight"][:BYTES] = 0
    for layer in range(config["num_hidden_layers"]):
        parts = {
            "input_layernorm": ones(hidden),
            "self_attn.q_proj": matrix(queries, hidden),
            "self_attn.k_proj": matrix(keys, hidden),
            "self_attn.v_proj": matrix(keys, hidden),
            "self_attn.o_proj": matrix(hidden, queries),
            "post_attention_layernorm": ones(hidden),
            "mlp.gate_proj": matrix(inner, hidden),
            "mlp.up_proj": matrix(inner, hidden),
            "mlp.down_proj": matrix(hidden, inner),
        }
        if config["model_type"] == "qwen3":
            parts |= {"self_attn.q_norm": ones(head), "self_attn.k_norm": ones(head)}
        weights |= {f"model.layers.{layer}.{name}.weight": tensor for name, tensor in parts.items()}
    return weights
