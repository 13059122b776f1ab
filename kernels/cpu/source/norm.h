// RMSNorm without a separate pass. The producer of rows stores them, times the norm's weight, in the form in which the next
// layer multiplies them, and accumulates their squares. The division by the root mean square is left to that layer, as a
// factor of its products. So rows are not read and written again, and threads that add to the residual keep their part of it
// in cache. (Graef, Clapp and Wasielewski, "FlashNorm: fast normalization for LLMs", 2024.)
#pragma once

#include <cstdint>

#include "operand.h"
#include "panel.h"

struct Norm {
    const float* weight;  // [size]
    Operand rows;         // output: rows times the weight
    float* squares;       // [panels of a row][rows, padded to whole vectors]: sum of squares per panel
    int64_t count;        // number of rows

    static int64_t padded(int64_t rows) { return (rows + LANES - 1) / LANES * LANES; }

    // Store rows first..last-1 of x[rows, size].
    void put(const float* x, int64_t first, int64_t last) const;

    // Compute 1 / sqrt(mean of squares + eps) of each row -> factors[rows, padded to whole vectors].
    const float* finish(float eps, float* factors) const;
};

// One panel of a Norm.
class NormPanel {
  public:
    NormPanel() = default;  // empty

    NormPanel(const Norm& norm, int64_t panel)
        : rows_(norm.rows), squares_(norm.squares + panel * Norm::padded(norm.count)), column_(panel * PANEL) {
        const int64_t size = norm.rows.inputs;
        low_ = load_some(norm.weight, column_, size);
        high_ = load_some(norm.weight, column_ + LANES, size);
    }

    // Store 32 values of a row, zeros past its end.
    __attribute__((always_inline)) void put(int64_t row, F16 low, F16 high) const {
        rows_.line(row).put(column_, low * low_, high * high_);
        // Start from 0, so that the compiler has no choice which product to fuse into which sum.
        F16 squares = splat(0.0f);
        squares += low * low;
        squares += high * high;
        squares_[row] = sum(squares);
    }

  private:
    Operand rows_{};
    float* squares_ = nullptr;
    int64_t column_ = 0;
    F16 low_{}, high_{};  // the panel's weights
};

// y[rows, outputs] = rms_norm(x) @ weight.T + bias for x[rows, inputs]: bitwise as in a decoder, for a single layer.
void norm_linear(const Linear& layer, const float* x, const float* norm, float eps, int64_t rows, float* y);
