// A whole step in one call, from the slots' tokens to sampled tokens and new slot state: the counterpart of a recorded step
// (CUDA graph) on a GPU.
#pragma once

#include <cstdint>

#include "decoder.h"

// Per-slot state; see `HostSlots` in kernels/slots.py. A length includes the last token.
struct Slots {
    const int64_t* tokens;  // [slots, most_tokens]: tokens known when the sequence joined
    int64_t most_tokens;
    const int32_t* page_table;  // [slots, most_pages]
    int64_t most_pages;
    int64_t *lengths, *last_tokens;  // updated for slots with a sampled token
    const float* temperature;
    const int32_t* top_k;
    const float *top_p, *min_p;
    const int64_t *seed, *choice;
};

struct Chunk {
    int64_t slot, start, length, samples;
};

// Contents of a step: slots that decode their last token, then prompt chunks. A slot occurs at most once.
struct Work {
    const int64_t* decodes;
    int64_t num_decodes;
    const Chunk* chunks;
    int64_t num_chunks;
    void* const* k;  // as in `Step`
    void* const* v;
    int64_t cache_is_bf16, page_size, page_stride;
    void* scratch;    // `step_bytes` bytes, aligned to 64
    int64_t* ids;     // out: tokens of `decodes`, then of chunks that sample; -1 for a row with a NaN
    int64_t* broken;  // out: per chunk, whether it contains a NaN
};

int64_t step_bytes(const Decoder& decoder, const Linear& head, int64_t rows, int64_t sampled);
void step(const Decoder& decoder, const Linear& head, const Slots& slots, const Work& work);
