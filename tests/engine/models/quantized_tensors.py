"""Quantised matrices in plain numpy, packed as the formats of checkpoints publish them, and the weights they mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Integers = NDArray[np.int64]
AWQ_OUTPUTS = (0, 2, 4, 6, 1, 3, 5, 7)  # outputs of a word, from its lowest bits on


@dataclass(frozen=True)
class Quantised:
    """Matrix [N, K] of unsigned codes. scales: float64 [N, G]. zeros: [N, G]. group_of: the group of each input."""

    bits: int
    codes: Integers
    scales: NDArray[np.float64]
    zeros: Integers
    group_of: Integers

    def weights(self) -> Tensor:
        """Return the weights in float32, each rounded once."""
        values = (self.codes - self.zeros[:, self.group_of]) * self.scales[:, self.group_of]
        return torch.from_numpy(values).float()


def quantised(
    weights: Tensor, bits: int, group: int, *, symmetric: bool = False, scattered: bool = False, seed: int = 0
) -> Quantised:
    """Quantise a matrix [N, K]. Scales are float16 numbers. group: 0 for all inputs. scattered: groups are."""
    values, inputs = weights.double().numpy(), weights.shape[1]
    group_of = np.arange(inputs) // (group or inputs)
    if scattered:
        group_of = np.random.default_rng(seed).permutation(group_of)
    groups, most = int(group_of.max()) + 1, (1 << bits) - 1
    low, high = (np.stack([f(values[:, group_of == g], axis=1) for g in range(groups)], 1) for f in (np.min, np.max))
    if symmetric:
        high = np.maximum(np.abs(low), np.abs(high))
        low = -high
    scales = (np.maximum(high - low, 1e-3) / most).astype(np.float16).astype(np.float64)
    zeros = np.full_like(low, (most + 1) // 2) if symmetric else np.clip(np.round(-low / scales), 0, most)
    codes = np.clip(np.round(values / scales[:, group_of]) + zeros[:, group_of], 0, most)
    return Quantised(bits, codes.astype(np.int64), scales, zeros.astype(np.int64), group_of)


def words(fields: Integers, bits: int) -> Tensor:
    """Pack unsigned fields [R, C] into int32 [R, ceil(C x bits / 32)], the first in the lowest bits."""
    rows, columns = fields.shape
    count = 32 // bits
    padded = np.zeros((rows, -(-columns // count) * count), np.int64)
    padded[:, :columns] = fields
    packed = sum(padded[:, i::count] << (bits * i) for i in range(count))
    return torch.from_numpy(np.asarray(packed).astype(np.uint32).view(np.int32).copy())


def awq(m: Quantised) -> dict[str, Tensor]:
    order = [8 * (j // 8) + AWQ_OUTPUTS[j % 8] for j in range(len(m.codes))]
    return {
        "qweight": words(m.codes.T[:, order], 4),
        "qzeros": words(m.zeros.T[:, order], 4),
        "scales": torch.from_numpy(m.scales.T.copy()).half(),
    }


def gptq(m: Quantised, *, less_one: bool = True, indices: bool = True) -> dict[str, Tensor]:
    zeros = words(m.zeros.T, m.bits)
    if less_one:
        ones = sum(1 << shift for shift in range(0, 32, m.bits))
        zeros = torch.from_numpy((zeros.numpy().astype(np.int64) - ones).astype(np.uint32).view(np.int32).copy())
    found = {
        "qweight": words(m.codes, m.bits).T.contiguous(),
        "qzeros": zeros,
        "scales": torch.from_numpy(m.scales.T.copy()).half(),
    }
    return found | ({"g_idx": torch.from_numpy(m.group_of).int()} if indices else {})


def packed(
    m: Quantised, *, zeros: bool = True, indices: bool = False, scale: torch.dtype = torch.float16
) -> dict[str, Tensor]:
    """Pack as compressed-tensors' pack-quantized. Codes and zero points are stored with half of their range added."""
    found = {
        "weight_packed": words(m.codes, m.bits),
        "weight_scale": torch.from_numpy(m.scales.copy()).to(scale),
        "weight_shape": torch.tensor(m.codes.shape),
    }
    if indices:
        found["weight_g_idx"] = torch.from_numpy(m.group_of).int()
    return found | ({"weight_zero_point": words(m.zeros.T, m.bits).T.contiguous()} if zeros else {})


