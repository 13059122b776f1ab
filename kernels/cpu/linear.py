"""Linear layers whose weight is laid out in panels; see source/linear.h."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.cpu import structs
from kernels.cpu.library import load
from kernels.cpu.structs import address
from kernels.memory import own_pages


class CpuLinear:
    """y = x @ weight.T + bias. `struct` is what C++ knows of it, valid as long as this object lives."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """weight[N, K] float32 or bfloat16, bias[N] float32 or None. Nothing of `weight` is kept."""
        library = load()
        outputs, inputs = weight.shape
        is_bf16 = weight.dtype == torch.bfloat16
        assert is_bf16 or weight.dtype == torch.float32, weight.dtype
        words = library.carousel_packed_words(outputs, inputs, is_bf16)
        self._packed = own_pages((words,), torch.int32 if is_bf16 else torch.float32)
        self._bias = bias
        pack = library.carousel_pack_bf16 if is_bf16 else library.carousel_pack_f32
        weight = weight.contiguous()
        pack(address(weight), outputs, inputs, address(self._packed))
        self.struct = structs.Linear(address(self._packed), address(bias), outputs, inputs, is_bf16)
        self._multiply = library.carousel_linear
        self._outputs = outputs

    def __call__(self, x: Tensor) -> Tensor:
        """x[T, K] float32 -> [T, N] float32."""
        assert x.dtype == torch.float32, x.dtype
        x = x.contiguous()
        out = torch.empty((x.shape[0], self._outputs))
        self._multiply(self.struct, x.data_ptr(), x.shape[0], out.data_ptr())
        return out
