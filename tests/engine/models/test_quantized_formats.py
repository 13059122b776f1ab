"""Formats of quantised checkpoints: exactly the weights that their published packing means, or an error by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.execution.models.errors import ModelConfigError, WeightsError
from engine.execution.models.quantized.registry import find_format
from engine.execution.models.quantized.source import QuantizedSource
from engine.execution.models.tensor_table import TensorTable
from engine.model_files.open_model import open_model
from kernels.cpu.quantized import can_pack
from kernels.quantization import QuantizedMatrix
from tests.engine.models.quantized_tensors import (
    KINDS,
    Kind,
    compressed,
    description,
    gptq,
    packed,
    quantised,
    signed,
)

MODULE = "model.layers.0.mlp.up_proj"
NAME = f"{MODULE}.weight"
SHAPES = [(64, 256), (24, 384), (136, 128)]
Tensors = dict[str, Tensor]


def open_source(folder: Path, tensors: Tensors, config: dict[str, Any], module: str = MODULE) -> QuantizedSource:
    named = {f"{module}.{suffix}": tensor.contiguous() for suffix, tensor in tensors.items()}
    save_file(named, folder / "model.safetensors")
    form = find_format({"quantization_config": config})
    assert form is not None
    return QuantizedSource(TensorTable(folder, lambda *_: None, 1e6), form)


def random_weights(shape: tuple[int, int]) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 0.02 + 0.003


def rows_of(matrix: QuantizedMatrix) -> Tensor:
    """Return all weights of a matrix, from ranges of rows that no word or panel is aligned to."""
    ends = [0, 1, 3, 20, matrix.shape[0]]
    return torch.cat([matrix.rows(*ends[i : i + 2]).dequantize() for i in range(len(ends) - 1)])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_weights_are_those_that_the_packing_means(kind: Kind, shape: tuple[int, int], tmp_path: Path):
    """No bit differs, for all formats, groups and zero points; dense ones are rounded once."""
    tensors, expected = kind.store(random_weights(shape))
    source = open_source(tmp_path, tensors, dict(kind.config))
    source.check(NAME, shape)
    assert source.dtype(NAME) == torch.bfloat16
    matrix = source.stored(NAME)
    assert (matrix is None) == kind.is_dense
    if matrix is None:
        found = torch.empty(shape, dtype=torch.bfloat16)
        source.read_into(NAME, found)
        assert torch.equal(found, expected.float().bfloat16())
    else:
        assert matrix.shape == shape and torch.equal(rows_of(matrix), expected)
        assert can_pack(matrix) or matrix.scheme.is_float8
    source.finish(lambda _: False)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_kernels_without_quantised_products_read_the_same_values(kind: Kind, tmp_path: Path):
    """`read_into` writes float32 without rounding."""
    tensors, expected = kind.store(random_weights((64, 256)))
    source, found = open_source(tmp_path, tensors, dict(kind.config)), torch.empty((64, 256))
    source.read_into(NAME, found)
    assert torch.equal(found, expected.float())
    source.finish(lambda _: False)


def test_inputs_that_fill_no_whole_group_or_word_are_read(tmp_path: Path):
    """compressed-tensors pads the last word; the last group is shorter."""
    matrix = quantised(random_weights((40, 76)), 4, 32)
    source = open_source(
        tmp_path, packed(matrix), compressed("pack-quantized", num_bits=4, group_size=32, symmetric=False)
    )
    found = source.stored(NAME)
    assert found is not None and torch.equal(rows_of(found), matrix.weights())


def test_scales_in_bfloat16_become_float32_exactly(tmp_path: Path):
    """Kernels have no scales in bfloat16."""
    matrix, config = quantised(random_weights((64, 256)), 8, 0, symmetric=True), KINDS["int8 by channel"].config
    tensors = signed(matrix, scale=torch.bfloat16)
    found = open_source(tmp_path, tensors, dict(config)).stored(NAME)
    assert found is not None and found.scheme.scale_dtype == torch.float32
    assert torch.equal(found.rows(0, 64).scales, tensors["weight_scale"].float())


def test_scales_of_blocks_belong_to_all_their_rows(tmp_path: Path):
    """Blocks of outputs share scales, also the incomplete last one."""
    codes = torch.randint(-128, 128, (40, 96), dtype=torch.int8)
    scales = torch.rand(3, 3) + 0.5
    config = compressed("int-quantized", num_bits=8, strategy="block", block_structure=[16, 32])
    found = open_source(tmp_path, {"weight": codes, "weight_scale": scales}, config).stored(NAME)
    expected = codes.float() * scales.repeat_interleave(16, 0)[:40].repeat_interleave(32, 1)
    assert found is not None and torch.equal(rows_of(found), expected)


def test_one_scale_of_a_tensor_may_be_a_scalar(tmp_path: Path):
    """Strategy tensor, without dimensions or with one."""
    codes = torch.randint(-128, 128, (40, 96), dtype=torch.int8)
    config = compressed("int-quantized", num_bits=8, strategy="tensor")
    for scale in (torch.tensor(0.25), torch.tensor([0.25])):
        found = open_source(tmp_path, {"weight": codes, "weight_scale": scale}, config).stored(NAME)
        assert found is not None and torch.equal(rows_of(found), codes * 0.25)


def test_zero_points_in_the_middle_take_no_memory(tmp_path: Path):
    """They become the offset of the scheme, which is the same number."""
    found = open_source(tmp_path, *stored("symmetric GPTQ")).stored(NAME)
    assert found is not None and found.scheme.offset == 8 and not found.scheme.has_zeros


def test_zero_points_of_zero_survive_the_subtraction_of_one(tmp_path: Path):
    """GPTQ of version 1 borrows from the next field; the sum of whole words restores both."""
    matrix = quantised(random_weights((24, 64)), 4, 64)
    matrix.zeros[::2] = 0
    config = description("gptq", bits=4, group_size=64, sym=False)
    found = open_source(tmp_path, gptq(matrix), config).stored(NAME)
    assert found is not None and torch.equal(rows_of(found), matrix.weights())


def stored(kind: str) -> tuple[Tensors, dict[str, Any]]:
    return KINDS[kind].store(random_weights((64, 256)))[0], dict(KINDS[kind].config)


def test_a_module_without_quantised_tensors_is_read_as_it_is(tmp_path: Path):
    """Lists of excluded modules need not be interpreted."""
    weight = random_weights((64, 256)).half()
    for kind in ("AWQ in groups of 64", "symmetric GPTQ", "packed, symmetric", "FP8 in blocks"):
        source, found = open_source(tmp_path, {"weight": weight}, stored(kind)[1]), torch.empty((64, 256))
        assert source.stored(NAME) is None and source.dtype(NAME) == torch.float16
        source.read_into(NAME, found)
        assert torch.equal(found, weight.float())


def test_biases_of_zeros_and_scales_of_activations_may_be_left(tmp_path: Path):
    """Old tools write them for all modules; other biases that the model does not have are refused."""
    tensors, config = stored("FP8 of a matrix")
    tensors |= {"input_scale": torch.ones(1), "bias": torch.zeros(64)}
    source = open_source(tmp_path, tensors, config)
    source.read_into(NAME, torch.empty((64, 256), dtype=torch.bfloat16))
    source.finish(lambda _: False)
    source = open_source(tmp_path, tensors | {"bias": torch.ones(64)}, config)
    source.read_into(NAME, torch.empty((64, 256)))
    with pytest.raises(WeightsError, match=r"up_proj\.bias"):
        source.finish(lambda _: False)


def test_all_bytes_are_reported_as_they_are_read(tmp_path: Path):
    """Progress ends at the size of the file's tensors."""
    for kind in KINDS.values():
        tensors, _ = kind.store(random_weights((64, 256)))
        open_source(tmp_path, tensors, dict(kind.config))
        calls: list[tuple[int, int]] = []
        form = find_format({"quantization_config": kind.config})
        assert form is not None
        table = TensorTable(tmp_path, lambda done, total, calls=calls: calls.append((done, total)), 1e6)
        QuantizedSource(table, form).read_into(NAME, torch.empty((64, 256)))
        assert calls[-1][0] == calls[-1][1] == sum(tensor.nbytes for tensor in tensors.values())


