// Tokens that constrained rows may not sample; see `kernels.interface.Kernels.mask_logits`.
#pragma once

#include <cstdint>

struct Masking {
    float* logits;           // [any, vocabulary]
    const int64_t* rows;     // of the logits
    const uint32_t* masks;   // [count, ceil(vocabulary / 32)]
    uint8_t* is_empty;       // out, of each row: no token is left
    int64_t count, vocabulary;
};

void mask_logits(const Masking& masking);

// Return the number of words of a mask.
inline int64_t mask_words(int64_t vocabulary) { return (vocabulary + 31) / 32; }

// Forbid tokens of one row.
void mask_row(float* logits, const uint32_t* words, int64_t vocabulary);
