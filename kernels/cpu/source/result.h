// Epilogue of a layer's products, row by row.
#pragma once

#include "linear.h"
#include "norm.h"
#include "panel.h"

inline F16 factor_of(const float* factors, int64_t row) { return splat(factors ? factors[row] : 1.0f); }

// Writer of one panel's rows, up to the layer's last output.
class PanelResult {
  public:
    PanelResult(const Linear& layer, int64_t panel, const Result& to)
        : to_(to), bias_(layer, panel), outputs_(layer.outputs), column_(panel * PANEL), multiplier_(splat(to.multiplier)) {
        if (to.norm) norm_ = NormPanel(*to.norm, panel);
    }

    __attribute__((always_inline)) void put(int64_t row, F16 low, F16 high) const {
        const F16 factor = factor_of(to_.factors, row);
        const int64_t at = row * outputs_ + column_, width = outputs_ - column_;
        low = low * factor + bias_.low;
        high = high * factor + bias_.high;
        if (width >= PANEL) {
            if (to_.residual) {
                // One fused multiply-add, which is the plain sum for a multiplier of 1.
                low = low * multiplier_ + load(to_.residual + at);
                high = high * multiplier_ + load(to_.residual + at + LANES);
            }
            store(to_.y + at, low);
            store(to_.y + at + LANES, high);
        } else {
            float line[PANEL];
            store(line, low);
            store(line + LANES, high);
            for (int64_t i = 0; i < width; i++) {
                line[i] = line[i] * to_.multiplier + (to_.residual ? to_.residual[at + i] : 0.0f);
                to_.y[at + i] = line[i];
            }
            low = load(line);
            high = load(line + LANES);
        }
        if (to_.norm) norm_.put(row, low, high);
    }

  private:
    const Result to_;
    const PanelBias bias_;
    const int64_t outputs_, column_;
    const F16 multiplier_;
    NormPanel norm_;
};

// Writer of the rows of one gate panel, combined with the corresponding up-projection panel.
class GatedPanel {
  public:
    GatedPanel(const Linear& layer, int64_t panel, const float* factors, const Operand& to)
        : to_(to), factors_(factors), gate_(layer, panel), up_(layer, panels(layer.outputs / 2) + panel),
          column_(panel * PANEL) {}

    __attribute__((always_inline)) void put(int64_t row, F16 gate_low, F16 gate_high, F16 up_low, F16 up_high) const {
        const F16 factor = factor_of(factors_, row);
        const F16 low = silu16(gate_low * factor + gate_.low) * (up_low * factor + up_.low);
        const F16 high = silu16(gate_high * factor + gate_.high) * (up_high * factor + up_.high);
        to_.line(row).put(column_, low, high);
    }

  private:
    const Operand to_;
    const float* const factors_;
    const PanelBias gate_, up_;
    const int64_t column_;
};
