// Strip of a quantised matrix: the layout of its scales and codes; see quantized.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "block.h"
#include "dot.h"
#include "quantized.h"

struct StripShape {
    static constexpr int64_t CACHE_LINE = 64;

    int64_t blocks, groups, floats;  // of an output; floats: shared scales
    int64_t float_bytes;
    int64_t minimums, group_scales, group_minimums, zeros, codes;  // offsets; the scales come first
    int64_t block_bytes, bytes;

    StripShape(const QuantSegment& s, int64_t inputs) {
        blocks = (inputs + Block::SIZE - 1) / Block::SIZE;
        groups = divided(blocks * Block::SIZE, s.group);
        floats = divided(blocks * Block::SIZE, s.shared);
        float_bytes = s.is_float16 ? sizeof(uint16_t) : sizeof(float);
        block_bytes = STRIP * Block::SIZE * s.bits / 8;
        minimums = floats * STRIP * float_bytes;
        group_scales = minimums + (s.has_minimums ? minimums : 0);
        group_minimums = group_scales + (s.has_integer_scales ? groups * STRIP : 0);
        zeros = group_minimums + (s.has_integer_scales && s.has_minimums ? groups * STRIP : 0);
        codes = padded(zeros + (s.has_zeros ? groups * STRIP : 0));
        bytes = padded(codes + blocks * block_bytes);
    }

    static int64_t divided(int64_t inputs, int64_t group) { return (inputs + group - 1) / group; }

  private:
    static int64_t padded(int64_t size) { return (size + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE; }
};

// Load numbers of a strip as floats, exactly. Compilers convert a vector of bytes element by element.
#if defined(__AVX2__) && !defined(PLAIN_DOT)
inline __m128i load_bytes(const void* p) {
    if constexpr (STRIP == LANES) return _mm_loadu_si128(static_cast<const __m128i*>(p));
    return _mm_loadl_epi64(static_cast<const __m128i*>(p));
}

inline StripFloats load_integers(const int8_t* p) {
#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
    return (StripFloats)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_bytes(p)));
#else
    return (StripFloats)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load_bytes(p)));
#endif
}

inline StripFloats load_integers(const uint8_t* p) {
#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
    return (StripFloats)_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(load_bytes(p)));
#else
    return (StripFloats)_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(load_bytes(p)));
#endif
}
#else
template <class Integer>
inline StripFloats load_integers(const Integer* p) {
    typedef Integer Narrow __attribute__((vector_size(STRIP * sizeof(Integer))));
    Narrow narrow;
    std::memcpy(&narrow, p, sizeof narrow);
    return __builtin_convertvector(__builtin_convertvector(narrow, StripInts), StripFloats);
}
#endif

