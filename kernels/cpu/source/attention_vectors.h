// Multiplications of attention in vectors of floats. Keys and values are read in place, in float32 or widened from bfloat16.
#pragma once

#include <cstdint>

#include "attention_products.h"
#include "segment.h"
#include "vec.h"

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
#if defined(__AVX512F__)
    static constexpr int ROWS_PER_SCORE = V <= 4 ? 3 : V <= 8 ? 2 : 1;
#else
    static constexpr int ROWS_PER_SCORE = 3;  // each has two sums, and reads its queries from memory
#endif
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
#if defined(__AVX512F__)
        constexpr int NR = V > 12 ? 1 : V > 3 ? 24 / V : 8;
#else
        constexpr int NR = 6;
#endif
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
        const auto meanwhile = [&] {
            if (row == 0) ahead.fetch();
        };
        for (int j = segment.from; j < last; j += LANES)
            dot16<V, NQ>(queries[row], segment.keys + j, lines + j, meanwhile);
    }
};
