// Panel: 32 outputs of a layer that are computed together.
#pragma once

#include "linear.h"
#include "vec.h"

constexpr int PANEL = 2 * LANES;

inline int64_t panels(int64_t outputs) { return (outputs + PANEL - 1) / PANEL; }

// Bias of one panel; zeros without a bias and past the last output.
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