inline StripFloats load_floats(const float* p) {
    StripFloats v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

inline StripFloats load_floats16(const uint16_t* p) {
#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && !defined(PLAIN_DOT)
    return (StripFloats)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif defined(__F16C__) && !defined(PLAIN_DOT)
    return (StripFloats)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#else
    // Shifted by 13 bits the exponent is too small by 112, which a product repairs, also for denormal numbers.
    typedef uint32_t Words __attribute__((vector_size(STRIP * 4)));
    typedef uint16_t Narrow __attribute__((vector_size(STRIP * 2)));
    Narrow narrow;
    std::memcpy(&narrow, p, sizeof narrow);
    const Words words = __builtin_convertvector(narrow, Words), shifted = (words & 0x7fffu) << 13;
    const Words finite = (Words)((StripFloats)shifted * 0x1p112f), infinite = shifted + 0x70000000u;
    const Words is_infinite = (Words)(shifted >= 0x0f800000u);
    return (StripFloats)((is_infinite & infinite) | (~is_infinite & finite) | (words & 0x8000u) << 16);
#endif
}

// Scales of some blocks as floats, for all rows that are multiplied with them.
class StripScales {
  public:
    static constexpr int64_t BLOCKS = 64;

    StripScales(const QuantSegment& segment, const StripShape& shape)
        : segment_(segment), shape_(shape), steps_(segment.group < Block::SIZE ? 2 : 1),
          steps_of_float_(segment.shared * steps_ / Block::SIZE), steps_of_zero_(segment.group * steps_ / Block::SIZE),
          offset_mask_(segment.has_zeros ? -1 : 0) {
        offsets_[0] = spread_float(float(segment.offset - shift()));
    }

    // Expand those of `count` blocks from block `first` on.
    void expand(const uint8_t* strip, int64_t first, int64_t count) {
        const QuantSegment& s = segment_;
        const Steps steps{first * steps_, count * steps_};
        const auto* const scales = reinterpret_cast<const int8_t*>(strip + shape_.group_scales);
        expand_plane(steps, strip, s.has_integer_scales ? scales : nullptr, scales_);
        const uint8_t *const minimums = strip + shape_.group_minimums, *const zeros = strip + shape_.zeros;
        if (s.has_minimums)
            expand_plane(steps, strip + shape_.minimums, s.has_integer_scales ? minimums : nullptr, minimums_);
        const StripFloats shift = spread_float(float(this->shift()));
        if (s.has_zeros)
            steps.each(steps_of_zero_, [&](int64_t i, int64_t end, int64_t at) {
                for (const StripFloats offset = load_integers(zeros + at) - shift; i < end; i++) offsets_[i] = offset;
            });
    }

    // Of each half of a block in turn if groups have 16 inputs, else of each block.
    const StripFloats& scale(int64_t index) const { return scales_[index]; }
    const StripFloats& minimum(int64_t index) const { return minimums_[index]; }
    const StripFloats& offset(int64_t index) const { return offsets_[index & offset_mask_]; }

  private:
    // Blocks, or halves of blocks.
    struct Steps {
        int64_t first, count;

        // Call f(begin, end, place of the group's number in a plane) for each group of `size` steps; begin and end count
        // from the first step.
        template <class F>
        __attribute__((always_inline)) void each(int64_t size, const F& f) const {
            int64_t at = 0, end = size;
            if (first) {
                at = first / size * STRIP;
                end = size - first % size;
            }
            for (int64_t i = 0; i < count; i = end, end += size, at += STRIP) f(i, std::min(count, end), at);
        }
    };

    // Expand a plane of floats, multiplied by the integers of each step unless these are null.
    template <class Integer>
    void expand_plane(const Steps& steps, const uint8_t* floats, const Integer* integers, StripFloats* to) const {
        if (segment_.is_float16)
            expand_plane<load_floats16>(steps, reinterpret_cast<const uint16_t*>(floats), integers, to);
        else
            expand_plane<load_floats>(steps, reinterpret_cast<const float*>(floats), integers, to);
    }

    template <auto LOAD, class Float, class Integer>
    void expand_plane(const Steps& steps, const Float* floats, const Integer* integers, StripFloats* to) const {
        if (integers) integers += steps.first * STRIP;
        if (!integers && steps_of_float_ == 1) {
            floats += steps.first * STRIP;
            for (int64_t i = 0; i < steps.count; i++) to[i] = LOAD(floats + i * STRIP);
            return;
        }
        steps.each(steps_of_float_, [&](int64_t i, int64_t end, int64_t at) {
            const StripFloats scale = LOAD(floats + at);
            if (!integers)
                for (; i < end; i++) to[i] = scale;
            else
                for (; i < end; i++) to[i] = scale * load_integers(integers + i * STRIP);
        });
    }

    int64_t shift() const { return segment_.bits == 8 || segment_.has_table ? SHIFT<8> : 0; }

    const QuantSegment& segment_;
    const StripShape& shape_;
    const int64_t steps_, steps_of_float_, steps_of_zero_;  // of a block, and of the inputs that share a float or a zero
    const int64_t offset_mask_;
    StripFloats scales_[2 * BLOCKS], minimums_[2 * BLOCKS], offsets_[2 * BLOCKS];
};
