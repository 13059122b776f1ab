"""Loading of the parameters of a `Decoder`, one fused matrix at a time, so that the weights are never held twice."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.execution.models.config import DecoderConfig
from engine.execution.models.rope import cos_sin_table
from engine.execution.models.sources import WeightSource
from kernels.decoder import DecoderLayer, DecoderWeights, Linear
from kernels.huge_pages import mmap_zeros
from kernels.interface import Kernels
from kernels.quantization import LinearWeight, QuantizedMatrix, StackedWeight

log = logging.getLogger("carousel.engine")

EMBEDDING = "model.embed_tokens.weight"
LM_HEAD = "lm_head.weight"


def load_weights(
    config: DecoderConfig, source: WeightSource, dtype: torch.dtype, device: torch.device, kernels: Kernels
) -> DecoderWeights:
    """Load the weights of `config` in the form that the kernels use for `dtype`.

    Raises WeightsError for tensors that are missing, left over, misshapen or damaged.
    """
    reader = _Reader(source, dtype, device, kernels)
    is_tied = config.tied_embeddings and not _stores_another_head(source, dtype)
    # Of a tied pair either tensor may be the one that was saved, as in transformers.
    table = LM_HEAD if is_tied and source.dtype(EMBEDDING) is None else EMBEDDING
    table_dtype = reader.stored_dtype(table)
    tokens = reader.weight(table, config.vocab_size, config.hidden_size)
    if is_tied:
        embedding, tied_head = kernels.pack_tied_embedding(tokens)
    else:
        embedding, tied_head = kernels.pack_embedding(tokens), None
    del tokens
    layers = tuple(_load_layer(config, reader, f"model.layers.{index}.") for index in range(config.num_layers))
    final_norm = reader.tensor("model.norm.weight", config.hidden_size)
    head = tied_head or kernels.pack_head(reader.weight(LM_HEAD, config.vocab_size, config.hidden_size), None)
    source.finish(lambda name: _ignored(name, is_tied))
    # Beside quantised weights, keys and values in float32 for a table in float16 would take the memory that these save.
    checkpoint_dtype = torch.bfloat16 if reader.has_quantized else table_dtype
    cos_sin = cos_sin_table(config.rope, config.max_position).to(device)
    return DecoderWeights(embedding, layers, final_norm, head, cos_sin, reader.num_parameters, checkpoint_dtype)


def _stores_another_head(source: WeightSource, dtype: torch.dtype) -> bool:
    """Return whether a checkpoint with tie_word_embeddings has a separate output projection.

    It is then used, as in transformers 5.
    """
    if not source.differ(EMBEDDING, LM_HEAD, dtype):
        return False
    log.warning(
        "config.json has tie_word_embeddings = true, but the checkpoint stores %s with other values than %s; "
        "the stored %s is used. Set tie_word_embeddings to false to silence this warning.",
        *(LM_HEAD, EMBEDDING, LM_HEAD),
    )
    return True


def _load_layer(config: DecoderConfig, reader: _Reader, prefix: str) -> DecoderLayer:
    hidden, intermediate, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    q_size, kv_size = config.num_heads * head_dim, config.num_kv_heads * head_dim
    attention, mlp = prefix + "self_attn.", prefix + "mlp."
    qkv = _parts(attention, config.qkv_names, (q_size, kv_size, kv_size))
    gate_up = _parts(mlp, config.gate_up_names, (intermediate, intermediate))
    return DecoderLayer(
        input_norm=reader.tensor(prefix + "input_layernorm.weight", hidden),
        qkv=reader.linear(qkv, hidden, config.qkv_bias),
        q_norm=reader.tensor(attention + "q_norm.weight", head_dim) if config.qk_norm else None,
        k_norm=reader.tensor(attention + "k_norm.weight", head_dim) if config.qk_norm else None,
        out=reader.linear(((attention + "o_proj", hidden),), q_size, config.out_bias),
        mlp_norm=reader.tensor(prefix + "post_attention_layernorm.weight", hidden),
        gate_up=reader.linear(gate_up, hidden, config.mlp_bias),
        down=reader.linear(((mlp + "down_proj", hidden),), intermediate, config.mlp_bias),
    )


def _parts(prefix: str, names: tuple[str, ...], sizes: tuple[int, ...]) -> tuple[tuple[str, int], ...]:
    """Return names and outputs of the matrices that are stacked; a single one is stored with all outputs."""
    outputs = (sum(sizes),) if len(names) == 1 else sizes
    return tuple((prefix + name, size) for name, size in zip(names, outputs, strict=True))


def _ignored(name: str, is_tied: bool) -> bool:
    """Return whether an unread tensor may be left: rope tables of old checkpoints, and the copy of a tied table."""
    return name.endswith("rotary_emb.inv_freq") or (is_tied and name == LM_HEAD)


@dataclass
class _Reader:
    """Reader of a source into new tensors on one device, which counts the parameters.

    Matrices may keep the checkpoint's dtype, if the kernels compute with it as if it were `dtype`. That halves the
    memory and the bytes that a step reads.
    """

    source: WeightSource
    dtype: torch.dtype
    device: torch.device
    kernels: Kernels
    num_parameters: int = 0
    has_quantized: bool = False

    def tensor(self, name: str, *shape: int) -> Tensor:
        """Read a tensor in the activations' dtype."""
        return self._read(name, shape, self._activations)

    def matrix(self, name: str, *shape: int) -> Tensor:
        """Read a matrix in the dtype in which the kernels store it."""
        return self._read(name, shape, self.stored_dtype(name))

    def linear(self, parts: tuple[tuple[str, int], ...], inputs: int, bias: bool) -> Linear:
        """Read one layer from several of the checkpoint's, stacked. parts: (name, outputs)."""
        for name, size in parts:
            self.source.check(f"{name}.weight", (size, inputs))
        biases = self._biases(parts) if bias else None
        if any(stored := [self._stored(f"{name}.weight") for name, _ in parts]):
            matrices = [
                self.matrix(f"{name}.weight", size, inputs) if matrix is None else matrix
                for (name, size), matrix in zip(parts, stored, strict=True)
            ]
            return self.kernels.pack_linear(self._stacked(matrices), biases)
        outputs = sum(size for _, size in parts)
        dtypes = {self.stored_dtype(f"{name}.weight") for name, _ in parts}
        weight = self._empty((outputs, inputs), dtypes.pop() if len(dtypes) == 1 else self.dtype)
        start = 0
        for name, size in parts:
            self.source.read_into(f"{name}.weight", weight[start : start + size])
            start += size
        return self.kernels.pack_linear(weight, biases)

    def weight(self, name: str, *shape: int) -> LinearWeight:
        """Read a matrix as it is quantised, or in the dtype in which the kernels store it."""
        self.source.check(name, shape)
        stored = self._stored(name)
        return self.matrix(name, *shape) if stored is None else self._stacked([stored])

    def _stacked(self, parts: Sequence[Tensor | QuantizedMatrix]) -> StackedWeight:
        return StackedWeight(parts, self._activations, self.device)

    def _biases(self, parts: tuple[tuple[str, int], ...]) -> Tensor:
        """Read the biases of stacked layers."""
        biases = self._empty((sum(size for _, size in parts),), self._activations)
        start = 0
        for name, size in parts:
            self.source.read_into(f"{name}.bias", biases[start : start + size])
            start += size
        return biases

    def _stored(self, name: str) -> QuantizedMatrix | None:
        """Read a matrix as it is quantised; None if it is not, or if the kernels do not multiply such ones."""
        if not self.kernels.multiplies_quantized:
            return None
        if (stored := self.source.stored(name)) is not None:
            self.num_parameters += math.prod(stored.shape)
            self.has_quantized = True
        return stored

    def stored_dtype(self, name: str) -> torch.dtype:
        """Return the dtype in which the kernels store the matrix `name`, which has not been read yet."""
        return self.kernels.weight_dtype(self.source.dtype(name) or self.dtype, self.dtype)

    @property
    def _activations(self) -> torch.dtype:
        return self.kernels.activation_dtype(self.dtype)

    def _read(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        self.source.check(name, shape)
        out = self._empty(shape, dtype)
        self.source.read_into(name, out)
        return out

    def _empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        out = (
            mmap_zeros(shape, dtype)
            if self.device.type == "cpu"
            else torch.empty(shape, dtype=dtype, device=self.device)
        )
        self.num_parameters += out.numel()
        return out
