// A whole step in one call, from the slots' tokens to those that are sampled for them and the slots' new state: what a
// recorded step is on a GPU.
#pragma once

#include <cstdint>

#include "decoder.h"

// What the caller knows of each slot; see kernels/slots.py. A length counts the last token.
struct Slots {
    const int64_t* tokens;  // [slots, most_tokens]: those that were known when a sequence joined
    int64_t most_tokens;
    const int32_t* page_table;  // [slots, most_pages]
    int64_t most_pages;
    int64_t *lengths, *last_tokens;  // written for whom a token is sampled
    const float* temperature;
    const int32_t* top_k;
    const float *top_p, *min_p;
    const int64_t *seed, *choice;
};

struct Chunk {
    int64_t slot, start, length, samples;
};

// What the step carries: slots of which the last token is put through the decoder, and chunks of prompts behind them. A
// slot is there at most once.
struct Work {
    const int64_t* decodes;
    int64_t num_decodes;
    const Chunk* chunks;
    int64_t num_chunks;
    void* const* k;  // as a `Step` has them
    void* const* v;
    int64_t cache_is_bf16, page_size, page_stride;
    void* scratch;    // `step_bytes`, at a multiple of 64
    int64_t* ids;     // out: for each of `decodes` and each chunk that samples, in this order; -1 for a row with a NaN
    int64_t* broken;  // out: of each chunk, whether there is a NaN in it
};

int64_t step_bytes(const Decoder& decoder, const Linear& head, int64_t rows, int64_t sampled);
void step(const Decoder& decoder, const Linear& head, const Slots& slots, const Work& work);
