#include "operand.h"

#include <algorithm>
#include <vector>

#include "panel.h"
#include "pool.h"

Operand Operand::put(const Linear& layer, const float* x, int64_t rows) {
    const int64_t inputs = layer.inputs;
    if (of(layer, nullptr).form == FLOATS) return floats(x, inputs);
    struct alignas(64) Line {
        char bytes[64];
    };
    thread_local std::vector<Line> buffer;
    buffer.resize(std::max<int64_t>(buffer.size(), bytes(rows, inputs) / sizeof(Line)));
    const Operand to = of(layer, buffer.data());
    Pool::instance().each(tiles(rows), [&](int64_t tile) {
        for (int64_t row = tile * ROWS; row < std::min(rows, (tile + 1) * ROWS); row++) {
            const Operand::Line line = to.line(row);
            const float* const from = x + row * inputs;
            for (int64_t k = 0; k < inputs; k += PANEL)
                line.put(k, load_some(from, k, inputs), load_some(from, k + LANES, inputs));
        }
    });
    return to;
}
