"""Tensors of GGUF files against the formulas of package gguf."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type

from engine.model_files.errors import ModelFileError
from engine.model_files.gguf import open_gguf
from engine.model_files.gguf_header import TensorInfo
from engine.model_files.gguf_tensors import (
    check_finite,
    dequantized,
    has_codes,
    in_halves,
    magnitude_bound,
    plain_tensor,
    quantized_matrix,
)
from kernels import quantization
from kernels.quantization import StoredMatrix
from tests.engine.model_files.gguf_files import write_all

ROWS, BLOCKS = 6, 3
CODED = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4")
BF16_ONLY = ("Q2_K", "Q3_K")
# Places of float16 numbers in a block.
HALVES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q4_K": (0, 2), "Q5_K": (0, 2),
    "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,), "MXFP4": (), "Q2_K": (80, 82), "Q3_K": (108,),
}  # fmt: skip


def random_blocks(name: str, seed: int = 11) -> np.ndarray:
    """Return rows of random blocks, uint8 [ROWS, bytes]: any bits as codes, finite scales of all magnitudes."""
    generator = np.random.default_rng(seed)
    _, size = gguf.GGML_QUANT_SIZES[Type[name]]
    blocks = generator.integers(0, 256, (ROWS * BLOCKS, size), np.uint8)
    for place in HALVES[name]:
        exponents = generator.integers(-24, 12, len(blocks)).astype(np.float32)
        numbers = (generator.standard_normal(len(blocks)) * 2.0**exponents).astype(np.float16)
        blocks[:, place : place + 2] = numbers.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(ROWS, BLOCKS * size)


def written(path: Path, **tensors: tuple[np.ndarray, str | None]) -> dict[str, TensorInfo]:
    """Write tensors to a file, and return their descriptions. Each is its values or blocks, and the type of these."""
    writer = gguf.GGUFWriter(path, "llama")
    for name, (values, kind) in tensors.items():
        writer.add_tensor(name, values, raw_dtype=None if kind is None else Type[kind])
    write_all(writer)
    return open_gguf(path).tensors


def stored_matrix(info: TensorInfo, heads: int | None = None) -> StoredMatrix:
    """Read all rows of a quantised matrix."""
    return quantized_matrix(info, heads).rows(0, info.rows)


def same_bits(first: torch.Tensor, second: np.ndarray) -> bool:
    """Return whether two float32 tensors are equal, signs of zeros included."""
    return torch.equal(first.view(torch.int32), torch.from_numpy(second).view(torch.int32))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


@pytest.mark.parametrize("name", CODED)
def test_codes_and_scales_give_the_bits_of_the_formula(path: Path, name: str):
    """`dequantize()` equals package gguf's float32 values bit for bit, for any codes."""
    blocks = random_blocks(name)
    info = written(path, w=(blocks, name))["w"]
    matrix = stored_matrix(info)
    assert has_codes(info)
    assert matrix.scheme.name == name
    assert matrix.shape == info.shape
    assert matrix.codes.dtype == torch.uint8
    assert int(matrix.codes.max()) < 1 << matrix.scheme.bits
    assert same_bits(matrix.dequantize(), gguf.dequantize(blocks, Type[name]))


@pytest.mark.parametrize("name", CODED)
def test_planes_have_the_shapes_of_a_stored_matrix(path: Path, name: str):
    """Scales are one for each group, or one for each 256 inputs with integers for each group."""
    matrix = stored_matrix(written(path, w=(random_blocks(name), name))["w"])
    groups = matrix.shape[1] // matrix.group
    floats = groups if not matrix.scheme.shared else matrix.shape[1] // matrix.scheme.shared
    assert matrix.scales.shape == (ROWS, floats)
    assert matrix.scales.dtype == (torch.float32 if name == "MXFP4" else torch.float16)
    assert matrix.minimums is None or matrix.minimums.shape == (ROWS, floats)
    assert (matrix.group_scales is None) == (not matrix.scheme.shared)
    if matrix.group_scales is not None:
        assert (matrix.group_scales.shape, matrix.group_scales.dtype) == ((ROWS, groups), torch.int8)
    if matrix.group_minimums is not None:
        assert (matrix.group_minimums.shape, matrix.group_minimums.dtype) == ((ROWS, groups), torch.uint8)


@pytest.mark.parametrize("name", (*CODED, *BF16_ONLY))
def test_tensors_are_dequantised_to_bfloat16(path: Path, name: str):
    """Each value is that of package gguf, rounded once."""
    blocks = random_blocks(name)
    expected = torch.from_numpy(gguf.dequantize(blocks, Type[name])).to(torch.bfloat16)
    result = dequantized(written(path, w=(blocks, name))["w"])
    assert torch.equal(result.view(torch.int16), expected.view(torch.int16))


def test_every_exponent_of_mxfp4_is_exact(path: Path):
    """Scales of all 256 exponents, subnormal ones among them, are those of package gguf."""
    blocks = np.random.default_rng(5).integers(0, 256, (256, 17), np.uint8)
    blocks[:, 0] = np.arange(256)
    matrix = stored_matrix(written(path, w=(blocks, "MXFP4"))["w"])
    with np.errstate(over="ignore"):
        assert same_bits(matrix.dequantize(), gguf.dequantize(blocks, Type.MXFP4))


