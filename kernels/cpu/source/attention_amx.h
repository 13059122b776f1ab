// Multiplications of attention on the matrix unit (AMX), for bfloat16 caches. As in amx_linear.h, queries and weights are
// split
// into three bfloat16 values that add up to them exactly, so only sums are rounded. A tile of 16 rows is multiplied with
// four tiles of 16 positions, and then with four tiles of 16 columns of their values.
#pragma once

#include "attention_packed.h"
#include "amx.h"

#if HAS_AMX

template <int VECTORS>
struct AmxAttention : PackedKV<VECTORS> {
    using typename PackedKV<VECTORS>::Number;
    using PackedKV<VECTORS>::V, PackedKV<VECTORS>::D, PackedKV<VECTORS>::STEP, PackedKV<VECTORS>::PARTS_PER_STEP;
    using PackedKV<VECTORS>::keys, PackedKV<VECTORS>::values, PackedKV<VECTORS>::ahead;
    static constexpr int ROWS_PER_SCORE = Operand::ROWS;
    static constexpr int TILES = MAX_TILE_ROWS / ROWS_PER_SCORE, ALL = Operand::ALL;
    static constexpr int PASSES = 4;  // packing keys, scoring, packing values, weighing: each prefetches a share of `ahead`
    static constexpr int64_t TILE = Operand::TILE, WORDS = TILE / 2;

    // Tiles of rows in the layout of Operand: queries by D, weights by positions.
    alignas(64) uint16_t queries[TILES * (D / STEP) * ALL * TILE];
    alignas(64) uint16_t weights[TILES * (SEGMENT / STEP) * ALL * TILE];
    AmxConfig unit;

    explicit AmxAttention(int64_t rows) { unit.set(rows < ROWS_PER_SCORE ? rows : ROWS_PER_SCORE); }

    void load_query(int64_t row, const float* query, float scale) {
        const Operand::Line line = Operand::in_tiles(queries, D, ALL).line(row);
        for (int d = 0; d < V; d++) line.put(d * LANES, load(query + d * LANES) * splat(scale));
    }

    void score(const Segment<Number>& segment, int64_t row, int64_t, int last, float* lines) {
        const uint16_t* x = queries + row / ROWS_PER_SCORE * (D / STEP) * ALL * TILE;
        const int from = segment.from / LANES, end = (last + LANES - 1) / LANES;
        for (int block = from; block < end; block += 4)
            multiply(
                end - block, x, D / STEP, keys[block][0][0], WORDS, D / STEP * WORDS, lines + block * LANES, LINE,
                [&] { fetch_at(row); }
            );
    }

    F16 keep(float*, int64_t row, int j, F16 some) {
        Operand::in_tiles(weights, SEGMENT, ALL).line(row).put(j, some);
        return some;
    }

    void weigh(const Segment<Number>& segment, const float*, int64_t rows, float* sums) {
        const int from = segment.from / STEP, end = segment.padded / STEP;
        const auto x = [&](int64_t row) { return weights + (row / ROWS_PER_SCORE * (SEGMENT / STEP) + from) * ALL * TILE; };
        for (int64_t row = 0; row < rows; row += ROWS_PER_SCORE)
            for (int d = 0; d < V; d += 4)
                multiply(
                    V - d, x(row), end - from, values[from][d][0], V * WORDS, WORDS, sums + row * D + d * LANES, D,
                    [&] { fetch_at(row); }
                );
    }

  private:
    // Prefetch only for the first tile of rows, because the other tiles pass over the same positions again.
    void fetch_at(int64_t row) {
        if (row == 0) ahead.fetch(PARTS_PER_STEP);
    }

    // y = x @ w for one tile of rows, `steps` tiles of three parts long, and N adjacent tiles of words (`tiles`, at most
    // four). In w, consecutive steps are `step` words apart and consecutive tiles `tile` words. Rows of y are `width` floats
    // apart. meanwhile() is called before each tile of words.
    template <class F>
    static void multiply(
        int64_t tiles, const uint16_t* x, int64_t steps, const uint32_t* w, int64_t step, int64_t tile, float* y,
        int64_t width, const F& meanwhile
    ) {
        switch (tiles) {
            case 1: return multiply<1>(x, steps, w, step, tile, y, width, meanwhile);
            case 2: return multiply<2>(x, steps, w, step, tile, y, width, meanwhile);
            case 3: return multiply<3>(x, steps, w, step, tile, y, width, meanwhile);
            default: return multiply<4>(x, steps, w, step, tile, y, width, meanwhile);
        }
    }

    template <int N, class F>
    static void multiply(
        const uint16_t* x, int64_t steps, const uint32_t* w, int64_t step, int64_t tile, float* y, int64_t width,
        const F& meanwhile
    ) {
#define EACH_SUM(how)             \
    how(0);                       \
    if constexpr (N > 1) how(1);  \
    if constexpr (N > 2) how(2);  \
    if constexpr (N > 3) how(3);
#define ADD_TO(sum)                             \
    {                                           \
        meanwhile();                            \
        _tile_loadd(7, w + sum * tile, 64);     \
        _tile_dpbf16ps(sum, 6, 7);              \
        _tile_dpbf16ps(sum, 5, 7);              \
        _tile_dpbf16ps(sum, 4, 7);              \
    }
#define KEEP(sum) _tile_stored(sum, y + sum * LANES, width * sizeof(float))
        EACH_SUM(_tile_zero)
        for (; steps > 0; steps--, x += ALL * TILE, w += step) {
            _tile_loadd(4, x, 64);
            _tile_loadd(5, x + TILE, 64);
            _tile_loadd(6, x + 2 * TILE, 64);
            EACH_SUM(ADD_TO)
        }
        EACH_SUM(KEEP)
#undef EACH_SUM
#undef ADD_TO
#undef KEEP
    }
};

#endif
