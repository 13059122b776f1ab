// Attention's multiplications on the matrix unit, for caches in bfloat16. As in tiles.h, a query and a weight are cut into
// three numbers whose sum they are, so nothing is rounded but sums. A tile of 16 rows is multiplied with four of 16
// positions, and then with four of 16 numbers of their values.
#pragma once

#include "segment.h"
#include "unit.h"

#if HAS_UNIT

template <int VECTORS>
struct OnUnit {
    typedef uint16_t Number;
    static constexpr int V = VECTORS, D = V * LANES;
    static constexpr int TOGETHER = Operand::ROWS, STEP = Operand::DEPTH;
    static constexpr int TILES = MOST_ROWS / TOGETHER, ALL = Operand::ALL;
    static constexpr int WALKS = 4;  // taking keys, scoring, taking values, weighing: each fetches its share of `ahead`
    static constexpr int AT_ONCE = 4 * STEP < D ? 1 : 4 * STEP / D;  // of its parts, where D / STEP steps are a walk's
    static constexpr int64_t TILE = Operand::TILE, WORDS = TILE / 2;

    // Tiles. Rows of numbers as Operand has them, queries by D and weights by positions; and words of two numbers that are
    // multiplied with two in a row: of keys two of D, by 16 positions, of values two positions, by 16 of D.
    alignas(64) uint16_t queries[TILES * (D / STEP) * ALL * TILE];
    alignas(64) uint16_t weights[TILES * (SEGMENT / STEP) * ALL * TILE];
    alignas(64) uint32_t keys[SEGMENT / LANES][D / STEP][LANES][LANES];
    alignas(64) uint32_t values[SEGMENT / STEP][V][LANES][LANES];
    Unit unit;
    Ahead ahead;

    explicit OnUnit(int64_t rows) { unit.set(rows < TOGETHER ? rows : TOGETHER); }

    void take_query(int64_t row, const float* query, float scale) {
        const Operand::Line line = Operand::in_tiles(queries, D, ALL).line(row);
        for (int d = 0; d < V; d++) line.put(d * LANES, load(query + d * LANES) * splat(scale));
    }

    void take_keys(const Segment<Number>& segment) {
        for (int j = segment.from; j < segment.to; j += LANES)
            for (int d = 0; d < D / STEP; d++) {
                ahead.fetch(AT_ONCE);
                turn(segment.keys + j, d * STEP, keys[j / LANES][d]);
            }
    }

    void take_values(const Segment<Number>& segment) {
        for (int j = segment.from; j < segment.padded; j += 2) {
            if (j % FETCH_EVERY == 0) ahead.fetch();
            for (int d = 0; d < D; d += STEP) {
                const __m512i one = _mm512_loadu_si512(segment.values[j] + d);
                const __m512i two = _mm512_loadu_si512(segment.values[j + 1] + d);
                _mm512_store_si512(values[j / STEP][d / LANES][j % STEP / 2], _mm512_unpacklo_epi16(one, two));
                _mm512_store_si512(values[j / STEP][d / LANES + 1][j % STEP / 2], _mm512_unpackhi_epi16(one, two));
            }
        }
    }

    void score(const Segment<Number>& segment, int64_t row, int64_t, int last, float* lines) {
        const uint16_t* x = queries + row / TOGETHER * (D / STEP) * ALL * TILE;
        const int from = segment.from / LANES, end = (last + LANES - 1) / LANES;
        for (int block = from; block < end; block += 4)
            multiply(
                end - block, x, D / STEP, keys[block][0][0], WORDS, D / STEP * WORDS, lines + block * LANES, LINE,
                [&] { fetch_at(row); }
            );
    }

    void keep(float*, int64_t row, int j, F16 some) {
        Operand::in_tiles(weights, SEGMENT, ALL).line(row).put(j, some);
    }

    void weigh(const Segment<Number>& segment, const float*, int64_t rows, float* sums) {
        const int from = segment.from / STEP, end = segment.padded / STEP;
        const auto x = [&](int64_t row) { return weights + (row / TOGETHER * (SEGMENT / STEP) + from) * ALL * TILE; };
        for (int64_t row = 0; row < rows; row += TOGETHER)
            for (int d = 0; d < V; d += 4)
                multiply(
                    V - d, x(row), end - from, values[from][d][0], V * WORDS, WORDS, sums + row * D + d * LANES, D,
                    [&] { fetch_at(row); }
                );
    }

    // Sums come in the order of `values`: of two vectors the first and third four of each half, then the second and fourth.
    static void put_right(F16 (&sums)[V]) {
        for (int d = 0; d < V; d += 2) {
            const F16 a = sums[d], b = sums[d + 1];
            sums[d] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
            sums[d + 1] = __builtin_shufflevector(a, b, 8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
        }
    }

  private:
    // Only for the first tile of rows: the others walk over the same positions again.
    void fetch_at(int64_t row) {
        if (row == 0) ahead.fetch(AT_ONCE);
    }

    // 16 words of 16 rows, turned: to[word][row].
    static void turn(const Number* const* rows, int64_t at, uint32_t (*to)[LANES]) {
        for (int quarter = 0; quarter < 4; quarter++) {
            __m512i r[4];
            for (int i = 0; i < 4; i++) {
                const auto four = [&](int row) {
                    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[row] + at + 8 * quarter));
                };
                r[i] = _mm512_castsi128_si512(four(i));
                r[i] = _mm512_inserti32x4(r[i], four(i + 4), 1);
                r[i] = _mm512_inserti32x4(r[i], four(i + 8), 2);
                r[i] = _mm512_inserti32x4(r[i], four(i + 12), 3);
            }
            const __m512i a = _mm512_unpacklo_epi32(r[0], r[1]), b = _mm512_unpackhi_epi32(r[0], r[1]);
            const __m512i c = _mm512_unpacklo_epi32(r[2], r[3]), d = _mm512_unpackhi_epi32(r[2], r[3]);
            _mm512_store_si512(to[4 * quarter], _mm512_unpacklo_epi64(a, c));
            _mm512_store_si512(to[4 * quarter + 1], _mm512_unpackhi_epi64(a, c));
            _mm512_store_si512(to[4 * quarter + 2], _mm512_unpacklo_epi64(b, d));
            _mm512_store_si512(to[4 * quarter + 3], _mm512_unpackhi_epi64(b, d));
        }
    }

    // y = x @ w: a tile of rows, `steps` tiles of three parts long, with N tiles of words next to each other, or `tiles` of
    // them, up to four. In w the next step lies `step` words behind, the next tile `tile`; rows of y are `width` floats.
    // meanwhile() is called before each tile of words.
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
