// Sampling from logits, one row at a time; see `kernels.interface.Kernels.sample`.
#pragma once

#include <cstdint>

struct Sampling {
    const float* logits;  // [rows, vocabulary]
    int64_t rows, vocabulary;
    // One value per row.
    const float* temperature;
    const int32_t* top_k;
    const float *top_p, *min_p;
    const int64_t *seed, *position, *choice;
    int64_t* ids;  // out; -1 for a row with a NaN
};

void sample(const Sampling& sampling);
