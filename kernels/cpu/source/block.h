// Rows of quantised products: 32 values as 8-bit codes with a common scale.
#pragma once

#include <cstdint>

#include "vec.h"

struct Block {
    static constexpr int SIZE = 32;

    int8_t codes[SIZE];  // -127 to 127
    float scale;         // a value is about scale * code; NaN if a value is NaN or infinite
    float sum, low_sum;  // of the codes, and of their first half: integers, as floats for multiplication
    // -16 times sums of codes, for each half: of the first two of each four, and of the others. Products of centred codes
    // begin with them (dot.h).
    int16_t centres[2][2];

    // Quantise 32 values as `parts` blocks: each part holds the rounded remainder after the previous ones. Values below
    // MIN_SIZE count as zeros, so that no scale or inverse of one overflows.
    static void put(const F16& low, const F16& high, int64_t parts, Block* to);

  private:
    static constexpr float MIN_SIZE = 1e-30f, MAX_CODE = 127.0f;
};
