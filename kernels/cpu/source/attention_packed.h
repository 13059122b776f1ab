// bfloat16 keys and values as words of two values, for instructions that multiply both halves of a word with both halves of
// another. A word of keys holds two columns of D, by 16 positions; a word of values two positions, by 16 columns of D.
#pragma once

#include "operand.h"
#include "segment.h"

#if defined(__AVX512BF16__) && defined(__AVX512BW__)
#define HAS_BF16_PAIRS 1

#include <immintrin.h>

template <int VECTORS>
struct PackedKV {
    typedef uint16_t Number;
    static constexpr int V = VECTORS, D = V * LANES;
    static constexpr int STEP = Operand::DEPTH;                     // positions, and columns of D
    // Parts of `ahead` per step of a walk of D / STEP steps.
    static constexpr int PARTS_PER_STEP = 4 * STEP < D ? 1 : 4 * STEP / D;

    alignas(64) uint32_t keys[SEGMENT / LANES][D / STEP][LANES][LANES];
    alignas(64) uint32_t values[SEGMENT / STEP][V][LANES][LANES];
    SegmentPrefetcher ahead;

    void pack_keys(const Segment<Number>& segment) {
        for (int j = segment.from; j < segment.to; j += LANES)
            for (int d = 0; d < D / STEP; d++) {
                ahead.fetch(PARTS_PER_STEP);
                for (int word = 0; word < LANES; word += 4) {
                    __m512i four[4];
                    turn(segment.keys + j, d * STEP + 2 * word, four);
                    for (int i = 0; i < 4; i++) _mm512_store_si512(keys[j / LANES][d][word + i], four[i]);
                }
            }
    }

    void pack_values(const Segment<Number>& segment) {
        for (int j = segment.from; j < segment.padded; j += 2) {
            if (j % POSITIONS_PER_PREFETCH == 0) ahead.fetch();
            for (int d = 0; d < D; d += STEP) {
                __m512i low, high;
                pair(segment.values[j] + d, segment.values[j + 1] + d, low, high);
                _mm512_store_si512(values[j / STEP][d / LANES][j % STEP / 2], low);
                _mm512_store_si512(values[j / STEP][d / LANES + 1][j % STEP / 2], high);
            }
        }
    }

    // Restore the column order of sums. In the order of `values`, a pair of vectors holds first the first and third group of
    // four of each half, then the second and fourth.
    static void restore_order(F16 (&sums)[V]) {
        for (int d = 0; d < V; d += 2) {
            const F16 a = sums[d], b = sums[d + 1];
            sums[d] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
            sums[d + 1] = __builtin_shufflevector(a, b, 8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
        }
    }

  protected:
    // Transpose four words, from `at` on, of 16 rows: to[word] holds that word of rows 0 to 15.
    static void turn(const Number* const* rows, int64_t at, __m512i (&to)[4]) {
        __m512i r[4];
        for (int i = 0; i < 4; i++) {
            const auto four = [&](int row) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[row] + at)); };
            r[i] = _mm512_castsi128_si512(four(i));
            r[i] = _mm512_inserti32x4(r[i], four(i + 4), 1);
            r[i] = _mm512_inserti32x4(r[i], four(i + 8), 2);
            r[i] = _mm512_inserti32x4(r[i], four(i + 12), 3);
        }
        const __m512i a = _mm512_unpacklo_epi32(r[0], r[1]), b = _mm512_unpackhi_epi32(r[0], r[1]);
        const __m512i c = _mm512_unpacklo_epi32(r[2], r[3]), d = _mm512_unpackhi_epi32(r[2], r[3]);
        to[0] = _mm512_unpacklo_epi64(a, c);
        to[1] = _mm512_unpackhi_epi64(a, c);
        to[2] = _mm512_unpacklo_epi64(b, d);
        to[3] = _mm512_unpackhi_epi64(b, d);
    }

    // Interleave 32 values of two positions to words of two positions, in the order that `restore_order` undoes.
    static void pair(const Number* one, const Number* two, __m512i& low, __m512i& high) {
        const __m512i a = _mm512_loadu_si512(one), b = _mm512_loadu_si512(two);
        low = _mm512_unpacklo_epi16(a, b);
        high = _mm512_unpackhi_epi16(a, b);
    }
};

#endif
