#include "linear.h"

#include "pool.h"
#include "vec.h"

namespace {

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
        load_pairs(p, a, b);
    }
    static inline void fetch(const Word* p) { __builtin_prefetch(p, 0, 2); }
};

struct F32Panel {
    typedef float Word;
    static constexpr int WORDS = PANEL;
    static inline void read(const Word* p, F16& a, F16& b) {
        a = load(p);
        b = load(p + LANES);
    }
    static inline void fetch(const Word* p) {
        __builtin_prefetch(p, 0, 2);
        __builtin_prefetch(p + LANES, 0, 2);
    }
};

// Weights are fetched into the second-level cache by hand, as the hardware's own fetching starts anew at every page: 4 KiB
// ahead where a panel is walked once; where it is walked for several blocks of rows, each walk fetches its share of the
// next panel, which this thread takes next, so that memory is busy all the time.
constexpr int64_t AHEAD = 64;
constexpr int64_t STEP = 4;  // values of k between two looks at anything else

// Fetched in each step are `fetches` vectors from `next` on. Three rows share a pointer: one for each would not fit in
// the registers, and to bring them back takes the ports that multiply.
template <int M, class Panel>
void multiply(
    const float* x, const typename Panel::Word* w, int64_t inputs, const typename Panel::Word* next, int64_t fetches,
    F16 (&out)[ROWS][2]
) {
    constexpr int POINTERS = (M + 2) / 3;
    const float* rows[POINTERS];
    for (int i = 0; i < POINTERS; i++) rows[i] = x + 3 * i * inputs;
    F16 sums[M][2];
    for (int m = 0; m < M; m++) sums[m][0] = sums[m][1] = splat(0.0f);
    const auto add = [&](const typename Panel::Word* words, int64_t k) __attribute__((always_inline)) {
        F16 a, b;
        Panel::read(words, a, b);
        for (int m = 0; m < M; m++) {
            const F16 value = splat(rows[m / 3][m % 3 * inputs + k]);
            sums[m][0] += a * value;
            sums[m][1] += b * value;
        }
    };
    int64_t left = inputs;
    for (; left >= STEP; left -= STEP) {
        for (int64_t i = 0; i < fetches; i++) Panel::fetch(next + i * Panel::WORDS);
        next += fetches * Panel::WORDS;
#pragma GCC unroll 4
        for (int64_t k = 0; k < STEP; k++) add(w + k * Panel::WORDS, k);
        w += STEP * Panel::WORDS;
        for (int i = 0; i < POINTERS; i++) rows[i] += STEP;
    }
    for (int64_t k = 0; k < left; k++) add(w + k * Panel::WORDS, k);
    for (int m = 0; m < M; m++) {
        out[m][0] = sums[m][0];
        out[m][1] = sums[m][1];
    }
}

template <class Panel, int M = ROWS>
void multiply_rows(
    int64_t rows, const float* x, const typename Panel::Word* w, int64_t inputs, const typename Panel::Word* next,
    int64_t fetches, F16 (&out)[ROWS][2]
) {
    if constexpr (M > 1) {
        if (rows < M) return multiply_rows<Panel, M - 1>(rows, x, w, inputs, next, fetches, out);
    }
    multiply<M, Panel>(x, w, inputs, next, fetches, out);
}

// One walk over panels of a layer: products of a block of rows, with the bias.
template <class Panel>
struct Walk {
    typedef typename Panel::Word Word;
    const Word* weight;
    const float* x;
    int64_t inputs, blocks;
    alignas(64) float bias[PANEL] = {};

    Walk(const Linear& layer, const float* x, int64_t blocks, int64_t panel)
        : weight(static_cast<const Word*>(layer.packed) + panel * layer.inputs * Panel::WORDS), x(x),
          inputs(layer.inputs), blocks(blocks) {
        if (!layer.bias) return;
        const int64_t column = panel * PANEL, left = layer.outputs - column;
        std::memcpy(bias, layer.bias + column, (left < PANEL ? left : PANEL) * sizeof(float));
    }

    void block(int64_t index, int64_t first, int64_t last, F16 (&out)[ROWS][2]) const {
        const int64_t before = STEP * index / blocks, fetches = STEP * (index + 1) / blocks - before;  // in each STEP
        const int64_t ahead = blocks == 1 ? AHEAD : inputs + inputs * before / STEP;
        multiply_rows<Panel>(
            last - first, x + first * inputs, weight, inputs, weight + ahead * Panel::WORDS, fetches, out
        );
        const F16 low = load(bias), high = load(bias + LANES);
        for (int64_t row = 0; row < last - first; row++) {
            out[row][0] += low;
            out[row][1] += high;
        }
    }
};

