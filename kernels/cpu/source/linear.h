// y = x @ weight.T with few rows: the multiplication that decoding consists of.
//
// A weight [N, K] is laid out in panels of 32 outputs, [N / 32][K][32], so that one walk over a panel reads memory from
// front to back and computes 32 outputs of up to ROWS rows in registers. Every output is one chain of fused multiply-adds
// over k = 0..K-1, whatever the other rows are: its bits cannot depend on the batch.
//
// bfloat16 weights are kept as they are, which halves what a step reads, and widened in registers; that is exact, so
// float32 arithmetic over them gives what float32 copies of them would give. Two outputs 16 apart share a 32-bit word.
#pragma once

#include <cstdint>

#include "vec.h"

constexpr int PANEL = 2 * LANES;

#if defined(__AVX512F__)
constexpr int ROWS = 14;  // 28 accumulators, 2 weights and a broadcast: 31 of 32 registers
#else
constexpr int ROWS = 3;
#endif

struct Bf16Panel {
    typedef uint32_t Word;
    static constexpr int WORDS = LANES;  // per k
    static inline void read(const Word* p, F16& a, F16& b) {
        U16 pair;
        std::memcpy(&pair, p, sizeof pair);
        a = (F16)(pair << 16);
        b = (F16)(pair & 0xffff0000u);
    }
    static inline void fetch(const Word* p) { __builtin_prefetch(p); }
};

struct F32Panel {
    typedef float Word;
    static constexpr int WORDS = PANEL;
    static inline void read(const Word* p, F16& a, F16& b) {
        a = load(p);
        b = load(p + LANES);
    }
    static inline void fetch(const Word* p) {
        __builtin_prefetch(p);
        __builtin_prefetch(p + LANES);
    }
};