def test_the_closest_target_has_the_scheme_of_a_module(tmp_path: Path):
    """A name is closer than a regular expression, which is closer than a class."""
    config = compressed("int-quantized", num_bits=8, strategy="channel")
    four = {"targets": [MODULE], "format": "naive-quantized", "weights": {"num_bits": 4, "strategy": "channel"}}
    broad = {"targets": ["re:.*mlp.*"], "weights": {"num_bits": 8, "strategy": "tensor"}}
    config["config_groups"] |= {"group_1": broad, "group_2": four}
    matrix = quantised(random_weights((64, 256)), 4, 0, symmetric=True)
    found = open_source(tmp_path, signed(matrix), config).stored(NAME)
    assert found is not None and found.scheme.bits == 4 and torch.equal(rows_of(found), matrix.weights())


def damaged(kind: str, change: Callable[[Tensors], Any], message: str) -> Any:
    return pytest.param(kind, change, message, id=f"{kind}: {message}")


def put(suffix: str, at: tuple[int, ...], value: float) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        tensors[suffix][at] = value

    return change


AWQ_KIND, GPTQ_KIND, ORDERED = "AWQ in groups of 64", "GPTQ of 4 bits in groups of 32", "GPTQ with desc_act"
PACKED, INTS, FP8_KIND = "packed, with zero points", "int8 with zero points", "FP8 in blocks"
DAMAGES = [
    damaged(AWQ_KIND, lambda t: t.pop("qzeros"), r"up_proj\.qzeros is missing"),
    damaged(AWQ_KIND, lambda t: t.pop("qweight"), r"up_proj\.qweight is missing"),
    damaged(AWQ_KIND, lambda t: t.update(scales=t["scales"][:1]), r"scales has shape \(1, 64\).*requires \(4, 64\)"),
    damaged(AWQ_KIND, lambda t: t.update(qweight=t["qweight"].long()), "qweight has dtype int64.*requires int32"),
    damaged(AWQ_KIND, lambda t: t.update(qweight=t["qweight"].flatten()), r"qweight has shape .* must be a matrix"),
    damaged(AWQ_KIND, lambda t: t.update(qweight=t["qweight"][:100]), "multiple of group_size 64"),
    damaged(AWQ_KIND, put("scales", (1, 2), torch.nan), r"up_proj\.scales contains NaN"),
    damaged(AWQ_KIND, put("scales", (1, 2), torch.inf), r"up_proj\.scales contains NaN or infinity"),
    damaged(AWQ_KIND, put("scales", (1, 2), 65504), "scales contains a value of magnitude 1.05e"),
    damaged(GPTQ_KIND, lambda t: t.pop("scales"), r"up_proj\.scales is missing"),
    damaged(GPTQ_KIND, lambda t: t.update(qzeros=t["qzeros"][:, :3]), r"qzeros has shape \(8, 3\)"),
    damaged(GPTQ_KIND, put("g_idx", (5,), 8), "g_idx has groups from 0 to 8, but must have those from 0 to 7"),
    damaged(GPTQ_KIND, put("g_idx", (5,), -1), "g_idx has groups from -1"),
    damaged(ORDERED, lambda t: t.pop("g_idx"), r"up_proj\.g_idx is missing"),
    damaged(ORDERED, lambda t: t.update(g_idx=t["g_idx"][:9]), r"g_idx has shape \(9,\)"),
    damaged(PACKED, lambda t: t.pop("weight_zero_point"), "weight_zero_point is missing"),
    damaged(PACKED, lambda t: t.pop("weight_scale"), "weight_scale is missing"),
    damaged(PACKED, lambda t: t.pop("weight_shape"), "weight_shape is missing"),
    damaged(PACKED, put("weight_shape", (1,), 1 << 40), "does not fit 64 x 1099511627776 codes"),
    damaged(PACKED, put("weight_shape", (1,), -5), "does not fit 64 x -5 codes"),
    damaged(PACKED, put("weight_scale", (3, 1), torch.nan), "weight_scale contains NaN"),
    damaged("packed, with activation order", lambda t: t.pop("weight_g_idx"), r"up_proj\.weight_g_idx is missing"),
    damaged(INTS, lambda t: t.update(weight=t["weight"].float()), "weight has dtype float32.*requires int8"),
    damaged(INTS, lambda t: t.update(weight_zero_point=t["weight_zero_point"][:, :1]), "weight_zero_point has shape"),
    damaged("4 bits in int8", put("weight", (1, 2), 8), "has values from .* to 8, but must have those from -8 to 7"),
    damaged(FP8_KIND, lambda t: t.pop("weight_scale_inv"), "weight_scale_inv is missing"),
    damaged(FP8_KIND, lambda t: t.update(weight=t["weight"].bfloat16()), "weight has dtype bfloat16.*float8_e4m3fn"),
    damaged(FP8_KIND, lambda t: t.update(weight_scale_inv=torch.ones(2, 2)), r"weight_scale_inv has shape \(2, 2\)"),
    damaged(FP8_KIND, lambda t: t.update(weight_scale=torch.ones(1)), "are both present"),
    damaged(FP8_KIND, put("weight", (1, 2), torch.nan), r"up_proj\.weight contains NaN"),
    damaged(FP8_KIND, put("weight_scale_inv", (0, 0), torch.inf), "weight_scale_inv contains NaN or infinity"),
]


