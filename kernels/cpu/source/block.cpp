#include "block.h"

#include <limits>

namespace {

typedef int32_t I8 __attribute__((vector_size(32)));
typedef int32_t I4 __attribute__((vector_size(16)));
typedef int8_t B16 __attribute__((vector_size(16)));

// Combine elements with equal numbers modulo 4.
template <class F>
inline I4 reduce(I16 v, const F& f) {
    const I8 low{v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7]}, high{v[8], v[9], v[10], v[11], v[12], v[13], v[14], v[15]};
    const I8 eight = f(low, high);
    return f(I4{eight[0], eight[1], eight[2], eight[3]}, I4{eight[4], eight[5], eight[6], eight[7]});
}

// Return the largest magnitude as the bits of a float. Positive floats are ordered as their bits are, and NaN is the largest.
inline int32_t magnitude(F16 low, F16 high) {
    const I16 a = (I16)low & 0x7fffffff, b = (I16)high & 0x7fffffff;
    const auto larger = [](auto x, auto y) { return x > y ? x : y; };
    const I4 four = reduce(a > b ? a : b, larger);
    return larger(larger(four[0], four[2]), larger(four[1], four[3]));
}

// Replace v by its remainder after `scale` times its codes, and return the sum of the codes. Sets the centres of this half.
inline int32_t cut(F16& v, float inverse, float scale, int8_t* codes, int16_t (&centres)[2]) {
    const F16 magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer, ties to even
    const F16 shifted = v * splat(inverse) + magic;
    const I16 wide = (I16)shifted - (I16)magic;
    const B16 narrow = __builtin_convertvector(wide, B16);
    std::memcpy(codes, &narrow, sizeof narrow);
    v -= splat(scale) * (shifted - magic);
    const I4 four = reduce(wide, [](auto x, auto y) { return x + y; });
    const int32_t first = four[0] + four[1], second = four[2] + four[3];
    centres[0] = int16_t(-16 * first);
    centres[1] = int16_t(-16 * second);
    return first + second;
}

}  // namespace

void Block::put(const F16& low, const F16& high, int64_t parts, Block* to) {
    F16 rest_low = low, rest_high = high;
    const int32_t bits = magnitude(low, high);
    float size;
    std::memcpy(&size, &bits, sizeof size);
    const bool is_finite = bits < 0x7f800000, is_zero = !is_finite || size < MIN_SIZE;
    float scale = is_zero ? 0.0f : size / MAX_CODE, inverse = is_zero ? 0.0f : MAX_CODE / size;
    if (!is_finite) rest_low = rest_high = splat(0.0f);
    for (int64_t part = 0; part < parts; part++, to++) {
        const int32_t first = cut(rest_low, inverse, scale, to->codes, to->centres[0]);
        const int32_t second = cut(rest_high, inverse, scale, to->codes + LANES, to->centres[1]);
        to->scale = is_finite ? scale : std::numeric_limits<float>::quiet_NaN();
        to->sum = float(first + second);
        to->low_sum = float(first);
        // A remainder is at most half of the scale.
        scale /= 2 * MAX_CODE;
        inverse *= 2 * MAX_CODE;
    }
}
