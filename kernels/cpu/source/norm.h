// RMSNorm without a pass of its own. Whoever computes rows puts them into the form in which the next layer multiplies them,
// weighted, and notes their squares; what a row would have to be divided by is left to that layer, whose products it is a
// factor of. So rows are neither read nor written once more, and those who add to the residual keep their part of it.
// (Graef, Clapp and Wasielewski, "FlashNorm: fast normalization for LLMs", 2024.)
#pragma once

#include <cstdint>

#include "operand.h"
#include "panel.h"

struct Norm {
    const float* weight;  // [size]
    Operand rows;         // what is put, times the weight
    float* squares;       // [panels of a row][rows, up to whole vectors]: a panel's sum
    int64_t count;        // of rows

    static int64_t padded(int64_t rows) { return (rows + LANES - 1) / LANES * LANES; }

    // Puts rows first..last-1 of x[rows, size].
    void put(const float* x, int64_t first, int64_t last) const;

    // Of each row 1 / sqrt(mean of squares + eps) -> factors[rows, up to whole vectors]
    const float* finish(float eps, float* factors) const;
};

// What is put of one panel.
class NormPanel {
  public:
    NormPanel() = default;  // nothing

    NormPanel(const Norm& norm, int64_t panel)
        : rows_(norm.rows), squares_(norm.squares + panel * Norm::padded(norm.count)), column_(panel * PANEL) {
        const int64_t size = norm.rows.inputs;
        low_ = load_some(norm.weight, column_, size);
        high_ = load_some(norm.weight, column_ + LANES, size);
    }

    // 32 numbers of a row, zeros behind its last one.
    __attribute__((always_inline)) void put(int64_t row, F16 low, F16 high) const {
        rows_.line(row).put(column_, low * low_, high * high_);
        // Beginning with 0, so that which product is fused into which sum is not the compiler's choice.
        F16 squares = splat(0.0f);
        squares += low * low;
        squares += high * high;
        squares_[row] = sum(squares);
    }

  private:
    Operand rows_{};
    float* squares_ = nullptr;
    int64_t column_ = 0;
    F16 low_{}, high_{};  // of the weight
};

// y[rows, outputs] = x @ weight.T + bias with the rows of x[rows, inputs] normed: as in a decoder, for one layer alone.
void norm_linear(const Linear& layer, const float* x, const float* norm, float eps, int64_t rows, float* y);