@pytest.mark.parametrize("name", ("Q4_K", "Q3_K"))
def test_pieces_of_rows_give_the_same_as_one(path: Path, name: str, monkeypatch: pytest.MonkeyPatch):
    """A matrix is unpacked in pieces of some rows, the last of which may be shorter."""
    info = written(path, w=(random_blocks(name), name))["w"]
    whole = dequantized(info)
    monkeypatch.setattr(quantization, "PIECE_WEIGHTS", 4 * info.shape[1] + 1)
    assert torch.equal(dequantized(info), whole)


def test_plain_tensors_keep_their_type(path: Path):
    """F32, F16 and BF16 are read as they are, with the shape of torch."""
    values = np.random.default_rng(3).standard_normal((4, 5)).astype(np.float32)
    bfloats = torch.from_numpy(values).to(torch.bfloat16)
    infos = written(
        path,
        f32=(values, None),
        f16=(values.astype(np.float16), None),
        bf16=(bfloats.view(torch.int16).numpy().view(np.uint8), "BF16"),
        norm=(values[0], None),
    )
    assert torch.equal(plain_tensor(infos["f32"]), torch.from_numpy(values))
    assert torch.equal(plain_tensor(infos["f16"]), torch.from_numpy(values.astype(np.float16)))
    assert torch.equal(plain_tensor(infos["bf16"]), bfloats)
    assert torch.equal(dequantized(infos["f32"]), bfloats)
    assert plain_tensor(infos["norm"]).shape == (5,)


def test_other_types_are_refused_by_name(path: Path):
    """The message names the tensor, its type and the types that are supported."""
    blocks = np.zeros((2, 66), np.uint8)
    infos = written(path, few=(blocks, "IQ2_XXS"), plain=(np.zeros((2, 4), np.float32), None))
    for read in (stored_matrix, dequantized):
        with pytest.raises(
            ModelFileError, match=r"tensor 'few' has type IQ2_XXS, but the supported types are F32, F16"
        ):
            read(infos["few"])
    with pytest.raises(ModelFileError, match="tensor 'few' has type IQ2_XXS, but must be F32, F16, BF16"):
        plain_tensor(infos["few"])
    with pytest.raises(ModelFileError, match="tensor 'plain' has type F32"):
        stored_matrix(infos["plain"])


def test_a_quantised_tensor_of_three_dimensions_is_refused(path: Path):
    """Experts, stacked in one tensor, are not a matrix."""
    info = written(path, w=(np.zeros((2, 3, 34), np.uint8), "Q8_0"))["w"]
    with pytest.raises(ModelFileError, match=r"tensor 'w' has shape \(2, 3, 32\), but a quantised tensor must be a"):
        stored_matrix(info)


def permuted(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Return rows in the order that llama.cpp's converter writes (LlamaModel.permute)."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def test_rows_of_queries_return_to_the_order_of_a_checkpoint():
    """Matrices and biases are as before the converter's permutation."""
    for rows in (torch.arange(48.0).view(24, 2), torch.arange(24.0)):
        assert torch.equal(in_halves(permuted(rows, 3), 3), rows)


@pytest.mark.parametrize("name", ("Q4_1", "Q6_K", "Q4_K"))
def test_rows_of_a_quantised_matrix_move_with_their_scales(path: Path, name: str):
    """Codes, scales and minimums of a row stay together, also where a range of rows begins or ends in a head."""
    info = written(path, w=(np.concatenate([random_blocks(name)] * 4)[:24], name))["w"]
    expected = in_halves(stored_matrix(info).dequantize(), 3)
    matrix = quantized_matrix(info, 3)
    for first, last in ((0, 24), (0, 8), (3, 5), (7, 17), (16, 24)):
        assert torch.equal(matrix.rows(first, last).dequantize(), expected[first:last])


@pytest.mark.parametrize("name", CODED)
def test_the_bound_is_not_exceeded(path: Path, name: str):
    """The bound that is computed from scales is at least the largest magnitude, and finite."""
    info = written(path, w=(random_blocks(name), name))["w"]
    if name == "MXFP4":  # random exponents reach infinity
        blocks = random_blocks(name)
        blocks.reshape(-1, 17)[:, 0] %= 200
        info = written(path, w=(blocks, name))["w"]
    matrix = stored_matrix(info)
    check_finite(info, matrix)
    assert float(matrix.dequantize().abs().max()) <= magnitude_bound(matrix) < float("inf")


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", [name for name in CODED if HALVES[name]])
def test_scales_that_are_not_finite_are_found(path: Path, name: str, number: float):
    """One damaged scale or minimum among many is found, and the tensor is named."""
    for place in HALVES[name]:
        blocks = random_blocks(name)
        blocks[ROWS - 1, place : place + 2] = np.array([number], np.float16).view(np.uint8)
        info = written(path, w=(blocks, name))["w"]
        with pytest.raises(ModelFileError, match="tensor 'w' contains NaN or infinity"):
            check_finite(info, stored_matrix(info))


def test_plain_values_and_exponents_that_are_not_finite_are_found(path: Path):
    """NaN in a norm, and an exponent of MXFP4 whose largest value is infinite."""
    blocks = np.zeros((2, 17), np.uint8)
    blocks[1, 0] = 255
    infos = written(path, norm=(np.array([1, np.nan], np.float32), None), w=(blocks, "MXFP4"))
    for info, weights in ((infos["norm"], plain_tensor(infos["norm"])), (infos["w"], stored_matrix(infos["w"]))):
        assert isinstance(weights, torch.Tensor | StoredMatrix)
        with pytest.raises(ModelFileError, match=f"tensor '{info.name}' contains NaN or infinity"):
            check_finite(info, weights)
