// Integer products of quantised codes with the codes of rows, for strips of outputs as wide as a register.
#pragma once

#include <cstdint>
#include <cstring>

#include "vec.h"

#if defined(__AVX2__) && !defined(PLAIN_DOT)
#include <immintrin.h>
#endif

#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && !defined(PLAIN_DOT)
constexpr int STRIP = 16;
typedef F16 StripFloats;
static inline StripFloats spread_float(float x) { return splat(x); }
#else
constexpr int STRIP = 8;
typedef F8 StripFloats;
static inline StripFloats spread_float(float x) { return splat_half(x); }
#endif

typedef int32_t StripInts __attribute__((vector_size(STRIP * 4)));
typedef uint8_t StripCodes __attribute__((vector_size(STRIP * 4)));  // four consecutive inputs of each output
typedef uint16_t StripPairs __attribute__((vector_size(STRIP * 4)));

static inline StripInts spread_word(const void* from) {
    int32_t word;
    std::memcpy(&word, from, sizeof word);
    return StripInts{} + word;
}

// Sums of products of codes below 2^BITS: `begin` or `add` words, up to WORDS of them, then read `sum`.
#if defined(PLAIN_DOT) || !defined(__AVX2__)
template <int BITS>
struct Dot {
    static constexpr int WORDS = 8;
    struct Weights {
        StripCodes codes;
        explicit Weights(StripCodes codes) : codes(codes) {}
    };
    StripInts sums;

    void begin(const Weights& w, StripInts x) {
        sums = StripInts{};
        add(w, x);
    }
    void add(const Weights& w, StripInts x) {
        int8_t row[STRIP * 4];
        std::memcpy(row, &x, sizeof row);
        for (int lane = 0; lane < STRIP; lane++)
            for (int i = 0; i < 4; i++) sums[lane] += int32_t(w.codes[4 * lane + i]) * row[4 * lane + i];
    }
    StripInts sum() const { return sums; }
};
#elif (defined(__AVX512VNNI__) && defined(__AVX512BW__)) || defined(__AVXVNNI__)
template <int BITS>
struct Dot {
    static constexpr int WORDS = 8;
    typedef StripCodes Weights;
    StripInts sums;

    void begin(Weights w, StripInts x) {
        sums = StripInts{};
        add(w, x);
    }
    void add(Weights w, StripInts x) {
#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
        sums = (StripInts)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)w, (__m512i)x);
#else
        sums = (StripInts)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)w, (__m256i)x);
#endif
    }
    StripInts sum() const { return sums; }
};
#else
// Pairs of products are added in 16 bits, and so are words while they fit. The empty statements keep compilers from adding
// in another order, for which they would keep products in memory.
template <int BITS>
struct Dot {
    static constexpr int WORDS = 32767 / (2 * ((1 << BITS) - 1) * 127);
    typedef StripCodes Weights;
    __m256i pairs;

    void begin(Weights w, StripInts x) { pairs = _mm256_maddubs_epi16((__m256i)w, (__m256i)x); }
    void add(Weights w, StripInts x) {
        pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16((__m256i)w, (__m256i)x));
        asm("" : "+x"(pairs));
    }
    StripInts sum() const { return (StripInts)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }
};

// A pair of 8-bit products does not fit in 16 bits unless the codes are below 129. So these are the magnitudes of the codes
// less SHIFT, and their signs are the row's.
template <>
struct Dot<8> {
    static constexpr int WORDS = 1;
    struct Weights {
        __m256i signs, sizes;
        explicit Weights(StripCodes codes)
            : signs(_mm256_xor_si256((__m256i)codes, _mm256_set1_epi8(char(-128)))), sizes(_mm256_abs_epi8(signs)) {}
    };
    __m256i pairs;

    void begin(const Weights& w, StripInts x) {
        pairs = _mm256_maddubs_epi16(w.sizes, _mm256_sign_epi8((__m256i)x, w.signs));
    }
    void add(const Weights&, StripInts) {}
    StripInts sum() const { return (StripInts)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }
};
#define SIGNED_DOT 1

// Products of codes less half of their range, which are at most as large as without their sign bit: sums of more words fit
// in 16 bits. The intermediate sums may not, but they wrap, and so does the start: the products of a row with that half.
template <int BITS>
struct CentredDot : Dot<BITS> {
    static constexpr int WORDS = BITS == 5 ? 8 : 4;

    // centres: -16 times the sums of the row's codes that pairs are added with, of the first half of a block, and the second.
    template <int WORD, int COUNT>
    void begin(StripCodes w, StripInts x, const int16_t (&centres)[2][2]) {
        __m256i start = (__m256i)spread_word(centres[WORD / 4]);
        if constexpr (COUNT == 8) start = _mm256_add_epi16(start, (__m256i)spread_word(centres[1]));
        if constexpr (BITS == 6) start = _mm256_add_epi16(start, start);
        this->pairs = start;
        this->add(w, x);
    }
};
#endif

// SHIFT: number that `Dot<BITS>` subtracts from codes before it multiplies them.
#if defined(SIGNED_DOT)
template <int BITS>
constexpr int SHIFT = BITS == 8 ? 128 : 0;
template <int BITS>
constexpr bool HAS_CENTRED_DOT = BITS == 5 || BITS == 6;
#else
template <int BITS>
constexpr int SHIFT = 0;
template <int BITS>
constexpr bool HAS_CENTRED_DOT = false;
template <int BITS>
struct CentredDot;
#endif
