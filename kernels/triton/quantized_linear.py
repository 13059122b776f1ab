"""Linear layers of quantised matrices, and embeddings that are such layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.triton.dequantize import Scratch, look_up_rows
from kernels.triton.packed_matrix import PackedMatrix
from kernels.triton.skinny_gemm import MAX_ROWS, launch_quantized


class QuantizedLinear:
    """Linear layer y = x @ weight.T + bias, x[T, K] -> [T, N], of matrices that are stacked by outputs.

    Few rows are multiplied with the codes; for more, torch multiplies weights in a scratch buffer. Weights are the same
    in both, and those of the dense matrix.
    """

    def __init__(self, matrices: Sequence[PackedMatrix], bias: Tensor | None, scratch: Scratch) -> None:
        """Keep matrices of one number of inputs, and bias[N] or None."""
        self.matrices = tuple(matrices)
        self.bias = bias
        self._scratch = scratch
        for matrix in matrices:
            scratch.reserve(matrix)

    @property
    def shape(self) -> tuple[int, int]:
        """Return (N, K)."""
        return sum(matrix.outputs for matrix in self.matrices), self.matrices[0].layout.inputs

    def __call__(self, x: Tensor) -> Tensor:
        """Compute x[T, K] -> [T, N]."""
        if self.supports(x):
            return self.multiply_skinny(x)
        out = torch.empty((x.shape[0], self.shape[0]), dtype=x.dtype, device=x.device)
        for columns, weight in self.dense_pieces():
            if self.bias is None:
                torch.mm(x, weight.T, out=out[:, columns])
            else:
                torch.addmm(self.bias[columns], x, weight.T, out=out[:, columns])
        return out

    def supports(self, x: Tensor, gated: bool = False) -> bool:
        """Return whether `multiply_skinny` should compute x[T, K].

        Not in float16, as `DenseLinear.supports`, and no gate of another scheme than its projection.
        """
        is_short = x.shape[0] <= MAX_ROWS and x.dtype in (torch.bfloat16, torch.float32)
        return is_short and not (gated and len(self.matrices) > 1)

    def multiply_skinny(self, x: Tensor, norm: Tensor | None = None, eps: float = 0.0, gated: bool = False) -> Tensor:
        """Compute x[T, K] -> [T, N], or [T, N / 2] with `gated`, for T up to MAX_ROWS.

        See `norm_linear` and `norm_gated_linear` of `kernels.interface.Kernels`.
        """
        outputs = self.shape[0] // 2 if gated else self.shape[0]
        out = torch.empty((x.shape[0], outputs), dtype=x.dtype, device=x.device)
        if gated:
            [matrix] = self.matrices
            launch_quantized(matrix, self.bias, x, norm, eps, out, gated=True)
            return out
        for matrix, columns, bias in self._segments():
            launch_quantized(matrix, bias, x, norm, eps, out[:, columns])
        return out

    def add_to(self, x: Tensor, residual: Tensor) -> None:
        """Add x[T, K] @ weight.T + bias to residual[T, N]; the product is not rounded before the addition."""
        if self.supports(x):
            self.add_skinny(x, residual)
            return
        for columns, weight in self.dense_pieces():
            torch.addmm(residual[:, columns], x, weight.T, out=residual[:, columns])
        if self.bias is not None:
            residual += self.bias

    def add_skinny(self, x: Tensor, residual: Tensor) -> None:
        """Compute `add_to` from the codes, for T up to MAX_ROWS."""
        for matrix, columns, bias in self._segments():
            launch_quantized(matrix, bias, x, None, 0.0, residual[:, columns], add=True)

    def dense_pieces(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield outputs and their weights [outputs, K], valid until the next ones of any layer."""
        for matrix, columns, _ in self._segments():
            for first, last, weight in self._scratch.pieces(matrix):
                yield slice(columns.start + first, columns.start + last), weight

    def _segments(self) -> Iterator[tuple[PackedMatrix, slice, Tensor | None]]:
        """Yield each matrix, its outputs, and their biases."""
        begin = 0
        for matrix in self.matrices:
            columns = slice(begin, begin + matrix.outputs)
            yield matrix, columns, None if self.bias is None else self.bias[columns]
            begin = columns.stop


@dataclass(frozen=True)
class PackedEmbedding:
    """Embedding of one quantised matrix, whose outputs are the tokens; `kernels.decoder.Embedding`.

    dtype: of looked-up rows.
    """

    matrix: PackedMatrix
    dtype: torch.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.matrix.shape

    def lookup(self, token_ids: Tensor) -> Tensor:
        out = torch.empty((len(token_ids), self.shape[1]), dtype=self.dtype, device=token_ids.device)
        look_up_rows(self.matrix, token_ids, out)
        return out
