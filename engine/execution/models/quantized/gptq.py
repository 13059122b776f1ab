"""GPTQ, as AutoGPTQ and GPTQModel store it.

qweight: int32 [K x bits / 32, N], consecutive inputs in a word. qzeros: int32 [groups, N x bits / 32]. scales:
[groups, N]. g_idx: int32 [K], the group of each input. A weight is `scale * (code - zero)`. With checkpoint_format
"gptq", words of qzeros were stored less one in every field; GPTQModel adds it to whole words, as is done here.
"""

from __future__ import annotations

from collections.abc import Callable
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
    DenseMatrix,
    Layer,
    coded_matrix,
    num_groups,
    read_scales,
    require,
    require_matrix,
    unpack_words,
)
from engine.execution.models.tensor_table import TensorTable

ONES = {4: 0x11111111, 8: 0x01010101}  # one in every field of a word
FORMATS = ("gptq", "gptq_v2")
PERMUTED = "of which desc_act scatters the groups over the inputs"
# Records of how the codes were found, choices of kernels, and whether lm_head has quantised tensors.
HARMLESS = frozenset({
    "quant_method", "method", "damp_percent", "damp_auto_increment", "act_group_aware", "static_groups", "lm_head",
    "true_sequential", "meta", "mse", "model_name_or_path", "model_file_base_name", "dataset", "tokenizer",
    "use_exllama", "disable_exllama", "exllama_config", "use_cuda_fp16", "max_input_length", "backend",
    "block_name_to_quantize", "module_name_preceding_first_block", "modules_in_block_to_quantize", "batch_size",
    "pad_token_id", "model_seqlen", "cache_block_outputs", "parallel_packing", "device", "offload_to_disk",
    "offload_to_disk_path", "hyb_act", "gptaq", "v2", "foem",
})  # fmt: skip


@dataclass(frozen=True)
class GPTQ:
    """Format of a checkpoint. group: inputs of a group, 0 for all. stored_less_one: qzeros are, see the module."""

    bits: int
    group: int
    requires_indices: bool
    stored_less_one: bool
    notes: tuple[str, ...] = ()

    @classmethod
    def parse(cls, key: str, content: Any) -> GPTQ:
        """Read the description. Raises ModelConfigError with key and value."""
        fields = Fields(key, content)
        bits = fields.choice("bits", "wbits", allowed=tuple(ONES))
        group = fields.integer("group_size", default=128)
        fields.choice("sym", allowed=(True, False), default=True)  # the zero points say it
        described = fields.choice("checkpoint_format", "format", allowed=FORMATS, default=FORMATS[0])
        fields.choice("pack_dtype", allowed=("int32",), default="int32")
        is_ordered = fields.choice("desc_act", allowed=(True, False), default=False)
        fields.finish(HARMLESS)
        return cls(bits, max(group, 0), is_ordered, described == FORMATS[0])

    def layer(self, tensors: TensorTable, module: str) -> Layer | None:
        names = {suffix: f"{module}.{suffix}" for suffix in ("qweight", "qzeros", "scales", "g_idx")}
        if all(tensors.find(name) is None for name in names.values()):
            return None
        entry = require_matrix(tensors, names["qweight"], (torch.int32,))
        in_word = 32 // self.bits
        inputs, outputs = entry.shape[0] * in_word, entry.shape[1]
        groups = num_groups(inputs, self.group)
        require(tensors, names["qzeros"], (torch.int32,), (groups, -(-outputs // in_word)))
        require(tensors, names["scales"], SCALE_DTYPES, (groups, outputs))
        if self.requires_indices or tensors.find(names["g_idx"]) is not None:
            require(tensors, names["g_idx"], (torch.int32, torch.int64), (inputs,))
        return Layer((outputs, inputs), partial(self._open, tensors, names, (outputs, inputs)))

    def _open(self, tensors: TensorTable, names: dict[str, str], shape: tuple[int, int]) -> CodedMatrix | DenseMatrix:
        words = tensors.read(names["qzeros"])
        if self.stored_less_one:
            words += ONES[self.bits]
        zeros = unpack_words(words, self.bits)[:, : shape[0]].T
        scales = read_scales(tensors, names["scales"], largest=1 << self.bits).T
        codes = partial(_codes, ColumnWords(tensors, names["qweight"]), self.bits)
        indices = read_group_indices(tensors, names["g_idx"], shape[1], self.group)
        if indices is None:
            return coded_matrix("GPTQ", self.bits, self.group, shape, scales, zeros, codes)
        return permuted(codes, scales, zeros, indices, shape)


def read_group_indices(tensors: TensorTable, name: str, inputs: int, group: int) -> Tensor | None:
    """Return the group of each input; None if groups are consecutive inputs. Raises WeightsError for other numbers."""
    if (entry := tensors.find(name)) is None:
        return None
    indices, groups = tensors.read(name).long(), num_groups(inputs, group)
    if int(indices.min()) < 0 or int(indices.max()) >= groups:
        raise WeightsError(
            f"{entry.file}: tensor {name} has groups from {indices.min()} to {indices.max()}, but must have those from "
            f"0 to {groups - 1}: the checkpoint is damaged; fetch it again"
        )
    return None if torch.equal(indices, torch.arange(inputs) // (group or inputs)) else indices


def permuted(
    codes: Callable[[int, int], Tensor], scales: Tensor, zeros: Tensor, indices: Tensor, shape: tuple[int, int]
) -> DenseMatrix:
    """Return a matrix with the group of each input in `indices`. The kernels do not reorder inputs."""

    def weights(first: int, last: int) -> Tensor:
        values = codes(first, last).to(torch.int32) - zeros[first:last].to(torch.int32)[:, indices]
        return values * scales[first:last].float()[:, indices]

    return DenseMatrix(shape, PERMUTED, weights)


def _codes(stored: ColumnWords, bits: int, first: int, last: int) -> Tensor:
    """Return the codes of the rows first..last-1."""
    return unpack_words(stored.words[:, first:last].T, bits)
