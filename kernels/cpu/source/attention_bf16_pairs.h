// Multiplications of attention in vectors of bfloat16 pairs, for bfloat16 caches where queries and weights may be rounded.
// Each sum of a row is one chain, over D or over positions in ascending order. For few rows, as in a decode step, words are
// multiplied as they are built; otherwise they are built once for all rows. (Values below 2^-126 count as zero: the
// instruction does not support denormals.)
#pragma once

#include <cstring>
#include <type_traits>

#include "attention_packed.h"

#if HAS_BF16_PAIRS

template <int VECTORS, bool ARE_FEW>
struct PairAttention : PackedKV<VECTORS> {
    using typename PackedKV<VECTORS>::Number;
    using PackedKV<VECTORS>::V, PackedKV<VECTORS>::D, PackedKV<VECTORS>::STEP;
    using PackedKV<VECTORS>::keys, PackedKV<VECTORS>::values, PackedKV<VECTORS>::ahead;
    static constexpr int ROWS_PER_SCORE = 6, VECTORS_PER_ROW = 4;   // rows and vectors of words; their sums fit in registers
    static constexpr int PASSES = ARE_FEW ? 2 : 4;  // as in VectorAttention, or as in AmxAttention

    alignas(64) Number queries[MAX_TILE_ROWS][D];
    alignas(64) Number weights[MAX_TILE_ROWS][SEGMENT + STEP];  // padded, so that rows do not map to the same cache sets

    explicit PairAttention(int64_t) {}

    void load_query(int64_t row, const float* query, float scale) {
        for (int d = 0; d < D; d += LANES) put(queries[row] + d, load(query + d) * splat(scale));
    }

    void pack_keys(const Segment<Number>& segment) {
        if constexpr (!ARE_FEW) PackedKV<VECTORS>::pack_keys(segment);
    }

    void pack_values(const Segment<Number>& segment) {
        if constexpr (!ARE_FEW) PackedKV<VECTORS>::pack_values(segment);
    }

    void score(const Segment<Number>& segment, int64_t row, int64_t rows, int last, float* lines) {
        const int end = (last + LANES - 1) / LANES;
        with<ROWS_PER_SCORE>(rows, [&](auto some) {
            int block = segment.from / LANES;
            constexpr int N = ARE_FEW ? 2 : VECTORS_PER_ROW;
            for (; block + N <= end; block += N) score<some, N>(segment, block, row, lines);
            for (; block < end; block++) score<some, 1>(segment, block, row, lines);
        });
    }

    // Return the rounded weights, so that a row's mass sums exactly the weights that its values are multiplied with.
    F16 keep(float*, int64_t row, int j, F16 some) { return put(weights[row] + j, some); }

    void weigh(const Segment<Number>& segment, const float*, int64_t rows, float* sums) {
        for (int64_t row = 0; row < rows; row += ROWS_PER_SCORE)
            with<ROWS_PER_SCORE>(rows - row, [&](auto some) {
                int v = 0;
                for (; v + VECTORS_PER_ROW <= V; v += VECTORS_PER_ROW)
                    weigh<some, VECTORS_PER_ROW>(segment, row, v, sums + row * D);
                if constexpr (V % VECTORS_PER_ROW != 0) weigh<some, V % VECTORS_PER_ROW>(segment, row, v, sums + row * D);
            });
    }

  private:
    // Call f with min(number, MAX) as a compile-time constant; number is at least 1.
    template <int MAX, class F>
    static void with(int64_t number, const F& f) {
        if constexpr (MAX > 1) {
            if (number < MAX) return with<MAX - 1>(number, f);
        }
        f(std::integral_constant<int, MAX>());
    }

