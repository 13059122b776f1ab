"""AWQ, as AutoAWQ's layout "gemm" stores it (awq/utils/packing_utils.py).

qweight: int32 [K, N / 8], eight outputs in a word. qzeros: int32 [K / group, N / 8]. scales: [K / group, N].
A weight is `scale * (code - zero)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from engine.execution.models.errors import WeightsError
from engine.execution.models.quantized.fields import Fields
from engine.execution.models.quantized.interface import (
    SCALE_DTYPES,
    CodedMatrix,
    ColumnWords,
    Layer,
    coded_matrix,
    num_groups,
    read_scales,
    require,
    require_matrix,
)
from engine.execution.models.tensor_table import TensorTable

BITS = 4
IN_WORD = 8
# Choices of kernels, lists of modules without quantised tensors, and records of how the scales were found.
HARMLESS = frozenset({
    "quant_method", "backend", "do_fuse", "fuse_max_seq_len", "modules_to_fuse", "modules_to_not_convert",
    "exllama_config", "meta", "sym", "desc_act", "act_group_aware", "true_sequential", "damp_percent",
    "batch_size", "max_input_length", "cache_block_outputs",
})  # fmt: skip


@dataclass(frozen=True)
class AWQ:
    """Format of a checkpoint. group: inputs of a group, 0 for all."""

    group: int
    notes: tuple[str, ...] = ()

    @classmethod
    def parse(cls, key: str, content: Any) -> AWQ:
        """Read the description. Raises ModelConfigError with key and value."""
        fields = Fields(key, content)
        fields.choice("bits", "w_bit", allowed=(BITS,), default=BITS)
        fields.choice("version", "format", "checkpoint_format", allowed=("gemm",), default="gemm")
        fields.choice("zero_point", allowed=(True,), default=True)
        fields.choice("backend", allowed=("auto", "autoawq", "gemm"), default="auto")
        fields.choice("pack_dtype", allowed=("int32",), default="int32")
        group = fields.integer("group_size", "q_group_size", default=128)
        fields.finish(HARMLESS)
        return cls(max(group, 0))

    def layer(self, tensors: TensorTable, module: str) -> Layer | None:
        names = [f"{module}.{suffix}" for suffix in ("qweight", "qzeros", "scales")]
        if all(tensors.find(name) is None for name in names):
            return None
        entry = require_matrix(tensors, names[0], (torch.int32,))
        inputs, outputs = entry.shape[0], entry.shape[1] * IN_WORD
        if self.group and inputs % self.group:
            raise WeightsError(
                f"{entry.file}: tensor {names[0]} has {inputs} inputs, but quantization_config requires a multiple of "
                f"group_size {self.group}"
            )
        groups = num_groups(inputs, self.group)
        require(tensors, names[1], (torch.int32,), (groups, entry.shape[1]))
        require(tensors, names[2], SCALE_DTYPES, (groups, outputs))
        return Layer((outputs, inputs), partial(self._open, tensors, names, (outputs, inputs)))

    def _open(self, tensors: TensorTable, names: list[str], shape: tuple[int, int]) -> CodedMatrix:
        zeros = unpack(tensors.read(names[1]))
        scales = read_scales(tensors, names[2], largest=1 << BITS).T
        codes = partial(_codes, ColumnWords(tensors, names[0]))
        return coded_matrix("AWQ", BITS, self.group, shape, scales, zeros, codes)


def _codes(stored: ColumnWords, first: int, last: int) -> Tensor:
    """Return the codes of the rows first..last-1."""
    begin = first // IN_WORD
    codes = unpack(stored.words[:, begin : -(-last // IN_WORD)])
    return codes[first - begin * IN_WORD : last - begin * IN_WORD]


def unpack(words: Tensor) -> Tensor:
    """Return the codes of int32 [K, N / 8] by outputs: uint8 [N, K]."""
    # Byte b of a word has those of the outputs j and j + 2, with j = 4 (b mod 2) + b div 2.
    packed = words.contiguous().reshape(-1).view(torch.uint8).view(len(words), -1).T.contiguous()
    by_output = packed.view(words.shape[1], 2, 2, -1).transpose(1, 2)
    return torch.stack((by_output & 15, by_output >> 4), 2).view(-1, len(words))
