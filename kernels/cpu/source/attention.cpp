// Attention over a paged cache, decode rows and prefill chunks alike: causal, grouped heads, an optional window.
//
// Keys and values are read where they lie, in float32 or widened from bfloat16. A context is cut into segments of 256
// positions, counted from its beginning; each segment yields a maximum, a sum and a weighted sum of values, which are
// joined in ascending order (the online softmax of Milakov and Gimelshein, 2018). A query's result is thus a function of
// its own position and context alone: the same bits as a decode row, in any chunk, in any batch.
#include "attention.h"

#include <type_traits>
#include <vector>

#include "pool.h"
#include "vec.h"

namespace {

constexpr int SEGMENT = 256;
constexpr int MOST_ROWS = 48;  // (query, head) pairs computed together: their scores fill half of a first-level cache
template <int V>
constexpr int QUERIES = V <= 4 ? 3 : V <= 8 ? 2 : 1;  // scored together, so that their vectors fit in registers
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

// A head of V vectors as it lies in the cache. bfloat16 comes in words of two numbers, so a pair of vectors comes apart into
// its even and its odd lanes: one load, a shift and a mask. `arrange` brings a query into the same order, `restore` brings
// sums of values back.
template <int V>
inline void read(const float* p, F16 (&out)[V]) {
    for (int d = 0; d < V; d++) out[d] = load(p + d * LANES);
}

template <int V>
inline void read(const uint16_t* p, F16 (&out)[V]) {
    for (int d = 0; d + 1 < V; d += 2) load_pairs(p + d * LANES, out[d], out[d + 1]);
    if constexpr (V % 2) out[V - 1] = widen(p + (V - 1) * LANES);
}

template <int V, class Number>
inline void arrange(F16 (&v)[V]) {
    if constexpr (sizeof(Number) == 2)
        for (int d = 0; d + 1 < V; d += 2) {
            const F16 a = v[d], b = v[d + 1];
            v[d] = __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            v[d + 1] = __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
        }
}

template <int V, class Number>
inline void restore(F16 (&v)[V]) {
    if constexpr (sizeof(Number) == 2)
        for (int d = 0; d + 1 < V; d += 2) {
            const F16 even = v[d], odd = v[d + 1];
            v[d] = __builtin_shufflevector(even, odd, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            v[d + 1] = __builtin_shufflevector(even, odd, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
        }
}

// A vector for each of NQ queries.
template <int NQ>
struct Each {
    F16 of[NQ];
};

template <int G, int NQ>
inline Each<NQ> fold(const Each<NQ>& a, const Each<NQ>& b) {
    Each<NQ> both;
    for (int q = 0; q < NQ; q++) both.of[q] = fold<G>(a.of[q], b.of[q]);
    return both;
}

// The dot products of NQ queries with 16 keys.
template <int V, int NQ, class Number>
inline Each<NQ> dot16(const F16 (&queries)[NQ][V], const Number* const* keys) {
    const auto one = [&](int i) {
        F16 key[V];
        read<V>(keys[i], key);
        Each<NQ> products;
        for (int q = 0; q < NQ; q++) {
            // Beginning with 0, so that which product is fused into which sum is not the compiler's choice.
            products.of[q] = splat(0.0f);
            for (int d = 0; d < V; d++) products.of[q] += queries[q][d] * key[d];
        }
        return products;
    };
    const auto two = [&](int i) { return fold<16>(one(i), one(i + 1)); };
    const auto four = [&](int i) { return fold<8>(two(i), two(i + 2)); };
    const auto eight = [&](int i) { return fold<4>(four(i), four(i + 4)); };
    return fold<2>(eight(0), eight(8));
}

// sums[r] = weights[r] @ values over positions first..last-1, for NR rows.
template <int V, int NR, class Number>
inline void weigh(const float* weights, const Number* const* values, int first, int last, float* sums) {
    F16 total[NR][V];
    for (int r = 0; r < NR; r++)
        for (int d = 0; d < V; d++) total[r][d] = splat(0.0f);
    for (int j = first; j < last; j++) {
        F16 value[V];
        read<V>(values[j], value);
        for (int r = 0; r < NR; r++)
            for (int d = 0; d < V; d++) total[r][d] += splat(weights[r * SEGMENT + j]) * value[d];
    }
    for (int r = 0; r < NR; r++)
        for (int d = 0; d < V; d++) store(sums + (r * V + d) * LANES, total[r][d]);
}

// The same for up to NR rows.
template <int V, int NR, class Number>
inline void weigh_rows(
    int64_t rows, const float* weights, const Number* const* values, int first, int last, float* sums
) {
    if constexpr (NR > 1) {
        if (rows < NR) return weigh_rows<V, NR - 1>(rows, weights, values, first, last, sums);
    }
    weigh<V, NR>(weights, values, first, last, sums);
}

// What one segment adds to one row that has seen `most`, `mass` and `out` so far.
template <int V>
inline void join(float segment_most, float segment_mass, const float* sums, float& most, float& mass, float* out) {
    const float highest = segment_most > most ? segment_most : most;
    const F16 shares = exp16(F16{most - highest, segment_most - highest});
    const float old_share = most == NONE ? 0.0f : shares[0], new_share = shares[1];
    mass = mass * old_share + segment_mass * new_share;
    most = highest;
    for (int d = 0; d < V; d++) {
        F16 both = splat(0.0f);  // as in dot16
        both += load(out + d * LANES) * splat(old_share);
        both += load(sums + d * LANES) * splat(new_share);
        store(out + d * LANES, both);
    }
}

// A segment of keys: those from `from` to `to`, and behind them the last one again up to a whole vector.
template <class Number>
struct Keys {
    const Number* const* at;
    int64_t start;  // position of at[0]
    int from, to;
};

// Scores of NQ rows of q from `first_row` on against one segment, turned into weights: their maxima and their sums.
// position(row) is a row's own position, query(row) where its query lies.
template <int V, int NQ, class Number, class Position, class Query>
inline void score(
    const Attention& p, const Keys<Number>& keys, int64_t first_row, const Position& position, const Query& query,
    float* lines, float* most, float* mass
) {
    F16 queries[NQ][V], highest[NQ];
    int seen_from[NQ], seen_to[NQ], last = 0;
    for (int q = 0; q < NQ; q++) {
        for (int d = 0; d < V; d++) queries[q][d] = load(query(first_row + q) + d * LANES) * splat(p.scale);
        arrange<V, Number>(queries[q]);
        const int64_t own = position(first_row + q) + 1 - keys.start;
        seen_to[q] = int(own < keys.to ? own : keys.to);  // may be 0 or less
        seen_from[q] = p.window ? int(own - p.window) : 0;
        last = seen_to[q] > last ? seen_to[q] : last;
        highest[q] = splat(NONE);
    }
    const int padded = (keys.to + LANES - 1) / LANES * LANES;
    for (int j = keys.from; j < padded; j += LANES) {
        Each<NQ> scores;
        if (j < last) scores = dot16<V, NQ>(queries, keys.at + j);
        const I16 lane = I16{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} + j;
        for (int q = 0; q < NQ; q++) {
            const I16 seen = (lane < seen_to[q]) & (lane >= seen_from[q]);
            const F16 s = j < last ? choose(seen, scores.of[q], splat(NONE)) : splat(NONE);
            highest[q] = choose(s > highest[q], s, highest[q]);
            store(lines + q * SEGMENT + j, s);
        }
    }
    for (int q = 0; q < NQ; q++) {
        most[q] = maximum(highest[q]);
        F16 total = splat(0.0f);
        const F16 shift = splat(most[q] == NONE ? 0.0f : most[q]);
        for (int j = keys.from; j < padded; j += LANES) {
            const F16 weight = exp16(load(lines + q * SEGMENT + j) - shift);
            store(lines + q * SEGMENT + j, weight);
            total += weight;
        }
        mass[q] = sum(total);
    }
}

// Queries first..last-1 (rows of q) of one chunk. With the heads that share a kv head they are one task.
struct Tile {
    int64_t chunk, first, last;
};

template <int V, class Number>
void attend(const Attention& p, const Tile& tile, int64_t kv_head, const Operand& out) {
    constexpr int D = V * LANES;
    const int64_t chunk = tile.chunk, first = tile.first, last = tile.last;
    const int64_t group = p.query_heads / p.kv_heads, rows = (last - first) * group;
    const int64_t chunk_first = p.start(chunk), chunk_last = p.start(chunk + 1);
    const int64_t origin = p.context_lens[chunk] - (chunk_last - chunk_first) - chunk_first;  // position of row r: origin + r
    const int32_t* pages = p.page_table + chunk * p.width;
    const auto token = [&](int64_t row) { return first + row / group; };
    const auto position = [&](int64_t row) { return origin + token(row); };
    const auto place = [&](int64_t row) { return (kv_head * group + row % group) * D; };
    const auto query = [&](int64_t row) { return p.q + token(row) * p.query_heads * D + place(row); };

    alignas(64) thread_local float scores[MOST_ROWS * SEGMENT];
    alignas(64) thread_local float sums[MOST_ROWS * D];
    alignas(64) thread_local float totals[MOST_ROWS * D];
    const Number *keys[SEGMENT], *values[SEGMENT];
    float most[MOST_ROWS], mass[MOST_ROWS], segment_most[MOST_ROWS], segment_mass[MOST_ROWS];
    for (int64_t r = 0; r < rows; r++) {
        most[r] = NONE;
        mass[r] = 0.0f;
        std::memset(totals + r * D, 0, D * sizeof(float));
    }

    const int64_t end = origin + last;  // behind the last query's own position
    const int64_t begin = p.window && origin + first + 1 > p.window ? origin + first + 1 - p.window : 0;
    for (int64_t start = begin / SEGMENT * SEGMENT; start < end; start += SEGMENT) {
        const int from = begin > start ? int(begin - start) / LANES * LANES : 0;
        const int to = end - start < SEGMENT ? int(end - start) : SEGMENT;
        for (int j = from; j < to;) {
            const int64_t page = (start + j) / p.page_size, offset = (start + j) % p.page_size;
            const int64_t row = pages[page] * p.page_stride + (kv_head * p.page_size + offset) * D;
            for (int64_t i = offset; i < p.page_size && j < to; i++, j++) {
                keys[j] = static_cast<const Number*>(p.k) + row + (i - offset) * D;
                values[j] = static_cast<const Number*>(p.v) + row + (i - offset) * D;
                // Pages lie apart, where the hardware's fetching does not follow.
                for (int64_t byte = 0; byte < D * int64_t(sizeof(Number)); byte += 64) {
                    __builtin_prefetch(reinterpret_cast<const char*>(keys[j]) + byte, 0, 3);
                    __builtin_prefetch(reinterpret_cast<const char*>(values[j]) + byte, 0, 2);
                }
            }
        }
        for (int j = to; j % LANES; j++) keys[j] = keys[to - 1];
        const Keys<Number> segment{keys, start, from, to};
        const auto score_some = [&](auto count, int64_t r) {
            score<V, count.value>(
                p, segment, r, position, query, scores + r * SEGMENT, segment_most + r, segment_mass + r
            );
        };
        int64_t r = 0;
        for (; r + QUERIES<V> <= rows; r += QUERIES<V>) score_some(std::integral_constant<int, QUERIES<V>>(), r);
        for (; r < rows; r++) score_some(std::integral_constant<int, 1>(), r);
        constexpr int NR = V > 12 ? 1 : V > 3 ? 24 / V : 8;
        for (r = 0; r < rows; r += NR)
            weigh_rows<V, NR>(rows - r, scores + r * SEGMENT, values, from, to, sums + r * D);
        for (r = 0; r < rows; r++)
            if (segment_most[r] != NONE)
                join<V>(segment_most[r], segment_mass[r], sums + r * D, most[r], mass[r], totals + r * D);
    }
    for (int64_t r = 0; r < rows; r++) {
        F16 mean[V];
        for (int d = 0; d < V; d++) mean[d] = load(totals + r * D + d * LANES) / splat(mass[r]);
        restore<V, Number>(mean);
        const Operand::Line line = out.line(token(r));
        for (int d = 0; d < V; d++) line.put(place(r) + d * LANES, mean[d]);
    }
}

template <int V, class Number>
void run(const Attention& p, const Operand& out) {
    const int64_t group = p.query_heads / p.kv_heads;
    const int64_t most = group < MOST_ROWS ? MOST_ROWS / group : 1;  // queries of a tile
    std::vector<Tile> tiles;
    for (int64_t chunk = 0; chunk < p.chunks; chunk++)
        for (int64_t first = p.start(chunk), end = p.start(chunk + 1); first < end; first += most)
            tiles.push_back({chunk, first, first + most < end ? first + most : end});
    // Last tiles first: within a chunk they have the longest contexts.
    const int64_t count = tiles.size();
    Pool::instance().each(count * p.kv_heads, [&](int64_t task) {
        attend<V, Number>(p, tiles[count - 1 - task / p.kv_heads], task % p.kv_heads, out);
    });
}

template <class Number>
void run(const Attention& p, const Operand& out) {
    switch (p.dim / LANES) {
        case 1: return run<1, Number>(p, out);
        case 2: return run<2, Number>(p, out);
        case 4: return run<4, Number>(p, out);
        case 5: return run<5, Number>(p, out);
        case 6: return run<6, Number>(p, out);
        case 8: return run<8, Number>(p, out);
        case 12: return run<12, Number>(p, out);
        case 16: return run<16, Number>(p, out);
    }
}

}  // namespace

bool attention_fits(int64_t dim, int64_t group) {
    const int64_t v = dim / LANES;
    return dim % LANES == 0 && (v == 1 || v == 2 || v == 4 || v == 5 || v == 6 || v == 8 || v == 12 || v == 16) &&
           group <= MOST_ROWS;
}

void attention(const Attention& p, const Operand& out) {
    if (p.is_bf16)
        run<uint16_t>(p, out);
    else
        run<float>(p, out);
}
