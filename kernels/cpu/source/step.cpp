#include "step.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "mask.h"
#include "operand.h"
#include "pool.h"
#include "result.h"
#include "sample.h"

namespace {

// Page tables of selected slots, as wide as the longest context.
struct Tables {
    std::vector<int32_t> pages, contexts;
    int64_t width = 0;

    void gather(const Slots& slots, const std::vector<int64_t>& slot_ids, int64_t page_size) {
        const int64_t longest = contexts.empty() ? 0 : *std::max_element(contexts.begin(), contexts.end());
        width = (longest + page_size - 1) / page_size;
        pages.resize(slot_ids.size() * width);
        for (size_t i = 0; i < slot_ids.size(); i++)
            std::copy_n(slots.page_table + slot_ids[i] * slots.max_pages, width, pages.data() + i * width);
    }
};

// Input rows of the decoder: decode rows, then the rows of the chunks.
struct Rows {
    std::vector<int64_t> tokens, positions, slot_mapping;
    std::vector<int64_t> starts{0};               // start row of each chunk relative to the first, and the end
    std::vector<int64_t> sampled, sampled_slots;  // rows to sample from, and their slots
    std::vector<int64_t> offsets;                 // of each sampled row from the first one of its slot
    Tables decodes, chunks;

    Rows(const Slots& slots, const Work& work) {
        std::vector<int64_t> slot_ids(work.decodes, work.decodes + work.num_decodes);
        for (const int64_t slot : slot_ids) {
            mark_sampled(slot, 0);
            add(slots, work.page_size, slot, slots.last_tokens[slot], slots.lengths[slot] - 1);
            decodes.contexts.push_back(int32_t(slots.lengths[slot]));
        }
        decodes.gather(slots, slot_ids, work.page_size);
        slot_ids.clear();
        const int64_t* draft = work.drafts;
        for (int64_t i = 0; i < work.num_chunks; i++) {
            const Chunk& chunk = work.chunks[i];
            const int64_t end = chunk.start + chunk.length;
            const int64_t* const text = slots.tokens + chunk.slot * slots.max_tokens;
            const int64_t first_sampled = end - chunk.samples;
            for (int64_t at = chunk.start; at < end; at++) {
                if (at >= first_sampled) mark_sampled(chunk.slot, at - first_sampled);
                const bool follows_text = chunk.samples > 1;
                const int64_t token = !follows_text          ? text[at]
                                      : at == first_sampled ? slots.last_tokens[chunk.slot]
                                                            : *draft++;
                add(slots, work.page_size, chunk.slot, token, at);
            }
            starts.push_back(starts.back() + chunk.length);
            chunks.contexts.push_back(int32_t(end));
            slot_ids.push_back(chunk.slot);
        }
        chunks.gather(slots, slot_ids, work.page_size);
    }

    int64_t count() const { return tokens.size(); }

  private:
    void add(const Slots& slots, int64_t page_size, int64_t slot, int64_t token, int64_t position) {
        const int64_t page = slots.page_table[slot * slots.max_pages + position / page_size];
        tokens.push_back(token);
        positions.push_back(position);
        slot_mapping.push_back(page * page_size + position % page_size);
    }

    // Mark the next added row for sampling.
    void mark_sampled(int64_t slot, int64_t offset) {
        sampled.push_back(count());
        sampled_slots.push_back(slot);
        offsets.push_back(offset);
    }
};

// Layout of `Work::scratch`, after the decoder's part.
struct Scratch {
    float *hidden, *chosen, *logits;
    int64_t bytes;

    Scratch(const Decoder& d, const Linear& head, int64_t rows, int64_t sampled, void* memory)
        : bytes(scratch_bytes(d, rows)), memory_(static_cast<char*>(memory)) {
        hidden = floats(rows * d.hidden);
        chosen = floats(sampled * d.hidden);
        logits = floats(sampled * head.outputs);
    }

  private:
    float* floats(int64_t count) {
        char* const at = memory_ ? memory_ + bytes : nullptr;
        bytes += (count * int64_t(sizeof(float)) + 63) / 64 * 64;
        return reinterpret_cast<float*>(at);
    }