def signed(m: Quantised, *, zeros: bool = False, scale: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Store as compressed-tensors' int-quantized or naive-quantized."""
    half = 1 << (m.bits - 1)
    found = {
        "weight": torch.from_numpy(m.codes - half).to(torch.int8),
        "weight_scale": torch.from_numpy(m.scales.copy()).to(scale),
    }
    return found | ({"weight_zero_point": torch.from_numpy(m.zeros - half).to(torch.int8)} if zeros else {})


def fp8(
    weights: Tensor, block: tuple[int, int], *, scale: str = "weight_scale_inv"
) -> tuple[dict[str, Tensor], Tensor]:
    """Store in FP8 with a scale for each block. Return the tensors, and the weights."""
    outputs, inputs = weights.shape
    stored = torch.empty((outputs, inputs), dtype=torch.float8_e4m3fn)
    meaning = torch.empty((outputs, inputs))
    scales = torch.empty((-(-outputs // block[0]), -(-inputs // block[1])))
    for row in range(scales.shape[0]):
        for column in range(scales.shape[1]):
            at = (slice(row * block[0], (row + 1) * block[0]), slice(column * block[1], (column + 1) * block[1]))
            scales[row, column] = weights[at].abs().max() / 448
            stored[at] = (weights[at] / scales[row, column]).to(torch.float8_e4m3fn)
            meaning[at] = stored[at].float() * scales[row, column]
    return {"weight": stored, scale: scales}, meaning


def description(method: str, **entries: Any) -> dict[str, Any]:
    """Return a quantization_config."""
    return {"quant_method": method, **entries}


def compressed(form: str, *, targets: tuple[str, ...] = ("Linear",), **weights: Any) -> dict[str, Any]:
    """Return a quantization_config of compressed-tensors with one group."""
    group = {"targets": list(targets), "weights": weights, "input_activations": None, "output_activations": None}
    return description(
        "compressed-tensors",
        format=form,
        config_groups={"group_0": group},
        ignore=["lm_head"],
        quantization_status="compressed",
        kv_cache_scheme=None,
    )


@dataclass(frozen=True)
class Kind:
    """Format of a whole checkpoint. store: returns the tensors of a matrix by suffix, and its weights."""

    config: Mapping[str, Any]
    store: Callable[[Tensor], tuple[dict[str, Tensor], Tensor]]
    is_dense: bool = False  # in memory


def _kind(
    config: Mapping[str, Any], store: Callable[..., dict[str, Tensor]], bits: int, group: int, **options: Any
) -> Kind:
    """Return a format. options: of `quantised`, and of `store` with the prefix "as_"."""
    of_store = {name.removeprefix("as_"): value for name, value in options.items() if name.startswith("as_")}
    of_codes = {name: value for name, value in options.items() if not name.startswith("as_")}

    def convert(weights: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        matrix = quantised(weights, bits, group, **of_codes)
        return store(matrix, **of_store), matrix.weights()

    return Kind(config, convert, is_dense=bool(of_codes.get("scattered")))


def _group(bits: int, size: int, **more: Any) -> dict[str, Any]:
    strategy = {"strategy": "group", "group_size": size} if size else {"strategy": "channel"}
    return {"num_bits": bits, "type": "int", **strategy, **more}


GPTQ_ENTRIES = {"desc_act": False, "sym": True}
KINDS = {
    **{
        f"AWQ in groups of {group}": _kind(
            description("awq", bits=4, group_size=group or -1, zero_point=True, version="gemm"), awq, 4, group
        )
        for group in (0, 32, 64, 128)
    },
    **{
        f"GPTQ of {bits} bits in groups of {group}": _kind(
            description("gptq", bits=bits, group_size=group or -1, desc_act=False, sym=False), gptq, bits, group
        )
        for bits, group in ((4, 32), (4, 128), (8, 64), (4, 0), (8, 0))
    },
    "symmetric GPTQ": _kind(
        description("gptq", bits=4, group_size=64, **GPTQ_ENTRIES), gptq, 4, 64, symmetric=True, as_indices=False
    ),
    "GPTQ of version 2": _kind(
        description("gptq", bits=4, group_size=64, checkpoint_format="gptq_v2", sym=False),
        gptq,
        4,
        64,
        as_less_one=False,
    ),
    "GPTQ with desc_act": _kind(
        description("gptq", bits=4, group_size=64, desc_act=True, sym=False), gptq, 4, 64, scattered=True
    ),
    "packed, symmetric": _kind(
        compressed("pack-quantized", **_group(4, 128, symmetric=True)), packed, 4, 128, symmetric=True, as_zeros=False
    ),
    "packed, with zero points": _kind(
        compressed("pack-quantized", **_group(4, 32, symmetric=False)), packed, 4, 32, as_scale=torch.float32
    ),
    "packed, with activation order": _kind(
        compressed("pack-quantized", **_group(4, 32, symmetric=True, actorder="group")),
        packed,
        4,
        32,
        symmetric=True,
        scattered=True,
        as_zeros=False,
        as_indices=True,
    ),
    "packed in 8 bits": _kind(
        compressed("pack-quantized", **_group(8, 0, symmetric=True)), packed, 8, 0, symmetric=True, as_zeros=False
    ),
    "int8 by channel": _kind(compressed("int-quantized", **_group(8, 0, symmetric=True)), signed, 8, 0, symmetric=True),
    "int8 with zero points": _kind(
        compressed("int-quantized", **_group(8, 64, symmetric=False)), signed, 8, 64, as_zeros=True
    ),
    "4 bits in int8": _kind(
        compressed("naive-quantized", **_group(4, 32, symmetric=True)), signed, 4, 32, symmetric=True
    ),
    "FP8 in blocks": Kind(
        description("fp8", activation_scheme="dynamic", fmt="e4m3", weight_block_size=[128, 128]),
        lambda weights: fp8(weights, (128, 128)),
    ),
    "FP8 of a matrix": Kind(
        description("fp8", activation_scheme="static"),
        lambda weights: fp8(weights, (len(weights), weights.shape[1]), scale="weight_scale"),
    ),
    "FP8 by channel": Kind(
        compressed("float-quantized", num_bits=8, type="float", strategy="channel", symmetric=True),
        lambda weights: fp8(weights, (1, weights.shape[1]), scale="weight_scale"),
    ),
}
