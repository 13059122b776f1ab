// A panel: the 32 outputs of a layer that are computed together.
#pragma once

#include "linear.h"
#include "vec.h"

constexpr int PANEL = 2 * LANES;

inline int64_t panels(int64_t outputs) { return (outputs + PANEL - 1) / PANEL; }

// The bias of one panel, zeros where a layer has none and behind its last output.
struct PanelBias {
    F16 low, high;

    PanelBias(const Linear& layer, int64_t panel) {
        float line[PANEL] = {};
        const int64_t column = panel * PANEL, left = layer.outputs - column;
        if (layer.bias) std::memcpy(line, layer.bias + column, (left < PANEL ? left : PANEL) * sizeof(float));
        low = load(line);
        high = load(line + LANES);
    }
};

// Writes one row of a panel, as far as the layer has outputs, and adds what is at the same place of `residual`, if any.
inline void put(F16 low, F16 high, int64_t row, int64_t panel, int64_t outputs, const float* residual, float* y) {
    const int64_t column = panel * PANEL, at = row * outputs + column, width = outputs - column;
    if (width >= PANEL) {
        if (residual) {
            low += load(residual + at);
            high += load(residual + at + LANES);
        }
        store(y + at, low);
        store(y + at + LANES, high);
        return;
    }
    float line[PANEL];
    store(line, low);
    store(line + LANES, high);
    for (int64_t i = 0; i < width; i++) y[at + i] = residual ? line[i] + residual[at + i] : line[i];
}
