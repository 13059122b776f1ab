// Attention over a paged cache; see attention.cpp.
#pragma once

#include <cstdint>
#include <vector>

#include "prefetch.h"
#include "operand.h"

struct Attention {
    const float* q;             // [T, query heads, dim]
    const void *k, *v;          // caches [N, kv heads, page size, dim], pages `page_stride` apart; float or bfloat16
    const int32_t* page_table;  // [chunks, width]
    int64_t width, chunks;
    int64_t first;                // row of q where the first chunk starts
    const int64_t* query_starts;  // [chunks + 1], relative to `first`; null: one query per chunk
    const int32_t* context_lens;  // [chunks], up to and including the chunk's last query
    int64_t query_heads, kv_heads, dim, page_size, page_stride;
    int64_t window;   // 0: none
    int64_t is_bf16;  // dtype of the caches
    float scale;
    // Allow rounding queries and weights to bfloat16 if the caches are bfloat16 and it is faster.
    int64_t allow_bf16_activations;

    int64_t start(int64_t chunk) const { return first + (query_starts ? query_starts[chunk] : chunk); }
};

// Return whether heads of `dim` floats with `group` query heads per kv head are supported.
bool supports_attention(int64_t dim, int64_t group);

// Return the byte ranges of the caches that attention reads, in order, relative to p.k. q, k and v are not accessed.
std::vector<ByteRange> cache_ranges(const Attention& p);

// Compute attention; rows of `out` correspond to rows of q.
void attention(const Attention& problem, const Operand& out);
