"""Sources of a model's weights: a checkpoint's files, or random numbers for benchmarks."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from engine.execution.models.errors import WeightsError
from engine.execution.models.safetensors_files import have_same_values
from engine.execution.models.tensor_table import TensorTable
from engine.host import free_memory_bytes
from kernels.quantization import QuantizedMatrix

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)  # of tensors that are not quantised
DUMMY_STD = 0.02  # the usual initializer_range


class WeightSource(Protocol):
    """Source of tensors by name, each of which can be read once."""

    def dtype(self, name: str) -> torch.dtype | None:
        """Return the stored dtype of the tensor `name`; None if it is missing or was read."""

    def differ(self, first: str, second: str, dtype: torch.dtype) -> bool:
        """Return whether both tensors exist and have different values or shapes once loaded in `dtype`."""

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise WeightsError if the tensor `name` is missing, has another shape, or cannot fit into memory.

        Called before memory is allocated.
        """

    def stored(self, name: str) -> QuantizedMatrix | None:
        """Return the matrix `name` as it is quantised, which counts as reading it; None if it is not quantised.

        Its `rows` raise WeightsError if they are damaged.
        """

    def read_into(self, name: str, out: Tensor) -> None:
        """Fill `out` with the tensor `name`. Raises WeightsError if it is missing or has another shape."""

    def finish(self, ignored: Callable[[str], bool]) -> None:
        """Raise WeightsError if tensors were not read, except those accepted by `ignored`."""


class CheckpointSource:
    """Weights from the safetensors files of one directory. Values are checked as they are read."""

    def __init__(self, tensors: TensorTable) -> None:
        self._tensors = tensors

    def dtype(self, name: str) -> torch.dtype | None:
        entry = self._tensors.find(name)
        return None if entry is None else entry.dtype

    def differ(self, first: str, second: str, dtype: torch.dtype) -> bool:
        first_entry, second_entry = self._tensors.find(first), self._tensors.find(second)
        return (
            first_entry is not None
            and second_entry is not None
            and not have_same_values(first_entry, second_entry, dtype)
        )

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        entry = self._tensors.require(name)
        if entry.shape != shape:
            raise WeightsError(f"{entry.file}: tensor {name} has shape {entry.shape}, but config.json requires {shape}")
        if entry.dtype not in FLOATS:
            given = str(entry.dtype).removeprefix("torch.")
            raise WeightsError(
                f"{entry.file}: tensor {name} has dtype {given}, but must be float16, bfloat16 or float32 unless "
                "quantization_config in config.json says how it is quantised; fetch the model again"
            )

    def stored(self, name: str) -> QuantizedMatrix | None:
        return None

    def read_into(self, name: str, out: Tensor) -> None:
        self.check(name, tuple(out.shape))
        self._tensors.read_into(name, out)

    def finish(self, ignored: Callable[[str], bool]) -> None:
        self._tensors.finish(ignored)


class DummySource:
    """Random weights, generated in place.

    Every tensor is a function of the seed, its name and the kind of device. Norms are 1. Only the shapes determine
    speed.
    """

    def __init__(self, seed: int, dtype: torch.dtype) -> None:
        self._seed = seed
        self._dtype = dtype

    def dtype(self, name: str) -> torch.dtype | None:
        return self._dtype

    def differ(self, first: str, second: str, dtype: torch.dtype) -> bool:
        return False  # a tied head has no random weights of its own

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        needed, free = math.prod(shape) * self._dtype.itemsize, free_memory_bytes()
        if needed > free:
            raise WeightsError(f"config.json: {name} of shape {shape} needs {needed} bytes, but only {free} are free")

    def stored(self, name: str) -> QuantizedMatrix | None:
        return None

    def read_into(self, name: str, out: Tensor) -> None:
        if "norm" in name:
            out.fill_(1.0)
            return
        generator = torch.Generator(out.device).manual_seed(self._seed ^ zlib.crc32(name.encode()))
        out.copy_(torch.empty(out.shape, device=out.device).normal_(0.0, DUMMY_STD, generator=generator))

    def finish(self, ignored: Callable[[str], bool]) -> None:
        """Do nothing: no tensors can be left over."""
