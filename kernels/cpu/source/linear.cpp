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
        U16 pair;
        std::memcpy(&pair, p, sizeof pair);
        a = (F16)(pair << 16);
        b = (F16)(pair & 0xffff0000u);
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
// panel that this thread will probably take next, so that memory is busy all the time.
constexpr int64_t AHEAD = 64;

template <int M, class Panel>
void multiply(
    const float* x, const typename Panel::Word* w, int64_t inputs, const typename Panel::Word* next, int64_t share,
    F16 (&out)[ROWS][2]
) {
    F16 sums[M][2];
    for (int m = 0; m < M; m++) sums[m][0] = sums[m][1] = splat(0.0f);
    for (int64_t k = 0; k < inputs; k++) {
        F16 a, b;
        Panel::fetch(next + (k * share >> 16) * Panel::WORDS);
        Panel::read(w + k * Panel::WORDS, a, b);
        for (int m = 0; m < M; m++) {
            const F16 value = splat(x[m * inputs + k]);
            sums[m][0] += a * value;
            sums[m][1] += b * value;
        }
    }
    for (int m = 0; m < M; m++) {
        out[m][0] = sums[m][0];
        out[m][1] = sums[m][1];
    }
}

template <class Panel, int M = ROWS>
void multiply_rows(
    int64_t rows, const float* x, const typename Panel::Word* w, int64_t inputs, const typename Panel::Word* next,
    int64_t share, F16 (&out)[ROWS][2]
) {
    if constexpr (M > 1) {
        if (rows < M) return multiply_rows<Panel, M - 1>(rows, x, w, inputs, next, share, out);
    }
    multiply<M, Panel>(x, w, inputs, next, share, out);
}

template <class Panel>
void run(const Linear& layer, const float* x, int64_t rows, const float* residual, float* y) {
    const int64_t inputs = layer.inputs, outputs = layer.outputs;
    const int64_t panels = (outputs + PANEL - 1) / PANEL;
    const int64_t blocks = (rows + ROWS - 1) / ROWS;
    const int64_t threads = Pool::instance().threads();
    Pool::instance().each(panels, [=](int64_t panel) {
        const auto* w = static_cast<const typename Panel::Word*>(layer.packed) + panel * inputs * Panel::WORDS;
        const int64_t column = panel * PANEL;
        const int64_t width = outputs - column < PANEL ? outputs - column : PANEL;
        float offset[PANEL] = {};
        if (layer.bias) std::memcpy(offset, layer.bias + column, width * sizeof(float));
        for (int64_t block = 0; block < blocks; block++) {
            const int64_t first = rows * block / blocks, last = rows * (block + 1) / blocks;
            F16 out[ROWS][2];
            const int64_t ahead = blocks == 1 ? AHEAD : threads * inputs + inputs * block / blocks;
            multiply_rows<Panel>(
                last - first, x + first * inputs, w, inputs, w + ahead * Panel::WORDS, (1 << 16) / blocks, out
            );
            for (int64_t row = first; row < last; row++) {
                float line[PANEL];
                store(line, out[row - first][0] + load(offset));
                store(line + LANES, out[row - first][1] + load(offset + LANES));
                if (residual)
                    for (int64_t i = 0; i < width; i++) line[i] += residual[row * outputs + column + i];
                std::memcpy(y + row * outputs + column, line, width * sizeof(float));
            }
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
