// Attention over a paged cache, decode rows and prefill chunks alike: causal, grouped heads, an optional window.
//
// A context is cut into segments of 256 positions, counted from its beginning. Each segment yields a maximum, a sum and a
// weighted sum of values, which are joined in ascending order (the online softmax of Milakov and Gimelshein, 2018). The
// multiplication method depends on the query's position: vectors of floats near the beginning, then the matrix unit if the
// processor has one, or bfloat16 pairs if rounding is allowed and the processor multiplies those faster. A query's result
// is thus a function of its own position and context alone: the same bits as a decode row, in any chunk, in any batch.
#include "attention.h"

#include <algorithm>
#include <vector>

#include "attention_bf16_pairs.h"
#include "attention_amx.h"
#include "attention_vectors.h"
#include "pool.h"
#include "amx_linear.h"

namespace {

// From this position on, the matrix unit or bfloat16 pairs are used. Both are up to twice as fast for prompts and no faster
// for the few rows of a decode step, which are bound by memory. Near the beginning, prompts have little to attend to.
constexpr int FAR = 256;
constexpr int MAX_DIM = 256;
constexpr float MINUS_INFINITY = -__builtin_inff();

// Merge one segment's result into the running maximum `most`, mass `mass` and weighted sum `out` of a row.
template <int V>
inline void join(float segment_most, float segment_mass, const float* sums, float& most, float& mass, float* out) {
    const float highest = segment_most > most ? segment_most : most;
    const F16 shares = exp16(F16{most - highest, segment_most - highest});
    const float old_share = most == MINUS_INFINITY ? 0.0f : shares[0], new_share = shares[1];
    mass = mass * old_share + segment_mass * new_share;
    most = highest;
    for (int d = 0; d < V; d++) {
        F16 both = splat(0.0f);  // as in dot16
        both += load(out + d * LANES) * splat(old_share);
        both += load(sums + d * LANES) * splat(new_share);
        store(out + d * LANES, both);
    }
}

// Turn a line of scores into weights, and return their maximum and sum. Only positions `first` to `last` - 1 are visible to
// the row. keep(j, weights j to j + 15) stores the weights and returns them as stored (possibly rounded).
template <class Keep>
inline void soften(float* line, int from, int end, int64_t first, int64_t last, float& most, float& mass, const Keep& keep) {
    F16 highest = splat(MINUS_INFINITY);
    for (int j = from; j < end; j += LANES) {
        F16 s = load(line + j);
        if (j < first || j + LANES > last) {
            const I16 lane = I16{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} + j;
            s = choose((lane < int(last)) & (lane >= int(first)), s, splat(MINUS_INFINITY));
            store(line + j, s);
        }
        highest = larger(s, highest);
    }
    most = maximum(highest);
    F16 total = splat(0.0f);
    const F16 shift = splat(most == MINUS_INFINITY ? 0.0f : most);
    for (int j = from; j < end; j += LANES) total += keep(j, exp16(load(line + j) - shift));
    mass = sum(total);
}

// Queries first..last-1 (rows of q) of one chunk. Together with the heads that share a kv head they form one task.
struct Tile {
    int64_t chunk, first, last;
    bool is_far;

