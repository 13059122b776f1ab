"""Weights of a checkpoint with quantised matrices: these stay as they are stored, where kernels multiply them."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable

import torch
from torch import Tensor

from engine.execution.models.errors import WeightsError
from engine.execution.models.quantized.interface import WEIGHT, DenseMatrix, Format, Layer
from engine.execution.models.sources import CheckpointSource
from engine.execution.models.tensor_table import TensorTable
from kernels.quantization import QuantizedMatrix, dequantize_into

log = logging.getLogger("carousel.engine")

# Scales of activations, keys and values, which are computed without rounding here.
ACTIVATION_SCALES = frozenset({
    "input_scale", "input_zero_point", "output_scale", "output_zero_point", "activation_scale", "q_scale", "k_scale",
    "v_scale", "k_zero_point", "v_zero_point", "prob_output_scale",
})  # fmt: skip
BIAS = ".bias"


class QuantizedSource:
    """Weights of one folder. The tensors of a module, not lists in config.json, say whether it is quantised."""

    def __init__(self, tensors: TensorTable, form: Format) -> None:
        self._tensors = tensors
        self._format = form
        self._plain = CheckpointSource(tensors)
        self._dense: dict[str, DenseMatrix] = {}
        self._modules: set[str] = set()  # that were quantised
        self._dequantized: dict[str, list[int]] = defaultdict(list)  # bytes of each matrix, by the reason
        for note in form.notes:
            log.info("%s", note)

    def dtype(self, name: str) -> torch.dtype | None:
        """Return the stored dtype; of quantised matrices bfloat16."""
        return self._plain.dtype(name) if self._shape(name) is None else torch.bfloat16

    def differ(self, first: str, second: str, dtype: torch.dtype) -> bool:
        if self._shape(first) is None and self._shape(second) is None:
            return self._plain.differ(first, second, dtype)
        return self.dtype(first) is not None and self.dtype(second) is not None  # a quantised one has been rounded

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        found = self._shape(name)
        if found is None:
            self._plain.check(name, shape)
        elif found != shape:
            raise WeightsError(
                f"{self._tensors.folder}: quantised matrix {name} has shape {found}, but config.json requires {shape}"
            )

    def stored(self, name: str) -> QuantizedMatrix | None:
        if name in self._dense or (layer := self._layer(name)) is None:
            return None
        self._modules.add(name.removesuffix(WEIGHT))
        matrix = layer.open()
        if isinstance(matrix, DenseMatrix):
            self._dense[name] = matrix
            return None
        return matrix

    def read_into(self, name: str, out: Tensor) -> None:
        self.check(name, tuple(out.shape))
        if (matrix := self.stored(name)) is not None:
            dequantize_into(matrix, out)
        elif (dense := self._dense.pop(name, None)) is not None:
            dense.write(out)
            self._dequantized[dense.reason].append(out.nbytes)
        else:
            self._plain.read_into(name, out)

    def finish(self, ignored: Callable[[str], bool]) -> None:
        self._tensors.finish(lambda name: ignored(name) or self._is_unused(name))
        for reason, sizes in self._dequantized.items():
            log.warning(
                "%d matrices %s, are dequantised, and each weight is rounded once. They take %.0f MB",
                *(len(sizes), reason, sum(sizes) / 1e6),
            )

    def _shape(self, name: str) -> tuple[int, int] | None:
        """Return the shape of a quantised matrix; None if it is not quantised, or missing."""
        layer = self._dense.get(name) or self._layer(name)
        return None if layer is None else layer.shape

    def _layer(self, name: str) -> Layer | None:
        """Return the quantised matrix that the unread tensors of a module are; None if they are none."""
        return self._format.layer(self._tensors, name.removesuffix(WEIGHT)) if name.endswith(WEIGHT) else None

    def _is_unused(self, name: str) -> bool:
        """Return whether a tensor has no effect: a scale of activations, or a bias of zeros, which old tools write."""
        module, _, suffix = name.rpartition(".")
        if suffix in ACTIVATION_SCALES:
            return True
        return name.endswith(BIAS) and module in self._modules and not self._tensors.peek(name).any()
