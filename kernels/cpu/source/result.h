// What becomes of the products of a layer, row by row and panel by panel.
#pragma once

#include "linear.h"
#include "norm.h"
#include "panel.h"

inline F16 factor_of(const float* factors, int64_t row) { return splat(factors ? factors[row] : 1.0f); }

// One row of a panel, as far as the layer has outputs.
inline void put(F16 low, F16 high, const PanelBias& bias, int64_t row, int64_t panel, int64_t outputs, const Result& to) {
    const int64_t column = panel * PANEL, at = row * outputs + column, width = outputs - column;
    const F16 factor = factor_of(to.factors, row);
    low = low * factor + bias.low;
    high = high * factor + bias.high;
    if (width >= PANEL) {
        if (to.residual) {
            low += load(to.residual + at);
            high += load(to.residual + at + LANES);
        }
        store(to.y + at, low);
        store(to.y + at + LANES, high);
    } else {
        float line[PANEL];
        store(line, low);
        store(line + LANES, high);
        for (int64_t i = 0; i < width; i++) to.y[at + i] = line[i] += to.residual ? to.residual[at + i] : 0.0f;
        low = load(line);
        high = load(line + LANES);
    }
    if (to.norm) to.norm->put(row, panel, low, high);
}

// One row of a panel of a gate, and of the panel that it gates.
__attribute__((always_inline)) inline void put_gated(
    F16 gate_low, F16 gate_high, F16 up_low, F16 up_high, const PanelBias& gate, const PanelBias& up, F16 factor,
    int64_t panel, const Operand::Line& to
) {
    to.put(panel * PANEL, silu16(gate_low * factor + gate.low) * (up_low * factor + up.low));
    to.put(panel * PANEL + LANES, silu16(gate_high * factor + gate.high) * (up_high * factor + up.high));
}
