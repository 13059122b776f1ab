#include "mask.h"

#include <algorithm>
#include <limits>

#include "pool.h"

namespace {

constexpr float FORBIDDEN = -std::numeric_limits<float>::infinity();
constexpr int64_t BITS = 32;

}  // namespace

void mask_row(float* logits, const uint32_t* words, int64_t vocabulary) {
    for (int64_t first = 0; first < vocabulary; first += BITS) {
        const uint32_t word = words[first / BITS];
        if (word == UINT32_MAX) continue;
        const int64_t count = std::min(BITS, vocabulary - first);
        for (int64_t i = 0; i < count; i++) logits[first + i] = word >> i & 1 ? logits[first + i] : FORBIDDEN;
    }
}

void mask_logits(const Masking& masking) {
    const int64_t words = mask_words(masking.vocabulary);
    Pool::instance().each(masking.count, [&masking, words](int64_t index) {
        float* const row = masking.logits + masking.rows[index] * masking.vocabulary;
        mask_row(row, masking.masks + index * words, masking.vocabulary);
        // A NaN is a token: sampling reports it.
        const bool is_empty = std::all_of(row, row + masking.vocabulary, [](float value) { return value == FORBIDDEN; });
        if (is_empty) std::fill(row, row + masking.vocabulary, 0.0f);
        masking.is_empty[index] = is_empty;
    });
}
