"""FP8: weights in float8_e4m3fn, with a scale for each block, row or matrix.

weight: [N, K]. weight_scale_inv (as DeepSeek names it; it is multiplied all the same) or weight_scale: one for each
block of weight_block_size, else one for each row or for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from engine.execution.models.errors import WeightsError
from engine.execution.models.quantized.fields import ALTERNATIVES, Fields
from engine.execution.models.quantized.interface import (
    SCALE_DTYPES,
    CodedMatrix,
    Layer,
    read_scales,
    require,
    require_matrix,
)
from engine.execution.models.safetensors_files import TensorEntry
from engine.execution.models.tensor_table import TensorTable
from kernels.quantization import QuantScheme

FLOAT8 = torch.float8_e4m3fn
LARGEST = 448
NAN = 0x7F  # code, without the sign
SCALES = ("weight_scale_inv", "weight_scale")
# How activations are rounded where weights are multiplied in FP8, and lists of modules without quantised tensors.
HARMLESS = frozenset({"quant_method", "dequantize", "modules_to_not_convert", "ignored_layers", "scale_fmt"})


@dataclass(frozen=True)
class FP8:
    """Format of a checkpoint. block: (outputs, inputs) that share a scale; None: rows or the matrix do."""

    block: tuple[int, int] | None
    notes: tuple[str, ...] = ("The activations are not rounded to FP8, as they are where weights are multiplied so",)

    @classmethod
    def parse(cls, key: str, content: Any) -> FP8:
        """Read the description. Raises ModelConfigError with key and value."""
        fields = Fields(key, content)
        fields.choice("fmt", "format", allowed=("e4m3", "float8_e4m3fn"), default="e4m3")
        fields.choice("activation_scheme", allowed=("dynamic", "static"), default="dynamic")
        fields.choice("expert_dtype", allowed=("fp8",), default="fp8")
        block = fields.get("weight_block_size")
        fields.finish(HARMLESS)
        return cls(None if block is None else block_of(fields, "weight_block_size", block))

    def layer(self, tensors: TensorTable, module: str) -> Layer | None:
        weight = f"{module}.weight"
        scales = [name for suffix in SCALES if tensors.find(name := f"{module}.{suffix}") is not None]
        entry = tensors.find(weight)
        if not scales and (entry is None or entry.dtype != FLOAT8):
            return None
        entry = require_matrix(tensors, weight, (FLOAT8,))
        outputs, inputs = entry.shape
        if len(scales) > 1:
            raise WeightsError(f"{entry.file}: {scales[0]} and {scales[1]} are both present; remove one of them")
        name = scales[0] if scales else f"{module}.{SCALES[self.block is None]}"
        scale = tensors.find(name)
        is_row_wise = scale is not None and scale.shape in ((outputs,), (outputs, 1))
        block = self.block or ((1, inputs) if is_row_wise else (outputs, inputs))
        require_grid(tensors, name, (outputs, inputs), block)
        return Layer((outputs, inputs), partial(fp8_matrix, tensors, weight, name, block))


def block_of(fields: Fields, name: str, value: Any) -> tuple[int, int]:
    """Return the sizes of blocks. Raises ModelConfigError for other values than two positive integers."""
    is_pair = isinstance(value, list) and len(value) == 2
    if not is_pair or not all(type(size) is int and 0 < size < 1 << 24 for size in value):
        raise fields.error(name, value, f"must be two positive integers; {ALTERNATIVES}")
    return value[0], value[1]


def require_grid(tensors: TensorTable, name: str, shape: tuple[int, int], block: tuple[int, int]) -> TensorEntry:
    """Return the location of scales, one for each block of a matrix. Raises WeightsError as `require`."""
    rows, columns = (-(-size // of) for size, of in zip(shape, block, strict=True))
    flat = [(rows,)] if columns == 1 else []
    scalar: list[tuple[int, ...]] = [()] if rows == columns == 1 else []
    return require(tensors, name, SCALE_DTYPES, (rows, columns), *flat, *scalar)


def fp8_matrix(tensors: TensorTable, weight: str, scale: str, block: tuple[int, int]) -> CodedMatrix:
    """Return a matrix with a scale for each row and group of inputs."""
    entry = tensors.take(weight)
    outputs, inputs = entry.shape
    grid = read_scales(tensors, scale, LARGEST).float().reshape(-(-outputs // block[0]), -1)
    scales = grid.repeat_interleave(block[0], 0)[:outputs]
    group = 0 if block[1] >= inputs else block[1]
    scheme = QuantScheme("FP8", 8, group, scale_dtype=torch.float32, is_float8=True)

    def codes(first: int, last: int) -> Tensor:
        rows = torch.empty((last - first, inputs), dtype=FLOAT8)
        entry.rows(first, last).read_into(rows)
        found = rows.view(torch.uint8)
        if bool(((found & NAN) == NAN).any()):
            raise WeightsError(f"{entry.file}: tensor {weight} contains NaN: the file is damaged; fetch it again")
        tensors.count(rows.nbytes)
        return found

    return CodedMatrix(scheme, (outputs, inputs), scales, None, codes)
