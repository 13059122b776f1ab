#include "linear.h"

#include "operand.h"
#include "panel.h"
#include "pool.h"
#include "result.h"
#include "amx_linear.h"

namespace {

#if defined(__AVX512F__)
constexpr int ROWS = 14;  // 28 accumulators, 2 weights and a broadcast take 31 of 32 registers
#else
constexpr int ROWS = 3;
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
};

struct F32Panel : FloatSteps {
    typedef float Word;
    static constexpr int WORDS = PANEL;
    static inline void read(const Word* p, Weights& a, Weights& b) {
        a = load(p);
        b = load(p + LANES);
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

// Each turn prefetches `fetches` steps from `next` on, and a line of `prefetcher`. Three rows share a pointer: one pointer per
// row would not fit in the registers, and reloading pointers would occupy the ports that multiply.
template <int M, class Panel>
void multiply(
    const typename Panel::Number* x, const typename Panel::Word* w, int64_t inputs, const typename Panel::Word* next,
    int64_t fetches, CachePrefetcher& prefetcher, F16 (&out)[ROWS][2]
) {
    constexpr int POINTERS = (M + 2) / 3;
    const int64_t stride = Panel::stride(inputs);
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

template <class Panel, int M = ROWS>
void multiply_rows(
    int64_t rows, const typename Panel::Number* x, const typename Panel::Word* w, int64_t inputs,
    const typename Panel::Word* next, int64_t fetches, CachePrefetcher& prefetcher, F16 (&out)[ROWS][2]
) {
    if constexpr (M > 1) {
        if (rows < M) return multiply_rows<Panel, M - 1>(rows, x, w, inputs, next, fetches, prefetcher, out);
    }
    multiply<M, Panel>(x, w, inputs, next, fetches, prefetcher, out);
}

// Walks over a panel of a layer, one per block of rows.
template <class Panel>
struct Walk {
    typedef typename Panel::Word Word;
    typedef typename Panel::Number Number;
    const Word* weight;
    const Number* x;
    int64_t inputs, steps, blocks;

    Walk(const Linear& layer, const Operand& x, int64_t blocks, int64_t panel)
        : x(static_cast<const Number*>(x.data)), inputs(layer.inputs), steps(Panel::steps(inputs)), blocks(blocks) {
        weight = static_cast<const Word*>(layer.packed) + panel * steps * Panel::WORDS;
    }

    void block(int64_t index, int64_t first, int64_t last, CachePrefetcher& prefetcher, F16 (&out)[ROWS][2]) const {
        const int64_t before = TURN * index / blocks, fetches = TURN * (index + 1) / blocks - before;  // per TURN
        const int64_t ahead = blocks == 1 ? Panel::AHEAD : steps + steps * before / TURN;
        multiply_rows<Panel>(
            last - first, x + first * Panel::stride(inputs), weight, inputs, weight + ahead * Panel::WORDS, fetches,
            prefetcher,
            out
        );
    }
};

template <class Panel>
void run(const Linear& layer, const Operand& x, int64_t rows, const Result& result, const CachePrefetcher& prefetcher) {
    const int64_t blocks = (rows + ROWS - 1) / ROWS;
    Pool::instance().each(panels(layer.outputs), [=](int64_t panel) {
        const Walk<Panel> walk(layer, x, blocks, panel);
        const PanelResult to(layer, panel, result);
        CachePrefetcher part = prefetcher.part(panel, panel + 1, panels(layer.outputs));
        for (int64_t block = 0; block < blocks; block++) {
            const int64_t first = rows * block / blocks, last = rows * (block + 1) / blocks;
            F16 out[ROWS][2];
            walk.block(block, first, last, part, out);
            for (int64_t row = first; row < last; row++)
                to.put(row, out[row - first][0], out[row - first][1]);
        }
    });
}

// The panels of the gate and of the up projection are walked together.
template <class Panel>
void run_gated(
    const Linear& layer, const Operand& x, int64_t rows, const float* factors, const Operand& y,
    const CachePrefetcher& prefetcher
) {
    const int64_t size = layer.outputs / 2, blocks = (rows + ROWS - 1) / ROWS;
    Pool::instance().each(panels(size), [=](int64_t panel) {
        const Walk<Panel> gates(layer, x, blocks, panel), ups(layer, x, blocks, panels(size) + panel);
        const GatedPanel to(layer, panel, factors, y);
        CachePrefetcher part = prefetcher.part(panel, panel + 1, panels(size));
        for (int64_t block = 0; block < blocks; block++) {
            const int64_t first = rows * block / blocks, last = rows * (block + 1) / blocks;
            F16 gate[ROWS][2], up[ROWS][2];
            gates.block(block, first, last, part, gate);
            ups.block(block, first, last, part, up);
            for (int64_t row = first; row < last; row++) {
                const F16(&g)[2] = gate[row - first], (&u)[2] = up[row - first];
                to.put(row, g[0], g[1], u[0], u[1]);
            }
        }
    });
}

void pack_bf16(const uint16_t* weight, int64_t outputs, int64_t inputs, uint32_t* packed) {
    Pool::instance().each(panels(outputs), [=](int64_t panel) {
        for (int64_t k = 0; k < inputs; k++)
            for (int lane = 0; lane < LANES; lane++) {
                const int64_t low = panel * PANEL + lane, high = low + LANES;
                const uint32_t a = low < outputs ? weight[low * inputs + k] : 0;
                const uint32_t b = high < outputs ? weight[high * inputs + k] : 0;
                packed[(panel * inputs + k) * LANES + lane] = b << 16 | a;
            }
    });
}

void pack_pairs(const uint16_t* weight, int64_t outputs, int64_t inputs, uint32_t* packed) {
    const int64_t steps = (inputs + 1) / 2;
    Pool::instance().each(panels(outputs), [=](int64_t panel) {
        const auto at = [=](int64_t output, int64_t k) -> uint32_t {
            return output < outputs && k < inputs ? weight[output * inputs + k] : 0;
        };
        for (int64_t step = 0; step < steps; step++)
            for (int64_t lane = 0; lane < PANEL; lane++) {
                const int64_t output = panel * PANEL + lane;
                packed[(panel * steps + step) * PANEL + lane] = at(output, 2 * step + 1) << 16 | at(output, 2 * step);
            }
    });
}

void pack_f32(const float* weight, int64_t outputs, int64_t inputs, float* packed) {
    Pool::instance().each(panels(outputs), [=](int64_t panel) {
        for (int64_t k = 0; k < inputs; k++)
            for (int lane = 0; lane < PANEL; lane++) {
                const int64_t column = panel * PANEL + lane;
                packed[(panel * inputs + k) * PANEL + lane] = column < outputs ? weight[column * inputs + k] : 0.0f;
            }
    });
}

// Pairs of bfloat16 products are twice as fast as float products on AMD processors, but only equally fast on Intel
// processors that support the instruction.
bool has_pairs() {
#if defined(__AVX512BF16__)
    return __builtin_cpu_is("amd");
#else
    return false;
#endif
}

// Call f with the panel type of a layout.
template <class F>
void with_panels(Layout layout, const F& f) {
    if (layout == FLOAT_PANELS) return f(F32Panel());
#if defined(__AVX512BF16__)
    if (layout == BFLOAT16_PAIRS) return f(PairsPanel());
#endif
    return f(Bf16Panel());
}

}  // namespace

bool has_layout(Layout layout) {
    if (layout == BFLOAT16_TILES) return has_amx();
    return layout != BFLOAT16_PAIRS || has_pairs();
}

int64_t packed_words(int64_t outputs, int64_t inputs, Layout layout) {
    if (layout == BFLOAT16_TILES) return amx_words(outputs, inputs);
    int64_t words = 0;
    with_panels(layout, [&](auto panel) { words = panels(outputs) * panel.steps(inputs) * panel.WORDS; });
    return words;
}

void pack(const void* weight, int64_t outputs, int64_t inputs, Layout layout, void* packed) {
    if (layout == FLOAT_PANELS)
        return pack_f32(static_cast<const float*>(weight), outputs, inputs, static_cast<float*>(packed));
    const auto how = layout == BFLOAT16_TILES ? pack_amx : layout == BFLOAT16_PAIRS ? pack_pairs : pack_bf16;
    how(static_cast<const uint16_t*>(weight), outputs, inputs, static_cast<uint32_t*>(packed));
}

// The threshold was measured for this layout only. With fewer rows, any other prefetch delays the weights.
bool has_prefetch_time(const Linear& layer, int64_t rows) {
    constexpr int64_t MIN_ROWS = 24;
    return layer.layout == BFLOAT16_PAIRS && rows >= MIN_ROWS;
}

void linear(const Linear& layer, const Operand& x, int64_t rows, const Result& result, const CachePrefetcher& prefetcher) {
    if (layer.layout == BFLOAT16_TILES) return amx_linear(layer, x, rows, result);
    with_panels(layer.layout, [&](auto panel) { run<decltype(panel)>(layer, x, rows, result, prefetcher); });
}

bool supports_gated(const Linear& layer) { return layer.outputs % (2 * PANEL) == 0; }

void gated_linear(
    const Linear& layer, const Operand& x, int64_t rows, const float* factors, const Operand& y,
    const CachePrefetcher& prefetcher
) {
    if (layer.layout == BFLOAT16_TILES) return amx_gated_linear(layer, x, rows, factors, y);
    with_panels(layer.layout, [&](auto panel) { run_gated<decltype(panel)>(layer, x, rows, factors, y, prefetcher); });
}
