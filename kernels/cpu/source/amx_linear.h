// The multiplication of linear.h on the matrix unit of newer Xeons (AMX). It multiplies tiles of 16 rows in bfloat16 and
// adds in float32, sixteen times as fast as vectors of floats.
//
// The precision is still that of float32: each value of x is split into three bfloat16 parts that add up to it exactly, and
// each part is multiplied with the weight, which is bfloat16 already. So only the sums are rounded, as in the other layouts,
// and every output is summed in one fixed order: over k in steps of 32, in each step the smallest parts first. (Parts below
// 2^-126 count as zero: the unit does not support denormals.)
// (Henry, Tang and Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision Computations",
// 2019, with both factors split.)
//
// With one part instead of three, x is rounded to bfloat16, as in engines that compute in bfloat16.
//
// A weight is packed as [N / 32][K / 32][2][16][16] words: for every 32 values of k two tiles of 16 outputs, where each row
// holds two values of k. Incomplete tiles are padded with zeros.
#pragma once

#include "operand.h"

bool has_amx();  // whether the processor has the unit and the operating system permits its use

int64_t amx_words(int64_t outputs, int64_t inputs);
void pack_amx(const uint16_t* weight, int64_t outputs, int64_t inputs, uint32_t* packed);
void unpack_amx(const Linear& layer, int64_t output, float* out);

// Like `linear` and `gated_linear`.
void amx_linear(const Linear& layer, const Operand& x, int64_t rows, const Result& result);
void amx_gated_linear(const Linear& layer, const Operand& x, int64_t rows, const float* factors, const Operand& y);
