// y = x @ weight.T with few rows: the multiplication that decoding consists of.
//
// A weight [N, K] is laid out in panels of 32 outputs, so that one walk over a panel reads memory from front to back and
// computes 32 outputs of many rows. How an output is summed is fixed, whatever the other rows are: its bits cannot depend
// on the batch. Weights in bfloat16 are kept as they are, which halves what a step reads; that is exact.
#pragma once

#include <cstdint>

#include "beside.h"

enum Layout : int64_t {
    FLOAT_PANELS,     // [N / 32][K][32] float: one chain of fused multiply-adds per output, over k = 0..K-1
    BFLOAT16_PANELS,  // [N / 32][K][16] words, two outputs 16 apart in each: the same chain, widened in registers
    BFLOAT16_TILES,   // as the matrix unit of a processor that has one reads them; see tiles.h
    BFLOAT16_PAIRS,   // [N / 32][K / 2][32] words, two values of k in each: what x is rounded for, two products at a time
};

struct Linear {
    const void* packed;
    const float* bias;  // or null
    int64_t outputs, inputs;
    Layout layout;
    int64_t parts;  // numbers in bfloat16 that one of x is cut into where those are multiplied: 3, all of it, or 1, rounded
};

bool has_layout(Layout layout);  // here, on this processor

// A weight in `layout`, in 32-bit words. weight: float or, as `layout` says, bfloat16.
int64_t packed_words(int64_t outputs, int64_t inputs, Layout layout);
void pack(const void* weight, int64_t outputs, int64_t inputs, Layout layout, void* packed);

struct Norm;
struct Operand;

// Where rows go: y[rows, outputs] = factors[row] * (x @ weight.T) + bias + residual.
struct Result {
    float* y;
    const float* factors = nullptr;   // those of a Norm that x was put through; or null
    const float* residual = nullptr;  // [rows, outputs], may be y; or null
    const Norm* norm = nullptr;       // y is put through it; or null
};

// Whether so many rows take longer to multiply than the weights take to come, so that there is time for what is `beside`.
bool has_time(const Linear& layer, int64_t rows);

// x[rows, inputs] in the layer's own form. Meanwhile is fetched what is `beside`, as far as it comes.
void linear(const Linear& layer, const Operand& x, int64_t rows, const Result& result, const Beside& beside = {});

// x[rows, inputs] -> y[rows, outputs / 2] = silu(first half) * second half of factors[row] * (x @ weight.T) + bias, for
// layers whose halves are whole panels. factors: or null. beside: as above.
bool gated_fits(const Linear& layer);
void gated_linear(
    const Linear& layer, const Operand& x, int64_t rows, const float* factors, const Operand& y, const Beside& beside = {}
);
