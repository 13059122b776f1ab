// Products of quantised matrices: the weights keep the codes of 4 to 8 bits and the scales that a file has for them, and
// rows are quantised to 8 bits in blocks of 32 inputs (block.h).
//
// The codes of a block are multiplied and added as integers, which is exact. Then an output is one chain of fused
// multiply-adds over the blocks, in ascending order. So its bits depend neither on the other rows nor on the processor.
#pragma once

#include <cstdint>

#include "linear.h"

// Outputs of one format: some whole panels of a layer.
//
// packed: [panels][PANEL / STRIP] strips of STRIP outputs, each padded to whole cache lines: its scales (those of `Planes`
// that exist, each [groups][STRIP]), then [inputs / 32] blocks of codes. A block holds eight words of 4 inputs for each
// output, as codes.h describes.
struct QuantSegment {
    const void* packed;
    int64_t end;     // first panel of the layer after this segment
    int64_t bits;    // of a code: 4, 5, 6 or 8
    int64_t offset;  // subtracted from the codes, or from the entries of `table`; unused with zeros, 0 with minimums
    int64_t group;   // inputs that share a scale: 16, without minimums, or a multiple of 32
    int64_t shared;  // inputs that share a float scale: a multiple of `group`
    int64_t is_float16, has_minimums, has_integer_scales, has_zeros, has_table;
    uint8_t table[16];  // values of 4-bit codes
};

// Parts of a matrix as kernels/quantization.py describes them, [outputs][inputs or groups]; null for absent ones.
struct Planes {
    const uint8_t* codes;
    const void *scales, *minimums;  // float16 or float
    const int8_t* group_scales;
    const uint8_t *group_minimums, *zeros;
};

int64_t quantized_bytes(const QuantSegment& segment, int64_t outputs, int64_t inputs);
void pack_quantized(const QuantSegment& segment, const Planes& planes, int64_t outputs, int64_t inputs, void* packed);

// Write the weights of one output, [inputs]: the scaled integers, less the minimum, rounded once.
void unpack_quantized(const Linear& layer, int64_t output, float* out);

// Like `linear` and `gated_linear`; `Linear::packed` is an array of segments.
void quantized_linear(const Linear& layer, const Operand& x, int64_t rows, const Result& result);
void quantized_gated_linear(const Linear& layer, const Operand& x, int64_t rows, const float* factors, const Operand& y);