    char* memory_;
};

// Check each chunk's rows for a NaN. All rows are checked: with a window, rows after a NaN can be finite again.
void find_nan(const Decoder& d, const Rows& rows, const Work& work, const float* hidden) {
    std::vector<char> has_nan(rows.starts.back());
    hidden += work.num_decodes * d.hidden;
    Pool::instance().each(Operand::tiles(has_nan.size()), [&](int64_t tile) {
        const int64_t begin = tile * Operand::ROWS;
        for (int64_t row = begin; row < std::min<int64_t>(has_nan.size(), begin + Operand::ROWS); row++) {
            const float* const line = hidden + row * d.hidden;
            bool found = false;
            for (int64_t i = 0; i < d.hidden; i++) found |= line[i] != line[i];
            has_nan[row] = found;
        }
    });
    for (int64_t i = 0; i < work.num_chunks; i++) {
        const auto first = has_nan.begin();
        work.has_nan[i] = work.chunks[i].samples < 2 && std::count(first + rows.starts[i], first + rows.starts[i + 1], 1) != 0;
    }
}

template <class T>
std::vector<T> of(const T* all, const std::vector<int64_t>& slot_ids) {
    std::vector<T> some;
    for (const int64_t slot : slot_ids) some.push_back(all[slot]);
    return some;
}

// Return the indices of the sampled rows in the order of their logits: rows that are sampled here, then withheld ones.
std::vector<int64_t> withheld_last(int64_t sampled, const Work& work) {
    const int64_t *const begin = work.withheld, *const end = begin + work.num_withheld;
    std::vector<int64_t> order;
    for (int64_t i = 0; i < sampled; i++)
        if (!std::binary_search(begin, end, i)) order.push_back(i);
    order.insert(order.end(), begin, end);
    return order;
}

void divide(float* logits, int64_t rows, int64_t vocabulary, float divisor) {
    Pool::instance().each(rows, [=](int64_t row) {
        for (int64_t i = row * vocabulary; i < (row + 1) * vocabulary; i++) logits[i] /= divisor;
    });
}

// Forbid tokens of the masked rows. order: indices of the rows of logits.
void apply_masks(const Work& work, const std::vector<int64_t>& order, float* logits, int64_t vocabulary) {
    Pool::instance().each(work.num_masked, [&](int64_t i) {
        const int64_t row = std::find(order.begin(), order.end(), work.masked[i]) - order.begin();
        mask_row(logits + row * vocabulary, work.masks + i * mask_words(vocabulary), vocabulary);
    });
}

// Sample a token per row of logits and advance the slots. own: indices of these rows among the sampled ones. A row that
// reads a draft counts if the draft is the token that the row before it has sampled, and that row counts: it is then the
// row that the next step would compute, which also reports its NaN. Attention reads the values of drafts with a weight of
// zero, so the NaN of a draft may be in all rows of its slot: if it is in the first one, the slot does not advance.
// Otherwise the slot of a row with a NaN gets token 0, a valid embedding index.
void sample_and_advance(const Linear& head, const Slots& slots, const Rows& rows, const std::vector<int64_t>& own,
                        const float* logits, int64_t* ids) {
    const std::vector<int64_t> slot_ids = of(rows.sampled_slots.data(), own);
    const auto records = of(slots.records, slot_ids);
    auto positions = of<int64_t>(slots.lengths, slot_ids);
    for (size_t i = 0; i < own.size(); i++) positions[i] += rows.offsets[own[i]];
    sample({logits, int64_t(own.size()), head.outputs, records.data(), positions.data(), ids});
    bool counts = true;
    for (size_t i = 0; i < own.size(); i++) {
        const bool has_drafts = i + 1 < own.size() && rows.offsets[own[i + 1]] > 0;
        if (rows.offsets[own[i]] == 0)
            counts = ids[i] >= 0 || !has_drafts;
        else
            counts = counts && rows.tokens[rows.sampled[own[i]]] == ids[i - 1] && ids[i] >= 0;
        if (!counts) continue;
        slots.last_tokens[slot_ids[i]] = std::max<int64_t>(ids[i], 0);
        slots.lengths[slot_ids[i]]++;
    }
}

}  // namespace

int64_t step_bytes(const Decoder& decoder, const Linear& head, int64_t rows, int64_t sampled) {
    return Scratch(decoder, head, rows, sampled, nullptr).bytes;
}

void step(const Decoder& d, const Linear& head, const Slots& slots, const Work& work) {
    const Rows rows(slots, work);
    const int64_t sampled = rows.sampled.size();
    const Scratch scratch(d, head, rows.count(), sampled, work.scratch);
    forward(d, {rows.tokens.data(), rows.positions.data(), rows.slot_mapping.data(), rows.count(), work.num_decodes,
                rows.decodes.pages.data(), rows.decodes.width, rows.decodes.contexts.data(),
                rows.chunks.pages.data(), rows.chunks.width, work.num_chunks,
                rows.starts.data(), rows.chunks.contexts.data(), work.k, work.v,
                work.cache_is_bf16, work.page_size, work.page_stride, work.scratch, scratch.hidden});
    find_nan(d, rows, work, scratch.hidden);
    if (!sampled) return;
    const std::vector<int64_t> order = withheld_last(sampled, work);
    const float* chosen = scratch.hidden;
    if (sampled < rows.count() || work.num_withheld) {
        const std::vector<int64_t> hidden_rows = of(rows.sampled.data(), order);
        for (int64_t i = 0; i < sampled; i++)
            std::copy_n(scratch.hidden + hidden_rows[i] * d.hidden, d.hidden, scratch.chosen + i * d.hidden);
        chosen = scratch.chosen;
    }
    linear(head, Operand::put(head, chosen, sampled), sampled, Result{scratch.logits});
    if (d.logits_divisor != 1.0f) divide(scratch.logits, sampled, head.outputs, d.logits_divisor);
    apply_masks(work, order, scratch.logits, head.outputs);
    const int64_t own = sampled - work.num_withheld;
    std::vector<int64_t> ids(sampled);
    sample_and_advance(head, slots, rows, {order.begin(), order.begin() + own}, scratch.logits, ids.data());
    for (int64_t i = 0; i < sampled; i++) work.ids[order[i]] = ids[i];
    std::copy_n(scratch.logits + own * head.outputs, work.num_withheld * head.outputs, work.logits);
}