@pytest.mark.parametrize(("kind", "change", "message"), DAMAGES)
def test_damaged_tensors_are_refused_by_name(kind: str, change: Callable[[Tensors], Any], message: str, tmp_path: Path):
    """The message has the file or folder and the tensor."""
    tensors, config = stored(kind)
    change(tensors)
    source = open_source(tmp_path, tensors, config)
    with pytest.raises(WeightsError, match=f"^{re.escape(str(tmp_path))}.*{message}"):
        source.read_into(NAME, torch.empty((64, 256)))


def test_a_matrix_of_another_size_is_refused(tmp_path: Path):
    """Sizes come from the tensors, and must be those of the architecture."""
    source = open_source(tmp_path, *stored(AWQ_KIND))
    with pytest.raises(
        WeightsError, match=r"up_proj\.weight has shape \(64, 256\), but config\.json requires \(64, 128\)"
    ):
        source.check(NAME, (64, 128))


def test_quantised_tensors_that_no_group_describes_are_refused(tmp_path: Path):
    """Their scheme is not known."""
    tensors, config = stored("int8 by channel")
    with pytest.raises(WeightsError, match=r"no group with model\.layers\.0"):
        open_source(tmp_path, tensors, config | {"ignore": [MODULE]}).stored(NAME)


def test_integers_without_a_description_are_refused(tmp_path: Path):
    """Codes are not weights."""
    source = open_source(tmp_path, {"weight": torch.ones((64, 256), dtype=torch.int8)}, stored(AWQ_KIND)[1])
    with pytest.raises(WeightsError, match="has dtype int8, but must be float16, bfloat16 or float32 unless"):
        source.check(NAME, (64, 256))