    // Store sixteen floats rounded to bfloat16, and return the rounded values.
    static F16 put(Number* to, F16 v) {
        const __m256i narrow = (__m256i)_mm512_cvtneps_pbh((__m512)v);
        std::memcpy(to, &narrow, sizeof narrow);
        return (F16)_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16);
    }

    // Transpose 16 words of 16 rows: to[word] holds that word of rows 0 to 15. Reads whole cache lines, unlike `turn`: as
    // the words are not kept, every load would read the line again.
    static void turn_lines(const Number* const* rows, int64_t at, __m512i (&to)[LANES]) {
        __m512i r[4][4];  // [quarter][i]: four words of rows i, i + 4, i + 8 and i + 12
        for (int i = 0; i < 4; i++) {
            const auto all = [&](int row) { return _mm512_loadu_si512(rows[row] + at); };
            const __m512i a = all(i), b = all(i + 4), c = all(i + 8), d = all(i + 12);
            const __m512i first = _mm512_shuffle_i32x4(a, b, 0x44), second = _mm512_shuffle_i32x4(c, d, 0x44);
            const __m512i third = _mm512_shuffle_i32x4(a, b, 0xee), fourth = _mm512_shuffle_i32x4(c, d, 0xee);
            r[0][i] = _mm512_shuffle_i32x4(first, second, 0x88);
            r[1][i] = _mm512_shuffle_i32x4(first, second, 0xdd);
            r[2][i] = _mm512_shuffle_i32x4(third, fourth, 0x88);
            r[3][i] = _mm512_shuffle_i32x4(third, fourth, 0xdd);
        }
        for (int q = 0; q < 4; q++) {
            const __m512i a = _mm512_unpacklo_epi32(r[q][0], r[q][1]), b = _mm512_unpackhi_epi32(r[q][0], r[q][1]);
            const __m512i c = _mm512_unpacklo_epi32(r[q][2], r[q][3]), d = _mm512_unpackhi_epi32(r[q][2], r[q][3]);
            to[4 * q] = _mm512_unpacklo_epi64(a, c);
            to[4 * q + 1] = _mm512_unpackhi_epi64(a, c);
            to[4 * q + 2] = _mm512_unpacklo_epi64(b, d);
            to[4 * q + 3] = _mm512_unpackhi_epi64(b, d);
        }
    }

    // Broadcast a word of a row to all lanes.
    static __m512i spread(const Number* word) {
        int both;
        std::memcpy(&both, word, sizeof both);
        return _mm512_set1_epi32(both);
    }

    template <int R, int N>
    struct Sums {
        F16 of[R][N];

        Sums() {
            for (int r = 0; r < R; r++)
                for (int n = 0; n < N; n++) of[r][n] = splat(0.0f);
        }

        void add(int r, int n, __m512i a, __m512i b) {
            of[r][n] = (F16)_mm512_dpbf16_ps((__m512)of[r][n], (__m512bh)a, (__m512bh)b);
        }

        void keep(float* to, int64_t stride) const {
            for (int r = 0; r < R; r++)
                for (int n = 0; n < N; n++) store(to + r * stride + n * LANES, of[r][n]);
        }
    };

    // Score R rows with N blocks of 16 positions.
    template <int R, int N>
    void score(const Segment<Number>& segment, int block, int64_t row, float* lines) {
        constexpr int WORDS = D / 2, PARTS = N * LANES / POSITIONS_PER_PREFETCH;
        Sums<R, N> sums;
        const Number* x = queries[row];
        if constexpr (ARE_FEW) {
            for (int word = 0; word < WORDS; word += LANES, x += STEP)
                for (int n = 0; n < N; n++) {
                    ahead.fetch(PARTS / N * (word + LANES) / WORDS - PARTS / N * word / WORDS);
                    __m512i words[LANES];
                    turn_lines(segment.keys + (block + n) * LANES, 2 * word, words);
                    for (int i = 0; i < LANES; i++)
                        for (int r = 0; r < R; r++) sums.add(r, n, words[i], spread(x + r * D + 2 * i));
                }
        } else {
            for (int word = 0; word < WORDS; word++, x += 2) {
                if (row == 0) ahead.fetch(PARTS * (word + 1) / WORDS - PARTS * word / WORDS);
                __m512i words[N];
                for (int n = 0; n < N; n++) words[n] = _mm512_load_si512(keys[block + n][0][0] + word * LANES);
                for (int r = 0; r < R; r++) {
                    const __m512i both = spread(x + r * D);
                    for (int n = 0; n < N; n++) sums.add(r, n, words[n], both);
                }
            }
        }
        sums.keep(lines + block * LANES, LINE);
    }

    // Weigh N vectors of values, starting at vector v, for R rows.
    template <int R, int N>
    void weigh(const Segment<Number>& segment, int64_t row, int v, float* to) {
        Sums<R, N> sums;
        const Number* const x = weights[row];
        for (int j = segment.from; j < segment.to; j += 2) {
            if (j % POSITIONS_PER_PREFETCH == 0 && row == 0 && v == 0) ahead.fetch();
            __m512i words[N];
            for (int n = 0; n < N; n += 2) {
                const int at = (v + n) * LANES;
                if constexpr (ARE_FEW)
                    this->pair(segment.values[j] + at, segment.values[j + 1] + at, words[n], words[n + 1]);
                else
                    for (int i = n; i < n + 2; i++) words[i] = _mm512_load_si512(values[j / STEP][v + i][j % STEP / 2]);
            }
            for (int r = 0; r < R; r++) {
                const __m512i both = spread(x + r * (SEGMENT + STEP) + j);
                for (int n = 0; n < N; n++) sums.add(r, n, words[n], both);
            }
        }
        sums.keep(to + v * LANES, D);
    }
};

#endif
