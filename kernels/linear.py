"""Linear layers with weights that are repacked once for their device.

On a CPU the weight is repacked for oneDNN, which makes a layer of few rows 1.2 to 4 times faster than `F.linear`. More
importantly, in float32 a row's bits then do not depend on the other rows (tests/kernels/test_linear.py), whereas
`F.linear` chooses another summation order at small row counts. In bfloat16 this depends on the processor: with a matrix
unit (AMX), a row's bits change with the number of rows. On other devices this is plain `F.linear`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


class PackedLinear:
    """Linear layer y = x @ weight.T + bias, x[T, K] -> [T, N]. Created by `pack_linear`; owns its weight.

    packed: the weight is in oneDNN's layout. doubled: a single row is computed twice, see `_single_row_agrees`.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, packed: bool, doubled: bool) -> None:
        self._weight = weight
        self._bias = bias
        self._packed = packed
        self._doubled = doubled

    def __call__(self, x: Tensor) -> Tensor:
        """Compute x[T, K] -> [T, N], in the dtype of the weight."""
        if not self._packed:
            return F.linear(x, self._weight, self._bias)
        if self._doubled and x.shape[0] == 1:
            return _multiply(torch.cat((x, x)), self._weight, self._bias)[:1]
        return _multiply(x, self._weight, self._bias)


def pack_linear(weight: Tensor, bias: Tensor | None) -> PackedLinear:
    """Return a layer of weight[N, K] and bias[N] or None. The caller can drop `weight`: a packed layer has a copy."""
    if not can_pack(weight):
        return PackedLinear(weight, bias, packed=False, doubled=False)
    # Only oneDNN's own operators can read the reordered tensor.
    packed = torch.ops.mkldnn._reorder_linear_weight(weight)
    doubled = weight.dtype == torch.float32 and not _single_row_agrees(packed, weight.shape[1])
    return PackedLinear(packed, bias, packed=True, doubled=doubled)


def can_pack(weight: Tensor) -> bool:
    """Return whether oneDNN can pack this weight: on a CPU, in float32, or in bfloat16 if the processor supports it."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32


def _single_row_agrees(packed: Tensor, inputs: int) -> bool:
    """Return whether a single row has the same bits as together with another one.

    For some shapes (float32, K=1536) oneDNN takes a matrix-vector path that sums in another order, so this is probed.
    """
    x = torch.randn((2, inputs), generator=torch.Generator().manual_seed(0))
    together = _multiply(x, packed, None)
    return all(torch.equal(_multiply(x[row : row + 1], packed, None)[0], together[row]) for row in range(2))


def _multiply(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return out
