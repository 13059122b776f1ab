// Attention over a paged cache, decode rows and prefill chunks alike: causal, grouped heads, an optional window.
//
// Keys and values are read where they lie. A context is cut into segments of 256 positions, counted from its beginning;
// each segment yields a maximum, a sum and a weighted sum of values, which are joined in ascending order (the online
// softmax of Milakov and Gimelshein, 2018). A query's result is thus a function of its own position and context alone:
// the same bits as a decode row, in any chunk, in any batch.
#include "attention.h"

#include "pool.h"
#include "vec.h"

namespace {

constexpr int SEGMENT = 256;
constexpr int MOST_ROWS = 48;  // (query, head) pairs computed together: their scores fill half of a first-level cache
constexpr float NONE = -__builtin_inff();

// Adds pairs of groups of lanes until lane i holds the sum of v[i].
template <int G>
inline F16 fold(F16 a, F16 b) {
    // a and b hold groups of G lanes; the result holds groups of G / 2, first those of a and then those of b.
    if constexpr (G == 16)
        return __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
               __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
    else if constexpr (G == 8)
        return __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
               __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    else if constexpr (G == 4)
        return __builtin_shufflevector(a, b, 0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29) +
               __builtin_shufflevector(a, b, 2, 3, 6, 7, 10, 11, 14, 15, 18, 19, 22, 23, 26, 27, 30, 31);
    else
        return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30) +
               __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
}

// The dot products of one query with 16 keys. V: vectors in a head.
template <int V>
inline F16 dot16(const F16 (&q)[V], const float* const* keys) {
    const auto one = [&](int i) {
        F16 products = q[0] * load(keys[i]);
        for (int d = 1; d < V; d++) products += q[d] * load(keys[i] + d * LANES);
        return products;
    };
    const auto two = [&](int i) { return fold<16>(one(i), one(i + 1)); };
    const auto four = [&](int i) { return fold<8>(two(i), two(i + 2)); };
    const auto eight = [&](int i) { return fold<4>(four(i), four(i + 4)); };
    return fold<2>(eight(0), eight(8));
}

// sums[r] = weights[r] @ values over positions first..last-1, for NR rows at a time.
template <int V, int NR>
inline void weigh(const float* weights, const float* const* values, int first, int last, float* sums) {
    F16 total[NR][V];
    for (int r = 0; r < NR; r++)
        for (int d = 0; d < V; d++) total[r][d] = splat(0.0f);
    for (int j = first; j < last; j++)
        for (int d = 0; d < V; d++) {
            const F16 value = load(values[j] + d * LANES);
            for (int r = 0; r < NR; r++) total[r][d] += splat(weights[r * SEGMENT + j]) * value;
        }
    for (int r = 0; r < NR; r++)
        for (int d = 0; d < V; d++) store(sums + (r * V + d) * LANES, total[r][d]);
}

// What one segment adds to one row that has seen `most`, `mass` and `out` so far.
template <int V>
inline void join(float segment_most, float segment_mass, const float* sums, float& most, float& mass, float* out) {
    const float highest = segment_most > most ? segment_most : most;
    const F16 both = exp16(F16{most - highest, segment_most - highest});
    const float old_share = most == NONE ? 0.0f : both[0], new_share = both[1];
    mass = mass * old_share + segment_mass * new_share;
    most = highest;
    for (int d = 0; d < V; d++)
        store(out + d * LANES, load(out + d * LANES) * splat(old_share) + load(sums + d * LANES) * splat(new_share));
}