template <class Panel>
void run(const Linear& layer, const float* x, int64_t rows, const float* residual, float* y) {
    const int64_t outputs = layer.outputs, blocks = (rows + ROWS - 1) / ROWS;
    Pool::instance().each((outputs + PANEL - 1) / PANEL, [&](int64_t panel) {
        const Walk<Panel> walk(layer, x, blocks, panel);
        const int64_t column = panel * PANEL;
        const int64_t width = outputs - column < PANEL ? outputs - column : PANEL;
        for (int64_t block = 0; block < blocks; block++) {
            const int64_t first = rows * block / blocks, last = rows * (block + 1) / blocks;
            F16 out[ROWS][2];
            walk.block(block, first, last, out);
            for (int64_t row = first; row < last; row++) {
                F16 low = out[row - first][0], high = out[row - first][1];
                const int64_t at = row * outputs + column;
                if (width == PANEL) {
                    if (residual) {
                        low += load(residual + at);
                        high += load(residual + at + LANES);
                    }
                    store(y + at, low);
                    store(y + at + LANES, high);
                    continue;
                }
                float line[PANEL];
                store(line, low);
                store(line + LANES, high);
                for (int64_t i = 0; i < width; i++) y[at + i] = residual ? line[i] + residual[at + i] : line[i];
            }
        }
    });
}

// The panels of a gate and of what it gates are walked together.
template <class Panel>
void run_gated(const Linear& layer, const float* x, int64_t rows, float* y) {
    const int64_t size = layer.outputs / 2, panels = size / PANEL;
    const int64_t blocks = (rows + ROWS - 1) / ROWS;
    Pool::instance().each(panels, [&](int64_t panel) {
        const Walk<Panel> gates(layer, x, blocks, panel), ups(layer, x, blocks, panels + panel);
        for (int64_t block = 0; block < blocks; block++) {
            const int64_t first = rows * block / blocks, last = rows * (block + 1) / blocks;
            F16 gate[ROWS][2], up[ROWS][2];
            gates.block(block, first, last, gate);
            ups.block(block, first, last, up);
            for (int64_t row = first; row < last; row++)
                for (int half = 0; half < 2; half++)
                    store(
                        y + row * size + panel * PANEL + half * LANES,
                        silu16(gate[row - first][half]) * up[row - first][half]
                    );
        }
    });
}

}  // namespace

int64_t packed_words(int64_t outputs, int64_t inputs, bool is_bf16) {
    return (outputs + PANEL - 1) / PANEL * inputs * (is_bf16 ? Bf16Panel::WORDS : F32Panel::WORDS);
}

void pack_bf16(const uint16_t* weight, int64_t outputs, int64_t inputs, uint32_t* packed) {
    Pool::instance().each((outputs + PANEL - 1) / PANEL, [=](int64_t panel) {
        for (int64_t k = 0; k < inputs; k++)
            for (int lane = 0; lane < LANES; lane++) {
                const int64_t low = panel * PANEL + lane, high = low + LANES;
                const uint32_t a = low < outputs ? weight[low * inputs + k] : 0;
                const uint32_t b = high < outputs ? weight[high * inputs + k] : 0;
                packed[(panel * inputs + k) * LANES + lane] = b << 16 | a;
            }
    });
}

void pack_f32(const float* weight, int64_t outputs, int64_t inputs, float* packed) {
    Pool::instance().each((outputs + PANEL - 1) / PANEL, [=](int64_t panel) {
        for (int64_t k = 0; k < inputs; k++)
            for (int lane = 0; lane < PANEL; lane++) {
                const int64_t column = panel * PANEL + lane;
                packed[(panel * inputs + k) * PANEL + lane] = column < outputs ? weight[column * inputs + k] : 0.0f;
            }
    });
}

void linear(const Linear& layer, const float* x, int64_t rows, const float* residual, float* y) {
    if (layer.is_bf16)
        run<Bf16Panel>(layer, x, rows, residual, y);
    else
        run<F32Panel>(layer, x, rows, residual, y);
}

bool gated_fits(const Linear& layer) { return layer.outputs % (2 * PANEL) == 0; }

void gated_linear(const Linear& layer, const float* x, int64_t rows, float* y) {
    if (layer.is_bf16)
        run_gated<Bf16Panel>(layer, x, rows, y);
    else
        run_gated<F32Panel>(layer, x, rows, y);
}
