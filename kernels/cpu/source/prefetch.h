// Prefetch into the L2 cache alongside a multiplication: if the multiplication takes longer than loading its weights, memory
// bandwidth would be idle.
#pragma once

#include <cstdint>

// Contiguous range of bytes, relative to the start of a layer's keys. Values have the same layout.
struct ByteRange {
    int64_t offset, bytes;
};

// Prefetcher of keys and values, one cache line at a time: many at once would delay the weights.
class CachePrefetcher {
  public:
    CachePrefetcher() = default;  // prefetches nothing
    CachePrefetcher(const void* k, const void* v, const ByteRange* first, const ByteRange* end)
        : k_(static_cast<const char*>(k)), v_(static_cast<const char*>(v)), next_(first), end_(end) {}

    // Return the part from share `from` to share `to` of `all` shares.
    CachePrefetcher part(int64_t from, int64_t to, int64_t all) const {
        const int64_t count = end_ - next_;
        return {k_, v_, next_ + count * from / all, next_ + count * to / all};
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
    const ByteRange *next_ = nullptr, *end_ = nullptr;
    int64_t at_ = 0, fetched_ = 0, lines_ = 0;  // of the current range
};
