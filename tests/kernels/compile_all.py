"""Compile the Triton kernels for compute capability 9.0 as a launch would: for two head sizes, two page sizes and two
dtypes, with the alignment of pointers and strides known.

Print results by kernel as JSON. They are the minimum of machine code bytes, the maxima of shared memory bytes and of
bytes that a thread spills, and the integer arguments that the kernel is specialised on. For an early-launched kernel
they also contain whether it executes griddepcontrol.wait before it writes. Attention is also compiled for capabilities
with less shared memory, and for heads of 256.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import torch
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.compiler import ASTSource

from kernels import query_tiles
from kernels.quantization import QuantScheme
from kernels.triton import (
    decode_attention,
    decode_step,
    decode_tasks,
    dequantize,
    filters,
    invariant,
    lookup,
    mask,
    prefill_attention,
    rms_norm,
    rope_and_cache,
    sample,
    silu_mul,
    skinny_gemm,
)
from kernels.triton.device_limits import SHARED_BYTES
from kernels.triton.packed_matrix import layout_of
from tests.profiles import NIGHTLY, PROFILE

MODEL, FLOAT, INT, LONG = "model", "*fp32", "*i32", "*i64"  # MODEL: a pointer to the compiled dtype
CACHES = {"k_cache": MODEL, "v_cache": MODEL}
STRIDES = {"q_stride": "i32", "k_stride": "i32", "v_stride": "i32", "page_rows": "i32"}
ROTATED = {"q": MODEL, "k": MODEL, "v": MODEL, "cos_sin": FLOAT, "positions": LONG, "slot_mapping": LONG} | CACHES
ROTATED |= {"q_norm": MODEL, "k_norm": MODEL, "q_out": MODEL, "eps": "fp32"} | STRIDES
ROWS = {"logits": MODEL, "records": "*u8", "slot_ids": LONG, "scratch": LONG}
BEST = {"scores": FLOAT, "columns": INT}
TEXTS = {"slot_ids": LONG, "limits": LONG, "lengths": LONG, "text": INT, "keys": LONG, "padding_slot": "i32"}
WRITES = ("st.global", "atom.global", "red.global")
STAGES = 3  # Triton's default
MAX_TEXT = 131_088  # tokens of a context of 131,072

HEADS_AND_PAGES = ((64, 64), (128, 32), (64, 32), (128, 64))  # head size, and tokens of a page

# Attention is compiled for less shared memory than 227 KiB: for the largest heads on the smallest GPU, or for all.
HEAD_DIMS = (128, 256) if PROFILE == NIGHTLY else (256,)
CAPABILITIES = tuple(SHARED_BYTES) if PROFILE == NIGHTLY else (min(SHARED_BYTES, key=SHARED_BYTES.__getitem__),)

# Outputs and inputs of Llama-3.2-1B's and Qwen3-0.6B's matrices, and whether they are gated.
MATRICES = (
    (3072, 2048, False),
    (8192, 2048, True),
    (1024, 3072, False),
    (151936, 1024, False),
)
if PROFILE == NIGHTLY:
    MATRICES += (
        (2048, 2048, False),
        (2048, 8192, False),
        (128256, 2048, False),
        (4096, 1024, False),
        (1024, 2048, False),
        (3072, 1024, True),
    )

# A kernel, the types of its arguments, its constants, and options of its launch.
Case = tuple[Any, dict[str, str], dict[str, Any], dict[str, Any]]


def _launch_options(warps: int, stages: int = STAGES) -> dict[str, Any]:
    return {"num_warps": warps, "num_stages": stages}


def _few_rows(dtype: str, columns: int, outputs: int, inputs: int, gated: bool) -> Case:
    tile = skinny_gemm.tile_for(outputs, inputs, gated, columns, 4 if dtype == FLOAT else 2)
    return (
        skinny_gemm._skinny_gemm_kernel,
        {"x": MODEL, "weight": MODEL, "bias": MODEL, "norm": MODEL, "out": MODEL}
        | {"M": "i32", "N": "i32", "x_stride": "i32", "eps": "fp32"},
        {"K": inputs, "HAS_BIAS": True, "NORM": True, "GATED": gated, "ADD": not gated, "PRECISION": "ieee"}
        | {
            "USE_PDL": True,
            "PREFETCH_BYTES": skinny_gemm.prefetch_bytes(tile.outputs, inputs * (4 if dtype == FLOAT else 2), gated),
        }
        | {"BLOCK_M": columns, "BLOCK_N": tile.outputs, "BLOCK_K": tile.inputs // tile.warps, "PARTS": tile.warps},
        _launch_options(tile.warps, tile.stages),
    )


# Planes beside the codes, of a scheme with each way to unpack codes and scales.
QUANTIZED: dict[str, tuple[QuantScheme, dict[str, str]]] = {
    "Q4_0": (QuantScheme("Q4_0", 4, group=32, offset=8), {"scales": "*fp16"}),
    "Q5_K": (
        QuantScheme("Q5_K", 5, group=32, shared=256, has_minimums=True),
        {"high_bits": "*u8", "scales": INT, "factors": "*i16"},
    ),
    "Q6_K": (
        QuantScheme("Q6_K", 6, group=16, shared=256, offset=32),
        {"high_bits": "*u8", "scales": FLOAT, "factors": "*i8"},
    ),
    "AWQ": (QuantScheme("AWQ", 4, group=128, has_zeros=True), {"scales": INT}),
    "MXFP4": (QuantScheme("MXFP4", 4, 32, table=tuple(range(16)), scale_dtype=torch.float32), {"scales": FLOAT}),
    "FP8": (QuantScheme("FP8", 8, group=128, scale_dtype=torch.float32, is_float8=True), {"scales": FLOAT}),
}


def quantized(dtype: str, name: str, gated: bool, columns: int = 8) -> Case:
    """Return a product of few rows with a quantised matrix of 2048 inputs."""
    scheme, planes = QUANTIZED[name]
    layout, tile = layout_of(scheme, 2048), skinny_gemm.QUANTIZED_TILES[4 if dtype == FLOAT else 2]
    kernel, types, constants, _ = _few_rows(dtype, columns, 3072, 2048, gated)
    constants |= {"LAYOUT": layout, "OUT_STRIDE": 3072, "BLOCK_N": tile.outputs, "PARTS": tile.warps}
    constants |= {"BLOCK_K": tile.inputs // tile.warps}
    constants |= {"PREFETCH_BYTES": skinny_gemm.prefetch_bytes(tile.outputs, layout.code_bytes, gated)}
    return kernel, types | {"weight": "*u8"} | planes, constants, _launch_options(tile.warps, tile.stages)


def _dequantize(name: str) -> Case:
    scheme, planes = QUANTIZED[name]
    return (
        dequantize._dequantize_kernel,
        {"codes": "*u8", "ids": LONG, "out": MODEL, "first": "i32", "count": "i32"} | planes,
        {name: None for name in ("high_bits", "scales", "factors", "zeros") if name not in planes}
        | {"LAYOUT": layout_of(scheme, 2048), "BLOCK_N": dequantize.BLOCK_N, "BLOCK_K": dequantize.BLOCK_K},
        _launch_options(dequantize.NUM_WARPS),
    )


def _decode(dtype: str, dim: int, page_size: int, has_blocks: bool, capability: int = 90) -> Case:
    number_bytes, shared = 4 if dtype == FLOAT else 2, SHARED_BYTES[capability]
    shape = decode_attention.decode_launch_options(dim, 4, number_bytes, has_blocks, shared)
    return (
        decode_attention._decode_kernel,
        {"q": MODEL, "page_table": INT, "tasks": INT, "num_tasks": INT, "arrived": INT, "partial": FLOAT}
        | {
            "weight": FLOAT,
            "out": MODEL,
            "table_stride": "i32",
            "page_rows": "i32",
            "max_tasks": "i32",
            "splits": "i32",
        }
        | CACHES
        | {"scale": "fp32"},
        {"HEAD_DIM": dim, "PAGE_SIZE": page_size, "KV_HEADS": 8, "GROUP": 4, "GROUP_BLOCK": 16, "HEAD_BLOCK": dim}
        | {"BLOCK": decode_tasks.BLOCK}
        | {
            "CHUNK": decode_attention.CHUNK,
            "PRECISION": "ieee",
            "USE_PDL": capability >= 90,
            "HEADS": shape.pop("HEADS"),
        },
        shape,
    )


def _prefill(dtype: str, dim: int, page_size: int, capability: int = 90) -> Case:
    program = prefill_attention.launch_parameters(dim, 4 if dtype == FLOAT else 2, SHARED_BYTES[capability])
    return (
        prefill_attention._prefill_kernel,
        {"q": MODEL, "page_table": INT, "tiles": INT, "out": MODEL, "q_stride": "i32", "table_stride": "i32"}
        | {"page_rows": "i32"}
        | CACHES
        | {"scale": "fp32", "window": "i32"},
        {"HEAD_DIM": dim, "PAGE_SIZE": page_size, "KV_HEADS": 8, "QUERY_HEADS": 32, "HEAD_BLOCK": dim}
        | {"PRECISION": "ieee", "BLOCK_M": query_tiles.MAX_TILE_QUERIES, "BLOCK_N": program.block},
        _launch_options(program.warps, program.stages),
    )


def attention(dtype: str, dim: int, page_size: int, capability: int) -> list[Case]:
    """Return the cases whose shared memory grows with the head size."""
    decode = (_decode(dtype, dim, page_size, has_blocks, capability) for has_blocks in (False, True))
    return [*decode, _prefill(dtype, dim, page_size, capability)]


def _advancing(types: dict[str, str], constants: dict[str, Any]) -> list[Case]:
    """Return the kernels that append sampled tokens to their slots, with and without their texts."""
    types = types | {"ids": LONG, "slot_ids": LONG, "last_tokens": LONG, "lengths": LONG, "padding_slot": "i32"}
    return [
        (
            sample._sample_kernel,
            BEST | types | {"entries": "i32"},
            constants | {"ADVANCE": True, "MAX_ENTRIES": 256, "USE_PDL": True},
            _launch_options(1),
        ),
        (
            sample._accept_kernel,
            types | {"offsets": LONG, "drafts": LONG, "rows": "i32"},
            constants | {"MAX_ROWS": 64, "USE_PDL": True},
            _launch_options(1),
        ),
    ]


def cases(dtype: str, dim: int, page_size: int) -> list[Case]:
    """Return all cases for heads of `dim` numbers and pages of `page_size` positions."""
    pages = {"HEAD_DIM": dim, "PAGE_SIZE": page_size}
    return [
        (
            rms_norm._rms_norm_kernel,
            {"x": MODEL, "gain": MODEL, "out": MODEL, "eps": "fp32"},
            {"H": 576, "BLOCK": 1024, "USE_PDL": True},
            _launch_options(rms_norm.NUM_WARPS),
        ),
        *(_few_rows(dtype, skinny_gemm.MAX_ALWAYS_ROWS, *matrix) for matrix in MATRICES),
        *(_few_rows(dtype, skinny_gemm.MAX_ROWS, *matrix) for matrix in MATRICES if dtype != FLOAT),
        *(quantized(dtype, name, gated) for name in QUANTIZED for gated in (False, True)),
        *(_dequantize(name) for name in QUANTIZED),
        (
            silu_mul._silu_mul_kernel,
            {"gate_up": MODEL, "out": MODEL},
            {"WIDTH": 1536, "BLOCK": silu_mul.BLOCK, "USE_PDL": True},
            _launch_options(silu_mul.NUM_WARPS),
        ),
        (
            rope_and_cache._rope_and_cache_kernel,
            ROTATED,
            pages
            | {"QUERY_HEADS": 32, "QUERY_BLOCK": 32, "KV_HEADS": 8, "KV_BLOCK": 8, "HALF_BLOCK": dim // 2}
            | {"ROTARY_DIM": dim, "KEPT_BLOCK": 1}
            | {"Q_NORM": True, "K_NORM": True, "USE_PDL": True},
            _launch_options(rope_and_cache.NUM_WARPS),
        ),
        (
            rope_and_cache._rope_and_cache_kernel,
            ROTATED,
            pages
            | {"QUERY_HEADS": 32, "QUERY_BLOCK": 32, "KV_HEADS": 8, "KV_BLOCK": 8, "HALF_BLOCK": dim // 4}
            | {"ROTARY_DIM": dim // 2, "KEPT_BLOCK": dim // 2}
            | {"Q_NORM": False, "K_NORM": False, "USE_PDL": True},
            _launch_options(rope_and_cache.NUM_WARPS),
        ),
        (
            rope_and_cache._write_cache_kernel,
            {"k": MODEL, "v": MODEL, "slot_mapping": LONG, "k_stride": "i32", "v_stride": "i32", "page_rows": "i32"}
            | CACHES,
            pages | {"HEAD_BLOCK": dim},
            _launch_options(rope_and_cache.NUM_WARPS_OF_HEAD),
        ),
        (
            decode_tasks._list_kernel,
            {"context_lens": INT, "tasks": INT, "num_tasks": INT, "arrived": INT, "rows": "i32", "max_tasks": "i32"}
            | {"window": "i32", "split_size": "i32"},
            {
                "KV_HEADS": 8,
                "LONG": decode_tasks.LONG,
                "SPLIT": decode_tasks.SPLIT_POSITIONS,
                "BLOCK": decode_tasks.LIST_BLOCK,
            },
            _launch_options(1),
        ),
        *attention(dtype, dim, page_size, 90),
        (
            invariant._linear_kernel,
            {
                "x": MODEL,
                "weight": MODEL,
                "bias": MODEL,
                "out": MODEL,
                "M": "i32",
                "N": "i32",
                "K": "i32",
                "x_stride": "i32",
            },
            {"HAS_BIAS": True, "SINGLE_SPLIT": False, "SPLIT": invariant.SPLIT, "PRECISION": "ieee"}
            | {"BLOCK_M": invariant.BLOCK_M, "BLOCK_N": invariant.BLOCK_N, "BLOCK_K": invariant.BLOCK_K},
            _launch_options(invariant.NUM_WARPS, invariant.NUM_STAGES),
        ),
        (
            invariant._join_kernel,
            {"sums": FLOAT, "bias": MODEL, "out": MODEL, "M": "i32", "N": "i32", "splits": "i32"},
            {"HAS_BIAS": True, "BLOCK": 1024},
            _launch_options(4),
        ),
        (
            mask._mask_slots_kernel,
            {"logits": MODEL, "is_masked": INT, "words": INT, "slot_ids": LONG, "V": "i32"},
            {"BLOCK": mask.BLOCK, "USE_PDL": True},
            _launch_options(mask.NUM_WARPS),
        ),
        (
            sample._slice_kernel,
            ROWS | BEST | {"positions": LONG, "V": "i32", "entries": "i32", "groups": "i32"},
            {"USE_PDL": True},
            _launch_options(sample.SLICE_WARPS),
        ),
        *(
            (
                filters._weigh_kernel,
                ROWS | {"V": "i32", "groups": "i32", "blocks": "i32"},
                {"TOP_P_SEARCH": is_top_p, "STEP": step, "GROUPS": 512, "USE_PDL": True},
                _launch_options(filters.NUM_WARPS),
            )
            for is_top_p in (False, True)
            for step in range(filters.STEPS.value)
        ),
        (
            sample._kept_kernel,
            ROWS | BEST | {"positions": LONG, "V": "i32", "entries": "i32", "groups": "i32", "blocks": "i32"},
            {"GROUPS": 512, "USE_PDL": True},
            _launch_options(filters.NUM_WARPS),
        ),
        *_advancing({}, {"text": None, "MAX_TEXT": 0}),
        *_advancing({"text": INT}, {"MAX_TEXT": MAX_TEXT}),
        (
            lookup._search_kernel,
            TEXTS,
            {"MAX_TEXT": MAX_TEXT, "BLOCK": lookup.BLOCK},
            _launch_options(lookup.NUM_WARPS),
        ),
        (
            lookup._draft_kernel,
            TEXTS | {"drafts": LONG, "matches": INT, "parts": "i32", "max_drafts": "i32"},
            {"MAX_TEXT": MAX_TEXT, "MAX_PARTS": 256, "MAX_DRAFTS": 16, "BLOCK": lookup.BLOCK, "USE_PDL": True},
            _launch_options(1),
        ),
        *(
            (
                decode_step._gather_slots_kernel,
                {
                    "slot_ids": LONG,
                    "last_tokens": LONG,
                    "lengths": LONG,
                    "page_table": INT,
                    "given_positions": LONG,
                    "given_ids": LONG,
                    "token_ids": LONG,
                    "positions": LONG,
                }
                | {
                    "slot_mapping": LONG,
                    "table": INT,
                    "context_lens": INT,
                    "slots_stride": "i32",
                    "width": "i32",
                    "padding_slot": "i32",
                },
                {
                    "HAS_PROMPTS": has_prompts,
                    "HAS_DRAFTS": not has_prompts,
                    "PAGE_SIZE": page_size,
                    "BLOCK": decode_step.BLOCK,
                },
                _launch_options(decode_step.NUM_WARPS),
            )
            for has_prompts in (False, True)
        ),
    ]


def compile_one(case: Case, dtype: str, capability: int = 90) -> Any:
    """Compile a case to PTX as a launch does; pointers and specialised integers are multiples of 16 here."""
    kernel, types, constants, options = case
    names = kernel.arg_names
    constants = {param.name: param.default for param in kernel.params if param.has_default} | constants
    constants = {name: value for name, value in constants.items() if name not in types}
    signature = {name: types.get(name, "constexpr").replace(MODEL, dtype) for name in names}
    aligned = [*specialised(case), *(name for name in names if signature[name].startswith("*"))]
    source = ASTSource(
        kernel,
        signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def specialised(case: Case) -> list[str]:
    """Return the integer arguments that the kernel is specialised on."""
    kernel, types = case[:2]
    return [p.name for p in kernel.params if types.get(p.name) == "i32" and not p.do_not_specialize]


def waits_before_writing(ptx: str) -> bool | None:
    """Return whether a kernel executes griddepcontrol.wait before its first write, in line order, or None if it never
    waits."""
    lines = [line.strip() for line in ptx.splitlines()]
    waited = [at for at, line in enumerate(lines) if line.startswith("griddepcontrol.wait")]
    if not waited:
        return None
    written = [at for at, line in enumerate(lines) if any(name in line for name in WRITES)]
    return waited[0] < written[0]


def assemble(ptx: str) -> tuple[int, int]:
    """Return the bytes of machine code, and the bytes that a thread spills, as reported by the assembler."""
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file, tempfile.NamedTemporaryFile() as built:
        file.write(ptx)
        file.flush()
        command = [knobs.nvidia.ptxas.path, "-v", "--gpu-name=sm_90a", file.name, "-o", built.name]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        size = Path(built.name).stat().st_size
    return size, sum(map(int, re.findall(r"(\d+) bytes spill stores", output)))


def compile_all() -> dict[str, dict[str, Any]]:
    """Return the results of each kernel."""
    results: dict[str, dict[str, Any]] = {}
    for dtype in ("*bf16", FLOAT):
        seen: set[str] = set()
        for dim, page_size in HEADS_AND_PAGES[: None if dtype != FLOAT and PROFILE == NIGHTLY else 2]:
            for case in cases(dtype, dim, page_size):
                if (key := repr(case)) in seen:  # a kernel that depends on neither heads nor pages
                    continue
                seen.add(key)
                compiled = compile_one(case, dtype)
                (size, spilled), shared = assemble(compiled.asm["ptx"]), compiled.metadata.shared
                result = results.setdefault(
                    case[0].__name__, {"size": size, "shared": shared, "specialised": specialised(case)}
                )
                result |= {"size": min(size, result["size"]), "shared": max(shared, result["shared"])}
                result["spilled"] = max(spilled, result.get("spilled", 0))
                result.setdefault("waits", []).append(waits_before_writing(compiled.asm["ptx"]))
    return results


def too_large() -> list[dict[str, Any]]:
    """Return the cases of attention that need more shared memory than a GPU has."""
    return [
        {"kernel": case[0].__name__, "dtype": dtype, "head_dim": dim, "capability": capability, "shared": shared}
        for dtype, dim, capability in product(("*bf16", FLOAT), HEAD_DIMS, CAPABILITIES)
        for case in attention(dtype, dim, 64, capability)
        if (shared := compile_one(case, dtype, capability).metadata.shared) > SHARED_BYTES[capability]
    ]


def main() -> None:
    """Compile each case; an error in one ends the program.

    Triton does not run its assembler, since `assemble` does, and keeps nothing, since its results lack machine code.
    """
    CUDABackend.make_cubin = lambda *given: b""
    with tempfile.TemporaryDirectory() as cache:
        knobs.cache.dir = cache
        print(json.dumps({"kernels": compile_all(), "over": too_large()}))


if __name__ == "__main__":
    main()
