// Products of one tile of attention, with all sums in registers.
#pragma once

#include <cstdint>

#include "segment.h"
#include "vec.h"

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

#if defined(__AVX512F__)
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

// Dot products of queries[NQ, V * LANES] with 16 keys, stored to lines[NQ, LINE]. meanwhile() is called at every
// POSITIONS_PER_PREFETCH-th key.
template <int V, int NQ, class Number, class F>
inline void dot16(const float* rows, const Number* const* keys, float* lines, const F& meanwhile) {
    F16 queries[NQ][V];
    for (int q = 0; q < NQ; q++)
        for (int d = 0; d < V; d++) queries[q][d] = load(rows + (q * V + d) * LANES);
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
    const Each<NQ> scores = fold<2>(eight(0), eight(8));
    for (int q = 0; q < NQ; q++) store(lines + q * LINE, scores.of[q]);
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
#else
// Without AVX-512 a vector of sixteen floats is two registers, and loops keep halves of eight in registers.

// Load half of a pair of vectors of a head, as `read` does: eight even and eight odd lanes, or eight of each vector.
inline void read_half(const uint16_t* pair, int half, F8& a, F8& b) {
    load_pairs(reinterpret_cast<const uint32_t*>(pair) + HALF * half, a, b);
}

inline void read_half(const float* pair, int half, F8& a, F8& b) {
    a = load_half(pair + HALF * half);
    b = load_half(pair + LANES + HALF * half);
}

// Load half of the last vector of an odd number.
inline F8 read_half(const uint16_t* one, int half) {
    H8 narrow;
    std::memcpy(&narrow, one + HALF * half, sizeof narrow);
    return (F8)(__builtin_convertvector(narrow, U8) << 16);
}

inline F8 read_half(const float* one, int half) { return load_half(one + HALF * half); }

// Sums of the lanes of eight vectors, each by the tree of `sum`.
inline F8 sums8(const F8 (&v)[HALF]) {
    F8 four[4], two[2];
    for (int i = 0; i < 4; i++)  // lanes of vector i, then of vector i + 4
        four[i] = __builtin_shufflevector(v[i], v[i + 4], 0, 1, 2, 3, 8, 9, 10, 11) +
                  __builtin_shufflevector(v[i], v[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    for (int i = 0; i < 2; i++)
        two[i] = __builtin_shufflevector(four[2 * i], four[2 * i + 1], 0, 1, 8, 9, 4, 5, 12, 13) +
                 __builtin_shufflevector(four[2 * i], four[2 * i + 1], 2, 3, 10, 11, 6, 7, 14, 15);
    return __builtin_shufflevector(two[0], two[1], 0, 2, 8, 10, 4, 6, 12, 14) +
           __builtin_shufflevector(two[0], two[1], 1, 3, 9, 11, 5, 7, 13, 15);
}

// Dot products of queries[NQ, V * LANES] with 16 keys, stored to lines[NQ, LINE]. meanwhile() is called at every
// POSITIONS_PER_PREFETCH-th key.
template <int V, int NQ, class Number, class F>
inline void dot16(const float* queries, const Number* const* keys, float* lines, const F& meanwhile) {
    for (int i = 0; i < LANES; i += HALF) {
        F8 sums[NQ][HALF];
#pragma GCC unroll 8
        for (int key = 0; key < HALF; key++) {
            if ((i + key) % POSITIONS_PER_PREFETCH == 0) meanwhile();
            const Number* p = keys[i + key];
            F8 products[2][NQ];
            for (int half = 0; half < 2; half++) {
                for (int q = 0; q < NQ; q++) products[half][q] = F8{};
                for (int d = 0; d + 1 < V; d += 2) {
                    F8 a, b;
                    read_half(p + d * LANES, half, a, b);
                    for (int q = 0; q < NQ; q++) {
                        const float* query = queries + (q * V + d) * LANES + HALF * half;
                        products[half][q] += load_half(query) * a;
                        products[half][q] += load_half(query + LANES) * b;
                    }
                }
                if constexpr (V % 2) {
                    const F8 a = read_half(p + (V - 1) * LANES, half);
                    for (int q = 0; q < NQ; q++)
                        products[half][q] += load_half(queries + (q * V + V - 1) * LANES + HALF * half) * a;
                }
            }
            for (int q = 0; q < NQ; q++) sums[q][key] = products[0][q] + products[1][q];
        }
        for (int q = 0; q < NQ; q++) store_half(lines + q * LINE + i, sums8(sums[q]));
    }
}

// sums[r] = weights[r] @ values over positions first..last-1, for NR rows. meanwhile() is called as above.
template <int V, int NR, class Number, class F>
inline void weigh(
    const float* weights, const Number* const* values, int first, int last, float* sums, const F& meanwhile
) {
    for (int d = 0; d < V; d += 2)
        for (int half = 0; half < 2; half++) {
            F8 total[NR][2];
            for (int r = 0; r < NR; r++) total[r][0] = total[r][1] = F8{};
            for (int j = first; j < last; j++) {
                if (d == 0 && half == 0 && j % POSITIONS_PER_PREFETCH == 0) meanwhile();
                F8 a, b{};
                if (d + 1 < V)
                    read_half(values[j] + d * LANES, half, a, b);
                else
                    a = read_half(values[j] + d * LANES, half);
                for (int r = 0; r < NR; r++) {
                    const F8 weight = splat_half(weights[r * LINE + j]);
                    total[r][0] += weight * a;
                    if (d + 1 < V) total[r][1] += weight * b;
                }
            }
            for (int r = 0; r < NR; r++) {
                float* to = sums + (r * V + d) * LANES + HALF * half;
                store_half(to, total[r][0]);
                if (d + 1 < V) store_half(to + LANES, total[r][1]);
            }
        }
}
#endif
