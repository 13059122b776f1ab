// A whole decoder in one call. At a few rows the operations are so short that calling them one by one from Python would take
// a quarter of the step.
#pragma once

#include <cstdint>

#include "linear.h"

struct Layer {
    const float* input_norm;
    Linear qkv;
    const float *q_norm, *k_norm;  // or null
    Linear out;
    const float* mlp_norm;
    Linear gate_up, down;
    int64_t window;  // 0: none
    int64_t rotary;  // as in `Rope`: all columns of cos_sin, or 0
};

struct Decoder {
    const Layer* layers;
    int64_t num_layers;
    const void* embedding;  // [vocabulary, hidden], float or bfloat16; or null
    int64_t embedding_is_bf16;
    Linear packed_embedding;  // whose outputs are the tokens, if there is no table
    int64_t hidden;
    const float *final_norm, *cos_sin;
    int64_t query_heads, kv_heads, dim;
    float eps, scale;
    // 1 if unused: of looked-up embeddings; of what layers add to the residual; logits are divided by the last one.
    float embedding_multiplier, residual_multiplier, logits_divisor;
    int64_t allow_bf16_activations;  // see attention.h
};

// Inputs of one step: first `decodes` rows of one token each, then the chunks; see kernels/decoder.py.
struct Step {
    const int64_t *tokens, *positions, *slot_mapping;
    int64_t rows, decodes;
    const int32_t* decode_table;
    int64_t decode_width;
    const int32_t* decode_contexts;
    const int32_t* chunk_table;
    int64_t chunk_width, chunks;
    const int64_t* chunk_starts;
    const int32_t* chunk_contexts;
    void* const* k;  // per layer, float or bfloat16
    void* const* v;
    int64_t cache_is_bf16, page_size, page_stride;  // page_stride: values from one page of a layer to the next
    void* scratch;  // `scratch_bytes` bytes, aligned to 64
    float* out;     // [rows, hidden], after the last norm
};

int64_t scratch_bytes(const Decoder& decoder, int64_t rows);
void forward(const Decoder& decoder, const Step& step);