    // Row r of q has position origin + r; the tile's queries attend to positions begin to end - 1.
    int64_t origin(const Attention& p) const { return p.context_lens[chunk] - p.start(chunk + 1); }
    int64_t begin(const Attention& p) const {
        return p.window ? std::max<int64_t>(0, origin(p) + first + 1 - p.window) : 0;
    }
    int64_t end(const Attention& p) const { return origin(p) + last; }
};

// Prefetcher of a chunk's keys and values, from `begin` to the end of its segment or to `end`.
template <class Number>
SegmentPrefetcher segment_ahead(const Attention& p, int64_t chunk, int64_t kv_head, int64_t begin, int64_t end) {
    const int64_t last = std::min(end, (begin / SEGMENT + 1) * SEGMENT), page = begin / p.page_size;
    const int64_t head = kv_head * p.page_size * p.dim, bytes = p.dim * sizeof(Number);  // `bytes`: per position
    return SegmentPrefetcher(
        static_cast<const Number*>(p.k) + head, static_cast<const Number*>(p.v) + head,
        p.page_table + chunk * p.width + page, p.page_stride * sizeof(Number), p.page_size * bytes,
        begin % p.page_size * bytes, (last - begin) * bytes
    );
}

// Buffers of one thread.
struct Workspace {
    alignas(64) float lines[MAX_TILE_ROWS * LINE];
    alignas(64) float sums[MAX_TILE_ROWS * MAX_DIM];
    alignas(64) float totals[MAX_TILE_ROWS * MAX_DIM];
    int64_t fetched = -1;  // task with a prefetched first segment; if it is from another job, only time is lost
};

// Not inlined: otherwise the thread-local address is looked up at every use.
__attribute__((noinline)) Workspace& workspace() {
    thread_local Workspace mine;
    return mine;
}

// `next` prefetches the data that this thread reads after this task.
template <class Math>
void attend(
    const Attention& p, const Tile& tile, int64_t kv_head, bool is_fetched, const SegmentPrefetcher& next, const Operand& out
) {
    typedef typename Math::Number Number;
    constexpr int V = Math::V, D = Math::D;
    const int64_t chunk = tile.chunk, first = tile.first, last = tile.last;
    const int64_t group = p.query_heads / p.kv_heads, rows = (last - first) * group;
    const int64_t origin = tile.origin(p), begin = tile.begin(p), end = tile.end(p);
    const int32_t* pages = p.page_table + chunk * p.width;
    const auto token = [&](int64_t row) { return first + row / group; };
    const auto column = [&](int64_t row) { return (kv_head * group + row % group) * D; };

    if (!is_fetched) segment_ahead<Number>(p, chunk, kv_head, begin, end).fetch_rest();
    Workspace& work = workspace();
    Segment<Number> segment;
    Math math(rows);
    float most[MAX_TILE_ROWS], mass[MAX_TILE_ROWS], segment_most[MAX_TILE_ROWS], segment_mass[MAX_TILE_ROWS];
    for (int64_t r = 0; r < rows; r++) math.load_query(r, p.q + token(r) * p.query_heads * D + column(r), p.scale);

    for (int64_t start = begin / SEGMENT * SEGMENT; start < end; start += SEGMENT) {
        const bool is_first = start <= begin;  // no earlier segment to join with
        const int from = begin > start ? int(begin - start) / Math::STEP * Math::STEP : 0;
        const int to = end - start < SEGMENT ? int(end - start) : SEGMENT;
        const int padded = (to + Math::STEP - 1) / Math::STEP * Math::STEP;
        segment.from = from;
        segment.to = to;
        segment.padded = padded;
        for (int j = from; j < to;) {
            const int64_t page = (start + j) / p.page_size, offset = (start + j) % p.page_size;
            const int64_t row = pages[page] * p.page_stride + (kv_head * p.page_size + offset) * D;
            for (int64_t i = offset; i < p.page_size && j < to; i++, j++) {
                segment.keys[j] = static_cast<const Number*>(p.k) + row + (i - offset) * D;
                segment.values[j] = static_cast<const Number*>(p.v) + row + (i - offset) * D;
            }
        }
        for (int j = to; j < padded; j++) {
            segment.keys[j] = segment.keys[to - 1];
            segment.values[j] = segment.values[to - 1];
        }
        math.ahead = start + SEGMENT < end ? segment_ahead<Number>(p, chunk, kv_head, start + SEGMENT, end) : next;
        math.ahead.divide(Math::PASSES * (padded - from) / POSITIONS_PER_PREFETCH);
        const auto seen = [&](int64_t row) { return std::min<int64_t>(origin + token(row) + 1 - start, to); };
        math.pack_keys(segment);
        for (int64_t r = 0; r < rows; r += Math::ROWS_PER_SCORE) {
            const int64_t count = std::min<int64_t>(rows - r, Math::ROWS_PER_SCORE);
            math.score(segment, r, count, int(seen(r + count - 1)), work.lines + r * LINE);
        }
        math.pack_values(segment);  // overlaps with the matrix unit computing scores
        for (int64_t r = 0; r < rows; r++) {
            float* const line = work.lines + r * LINE;
            const int64_t unseen = p.window ? origin + token(r) + 1 - start - p.window : 0;
            float &highest = is_first ? most[r] : segment_most[r], &weight = is_first ? mass[r] : segment_mass[r];
            soften(line, from, padded, unseen, seen(r), highest, weight, [&](int j, F16 weights) {
                return math.keep(line, r, j, weights);
            });
        }
        math.weigh(segment, work.lines, rows, is_first ? work.totals : work.sums);
        math.ahead.fetch_rest();
        if (is_first) continue;
        for (int64_t r = 0; r < rows; r++)
            if (segment_most[r] != MINUS_INFINITY)
                join<V>(segment_most[r], segment_mass[r], work.sums + r * D, most[r], mass[r], work.totals + r * D);
    }
    for (int64_t r = 0; r < rows; r++) {
        const F16 share = splat(1.0f / mass[r]);
        F16 mean[V];
        for (int d = 0; d < V; d++) mean[d] = load(work.totals + r * D + d * LANES) * share;
        Math::restore_order(mean);
        const Operand::Line line = out.line(token(r));
        if constexpr (V % 2 == 0)
            for (int d = 0; d < V; d += 2) line.put(column(r) + d * LANES, mean[d], mean[d + 1]);
        else
            for (int d = 0; d < V; d++) line.put(column(r) + d * LANES, mean[d]);
    }
}

template <int V, class Number>
void attend(
    const Attention& p, const Tile& tile, int64_t kv_head, bool is_fetched, const SegmentPrefetcher& next, const Operand& out
) {
#if HAS_BF16_PAIRS
    if constexpr (V % 2 == 0 && sizeof(Number) == 2)
        if (tile.is_far) {
#if HAS_AMX
            if (has_amx()) return attend<AmxAttention<V>>(p, tile, kv_head, is_fetched, next, out);
#endif
            if ((tile.last - tile.first) * p.query_heads / p.kv_heads <= PairAttention<V, true>::ROWS_PER_SCORE)
                return attend<PairAttention<V, true>>(p, tile, kv_head, is_fetched, next, out);
            return attend<PairAttention<V, false>>(p, tile, kv_head, is_fetched, next, out);
        }
#endif
    attend<VectorAttention<V, Number>>(p, tile, kv_head, is_fetched, next, out);
}

std::vector<Tile> tiles_of(const Attention& p) {
    const int64_t group = p.query_heads / p.kv_heads;
    const int64_t max_queries = group < MAX_TILE_ROWS ? MAX_TILE_ROWS / group : 1;  // per tile
    const bool has_far = has_amx() || (p.allow_bf16_activations && has_layout(BFLOAT16_PAIRS));
    std::vector<Tile> tiles;
    for (int64_t chunk = 0; chunk < p.chunks; chunk++) {
        const int64_t end = p.start(chunk + 1), far = end - p.context_lens[chunk] + FAR;  // the row at position FAR
        for (int64_t first = p.start(chunk), last; first < end; first = last) {
            last = std::min(first + max_queries, first < far ? std::min(far, end) : end);
            tiles.push_back({chunk, first, last, has_far && first >= far});
        }
    }
    // A thread starts with the rows that it has rotated. Its share is reversed, because within a chunk the last rows have
    // the longest contexts.
    const int64_t shares = Pool::instance().threads(), count = tiles.size();
    for (int64_t i = 0; i < shares; i++)
        std::reverse(tiles.begin() + count * i / shares, tiles.begin() + count * (i + 1) / shares);
    return tiles;
}

template <int V, class Number>
void run(const Attention& p, const Operand& out) {
    const std::vector<Tile> tiles = tiles_of(p);
    const int64_t count = tiles.size() * p.kv_heads;
    Pool::instance().each(count, [p, out, count, tiles = tiles.data()](int64_t task) {
        int64_t& fetched = workspace().fetched;
        const bool is_fetched = fetched == task;
        fetched = task + 1;  // a thread's tasks are consecutive
        SegmentPrefetcher next;
        if (fetched < count) {
            const Tile& tile = tiles[fetched / p.kv_heads];
            next = segment_ahead<Number>(p, tile.chunk, fetched % p.kv_heads, tile.begin(p), tile.end(p));
        }
        attend<V, Number>(p, tiles[task / p.kv_heads], task % p.kv_heads, is_fetched, next, out);
    });
}

template <int V>
void run(const Attention& p, const Operand& out) {
    return p.is_bf16 ? run<V, uint16_t>(p, out) : run<V, float>(p, out);
}

}  // namespace

