#include "norm.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "linear.h"
#include "pool.h"

void Norm::put(const float* x, int64_t first, int64_t last) const {
    const int64_t size = rows.inputs;
    for (int64_t column = 0; column < size; column += PANEL) {
        const NormPanel panel(*this, column / PANEL);
        for (int64_t row = first; row < last; row++) {
            const float* const line = x + row * size;
            panel.put(row, load_some(line, column, size), load_some(line, column + LANES, size));
        }
    }
}

const float* Norm::finish(float eps, float* factors) const {
    const int64_t width = padded(count), size = rows.inputs;
    for (int64_t row = 0; row < width; row += LANES) {
        F16 total = splat(0.0f);
        for (int64_t panel = 0; panel < panels(size); panel++) total += load(squares + panel * width + row);
        for (int lane = 0; lane < LANES; lane++) factors[row + lane] = 1.0f / std::sqrt(total[lane] / float(size) + eps);
    }
    return factors;
}

void norm_linear(const Linear& layer, const float* x, const float* norm, float eps, int64_t rows, float* y) {
    struct alignas(64) Line {
        char bytes[64];
    };
    std::vector<Line> normed(Operand::bytes(rows, layer.inputs) / sizeof(Line) + 1);
    std::vector<float> squares(panels(layer.inputs) * Norm::padded(rows)), factors(Norm::padded(rows));
    const Norm through{norm, Operand::of(layer, normed.data()), squares.data(), rows};
    Pool::instance().each(Operand::tiles(rows), [&](int64_t tile) {
        through.put(x, tile * Operand::ROWS, std::min(rows, (tile + 1) * Operand::ROWS));
    });
    linear(layer, through.rows, rows, {y, through.finish(eps, factors.data())});
}
