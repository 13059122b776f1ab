// Quantisation of a matrix of floats, at load.
#pragma once

#include <cstdint>

// Fit codes to matrix[outputs, inputs], for groups of 32 inputs: codes[outputs, inputs], and scales and minimums[outputs,
// groups] in float16. 8 bits: weight = scale * (code - 128), where the largest magnitude has the code 1 or 255. 4 bits:
// weight = scale * code - minimum, with a small squared error: codes for several ranges are fitted by least squares (as
// `make_qkx2_quants` of llama.cpp does).
void quantize(
    const float* matrix, int64_t outputs, int64_t inputs, int64_t bits, uint8_t* codes, uint16_t* scales, uint16_t* minimums
);