bool supports_attention(int64_t dim, int64_t group) {
    const int64_t v = dim / LANES;
    return dim % LANES == 0 && (v == 1 || v == 2 || v == 4 || v == 5 || v == 6 || v == 8 || v == 12 || v == 16) &&
           group <= MAX_TILE_ROWS;
}

std::vector<ByteRange> cache_ranges(const Attention& p) {
    const int64_t bytes = p.is_bf16 ? sizeof(uint16_t) : sizeof(float);  // per value
    std::vector<ByteRange> found;
    for (const Tile& tile : tiles_of(p))
        for (int64_t kv_head = 0; kv_head < p.kv_heads; kv_head++)
            for (int64_t at = tile.begin(p), next; at < tile.end(p); at = next) {
                const int64_t page = at / p.page_size, offset = at % p.page_size;
                next = std::min(at - offset + p.page_size, tile.end(p));
                const int64_t row = p.page_table[tile.chunk * p.width + page] * p.page_stride +
                                    (kv_head * p.page_size + offset) * p.dim;
                found.push_back({row * bytes, (next - at) * p.dim * bytes});
            }
    return found;
}

void attention(const Attention& p, const Operand& out) {
    switch (p.dim / LANES) {
        case 1: return run<1>(p, out);
        case 2: return run<2>(p, out);
        case 4: return run<4>(p, out);
        case 5: return run<5>(p, out);
        case 6: return run<6>(p, out);
        case 8: return run<8>(p, out);
        case 12: return run<12>(p, out);
        case 16: return run<16>(p, out);
    }
}
