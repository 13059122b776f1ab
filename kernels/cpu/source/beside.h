// What is fetched into the second-level cache while something else is multiplied: where that takes longer than its weights
// take to come, memory would rest meanwhile.
#pragma once

#include <cstdint>

// Bytes that lie together, counted from wherever a layer's keys begin. Values lie alike.
struct Piece {
    int64_t offset, bytes;
};

// Keys and values, asked for a line at a time: many at once would keep the weights waiting.
class Beside {
  public:
    Beside() = default;  // nothing
    Beside(const void* k, const void* v, const Piece* first, const Piece* end)
        : k_(static_cast<const char*>(k)), v_(static_cast<const char*>(v)), next_(first), end_(end) {}

    // What lies between two shares of `all`.
    Beside part(int64_t from, int64_t to, int64_t all) const {
        const int64_t pieces = end_ - next_;
        return {k_, v_, next_ + pieces * from / all, next_ + pieces * to / all};
    }

    __attribute__((always_inline)) void fetch() {
        if (fetched_ == lines_) {
            if (next_ == end_) return;
            at_ = next_->offset;
            fetched_ = 0;
            lines_ = 2 * ((next_->bytes + CACHE_LINE - 1) / CACHE_LINE);
            next_++;
        }
        __builtin_prefetch((fetched_ % 2 ? v_ : k_) + at_ + fetched_ / 2 * CACHE_LINE, 0, 2);
        fetched_++;
    }

  private:
    static constexpr int64_t CACHE_LINE = 64;

    const char *k_ = nullptr, *v_ = nullptr;
    const Piece *next_ = nullptr, *end_ = nullptr;
    int64_t at_ = 0, fetched_ = 0, lines_ = 0;  // of the piece in hand
};
