// Segment of a context: the unit in which attention is computed. Rows may see a part of it or all.
#pragma once

#include <cstdint>

#include "vec.h"

constexpr int SEGMENT = 256;           // positions
constexpr int LINE = SEGMENT + LANES;  // floats between rows of scores; padded, so rows do not map to the same cache sets
constexpr int MAX_TILE_ROWS = 48;          // (query, head) pairs computed together
constexpr int POSITIONS_PER_PREFETCH = 4;         // positions per prefetch of the next data

// Positions `from` to `to` - 1 of a segment are used. Positions up to `padded` repeat the last one, because positions are
// computed STEP at a time.
template <class Number>
struct Segment {
    int from, to, padded;
    const Number *keys[SEGMENT], *values[SEGMENT];
};

// Prefetcher of the next keys and values of one head, page by page. They are prefetched into the L2 cache in small parts
// during computation, so that ordinary loads get their turn in between; all at once would stall those loads.
class SegmentPrefetcher {
  public:
    SegmentPrefetcher() = default;  // prefetches nothing

    // Prefetch `bytes` bytes of keys and as many of values, starting `offset` bytes into the first page. A head has
    // `page_bytes` bytes of each page; pages are `stride` bytes apart.
    SegmentPrefetcher(
        const void* k, const void* v, const int32_t* pages, int64_t stride, int64_t page_bytes, int64_t offset, int64_t bytes
    )
        : k_(static_cast<const char*>(k)), v_(static_cast<const char*>(v)), pages_(pages), stride_(stride),
          page_bytes_(page_bytes), offset_(offset), left_(bytes) {}

    // Set the part size such that `parts` parts cover everything.
    void divide(int64_t parts) { part_ = (left_ + parts * CACHE_LINE - 1) / (parts * CACHE_LINE) * CACHE_LINE; }

    void fetch(int64_t parts = 1) { fetch_bytes(parts * part_); }
    void fetch_rest() { fetch_bytes(left_); }

  private:
    static constexpr int64_t CACHE_LINE = 64;

    void fetch_bytes(int64_t bytes) {
        while (bytes > 0 && left_ > 0) {
            const int64_t at = *pages_ * stride_ + offset_, in_page = page_bytes_ - offset_;
            const int64_t size = bytes < in_page ? bytes : in_page;
            for (int64_t byte = 0; byte < size; byte += CACHE_LINE) {
                __builtin_prefetch(k_ + at + byte, 0, 2);
                __builtin_prefetch(v_ + at + byte, 0, 2);
            }
            bytes -= size;
            left_ -= size;
            offset_ += size;
            if (offset_ < page_bytes_) continue;
            offset_ = 0;
            pages_++;
        }
    }

    const char *k_ = nullptr, *v_ = nullptr;
    const int32_t* pages_ = nullptr;
    int64_t stride_ = 0, page_bytes_ = 0, offset_ = 0, left_ = 0, part_ = 0;
};
