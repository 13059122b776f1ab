// y = x @ weight.T with few rows: the multiplication that decoding consists of.
//
// A weight [N, K] is laid out in panels of 32 outputs, [N / 32][K][32], so that one walk over a panel reads memory from
// front to back and computes 32 outputs of up to ROWS rows in registers. Every output is one chain of fused multiply-adds
// over k = 0..K-1, whatever the other rows are: its bits cannot depend on the batch.
//
// bfloat16 weights are kept as they are, which halves what a step reads, and widened in registers; that is exact, so
// float32 arithmetic over them gives what float32 copies of them would give. Two outputs 16 apart share a 32-bit word.
#pragma once

#include <cstdint>

struct Linear {
    const void* packed;
    const float* bias;  // or null
    int64_t outputs, inputs, is_bf16;
};

int64_t packed_words(int64_t outputs, int64_t inputs, bool is_bf16);
void pack_bf16(const uint16_t* weight, int64_t outputs, int64_t inputs, uint32_t* packed);
void pack_f32(const float* weight, int64_t outputs, int64_t inputs, float* packed);

// x[rows, inputs] -> y[rows, outputs] = x @ weight.T + bias + residual. residual[rows, outputs] may be y, or null.
void linear(const Linear& layer, const float* x, int64_t rows, const float* residual, float* y);

// x[rows, inputs] -> y[rows, outputs / 2] = silu(first half) * second half of x @ weight.T + bias, for layers whose halves
// are whole panels.
bool gated_fits(const Linear& layer);
void gated_linear(const Linear& layer, const float* x, int64_t rows, float* y);
