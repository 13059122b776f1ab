#include "quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "block.h"
#include "pool.h"

namespace {

constexpr int GROUP = Block::SIZE;
constexpr float SHRINKS[] = {1.0f, 0.95f, 0.9f, 0.85f};  // of the range of the codes, around its middle

// Round to an integer, ties to even, for magnitudes below 2^22.
inline float rounded(float x) { return x + 12582912.0f - 12582912.0f; }

inline uint32_t bits_of(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}

// Round to float16, to nearest even.
uint16_t half(float x) {
    const uint32_t bits = bits_of(x), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    if (size >= 0x47800000) return sign | 0x7c00;                                    // infinite from 2^16 on
    if (size < 0x38800000) return sign | uint32_t(rounded(std::fabs(x) * 0x1p24f));  // denormal below 2^-14
    return sign | (((size + 0xfff + (size >> 13 & 1)) >> 13) - (112 << 10));
}

float from_half(uint16_t half) {
    const uint32_t shifted = (half & 0x7fffu) << 13;
    float size;
    std::memcpy(&size, &shifted, sizeof size);
    return std::copysign(size * 0x1p112f, half & 0x8000 ? -1.0f : 1.0f);
}

inline float inverse(float x) { return std::fabs(x) < 1e-30f ? 0.0f : 1.0f / x; }

// Codes of a group for a scale and a minimum.
void encode(const float* group, float scale, float minimum, float max_code, float* codes) {
    const float by = inverse(scale);
    for (int i = 0; i < GROUP; i++) codes[i] = std::min(std::max(rounded((group[i] + minimum) * by), 0.0f), max_code);
}

struct Fit {
    float scale, minimum, error;
};

// Return the scale and the minimum with which codes are closest to a group.
Fit least_squares(const float* group, const float* codes) {
    float sum = 0, code_sum = 0, squares = 0, products = 0, error = 0;
    for (int i = 0; i < GROUP; i++) sum += group[i], code_sum += codes[i];
    const float mean = sum / GROUP, code_mean = code_sum / GROUP;
    for (int i = 0; i < GROUP; i++) {
        const float centred = codes[i] - code_mean;
        squares += centred * centred;
        products += centred * group[i];
    }
    const float scale = products * inverse(squares), minimum = scale * code_mean - mean;
    for (int i = 0; i < GROUP; i++) {
        const float difference = group[i] - (scale * codes[i] - minimum);
        error += difference * difference;
    }
    return {scale, minimum, error};
}

// Return the fit with the least error of a group in 4 bits.
Fit fit(const float* group) {
    constexpr float MAX_CODE = 15.0f;
    const float low = *std::min_element(group, group + GROUP), high = *std::max_element(group, group + GROUP);
    const float middle = (low + high) / 2;
    Fit best{0.0f, -middle, INFINITY};
    for (const float shrink : SHRINKS) {
        float codes[GROUP];
        encode(group, (high - low) * shrink / MAX_CODE, (middle - low) * shrink - middle, MAX_CODE, codes);
        const Fit next = least_squares(group, codes);
        if (next.error < best.error) best = next;
    }
    return best;
}

// Codes and float16 numbers of a group.
struct Group {
    float codes[GROUP];
    uint16_t scale, minimum;

    void fit_4(const float* group) {
        const Fit found = fit(group);
        scale = half(found.scale);
        minimum = half(found.minimum);
        encode(group, from_half(scale), from_half(minimum), 15.0f, codes);
    }

    void fit_8(const float* group) {
        float size = 0;
        for (int i = 0; i < GROUP; i++) size = std::max(size, std::fabs(group[i]));
        scale = half(size / 127);
        minimum = 0;
        const float by = inverse(from_half(scale));
        for (int i = 0; i < GROUP; i++)
            codes[i] = 128.0f + std::min(std::max(rounded(group[i] * by), -127.0f), 127.0f);
    }
};

}  // namespace

void quantize(
    const float* matrix, int64_t outputs, int64_t inputs, int64_t bits, uint8_t* codes, uint16_t* scales, uint16_t* minimums
) {
    const int64_t groups = (inputs + GROUP - 1) / GROUP;
    Pool::instance().each(outputs, [=](int64_t output) {
        for (int64_t index = 0; index < groups; index++) {
            const int64_t first = index * GROUP, count = std::min<int64_t>(GROUP, inputs - first);
            const float* const from = matrix + output * inputs + first;
            float padded[GROUP];
            std::copy_n(from, count, padded);
            std::fill(padded + count, padded + GROUP, from[count - 1]);  // a copy does not widen the range
            Group group;
            bits == 4 ? group.fit_4(padded) : group.fit_8(padded);
            scales[output * groups + index] = group.scale;
            minimums[output * groups + index] = group.minimum;
            for (int64_t i = 0; i < count; i++) codes[output * inputs + first + i] = uint8_t(group.codes[i]);
        }
    });
}
