// Most tokens of a vocabulary are not in a text, so the loop looks for the others, a block of columns at a time.
#include "penalties.h"

#include <algorithm>
#include <cstring>

#include "pool.h"

namespace {

constexpr int64_t BLOCK = 64;  // columns

bool has_seen(const float* counts, const uint8_t* in_prompt) {
    uint32_t any = 0;
    for (int64_t i = 0; i < BLOCK; i++) any |= (counts[i] != 0) | in_prompt[i];
    return any;
}

// Products are rounded before they are subtracted, as by the other back ends.
void penalize_token(float& logit, float count, const SlotRecord& record) {
    const float factor = record.repetition_penalty;
    volatile float by_count = record.frequency_penalty * count;
    logit = logit > 0 ? logit / factor : logit * factor;
    logit -= by_count;
    if (count > 0) logit -= record.presence_penalty;
}

}  // namespace

void penalize(const Penalties& penalties) {
    Pool::instance().each(penalties.count, [&penalties](int64_t index) {
        const int64_t size = penalties.vocabulary, table_row = penalties.slots[index] * size;
        float* const logits = penalties.logits + penalties.rows[index] * size;
        const float* const counts = penalties.counts + table_row;
        const uint8_t* const in_prompt = penalties.in_prompt + table_row;
        for (int64_t first = 0; first < size; first += BLOCK) {
            const int64_t end = std::min(size, first + BLOCK);
            if (end - first == BLOCK && !has_seen(counts + first, in_prompt + first)) continue;
            for (int64_t column = first; column < end; column++)
                if (counts[column] > 0 || in_prompt[column])
                    penalize_token(logits[column], counts[column], penalties.records[index]);
        }
    });
}
