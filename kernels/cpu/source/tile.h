// Tile of a layer's product: some rows of x times one panel, with all sums in registers. A sum adds its products in the order
// of the inputs, so a row has the same bits in a tile of any number of rows.
#pragma once

#include "operand.h"
#include "panel.h"
#include "prefetch.h"
#include "vec.h"

#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

// Locality argument of `__builtin_prefetch`: into the L2 cache, or bypassing it.
constexpr int TO_L2 = 2, BYPASS_L2 = 0;

// A panel's weights are read step by step. A step holds those of 32 outputs, for one value of k or two.
struct FloatSteps {
    typedef float Number;  // unit of x per step
    typedef F16 Weights;
    static constexpr int64_t AHEAD = 64;  // prefetch distance in steps, for a panel that is walked once
    static constexpr int ONCE = TO_L2;
    static int64_t steps(int64_t inputs) { return inputs; }
    static int64_t stride(int64_t inputs) { return inputs; }  // between rows of x
    static inline F16 spread(Number x) { return splat(x); }
    static inline void add(F16& sum, Weights w, F16 x) { sum += w * x; }
};

struct Bf16Panel : FloatSteps {
    typedef uint32_t Word;
    static constexpr int WORDS = LANES;  // per step
    static inline void read(const Word* p, Weights& a, Weights& b) { load_pairs(p, a, b); }
    static inline void read_half(const Word* p, int half, F8& a, F8& b) { load_pairs(p + HALF * half, a, b); }
};

struct F32Panel : FloatSteps {
    typedef float Word;
    static constexpr int WORDS = PANEL;
    static inline void read(const Word* p, Weights& a, Weights& b) {
        a = load(p);
        b = load(p + LANES);
    }
    static inline void read_half(const Word* p, int half, F8& a, F8& b) {
        a = load_half(p + HALF * half);
        b = load_half(p + LANES + HALF * half);
    }
};

#if defined(__AVX512BF16__)
struct PairsPanel {
    typedef uint32_t Number;
    typedef __m512i Weights;
    typedef uint32_t Word;
    // Lines evicted from AMD's L2 caches go to the L3 cache, where they replace data that is read again.
    static constexpr int64_t AHEAD = 32;
    static constexpr int ONCE = BYPASS_L2;
    static constexpr int WORDS = PANEL;
    static int64_t steps(int64_t inputs) { return (inputs + 1) / 2; }
    static int64_t stride(int64_t inputs) { return Operand::steps(inputs) * Operand::DEPTH / 2; }
    static inline Weights spread(Number x) { return _mm512_set1_epi32(x); }
    static inline void add(F16& sum, Weights w, Weights x) {
        sum = (F16)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)w);
    }
    static inline void read(const Word* p, Weights& a, Weights& b) {
        a = _mm512_loadu_si512(p);
        b = _mm512_loadu_si512(p + LANES);
    }
};
#endif

// Weights are prefetched by software, because hardware prefetching restarts at every page. A panel that is walked once is
// prefetched a few KiB ahead. A panel that is walked for several blocks of rows: each walk prefetches its share of the next
// panel, which this thread takes next, so that memory is always busy.
constexpr int64_t TURN = 4;  // steps per prefetch

template <class Panel, int WHERE>
inline void fetch(const typename Panel::Word* step) {
    for (int word = 0; word < Panel::WORDS; word += LANES) __builtin_prefetch(step + word, 0, WHERE);
}

#if defined(__AVX512F__)
constexpr int ROWS = 14;  // 28 accumulators, 2 weights and a broadcast take 31 of 32 registers

// stride: between rows of x. Each turn prefetches `fetches` steps from `next` on, and a line of `prefetcher`. Three rows share a pointer: one pointer per
// row would not fit in the registers, and reloading pointers would occupy the ports that multiply.
template <int M, class Panel>
void multiply(
    const typename Panel::Number* x, int64_t stride, const typename Panel::Word* w, int64_t inputs,
    const typename Panel::Word* next, int64_t fetches, CachePrefetcher& prefetcher, F16 (&out)[ROWS][2]
) {
    constexpr int POINTERS = (M + 2) / 3;
    const typename Panel::Number* rows[POINTERS];
    for (int i = 0; i < POINTERS; i++) rows[i] = x + 3 * i * stride;
    F16 sums[M][2];
    for (int m = 0; m < M; m++) sums[m][0] = sums[m][1] = splat(0.0f);
    const auto add = [&](const typename Panel::Word* words, int64_t k) __attribute__((always_inline)) {
        typename Panel::Weights a, b;
        Panel::read(words, a, b);
        for (int m = 0; m < M; m++) {
            const auto value = Panel::spread(rows[m / 3][m % 3 * stride + k]);
            Panel::add(sums[m][0], a, value);
            Panel::add(sums[m][1], b, value);
        }
    };
    int64_t left = Panel::steps(inputs);
    for (; left >= TURN; left -= TURN) {
        if (fetches == TURN) {  // single walk
            for (int64_t i = 0; i < TURN; i++) fetch<Panel, Panel::ONCE>(next + i * Panel::WORDS);
        } else {
            for (int64_t i = 0; i < fetches; i++) fetch<Panel, TO_L2>(next + i * Panel::WORDS);
        }
        next += fetches * Panel::WORDS;
        prefetcher.fetch();
#pragma GCC unroll 4
        for (int64_t k = 0; k < TURN; k++) add(w + k * Panel::WORDS, k);
        w += TURN * Panel::WORDS;
        for (int i = 0; i < POINTERS; i++) rows[i] += TURN;
    }
    for (int64_t k = 0; k < left; k++) add(w + k * Panel::WORDS, k);
    for (int m = 0; m < M; m++) {
        out[m][0] = sums[m][0];
        out[m][1] = sums[m][1];
    }
}

