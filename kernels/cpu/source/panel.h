// A panel: the 32 outputs of a layer that are computed together.
#pragma once

#include <cstdint>

#include "vec.h"

constexpr int PANEL = 2 * LANES;

inline int64_t panels(int64_t outputs) { return (outputs + PANEL - 1) / PANEL; }

// The bias of one panel, zeros where there is none and behind the last output.
struct PanelBias {
    F16 low, high;

    PanelBias(int64_t outputs, const float* bias, int64_t panel) {
        float line[PANEL] = {};
        const int64_t column = panel * PANEL, left = outputs - column;
        if (bias) std::memcpy(line, bias + column, (left < PANEL ? left : PANEL) * sizeof(float));
        low = load(line);
        high = load(line + LANES);
    }
};
