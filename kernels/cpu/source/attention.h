// Attention over a paged cache; see attention.cpp.
#pragma once

#include <cstdint>
#include <vector>

#include "beside.h"
#include "operand.h"

struct Attention {
    const float* q;             // [T, query heads, dim]
    const void *k, *v;          // caches [N, kv heads, page size, dim], pages `page_stride` apart, float or bfloat16
    const int32_t* page_table;  // [chunks, width]
    int64_t width, chunks;
    int64_t first;                // of q, that of the first chunk
    const int64_t* query_starts;  // [chunks + 1], from there; null: one query each
    const int32_t* context_lens;  // [chunks], up to and with the chunk's last query
    int64_t query_heads, kv_heads, dim, page_size, page_stride;
    int64_t window;   // 0: none
    int64_t is_bf16;  // the caches
    float scale;
    int64_t may_round;  // queries and weights to bfloat16, where caches are and that is faster

    int64_t start(int64_t chunk) const { return first + (query_starts ? query_starts[chunk] : chunk); }
};

// Whether heads of `dim` floats and `group` query heads to a kv head are computed here.
bool attention_fits(int64_t dim, int64_t group);

// What it reads of the caches, in its order, from p.k on; neither q nor k and v are looked at.
std::vector<Piece> pieces(const Attention& p);

// Row by row as q has them.
void attention(const Attention& problem, const Operand& out);