// One tile: queries first..last-1 (rows of q) of one chunk, the heads that share one kv head.
template <int V>
void attend(const Attention& p, int64_t chunk, int64_t first, int64_t last, int64_t kv_head) {
    constexpr int D = V * LANES;
    const int64_t group = p.query_heads / p.kv_heads, rows = (last - first) * group;
    const int64_t chunk_first = p.start(chunk), chunk_last = p.start(chunk + 1);
    const int64_t origin = p.context_lens[chunk] - (chunk_last - chunk_first) - chunk_first;  // position of row r: origin + r
    const int32_t* pages = p.page_table + chunk * p.width;

    alignas(64) thread_local float scores[MOST_ROWS * SEGMENT];
    alignas(64) thread_local float sums[MOST_ROWS * D];
    alignas(64) thread_local float totals[MOST_ROWS * D];
    const float *keys[SEGMENT], *values[SEGMENT];
    float most[MOST_ROWS], mass[MOST_ROWS], segment_most[MOST_ROWS], segment_mass[MOST_ROWS];
    for (int64_t r = 0; r < rows; r++) {
        most[r] = NONE;
        mass[r] = 0.0f;
        std::memset(totals + r * D, 0, D * sizeof(float));
    }

    const int64_t end = origin + last;  // behind the last query's own position
    const int64_t begin = p.window && origin + first + 1 > p.window ? origin + first + 1 - p.window : 0;
    for (int64_t start = begin / SEGMENT * SEGMENT; start < end; start += SEGMENT) {
        // Within the segment: whole vectors from `from`, and behind `to` the last key again, which is masked.
        const int from = begin > start ? int(begin - start) / LANES * LANES : 0;
        const int to = end - start < SEGMENT ? int(end - start) : SEGMENT;
        const int padded = (to + LANES - 1) / LANES * LANES;
        for (int j = from; j < to;) {
            const int64_t page = (start + j) / p.page_size, offset = (start + j) % p.page_size;
            const int64_t row = (pages[page] * p.kv_heads + kv_head) * p.page_size + offset;
            for (int64_t i = offset; i < p.page_size && j < to; i++, j++) {
                keys[j] = p.k + (row + i - offset) * D;
                values[j] = p.v + (row + i - offset) * D;
            }
        }
        for (int j = to; j < padded; j++) keys[j] = keys[to - 1];
        for (int64_t r = 0; r < rows; r++) {
            const int64_t token = first + r / group, own = origin + token;
            const float* query = p.q + (token * p.query_heads + kv_head * group + r % group) * D;
            F16 q[V];
            for (int d = 0; d < V; d++) q[d] = load(query + d * LANES) * splat(p.scale);
            const int seen_to = int(own + 1 - start < to ? own + 1 - start : to);  // may be 0 or less
            const int seen_from = p.window ? int(own + 1 - p.window - start) : 0;
            float* line = scores + r * SEGMENT;
            F16 highest = splat(NONE);
            for (int j = from; j < padded; j += LANES) {
                F16 s = splat(NONE);
                if (j < seen_to && j + LANES > seen_from) {
                    const I16 lane = I16{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} + j;
                    s = choose((lane < seen_to) & (lane >= seen_from), dot16<V>(q, keys + j), s);
                }
                highest = choose(s > highest, s, highest);
                store(line + j, s);
            }
            segment_most[r] = maximum(highest);
            F16 total = splat(0.0f);
            const F16 shift = splat(segment_most[r] == NONE ? 0.0f : segment_most[r]);
            for (int j = from; j < padded; j += LANES) {
                const F16 weight = exp16(load(line + j) - shift);
                store(line + j, weight);
                total += weight;
            }
            segment_mass[r] = sum(total);
        }
        constexpr int NR = V > 24 ? 1 : 24 / V;
        int64_t r = 0;
        for (; r + NR <= rows; r += NR) weigh<V, NR>(scores + r * SEGMENT, values, from, to, sums + r * D);
        for (; r < rows; r++) weigh<V, 1>(scores + r * SEGMENT, values, from, to, sums + r * D);
        for (r = 0; r < rows; r++)
            if (segment_most[r] != NONE)
                join<V>(segment_most[r], segment_mass[r], sums + r * D, most[r], mass[r], totals + r * D);
    }
    for (int64_t r = 0; r < rows; r++) {
        const int64_t token = first + r / group;
        float* out = p.out + (token * p.query_heads + kv_head * group + r % group) * D;
        for (int d = 0; d < V; d++) store(out + d * LANES, load(totals + r * D + d * LANES) / splat(mass[r]));
    }
}

template <int V>
void run(const Attention& p) {
    const int64_t group = p.query_heads / p.kv_heads;
    const int64_t tile = group < MOST_ROWS ? MOST_ROWS / group : 1;  // queries
    int64_t tiles = 0;
    for (int64_t c = 0; c < p.chunks; c++) tiles += (p.start(c + 1) - p.start(c) + tile - 1) / tile;
    Pool::instance().each(tiles * p.kv_heads, [&](int64_t task) {
        // Last tiles first: within a chunk they have the longest contexts.
        int64_t left = tiles - 1 - task / p.kv_heads, chunk = 0;
        for (;; chunk++) {
            const int64_t own = (p.start(chunk + 1) - p.start(chunk) + tile - 1) / tile;
            if (left < own) break;
            left -= own;
        }
        const int64_t first = p.start(chunk) + left * tile, bound = p.start(chunk + 1);
        attend<V>(p, chunk, first, first + tile < bound ? first + tile : bound, task % p.kv_heads);
    });
}

}  // namespace

bool attention_fits(int64_t dim, int64_t group) {
    const int64_t v = dim / LANES;
    return dim % LANES == 0 && (v == 1 || v == 2 || v == 4 || v == 5 || v == 6 || v == 8 || v == 12 || v == 16) &&
           group <= MOST_ROWS;
}

void attention(const Attention& p) {
    switch (p.dim / LANES) {
        case 1: return run<1>(p);
        case 2: return run<2>(p);
        case 4: return run<4>(p);
        case 5: return run<5>(p);
        case 6: return run<6>(p);
        case 8: return run<8>(p);
        case 12: return run<12>(p);
        case 16: return run<16>(p);
    }
}
