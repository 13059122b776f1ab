#include "linear.h"

#include "operand.h"
#include "panel.h"
#include "pool.h"
#include "result.h"
#include "tiles.h"

namespace {

#if defined(__AVX512F__)
constexpr int ROWS = 14;  // 28 accumulators, 2 weights and a broadcast: 31 of 32 registers
#else
constexpr int ROWS = 3;
#endif

// What is read at each k: the weights of 32 outputs.
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

// One walk over panels of a layer: products of a block of rows.
template <class Panel>
struct Walk {
    typedef typename Panel::Word Word;
    const Word* weight;
    const float* x;
    int64_t inputs, blocks;

    Walk(const Linear& layer, const float* x, int64_t blocks, int64_t panel)
        : weight(static_cast<const Word*>(layer.packed) + panel * layer.inputs * Panel::WORDS), x(x),
          inputs(layer.inputs), blocks(blocks) {}

    void block(int64_t index, int64_t first, int64_t last, F16 (&out)[ROWS][2]) const {
        const int64_t before = STEP * index / blocks, fetches = STEP * (index + 1) / blocks - before;  // in each STEP
        const int64_t ahead = blocks == 1 ? AHEAD : inputs + inputs * before / STEP;
        multiply_rows<Panel>(
            last - first, x + first * inputs, weight, inputs, weight + ahead * Panel::WORDS, fetches, out
        );
    }
};

template <class Panel>
void run(const Linear& layer, const float* x, int64_t rows, const Result& result) {
    const int64_t blocks = (rows + ROWS - 1) / ROWS;
    Pool::instance().each(panels(layer.outputs), [&](int64_t panel) {
        const Walk<Panel> walk(layer, x, blocks, panel);
        const PanelResult to(layer, panel, result);
        for (int64_t block = 0; block < blocks; block++) {
            const int64_t first = rows * block / blocks, last = rows * (block + 1) / blocks;
            F16 out[ROWS][2];
            walk.block(block, first, last, out);
            for (int64_t row = first; row < last; row++)
                to.put(row, out[row - first][0], out[row - first][1]);
        }
    });
}

// The panels of a gate and of what it gates are walked together.
template <class Panel>
void run_gated(const Linear& layer, const float* x, int64_t rows, const float* factors, const Operand& y) {
    const int64_t size = layer.outputs / 2, blocks = (rows + ROWS - 1) / ROWS;
    Pool::instance().each(panels(size), [&](int64_t panel) {
        const Walk<Panel> gates(layer, x, blocks, panel), ups(layer, x, blocks, panels(size) + panel);
        const GatedPanel to(layer, panel, factors, y);
        for (int64_t block = 0; block < blocks; block++) {
            const int64_t first = rows * block / blocks, last = rows * (block + 1) / blocks;
            F16 gate[ROWS][2], up[ROWS][2];
            gates.block(block, first, last, gate);
            ups.block(block, first, last, up);
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

void pack_f32(const float* weight, int64_t outputs, int64_t inputs, float* packed) {
    Pool::instance().each(panels(outputs), [=](int64_t panel) {
        for (int64_t k = 0; k < inputs; k++)
            for (int lane = 0; lane < PANEL; lane++) {
                const int64_t column = panel * PANEL + lane;
                packed[(panel * inputs + k) * PANEL + lane] = column < outputs ? weight[column * inputs + k] : 0.0f;
            }
    });
}

}  // namespace

bool has_layout(Layout layout) { return layout != BFLOAT16_TILES || has_tiles(); }

int64_t packed_words(int64_t outputs, int64_t inputs, Layout layout) {
    switch (layout) {
        case FLOAT_PANELS: return panels(outputs) * inputs * F32Panel::WORDS;
        case BFLOAT16_PANELS: return panels(outputs) * inputs * Bf16Panel::WORDS;
        case BFLOAT16_TILES: return tile_words(outputs, inputs);
    }
    return 0;
}

void pack(const void* weight, int64_t outputs, int64_t inputs, Layout layout, void* packed) {
    switch (layout) {
        case FLOAT_PANELS:
            return pack_f32(static_cast<const float*>(weight), outputs, inputs, static_cast<float*>(packed));
        case BFLOAT16_PANELS:
            return pack_bf16(static_cast<const uint16_t*>(weight), outputs, inputs, static_cast<uint32_t*>(packed));
        case BFLOAT16_TILES:
            return pack_tiles(static_cast<const uint16_t*>(weight), outputs, inputs, static_cast<uint32_t*>(packed));
    }
}

void linear(const Linear& layer, const Operand& x, int64_t rows, const Result& result) {
    const float* floats = static_cast<const float*>(x.data);
    switch (layer.layout) {
        case FLOAT_PANELS: return run<F32Panel>(layer, floats, rows, result);
        case BFLOAT16_PANELS: return run<Bf16Panel>(layer, floats, rows, result);
        case BFLOAT16_TILES: return tiled_linear(layer, x, rows, result);
    }
}

bool gated_fits(const Linear& layer) { return layer.outputs % (2 * PANEL) == 0; }

void gated_linear(const Linear& layer, const Operand& x, int64_t rows, const float* factors, const Operand& y) {
    const float* floats = static_cast<const float*>(x.data);
    switch (layer.layout) {
        case FLOAT_PANELS: return run_gated<F32Panel>(layer, floats, rows, factors, y);
        case BFLOAT16_PANELS: return run_gated<Bf16Panel>(layer, floats, rows, factors, y);
        case BFLOAT16_TILES: return tiled_gated_linear(layer, x, rows, factors, y);
    }
}
