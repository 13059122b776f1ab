// Codes of a block, unpacked word by word: a word holds four consecutive inputs of each output of a strip.
#pragma once

#include "dot.h"
#include "quantized.h"

constexpr int WORDS = 8;  // of a block

inline StripCodes load_codes(const uint8_t* p) {
    StripCodes v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

// Shift bytes left, or right if `by` is negative; bits of neighbours must be masked off.
template <int BY>
inline StripCodes shifted(StripCodes v) {
    if constexpr (BY >= 0) return (StripCodes)((StripPairs)v << BY);
    return (StripCodes)((StripPairs)v >> -BY);
}

struct Nibbles {
    static constexpr int BITS = 4, STORED_BITS = 4;  // of an unpacked code, and of a stored one
    explicit Nibbles(const QuantSegment&) {}

    template <int WORD>
    StripCodes word(const uint8_t* block) const {
        const StripCodes both = load_codes(block + WORD / 2 * sizeof(StripCodes));
        return shifted<WORD % 2 ? -4 : 0>(both) & 15;
    }
};

// Codes of 5 or 6 bits: `UPPER` bits in planes after the lower four.
template <int UPPER>
struct WithUpper {
    static constexpr int BITS = 4 + UPPER, STORED_BITS = BITS, IN_PLANE = 8 / UPPER;  // words of a plane
    explicit WithUpper(const QuantSegment& s) : lower(s) {}

    template <int WORD>
    StripCodes word(const uint8_t* block) const {
        const StripCodes plane = load_codes(block + (WORDS / 2 + WORD / IN_PLANE) * sizeof(StripCodes));
        constexpr int SHIFTED = 4 - WORD % IN_PLANE * UPPER;
        return lower.template word<WORD>(block) | (shifted<SHIFTED>(plane) & (((1 << UPPER) - 1) << 4));
    }

    Nibbles lower;
};

struct Bytes {
    static constexpr int BITS = 8, STORED_BITS = 8;
    explicit Bytes(const QuantSegment&) {}

    template <int WORD>
    StripCodes word(const uint8_t* block) const {
        return load_codes(block + WORD * sizeof(StripCodes));
    }
};

struct Table {
    static constexpr int BITS = 8, STORED_BITS = 4;
    explicit Table(const QuantSegment& s) : nibbles(s) {
        for (size_t i = 0; i < sizeof table; i++) table[i] = s.table[i % sizeof s.table];
    }

    template <int WORD>
    StripCodes word(const uint8_t* block) const {
        const StripCodes at = nibbles.word<WORD>(block);
#if defined(PLAIN_DOT) || !defined(__AVX2__)
        StripCodes found;
        for (size_t i = 0; i < sizeof found; i++) found[i] = table[at[i]];
        return found;
#elif defined(__AVX512VNNI__) && defined(__AVX512BW__)
        return (StripCodes)_mm512_shuffle_epi8((__m512i)table, (__m512i)at);
#else
        return (StripCodes)_mm256_shuffle_epi8((__m256i)table, (__m256i)at);
#endif
    }

    Nibbles nibbles;
    StripCodes table;  // repeated in each lane of 16 bytes
};
