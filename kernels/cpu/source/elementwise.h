// Operations on rows between the multiplications; see elementwise.cpp.
#pragma once

#include <cstdint>

#include "operand.h"

// x[rows, size] -> out[rows, size]
void rms_norm(const float* x, const float* weight, int64_t rows, int64_t size, float eps, float* out);

// gate_up[rows, 2 size] -> out[rows, size]
void silu_mul(const float* gate_up, int64_t rows, int64_t size, const Operand& out);

struct Rope {
    const float *q, *k, *v;  // heads of `dim` floats, tokens `q_stride`, `k_stride`, `v_stride` floats apart
    int64_t q_stride, k_stride, v_stride;
    const float* cos_sin;  // [positions, rotary]
    void *k_cache, *v_cache;  // [N, kv heads, page size, dim], pages `page_stride` apart; float or bfloat16
    const float *q_norm, *k_norm;  // or null
    float eps;
    int64_t query_heads, kv_heads, dim;
    int64_t rotary;  // first dimensions of a head that are rotated, 0 to dim
    int64_t page_size, page_stride, is_bf16;  // is_bf16: dtype of the caches
};

// Write rotated queries to q_out[rows, query heads, dim], and keys and values to their cache positions `slot_mapping`; -1
// skips.
void rope_and_cache(const Rope& rope, const int64_t* positions, const int64_t* slot_mapping, int64_t rows, float* q_out);

// Write keys and values to their cache positions without rotation. Reads only the source and destination fields of `rope`.
void write_cache(const Rope& rope, const int64_t* slot_mapping, int64_t rows);