GROUP: dict[str, Any] = {"targets": ["Linear"], "weights": {"num_bits": 4, "group_size": 32}}


def with_group(**changes: Any) -> dict[str, Any]:
    return description("compressed-tensors", format="pack-quantized", config_groups={"group_0": GROUP | changes})


def with_weights(**weights: Any) -> dict[str, Any]:
    return with_group(weights=weights)


REFUSED: list[tuple[Any, str]] = [
    ({"bits": 4}, "quant_method"),
    (description("bitsandbytes", load_in_4bit=True), "quant_method"),
    (description("mxfp4"), "quant_method"),
    (description("exl2"), "quant_method"),
    (description("hqq"), "quant_method"),
    (description("quanto"), "quant_method"),
    (description("torchao"), "quant_method"),
    (description("modelopt", quant_algo="NVFP4"), "quant_method"),
    (description(["awq"]), "quant_method"),
    ("awq", "quantization_config"),
    (description("awq", bits=8), "bits"),
    (description("awq", bits=4.0), "bits"),
    (description("awq", version="gemv"), "version"),
    (description("awq", zero_point=False), "zero_point"),
    (description("awq", group_size=0), "group_size"),
    (description("awq", group_size="128"), "group_size"),
    (description("awq", backend="llm-awq"), "backend"),
    (description("awq", w_bit=3), "bits"),
    (description("awq", group_size=64, q_group_size=128), "quantization_config"),
    (description("awq", smoothing=0.5), "smoothing"),
    (description("gptq"), "bits"),
    (description("gptq", bits=3), "bits"),
    (description("gptq", bits=4, checkpoint_format="marlin"), "checkpoint_format"),
    (description("gptq", bits=4, desc_act="yes"), "desc_act"),
    (description("gptq", bits=4, dynamic={"-:.*": {}}), "dynamic"),
    (description("gptq", bits=4, is_marlin_format=True), "is_marlin_format"),
    (description("gptq", bits=4, adapter={"name": "eora"}), "adapter"),
    (description("gptq", bits=4, rotation="hadamard"), "rotation"),
    (description("gptq", bits=4, pack_dtype="int64"), "pack_dtype"),
    (description("fp8", fmt="e5m2"), "fmt"),
    (description("fp8", weight_block_size=[128]), "weight_block_size"),
    (description("fp8", weight_block_size=[128, True]), "weight_block_size"),
    (description("fp8", expert_dtype="fp4"), "expert_dtype"),
    (description("fp8", modules_to_convert=["embed"]), "modules_to_convert"),
    (description("compressed-tensors"), "format"),
    (description("compressed-tensors", format="marlin-24"), "format"),
    (description("compressed-tensors", format="nvfp4-pack-quantized"), "format"),
    (description("compressed-tensors", format="sparse-24-bitmask"), "format"),
    (description("compressed-tensors", format="int-quantized", transform_config={"a": 1}), "transform_config"),
    (description("compressed-tensors", format="dense", sparsity_config={"format": "sparse-bitmask"}), "format"),
    (with_group(format="float-quantized"), "type"),
    (with_group(rotation=1), "rotation"),
    (with_group(targets="Linear"), "targets"),
    (with_group(targets=["re:(.*)*x"]), "targets"),
    (with_group(targets=["re:.*.*.*.*.*x"]), "targets"),
    (with_group(targets=["re:["]), "targets"),
    (with_weights(num_bits=3, group_size=32), "num_bits"),
    (with_weights(num_bits=4, type="float", group_size=32), "type"),
    (with_weights(num_bits=4, strategy="token"), "strategy"),
    (with_weights(num_bits=4, strategy="tensor_group", group_size=16), "strategy"),
    (with_weights(num_bits=4, strategy="group"), "group_size"),
    (with_weights(num_bits=4, strategy="block"), "block_structure"),
    (with_weights(num_bits=4, dynamic=True), "dynamic"),
    (with_weights(num_bits=4, global_scale=2), "global_scale"),
    (description("compressed-tensors", format="dense", config_groups={"W8A8": ["Linear"]}), "W8A8"),
]


