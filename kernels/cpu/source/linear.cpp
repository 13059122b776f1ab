#include "linear.h"

#include <algorithm>

#include "operand.h"
#include "panel.h"
#include "pool.h"
#include "result.h"
#include "tile.h"
#include "amx_linear.h"
#include "float8.h"
#include "quantized.h"

namespace {

template <class Panel, int M = ROWS>
void multiply_rows(
    int64_t rows, const typename Panel::Number* x, int64_t stride, const typename Panel::Word* w, int64_t inputs,
    const typename Panel::Word* next, int64_t fetches, CachePrefetcher& prefetcher, F16 (&out)[ROWS][2]
) {
    if constexpr (M > 1) {
        if (rows < M) return multiply_rows<Panel, M - 1>(rows, x, stride, w, inputs, next, fetches, prefetcher, out);
    }
    multiply<M, Panel>(x, stride, w, inputs, next, fetches, prefetcher, out);
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
            last - first, x + first * Panel::stride(inputs), Panel::stride(inputs), weight, inputs,
            weight + ahead * Panel::WORDS, fetches, prefetcher, out
        );
    }
};

// Each group of inputs is multiplied by itself, and its sums are then scaled and added.
template <>
struct Walk<Float8Panel> {
    const Float8Shape shape;
    const uint32_t* codes;
    const float *scales, *x;
    int64_t blocks;

    Walk(const Linear& layer, const Operand& x, int64_t blocks, int64_t panel)
        : shape(layer.inputs, layer.group), codes(shape.codes(layer.packed, panel)),
          scales(shape.scales(layer.packed, panel)), x(static_cast<const float*>(x.data)), blocks(blocks) {}

    void block(int64_t index, int64_t first, int64_t last, CachePrefetcher& prefetcher, F16 (&out)[ROWS][2]) const {
        const int64_t before = TURN * index / blocks, fetches = TURN * (index + 1) / blocks - before;  // per TURN
        const int64_t ahead = blocks == 1 ? Float8Panel::AHEAD : shape.inputs + shape.inputs * before / TURN;
        for (int64_t row = first; row < last; row++) out[row - first][0] = out[row - first][1] = splat(0.0f);
        for (int64_t group = 0; group < shape.groups; group++) {
            const int64_t from = group * shape.group, steps = std::min(shape.group, shape.inputs - from);
            const uint32_t* const words = codes + from * Float8Panel::WORDS;
            const uint32_t* const next = codes + (ahead + from * fetches / TURN) * Float8Panel::WORDS;
            F16 sums[ROWS][2];
            multiply_rows<Float8Panel>(
                last - first, x + first * shape.inputs + from, shape.inputs, words, steps, next, fetches, prefetcher, sums
            );
            for (int half = 0; half < 2; half++) {
                const F16 scale = load(scales + group * PANEL + half * LANES);
                for (int64_t row = 0; row < last - first; row++)
                    out[row][half] += sums[row][half] * splat(FLOAT8_UNIT) * scale;
            }
        }
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

void unpack_bf16(const Linear& layer, int64_t output, float* out) {
    const int64_t panel = output / PANEL, lane = output % PANEL;
    const uint32_t* const words = static_cast<const uint32_t*>(layer.packed) + panel * layer.inputs * LANES + lane % LANES;
    for (int64_t k = 0; k < layer.inputs; k++) out[k] = widen_half(words[k * LANES], lane >= LANES);
}

void unpack_pairs(const Linear& layer, int64_t output, float* out) {
    const int64_t steps = (layer.inputs + 1) / 2;
    const uint32_t* const words = static_cast<const uint32_t*>(layer.packed) + output / PANEL * steps * PANEL + output % PANEL;
    for (int64_t k = 0; k < layer.inputs; k++) out[k] = widen_half(words[k / 2 * PANEL], k % 2);
}

void unpack_f32(const Linear& layer, int64_t output, float* out) {
    const int64_t panel = output / PANEL, lane = output % PANEL;
    const float* const values = static_cast<const float*>(layer.packed) + panel * layer.inputs * PANEL + lane;
    for (int64_t k = 0; k < layer.inputs; k++) out[k] = values[k * PANEL];
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
    if (layout == FLOAT8_PANELS) return f(Float8Panel());
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

void unpack_row(const Linear& layer, int64_t output, float* out) {
    switch (layer.layout) {
        case FLOAT_PANELS: return unpack_f32(layer, output, out);
        case BFLOAT16_PANELS: return unpack_bf16(layer, output, out);
        case BFLOAT16_TILES: return unpack_amx(layer, output, out);
        case BFLOAT16_PAIRS: return unpack_pairs(layer, output, out);
        case QUANTIZED: return unpack_quantized(layer, output, out);
        case FLOAT8_PANELS: return unpack_float8(layer, output, out);
    }
}

// The threshold was measured for this layout only. With fewer rows, any other prefetch delays the weights.
bool has_prefetch_time(const Linear& layer, int64_t rows) {
    constexpr int64_t MIN_ROWS = 24;
    return layer.layout == BFLOAT16_PAIRS && rows >= MIN_ROWS;
}

void linear(const Linear& layer, const Operand& x, int64_t rows, const Result& result, const CachePrefetcher& prefetcher) {
    if (layer.layout == BFLOAT16_TILES) return amx_linear(layer, x, rows, result);
    if (layer.layout == QUANTIZED) return quantized_linear(layer, x, rows, result);
    with_panels(layer.layout, [&](auto panel) { run<decltype(panel)>(layer, x, rows, result, prefetcher); });
}

bool supports_gated(const Linear& layer) { return layer.outputs % (2 * PANEL) == 0; }

void gated_linear(
    const Linear& layer, const Operand& x, int64_t rows, const float* factors, const Operand& y,
    const CachePrefetcher& prefetcher
) {
    if (layer.layout == BFLOAT16_TILES) return amx_gated_linear(layer, x, rows, factors, y);
    if (layer.layout == QUANTIZED) return quantized_gated_linear(layer, x, rows, factors, y);
    with_panels(layer.layout, [&](auto panel) { run_gated<decltype(panel)>(layer, x, rows, factors, y, prefetcher); });
}
