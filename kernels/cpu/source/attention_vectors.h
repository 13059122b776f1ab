// Multiplications of attention in vectors of floats. Keys and values are read in place, in float32 or widened from bfloat16.
#pragma once

#include <cstdint>

#include "segment.h"
#include "vec.h"

// Add pairs of lane groups. Repeated for G = 16, 8, 4, 2, lane i of the result holds the sum of vector i.
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

// Load a head of V vectors from the cache. bfloat16 is stored in words of two values, so a pair of vectors is split into its
// even and odd lanes: one load, a shift and a mask. `arrange` puts a query in the same order; `restore` undoes it for sums
// of values.
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

// One vector per query, for NQ queries.
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

// Dot products of NQ queries with 16 keys. meanwhile() is called at every POSITIONS_PER_PREFETCH-th key.
template <int V, int NQ, class Number, class F>
inline Each<NQ> dot16(const F16 (&queries)[NQ][V], const Number* const* keys, const F& meanwhile) {
    const auto one = [&](int i) __attribute__((always_inline)) {
        if (i % POSITIONS_PER_PREFETCH == 0) meanwhile();
        F16 key[V];
        read<V>(keys[i], key);
        Each<NQ> products;
        for (int q = 0; q < NQ; q++) {
            // Start from 0, so that the compiler has no choice which product to fuse into which sum.
            products.of[q] = splat(0.0f);
            for (int d = 0; d < V; d++) products.of[q] += queries[q][d] * key[d];
        }
        return products;
    };
    const auto two = [&](int i) __attribute__((always_inline)) { return fold<16>(one(i), one(i + 1)); };
    const auto four = [&](int i) __attribute__((always_inline)) { return fold<8>(two(i), two(i + 2)); };
    const auto eight = [&](int i) __attribute__((always_inline)) { return fold<4>(four(i), four(i + 4)); };
    return fold<2>(eight(0), eight(8));
}

// sums[r] = weights[r] @ values over positions first..last-1, for NR rows. meanwhile() is called as above.
template <int V, int NR, class Number, class F>
inline void weigh(
    const float* weights, const Number* const* values, int first, int last, float* sums, const F& meanwhile
) {
    F16 total[NR][V];
    for (int r = 0; r < NR; r++)
        for (int d = 0; d < V; d++) total[r][d] = splat(0.0f);
    for (int j = first; j < last; j++) {
        if (j % POSITIONS_PER_PREFETCH == 0) meanwhile();
        F16 value[V];
        read<V>(values[j], value);
        for (int r = 0; r < NR; r++)
            for (int d = 0; d < V; d++) total[r][d] += splat(weights[r * LINE + j]) * value[d];
    }
    for (int r = 0; r < NR; r++)
        for (int d = 0; d < V; d++) store(sums + (r * V + d) * LANES, total[r][d]);
}

// `weigh` for up to NR rows.
template <int V, int NR, class Number, class F>
inline void weigh_rows(
    int64_t rows, const float* weights, const Number* const* values, int first, int last, float* sums, const F& meanwhile
) {
    if constexpr (NR > 1) {
        if (rows < NR) return weigh_rows<V, NR - 1>(rows, weights, values, first, last, sums, meanwhile);
    }
    weigh<V, NR>(weights, values, first, last, sums, meanwhile);
}

// Multiplication of rows with keys and values of V vectors per head.
template <int VECTORS, class Type>
struct VectorAttention {
    typedef Type Number;
    static constexpr int V = VECTORS, D = V * LANES;
    // Rows scored together; their vectors fit in registers.
    static constexpr int ROWS_PER_SCORE = V <= 4 ? 3 : V <= 8 ? 2 : 1;
    static constexpr int STEP = LANES;                            // positions
    static constexpr int PASSES = 2;  // over keys and over values: each prefetches a share of `ahead`, for the first rows

    float queries[MAX_TILE_ROWS][D];
    SegmentPrefetcher ahead;

    explicit VectorAttention(int64_t) {}

    void load_query(int64_t row, const float* query, float scale) {
        F16 some[V];
        for (int d = 0; d < V; d++) some[d] = load(query + d * LANES) * splat(scale);
        arrange<V, Number>(some);
        for (int d = 0; d < V; d++) store(queries[row] + d * LANES, some[d]);
    }

    void pack_keys(const Segment<Number>&) {}
    void pack_values(const Segment<Number>&) {}

    // Compute score lines of up to ROWS_PER_SCORE rows, for all positions visible to any of them.
    void score(const Segment<Number>& segment, int64_t row, int64_t rows, int last, float* lines) {
        if (rows == ROWS_PER_SCORE) return score<ROWS_PER_SCORE>(segment, row, last, lines);
        for (; rows > 0; rows--, row++, lines += LINE) score<1>(segment, row, last, lines);
    }

    F16 keep(float* line, int64_t, int j, F16 weights) {
        store(line + j, weights);
        return weights;
    }

    // sums[rows, D]
    void weigh(const Segment<Number>& segment, const float* lines, int64_t rows, float* sums) {
        constexpr int NR = V > 12 ? 1 : V > 3 ? 24 / V : 8;
        for (int64_t r = 0; r < rows; r += NR) {
            const auto meanwhile = [&] {
                if (r == 0) ahead.fetch();
            };
            weigh_rows<V, NR>(
                rows - r, lines + r * LINE, segment.values, segment.from, segment.to, sums + r * D, meanwhile
            );
        }
    }

    static void restore_order(F16 (&sums)[V]) { restore<V, Number>(sums); }

  private:
    template <int NQ>
    void score(const Segment<Number>& segment, int64_t row, int last, float* lines) {
        F16 some[NQ][V];
        for (int q = 0; q < NQ; q++)
            for (int d = 0; d < V; d++) some[q][d] = load(queries[row + q] + d * LANES);
        const auto meanwhile = [&] {
            if (row == 0) ahead.fetch();
        };
        for (int j = segment.from; j < last; j += LANES) {
            const Each<NQ> scores = dot16<V, NQ>(some, segment.keys + j, meanwhile);
            for (int q = 0; q < NQ; q++) store(lines + q * LINE + j, scores.of[q]);
        }
    }
};
