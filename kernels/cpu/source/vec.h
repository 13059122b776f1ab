// Vectors of sixteen floats in the compilers' vector extension: one AVX-512 register, two of AVX2, four of NEON.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

typedef float F16 __attribute__((vector_size(64)));
typedef float F8 __attribute__((vector_size(32)));
typedef float F4 __attribute__((vector_size(16)));
typedef int32_t I16 __attribute__((vector_size(64)));
typedef uint32_t U16 __attribute__((vector_size(64)));
typedef uint32_t U8 __attribute__((vector_size(32)));
typedef uint16_t H16 __attribute__((vector_size(32)));
typedef uint16_t H8 __attribute__((vector_size(16)));

constexpr int LANES = 16;
constexpr int HALF = 8;

static inline F16 load(const float* p) {
    F16 v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

static inline void store(float* p, F16 v) { std::memcpy(p, &v, sizeof v); }

// Load sixteen floats of an array of `size`; zeros past its end.
static inline F16 load_some(const float* p, int64_t at, int64_t size) {
    if (at + LANES <= size) return load(p + at);
    float some[LANES] = {};
    if (at < size) std::memcpy(some, p + at, (size - at) * sizeof(float));
    return load(some);
}

static inline F16 splat(float x) {
    return F16{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
}

// Halves, for loops that keep their vectors in registers of eight floats.
static inline F8 load_half(const float* p) {
    F8 v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

static inline void store_half(float* p, F8 v) { std::memcpy(p, &v, sizeof v); }

static inline F8 splat_half(float x) { return F8{x, x, x, x, x, x, x, x}; }

static inline F16 choose(I16 mask, F16 yes, F16 no) { return (F16)(((I16)yes & mask) | ((I16)no & ~mask)); }

// Lane-wise maximum; b if either is NaN. (Compilers emit a single instruction for this form.)
static inline F16 larger(F16 a, F16 b) { return a > b ? a : b; }

// Load bfloat16 values: 32 stored as words of two, split into even and odd ones (`load_pairs`), or 16 in order (`widen`).
static inline void load_pairs(const void* p, F16& even, F16& odd) {
    U16 words;
    std::memcpy(&words, p, sizeof words);
    even = (F16)(words << 16);
    odd = (F16)(words & 0xffff0000u);
}

static inline void load_pairs(const void* p, F8& even, F8& odd) {
    U8 words;
    std::memcpy(&words, p, sizeof words);
    even = (F8)(words << 16);
    odd = (F8)(words & 0xffff0000u);
}

static inline F16 widen(const uint16_t* p) {
    H16 narrow;
    std::memcpy(&narrow, p, sizeof narrow);
    return (F16)(__builtin_convertvector(narrow, U16) << 16);
}

// Widen one value: the lower half of a word of two, or the upper one.
static inline float widen_half(uint32_t word, bool is_upper) {
    const uint32_t bits = is_upper ? word & 0xffff0000u : word << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// Round to bfloat16, to nearest even; NaN stays NaN.
static inline H16 narrow(F16 v) {
    const U16 bits = (U16)v;
    const U16 rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return __builtin_convertvector((U16)choose(v != v, (F16)(rounded * 0u + 0x7fc0u), (F16)rounded), H16);
}

// Reduce all lanes by a fixed tree of halves, so that the order is the same everywhere. Written without a loop over lanes,
// for which compilers would spill the vector to memory.
template <class F>
static inline float across(F16 v, const F& f) {
    const F8 low{v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7]}, high{v[8], v[9], v[10], v[11], v[12], v[13], v[14], v[15]};
    const F8 eight = f(low, high);
    const F4 four = f(F4{eight[0], eight[1], eight[2], eight[3]}, F4{eight[4], eight[5], eight[6], eight[7]});
    return f(f(four[0], four[2]), f(four[1], four[3]));
}

static inline float sum(F16 v) {
    return across(v, [](auto a, auto b) { return a + b; });
}

// Undefined if a lane is NaN.
static inline float maximum(F16 v) {
    return across(v, [](auto a, auto b) { return a > b ? a : b; });
}

#if defined(__AVX512F__)
// Mask of lanes that are not below `least`, including NaN.
static inline __mmask16 not_below(__m512 x, float least) {
    return _mm512_cmp_ps_mask(x, (__m512)splat(least), _CMP_NLT_UQ);
}
#endif

// e^x with a relative error below 2e-7; 0 below -87, infinity above 89 (above 88 without AVX-512), NaN for NaN. Cody and
// Waite's reduction with the polynomial of Cephes' expf. Always inlined: with many callers, compilers would otherwise pass
// vectors through memory.
__attribute__((always_inline)) static inline F16 exp16(F16 x) {
#if defined(__AVX512F__)
    const F16 clamped = (F16)_mm512_min_ps((__m512)splat(89.0f), (__m512)x);  // returns the second operand for NaN
#else
    const F16 low = splat(-87.0f), high = splat(88.0f);
    const F16 clamped = choose(x < low, low, choose(x > high, high, x));
#endif
    const F16 magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
    const F16 shifted = clamped * splat(1.44269504088896341f) + magic;
    const F16 n = shifted - magic;
    F16 r = clamped - n * splat(0.693359375f);
    r = r - n * splat(-2.12194440e-4f);
    F16 p = splat(1.9875691500e-4f);
    p = p * r + splat(1.3981999507e-3f);
    p = p * r + splat(8.3334519073e-3f);
    p = p * r + splat(4.1665795894e-2f);
    p = p * r + splat(1.6666665459e-1f);
    p = p * r + splat(5.0000001201e-1f);
    p = p * (r * r) + r + splat(1.0f);
#if defined(__AVX512F__)
    return (F16)_mm512_maskz_scalef_ps(not_below((__m512)x, -87.0f), (__m512)p, (__m512)n);
#else
    const I16 exponent = ((I16)shifted - (I16)magic) << 23;
    F16 result = (F16)((I16)p + exponent);
    result = choose(x < low, splat(0.0f), result);
    result = choose(x > high, splat(__builtin_inff()), result);
    return choose(x != x, x, result);
#endif
}

// x / (1 + e^-x)
__attribute__((always_inline)) static inline F16 silu16(F16 x) {
    const F16 above = splat(1.0f) + exp16(-x);
#if defined(__AVX512F__)
    // A division would take as long as everything else together. Below -87 the result is 0, because e^-x overflows.
    const F16 near = (F16)_mm512_rcp14_ps((__m512)above), nearer = near * (splat(2.0f) - above * near);
    return (F16)_mm512_maskz_mul_ps(not_below((__m512)x, -87.0f), (__m512)x, (__m512)nearer);
#else
    return x / above;
#endif
}
