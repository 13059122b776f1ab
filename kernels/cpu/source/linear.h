// y = x @ weight.T with few rows: the multiplication that dominates decoding.
//
// A weight [N, K] is packed in panels of 32 outputs, so that one walk over a panel reads memory sequentially and computes 32
// outputs of many rows. The summation order of an output is fixed and independent of the other rows, so its bits do not
// depend on the batch. bfloat16 weights are stored as bfloat16, which is exact and halves the memory traffic of a step.
#pragma once

#include <cstdint>

#include "prefetch.h"

enum Layout : int64_t {
    FLOAT_PANELS,     // [N / 32][K][32] float: one chain of fused multiply-adds per output, over k = 0..K-1
    BFLOAT16_PANELS,  // [N / 32][K][16] words, each with two outputs 16 apart: the same chain, widened in registers
    BFLOAT16_TILES,   // for the matrix unit (AMX); see amx_linear.h
    BFLOAT16_PAIRS,   // [N / 32][K / 2][32] words, each with two values of k: two products at a time, x rounded to bfloat16
    QUANTIZED,        // segments of quantised outputs; see quantized.h
    FLOAT8_PANELS,    // codes of 8 bits that are floats, and their scales; see float8.h
};

struct Linear {
    const void* packed;
    const float* bias;  // or null
    int64_t outputs, inputs;
    Layout layout;
    // Rounded values per value of x: in products of bfloat16 3 (exact) or 1, in quantised ones 2 (15 bits) or 1 (8 bits).
    int64_t parts;
    int64_t group;  // inputs that share a scale, in FLOAT8_PANELS
};

bool has_layout(Layout layout);  // whether this processor supports it

// Pack a weight into `layout`, of `packed_words` 32-bit words. weight: float or bfloat16, depending on `layout`.
int64_t packed_words(int64_t outputs, int64_t inputs, Layout layout);
void pack(const void* weight, int64_t outputs, int64_t inputs, Layout layout, void* packed);

// Write the weights of one output, [inputs], exactly as they were packed.
void unpack_row(const Linear& layer, int64_t output, float* out);

struct Norm;
struct Operand;

// Destination of rows: y[rows, outputs] = multiplier * (factors[row] * (x @ weight.T) + bias) + residual.
struct Result {
    float* y;
    const float* factors = nullptr;   // row factors of the Norm applied to x; or null
    const float* residual = nullptr;  // [rows, outputs], may be y; or null
    const Norm* norm = nullptr;       // norm that y is fed to; or null
    float multiplier = 1.0f;          // 1 without a residual
};

// Return whether multiplying this many rows takes longer than loading the weights, so that memory has time for `prefetcher`.
bool has_prefetch_time(const Linear& layer, int64_t rows);

// Compute the layer for x[rows, inputs] in the layer's own form, prefetching as much of `prefetcher` as time permits.
void linear(
    const Linear& layer, const Operand& x, int64_t rows, const Result& result, const CachePrefetcher& prefetcher = {}
);

// x[rows, inputs] -> y[rows, outputs / 2] = silu(first half) * second half of factors[row] * (x @ weight.T) + bias, for
// layers with halves of whole panels (`supports_gated`). factors: may be null. prefetcher: as above.
bool supports_gated(const Linear& layer);
void gated_linear(
    const Linear& layer, const Operand& x, int64_t rows, const float* factors, const Operand& y,
    const CachePrefetcher& prefetcher = {}
);