@pytest.mark.parametrize(("config", "key"), REFUSED)
def test_descriptions_that_are_not_supported_are_refused_by_name(config: Any, key: str):
    """The error has the key, the value, and what to do."""
    with pytest.raises(ModelConfigError) as caught:
        find_format({"quantization_config": config})
    assert caught.value.key.split(".")[-1] == key, str(caught.value)
    assert "must" in str(caught.value) or "choose" in str(caught.value) or "keep one" in str(caught.value)


def test_an_unknown_method_is_refused_in_one_line():
    """It lists the methods that are supported, and other forms of the model."""
    with pytest.raises(ModelConfigError) as caught:
        find_format({"quantization_config": description("bitsandbytes", load_in_4bit=True)})
    assert str(caught.value) == (
        "config.json: quantization_config.quant_method = 'bitsandbytes': must be one of awq, gptq, compressed-tensors, "
        "fp8; choose the model as GGUF, AWQ or GPTQ, or the one that is not quantised"
    )


@pytest.mark.parametrize(("file", "method"), [("quantize_config.json", "GPTQ"), ("quant_config.json", "AWQ")])
def test_descriptions_beside_the_configuration_are_found(file: str, method: str, tmp_path: Path):
    """Early tools wrote them to files of their own, which belong to the fingerprint."""
    (tmp_path / "config.json").write_text("{}")
    files = open_model(tmp_path)
    before = list(files.fingerprint_parts())
    (tmp_path / file).write_text('{"bits": 4, "w_bit": 4}' if method == "AWQ" else '{"bits": 4, "damp_percent": 0.1}')
    assert type(find_format(files.config().content)).__name__ == method
    assert list(files.fingerprint_parts()) != before
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "fp8"}}')
    assert type(find_format(files.config().content)).__name__ == "FP8"


def test_an_unquantised_configuration_has_no_format():
    """An empty entry describes nothing."""
    assert find_format({}) is None and find_format({"quantization_config": {}}) is None


def test_two_descriptions_must_agree():
    """compressed-tensors wrote another key before."""
    one, other = description("fp8"), description("awq")
    assert find_format({"compression_config": one}) == find_format({"quantization_config": one})
    with pytest.raises(ModelConfigError, match=r"compression_config.*contradicts"):
        find_format({"quantization_config": one, "compression_config": other})
