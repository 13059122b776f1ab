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

// Shift bytes left, or right if `BY` is negative; no bit may leave its byte.
template <int BY>
inline StripCodes shifted(StripCodes v) {
    if constexpr (BY >= 0) return (StripCodes)((StripPairs)v << BY);
    return (StripCodes)((StripPairs)v >> -BY);
}

// Some bits of a word, in every byte: `count` bits from bit `from` of a vector are those of the word from bit `to` on.
struct Field {
    int vector, from, count, to;
};

// Return a field of a word of codes of `bits` bits; without bits, the word has no further field. 8 bits: each word is a
// vector. 4 bits: a vector has two words. 6 bits: three words are the lower bits of three vectors, and the upper bits of
// these are a fourth word. 5 bits: so are five words, and the upper bits are three further ones.
constexpr Field field_of(int bits, int word, int index) {
    if (bits == 6 && word % 4 == 3) return {word / 4 * 3 + index, 6, 2, 4 - 2 * index};
    if (bits == 5 && word >= 5 && index == 0) return {word - 5, 5, 3, 2};
    if (bits == 5 && word >= 5 && word < 7 && index == 1) return {word - 2, 6, 2, 0};
    if (bits == 5 && word == 7) return {index + 2, 5, 1, 2 - index};
    if (index > 0) return {};
    if (bits == 4) return {word / 2, word % 2 * 4, 4, 0};
    return {bits == 6 ? word - word / 4 : word, 0, bits, 0};
}

constexpr int MAX_FIELDS = 3;  // of a word

template <int STORED>
struct PackedCodes {
    static constexpr int BITS = STORED, STORED_BITS = STORED;  // of an unpacked code, and of a stored one
    explicit PackedCodes(const QuantSegment&) {}

    template <int WORD, int INDEX = 0>
    StripCodes word(const uint8_t* block) const {
        constexpr Field FIELD = field_of(STORED, WORD, INDEX);
        const StripCodes vector = load_codes(block + FIELD.vector * sizeof(StripCodes));
        constexpr uint8_t MASK = ((1 << FIELD.count) - 1) << FIELD.from;
        StripCodes bits = shifted<FIELD.to - FIELD.from>(vector & MASK);
        if constexpr (INDEX + 1 < MAX_FIELDS)
            if constexpr (field_of(STORED, WORD, INDEX + 1).count) bits |= word<WORD, INDEX + 1>(block);
        return bits;
    }
};

struct Table {
    static constexpr int BITS = 8, STORED_BITS = 4;
    explicit Table(const QuantSegment& s) : codes(s) {
        for (size_t i = 0; i < sizeof table; i++) table[i] = s.table[i % sizeof s.table];
    }

    template <int WORD>
    StripCodes word(const uint8_t* block) const {
        const StripCodes at = codes.word<WORD>(block);
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

    PackedCodes<4> codes;
    StripCodes table;  // repeated in each lane of 16 bytes
};
