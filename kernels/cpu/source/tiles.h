// The same multiplication on the matrix unit of newer Xeons (AMX), which multiplies tiles of 16 rows in bfloat16 and adds
// in float32, sixteen times as fast as vectors of floats do.
//
// It computes in float32 all the same: a row of x is cut into three numbers in bfloat16 whose sum it is, exactly, and each
// of the three is multiplied with the weight, which is in bfloat16 to begin with. So nothing is rounded but the sums, as in
// the other layouts, and as there every output is summed in one fixed order: over k in steps of 32, in each step the
// smallest parts first. (Parts below 2^-126 count as nothing: the unit knows no denormal numbers.)
// (Henry, Tang and Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision Computations",
// 2019, with both factors cut.)
//
// With one part for three, x is rounded to bfloat16, as engines do that compute in it.
//
// A weight is laid out as [N / 32][K / 32][2][16][16] words: for each 32 values of k two tiles of 16 outputs, in each a row
// for two values of k. What is missing to whole tiles is zeros.
#pragma once

#include "operand.h"

bool has_tiles();  // the processor has the unit, and the system lets us use it

int64_t tile_words(int64_t outputs, int64_t inputs);
void pack_tiles(const uint16_t* weight, int64_t outputs, int64_t inputs, uint32_t* packed);

// As `linear` and `gated_linear`.
void tiled_linear(const Linear& layer, const Operand& x, int64_t rows, const Result& result);
void tiled_gated_linear(const Linear& layer, const Operand& x, int64_t rows, const float* factors, const Operand& y);
