"""Compiles the Triton kernels for compute capability 9.0 and prints what came of each as JSON: bytes of machine code,
and the numbers among its arguments whose values it is compiled for."""

from __future__ import annotations

import json
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels import (
    decode_attention,
    decode_step,
    invariant,
    prefill_attention,
    rms_norm,
    rope_and_cache,
    sample,
    silu_mul,
)

HALF, FLOAT, INT, LONG = "*bf16", "*fp32", "*i32", "*i64"
CACHES = {"k_cache": HALF, "v_cache": HALF}
STRIDES = {"q_stride": "i32", "k_stride": "i32", "v_stride": "i32", "page_rows": "i32"}
FILTERS = {"logits": HALF, "which": LONG, "temperature": FLOAT, "top_k": INT, "top_p": FLOAT, "min_p": FLOAT}
NOISE = {"seed": LONG, "position": LONG, "choice": LONG}
SEARCHED = {"maxima": FLOAT, "tallies": LONG, "found": LONG}
BEST = {"scores": FLOAT, "columns": INT}
PAGES = {"HEAD_DIM": 80, "PAGE_SIZE": 32}
HEADS = PAGES | {"KV_HEADS": 8}

# kernel, types of its arguments, its constants, warps
CASES: list[tuple[Any, dict[str, str], dict[str, Any], int]] = [
    (
        rms_norm._rms_norm_kernel,
        {"x": HALF, "residual": HALF, "weight": HALF, "out": HALF, "eps": "fp32"},
        {"H": 576, "BLOCK": 1024, "ADD": True},
        rms_norm.NUM_WARPS,
    ),
    (
        silu_mul._silu_mul_kernel,
        {"gate_up": HALF, "out": HALF},
        {"WIDTH": 1536, "BLOCK": silu_mul.BLOCK},
        silu_mul.NUM_WARPS,
    ),
    (
        rope_and_cache._rope_and_cache_kernel,
        {"q": HALF, "k": HALF, "v": HALF, "cos_sin": FLOAT, "positions": LONG, "slots": LONG}
        | CACHES
        | {"q_norm": HALF, "k_norm": HALF, "q_out": HALF, "eps": "fp32"}
        | STRIDES,
        PAGES | {"QUERY_HEADS": 32, "HALF_BLOCK": 64, "Q_NORM": True, "K_NORM": True},
        rope_and_cache.NUM_WARPS,
    ),
    (
        rope_and_cache._write_cache_kernel,
        {"k": HALF, "v": HALF, "slots": LONG, "k_stride": "i32", "v_stride": "i32", "page_rows": "i32"} | CACHES,
        PAGES | {"HEAD_BLOCK": 128},
        rope_and_cache.NUM_WARPS,
    ),
    (
        decode_attention._split_kernel,
        {
            "q": HALF,
            "page_table": INT,
            "context_lens": INT,
            "partial": FLOAT,
            "weight": FLOAT,
            "table_stride": "i32",
            "page_rows": "i32",
        }
        | CACHES
        | {"scale": "fp32", "window": "i32"},
        HEADS
        | {"GROUP": 4, "GROUP_BLOCK": 16, "HEAD_BLOCK": 128, "PRECISION": "ieee"}
        | {"SPLIT": decode_attention.SPLIT, "BLOCK": decode_attention.BLOCK},
        decode_attention.NUM_WARPS,
    ),
    (
        decode_attention._combine_kernel,
        {"partial": FLOAT, "weight": FLOAT, "context_lens": INT, "out": HALF, "splits": "i32", "window": "i32"},
        {"QUERY_HEADS": 32, "HEAD_DIM": 80, "HEAD_BLOCK": 128}
        | {"SPLIT": decode_attention.SPLIT, "CHUNK": decode_attention.CHUNK},
        1,
    ),
    (
        prefill_attention._prefill_kernel,
        {"q": HALF, "page_table": INT, "tiles": INT, "out": HALF, "q_stride": "i32", "table_stride": "i32"}
        | {"page_rows": "i32"}
        | CACHES
        | {"scale": "fp32", "window": "i32"},
        HEADS
        | {"QUERY_HEADS": 32, "HEAD_BLOCK": 128, "PRECISION": "ieee"}
        | {"BLOCK_M": prefill_attention.BLOCK_M, "BLOCK_N": prefill_attention.BLOCK_N},
        prefill_attention.NUM_WARPS,
    ),
    (
        invariant._linear_kernel,
        {"x": HALF, "weight": HALF, "bias": HALF, "out": HALF, "M": "i32", "N": "i32", "K": "i32", "x_stride": "i32"},
        {"HAS_BIAS": True, "ALONE": False, "SPLIT": invariant.SPLIT, "PRECISION": "ieee"}
        | {"BLOCK_M": invariant.BLOCK_M, "BLOCK_N": invariant.BLOCK_N, "BLOCK_K": invariant.BLOCK_K},
        invariant.NUM_WARPS,
    ),
    (
        invariant._join_kernel,
        {"sums": FLOAT, "bias": HALF, "out": HALF, "M": "i32", "N": "i32", "splits": "i32"},
        {"HAS_BIAS": True, "BLOCK": 1024},
        4,
    ),
    (
        sample._slice_kernel,
        FILTERS | NOISE | BEST | {"maxima": FLOAT, "tallies": LONG, "V": "i32"},
        {"SLICE": sample.SLICE, "BLOCK": sample.BLOCK},
        sample.NUM_WARPS,
    ),
    *(
        (
            sample._weigh_kernel,
            FILTERS | SEARCHED | {"V": "i32", "slices": "i32"},
            {"MASS": mass, "STEP": step, "SLICE": sample.WIDE_SLICE, "SLICES": 32, "BLOCK": sample.BLOCK},
            sample.NUM_WARPS,
        )
        for mass in (False, True)
        for step in range(sample.STEPS.value)
    ),
    (
        sample._kept_kernel,
        FILTERS | NOISE | SEARCHED | BEST | {"V": "i32"},
        {"SLICE": sample.SLICE, "SLICES": 32, "BLOCK": sample.BLOCK},
        sample.NUM_WARPS,
    ),
    (
        sample._sample_kernel,
        BEST | {"ids": LONG, "which": LONG, "last_tokens": LONG, "lengths": LONG, "slices": "i32", "nobody": "i32"},
        {"ADVANCE": True, "SLICES": 32},
        1,
    ),
    (
        decode_step._gather_slots_kernel,
        {"which": LONG, "last_tokens": LONG, "lengths": LONG, "page_table": INT, "token_ids": LONG, "positions": LONG}
        | {"places": LONG, "table": INT, "context_lens": INT, "slots_stride": "i32", "width": "i32", "nobody": "i32"},
        {"PAGE_SIZE": 32, "BLOCK": decode_step.BLOCK},
        decode_step.NUM_WARPS,
    ),
]


def main() -> None:
    """Compile each case; an error in one ends the program."""
    results = {}
    for kernel, types, constants, warps in CASES:
        names = kernel.arg_names
        signature = {name: types.get(name, "constexpr") for name in names}
        indexed = {(names.index(name),): value for name, value in constants.items()}
        source = ASTSource(kernel, signature, constexprs=indexed)
        compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
        numbers = [p.name for p in kernel.params if types.get(p.name) == "i32" and not p.do_not_specialize]
        results[kernel.__name__] = {"size": len(compiled.asm["cubin"]), "specialised": numbers}
    print(json.dumps(results))


if __name__ == "__main__":
    main()
