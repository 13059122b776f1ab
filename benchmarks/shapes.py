"""Sizes of known decoders, and the cost of a token in them. Weights are random, as only shapes matter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Matrix:
    """Weight matrix of a decoder, with the operations around it: norm before, gate after, or residual addition."""

    name: str
    outputs: int  # gate and up projection are counted once
    inputs: int
    normed: bool = False
    gated: bool = False
    added: bool = False

    @property
    def rows(self) -> int:
        """Return the number of rows of the weight."""
        return self.outputs * (2 if self.gated else 1)


@dataclass(frozen=True)
class Shape:
    """Size of a decoder."""

    name: str
    family: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied: bool = True  # embedding and output head are one matrix

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """Return the matrices of a layer, and the output head."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return (
            Matrix("qkv", queries + 2 * keys, self.hidden, normed=True),
            Matrix("out", self.hidden, queries, added=True),
            Matrix("gate and up", self.intermediate, self.hidden, normed=True, gated=True),
            Matrix("down", self.hidden, self.intermediate, added=True),
            Matrix("head", self.vocab, self.hidden),
        )

    @property
    def linear_weights(self) -> int:
        """Return the number of weights that every token is multiplied with, without the output head."""
        attention = self.hidden * (2 * self.heads + 2 * self.kv_heads) * self.head_dim
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def head_weights(self) -> int:
        """Return the number of weights of the output head, which every sampled token needs."""
        return self.vocab * self.hidden

    @property
    def kv_bytes(self) -> int:
        """Return the bytes of keys and values of one token in bfloat16."""
        return 2 * 2 * self.layers * self.kv_heads * self.head_dim

    @property
    def logit_bytes(self) -> int:
        """Return the bytes of one token's logits in bfloat16."""
        return 2 * self.vocab

    def decode_bytes(self, rows: int, context: float) -> float:
        """Return the bytes that a decode step of `rows` rows with `context` tokens in total must move in bfloat16.

        All weights, keys and values are read once; the logits are written and read.
        """
        weights = 2 * (self.linear_weights + self.head_weights)
        return weights + context * self.kv_bytes + 2 * rows * self.logit_bytes

    def prefill_flops(self, tokens: int) -> int:
        """Return the operations of a whole prompt: products with all weights, causal attention, and the head once."""
        attention = 2 * tokens * tokens * self.layers * self.heads * self.head_dim
        return 2 * self.linear_weights * tokens + 2 * self.head_weights + attention

    def config(self) -> dict[str, Any]:
        """Return the content of config.json."""
        return {
            "architectures": [f"{self.family}ForCausalLM"],
            "model_type": self.family.lower(),
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.intermediate,
            "vocab_size": self.vocab,
            "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0,
            "tie_word_embeddings": self.tied,
            "hidden_act": "silu",
            "torch_dtype": "bfloat16",
        }


LLAMA_1B = Shape("Llama-3.2-1B", "Llama", 2048, 16, 32, 8, 64, 8192, 128256)
QWEN_06B = Shape("Qwen3-0.6B", "Qwen3", 1024, 28, 16, 8, 128, 3072, 151936)
LLAMA_8B = Shape("Llama-3.1-8B", "Llama", 4096, 32, 32, 8, 128, 14336, 128256, tied=False)
TINY = Shape("tiny", "Qwen3", 64, 2, 4, 2, 16, 128, 512)

SHAPES = {shape.name: shape for shape in (LLAMA_1B, QWEN_06B, LLAMA_8B, TINY)}