#else
constexpr int ROWS = 6;  // 12 accumulators, 2 weights and a broadcast take 15 of 16 registers

// Sums of a tile over some steps, for the halves FIRST to FIRST + COUNT of each vector of sixteen. Accumulators of sixteen
// floats would be two registers each, which compilers keep in memory.
template <int M, int FIRST, int COUNT, class Panel>
inline void multiply_halves(
    const float* x, int64_t stride, const typename Panel::Word* w, int64_t steps, const typename Panel::Word* next,
    int64_t fetches, CachePrefetcher* prefetcher, bool begins, F16 (&out)[ROWS][2]
) {
    constexpr int POINTERS = (M + 2) / 3;
    const float* rows[POINTERS];
    for (int i = 0; i < POINTERS; i++) rows[i] = x + 3 * i * stride;
    F8 sums[M][COUNT][2];
    for (int m = 0; m < M; m++)
        for (int half = 0; half < COUNT; half++)
            for (int part = 0; part < 2; part++) {
                const float* from = reinterpret_cast<const float*>(&out[m][part]) + HALF * (FIRST + half);
                sums[m][half][part] = begins ? F8{} : load_half(from);
            }
    const auto add = [&](const typename Panel::Word* words, int64_t k) __attribute__((always_inline)) {
        for (int half = 0; half < COUNT; half++) {
            F8 a, b;
            Panel::read_half(words, FIRST + half, a, b);
            for (int m = 0; m < M; m++) {
                const F8 value = splat_half(rows[m / 3][m % 3 * stride + k]);
                sums[m][half][0] += a * value;
                sums[m][half][1] += b * value;
            }
        }
    };
    int64_t left = steps;
    for (; left >= TURN; left -= TURN) {
        if (prefetcher) {
            for (int64_t i = 0; i < fetches; i++) fetch<Panel, TO_L2>(next + i * Panel::WORDS);
            next += fetches * Panel::WORDS;
            prefetcher->fetch();
        }
#pragma GCC unroll 4
        for (int64_t k = 0; k < TURN; k++) add(w + k * Panel::WORDS, k);
        w += TURN * Panel::WORDS;
        for (int i = 0; i < POINTERS; i++) rows[i] += TURN;
    }
    for (int64_t k = 0; k < left; k++) add(w + k * Panel::WORDS, k);
    for (int m = 0; m < M; m++)
        for (int half = 0; half < COUNT; half++)
            for (int part = 0; part < 2; part++)
                store_half(reinterpret_cast<float*>(&out[m][part]) + HALF * (FIRST + half), sums[m][half][part]);
}

// stride: between rows of x. Each turn prefetches `fetches` steps from `next` on, and a line of `prefetcher`. More than three rows take the halves of the
// panel in turn, some steps at a time, so that these come from the L1 cache the second time.
template <int M, class Panel>
void multiply(
    const float* x, int64_t stride, const typename Panel::Word* w, int64_t inputs, const typename Panel::Word* next,
    int64_t fetches, CachePrefetcher& prefetcher, F16 (&out)[ROWS][2]
) {
    constexpr int64_t BLOCK = 8192 / (Panel::WORDS * sizeof(typename Panel::Word));  // steps
    constexpr int TOGETHER = M <= 3 ? 2 : 1;
    static_assert(BLOCK % TURN == 0);
    for (int64_t from = 0; from < inputs; from += BLOCK) {
        const int64_t steps = inputs - from < BLOCK ? inputs - from : BLOCK;
        const auto* words = w + from * Panel::WORDS;
        const auto* ahead = next + from / TURN * fetches * Panel::WORDS;
        multiply_halves<M, 0, TOGETHER, Panel>(x + from, stride, words, steps, ahead, fetches, &prefetcher, from == 0, out);
        if constexpr (TOGETHER == 1)
            multiply_halves<M, 1, 1, Panel>(x + from, stride, words, steps, nullptr, 0, nullptr, from == 0, out);
    }
}
#endif
