#include "linear.h"

#include "pool.h"

namespace {

// Lines of a weight that are fetched ahead: 4 KiB, since the hardware's own fetching starts anew at every page.
constexpr int64_t AHEAD = 64;

template <int M, class Panel>
void multiply(const float* x, int64_t x_stride, const typename Panel::Word* w, int64_t inputs, F16 (&out)[ROWS][2]) {
    F16 sums[M][2];
    for (int m = 0; m < M; m++) sums[m][0] = sums[m][1] = splat(0.0f);
    for (int64_t k = 0; k < inputs; k++) {
        F16 a, b;
        Panel::fetch(w + (k + AHEAD) * Panel::WORDS);
        Panel::read(w + k * Panel::WORDS, a, b);
        for (int m = 0; m < M; m++) {
            const F16 value = splat(x[m * x_stride + k]);
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
    int64_t rows, const float* x, int64_t x_stride, const typename Panel::Word* w, int64_t inputs, F16 (&out)[ROWS][2]
) {
    if constexpr (M > 1) {
        if (rows < M) return multiply_rows<Panel, M - 1>(rows, x, x_stride, w, inputs, out);
    }
    multiply<M, Panel>(x, x_stride, w, inputs, out);
}

template <class Panel>
void linear(
    const float* x, int64_t rows, int64_t inputs, const void* packed, int64_t outputs, const float* bias, float* y
) {
    const int64_t panels = (outputs + PANEL - 1) / PANEL;
    const int64_t blocks = (rows + ROWS - 1) / ROWS;
    Pool::instance().each(panels, [=](int64_t panel) {
        const auto* w = static_cast<const typename Panel::Word*>(packed) + panel * inputs * Panel::WORDS;
        const int64_t column = panel * PANEL;
        const int64_t width = outputs - column < PANEL ? outputs - column : PANEL;
        float offset[PANEL] = {};
        if (bias) std::memcpy(offset, bias + column, width * sizeof(float));
        for (int64_t block = 0; block < blocks; block++) {
            const int64_t first = rows * block / blocks, last = rows * (block + 1) / blocks;
            F16 out[ROWS][2];
            multiply_rows<Panel>(last - first, x + first * inputs, inputs, w, inputs, out);
            for (int64_t row = first; row < last; row++) {
                float line[PANEL];
                store(line, out[row - first][0] + load(offset));
                store(line + LANES, out[row - first][1] + load(offset + LANES));
                std::memcpy(y + row * outputs + column, line, width * sizeof(float));
            }
        }
    });
}

}  // namespace

extern "C" {

int64_t carousel_packed_words(int64_t outputs, int64_t inputs, int is_bf16) {
    return (outputs + PANEL - 1) / PANEL * inputs * (is_bf16 ? Bf16Panel::WORDS : F32Panel::WORDS);
}

void carousel_pack_bf16(const uint16_t* weight, int64_t outputs, int64_t inputs, uint32_t* packed) {
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

void carousel_pack_f32(const float* weight, int64_t outputs, int64_t inputs, float* packed) {
    Pool::instance().each((outputs + PANEL - 1) / PANEL, [=](int64_t panel) {
        for (int64_t k = 0; k < inputs; k++)
            for (int lane = 0; lane < PANEL; lane++) {
                const int64_t column = panel * PANEL + lane;
                packed[(panel * inputs + k) * PANEL + lane] = column < outputs ? weight[column * inputs + k] : 0.0f;
            }
    });
}

void carousel_linear(
    const float* x, int64_t rows, int64_t inputs, const void* packed, int is_bf16, int64_t outputs, const float* bias,
    float* y
) {
    if (is_bf16)
        linear<Bf16Panel>(x, rows, inputs, packed, outputs, bias, y);
    else
        linear<F32Panel>(x, rows, inputs, packed, outputs, bias, y);
}

void carousel_set_threads(int threads) { Pool::instance().set_threads(threads); }
}
