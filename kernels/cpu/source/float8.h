// Panels of weights in float8_e4m3fn, with a float scale for each output and group of inputs. Codes are widened in registers to
// floats, exactly, so nothing but the sums is rounded.
//
// A panel holds its scales, [groups][32] floats, then [inputs][8] words, each with the codes of four outputs 8 apart, the first
// one in the highest byte.
#pragma once

#include <cmath>

#include "panel.h"
#include "tile.h"

// A code is a sign, 4 bits of exponent with bias 7, and 3 of mantissa. In the places of a float's, whose bias is 127, they are
// the value times 2^-120, also for denormal codes.
constexpr float FLOAT8_UNIT = 0x1p120f;

// Widen the highest byte of each word: an arithmetic shift leaves copies of the sign before the exponent.
static inline F8 widen_float8(U8 words) {
    typedef int32_t I8 __attribute__((vector_size(32)));
    return (F8)((U8)((I8)words >> 4) & 0x87f00000u);
}

struct Float8Panel : FloatSteps {
    typedef uint32_t Word;
    static constexpr int WORDS = 8;  // per step
    static inline U8 load(const Word* p) {
        U8 words;
        std::memcpy(&words, p, sizeof words);
        return words;
    }
    static inline void read_half(const Word* p, int half, F8& a, F8& b) {
        const U8 words = load(p) << 8 * half;
        a = widen_float8(words);
        b = widen_float8(words << 16);
    }
    static inline void read(const Word* p, F16& a, F16& b) {
        F8 halves[4];
        read_half(p, 0, halves[0], halves[2]);
        read_half(p, 1, halves[1], halves[3]);
        std::memcpy(&a, halves, sizeof a);
        std::memcpy(&b, halves + 2, sizeof b);
    }
};

struct Float8Shape {
    int64_t inputs, group, groups, words;  // words: of a panel

    Float8Shape(int64_t inputs, int64_t group)
        : inputs(inputs), group(group), groups((inputs + group - 1) / group),
          words(groups * PANEL + inputs * Float8Panel::WORDS) {}

    // Return the scales of a panel, which its codes follow.
    const float* scales(const void* packed, int64_t panel) const { return static_cast<const float*>(packed) + panel * words; }
    const uint32_t* codes(const void* packed, int64_t panel) const {
        return static_cast<const uint32_t*>(packed) + panel * words + groups * PANEL;
    }
};

// Pack codes, [outputs][inputs], and scales, [outputs][groups].
void pack_float8(const uint8_t* codes, const float* scales, int64_t outputs, const Float8Shape& shape, void* packed);

void unpack_float8(const Linear& layer, int64_t output, float* out);
