"""Linear layers whose weight is laid out once for the device it lives on.

On a CPU the weight is repacked for oneDNN, which makes a layer of few rows 1.2 to 4 times faster than `F.linear` and,
what matters more, in float32 gives a row the same bits whatever other rows are computed with it
(tests/kernels/test_linear.py), where `F.linear` chooses another summation order at small row counts. In bfloat16 that
depends on the processor: where it multiplies on a matrix unit (AMX), a row's bits change with the number of rows.
Elsewhere this is plain `F.linear`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


class PackedLinear:
    """y = x @ weight.T + bias, for x[T, K] -> [T, N]. Made by `pack_linear`; owns its weight.

    packed: the weight is in oneDNN's layout. doubled: a single row is computed as two, see `pack_linear`.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, packed: bool, doubled: bool) -> None:
        self._weight = weight
        self._bias = bias
        self._packed = packed
        self._doubled = doubled

    def __call__(self, x: Tensor) -> Tensor:
        """x[T, K] -> [T, N], same dtype as the weight."""
        if not self._packed:
            return F.linear(x, self._weight, self._bias)
        if self._doubled and x.shape[0] == 1:
            return _multiply(torch.cat((x, x)), self._weight, self._bias)[:1]
        return _multiply(x, self._weight, self._bias)


def pack_linear(weight: Tensor, bias: Tensor | None) -> PackedLinear:
    """weight[N, K], bias[N] or None -> a callable layer. The caller drops `weight`: a packed layer has its own copy."""
    if not can_pack(weight):
        return PackedLinear(weight, bias, packed=False, doubled=False)
    # The reordered tensor is opaque to everything but oneDNN's own operators.
    packed = torch.ops.mkldnn._reorder_linear_weight(weight)
    doubled = weight.dtype == torch.float32 and not _single_row_agrees(packed, weight.shape[1])
    return PackedLinear(packed, bias, packed=True, doubled=doubled)


def can_pack(weight: Tensor) -> bool:
    """Whether oneDNN packs this weight here: on a CPU, in float32, or in bfloat16 where the processor computes it."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32


def _single_row_agrees(packed: Tensor, inputs: int) -> bool:
    """Whether a row alone gets the bits it gets beside another. For some shapes (float32, K=1536) oneDNN takes a
    matrix-vector path that sums in another order, so it is tried out.
    """
    x = torch.randn((2, inputs), generator=torch.Generator().manual_seed(0))
    together = _multiply(x, packed, None)
    return all(torch.equal(_multiply(x[row : row + 1], packed, None)[0], together[row]) for row in range(2))


def _multiply(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return out
