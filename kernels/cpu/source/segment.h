// What attention computes at a time: a segment of a context, of which some rows have seen some or all.
#pragma once

#include "vec.h"

constexpr int SEGMENT = 256;           // positions
constexpr int LINE = SEGMENT + LANES;  // floats from one row's scores to the next, not all to the same lines of a cache
constexpr int MOST_ROWS = 48;          // (query, head) pairs computed together

// A segment of a context: its positions `from` to `to` - 1 are looked at. Behind them, up to `padded`, the last one again:
// positions are computed STEP at a time.
template <class Number>
struct Segment {
    int from, to, padded;
    const Number *keys[SEGMENT], *values[SEGMENT];
};
