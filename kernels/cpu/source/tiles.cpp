#include "tiles.h"

#if defined(__linux__) && defined(__AMX_BF16__) && defined(__AVX512BF16__)

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>

#include "panel.h"
#include "pool.h"

namespace {

constexpr int ROWS = 16;                           // of a tile
constexpr int DEPTH = 32;                          // values of k in a tile
constexpr int ALL = 3;                             // parts of a float: each has 8 of its 24 bits
constexpr int64_t TILE = ROWS * DEPTH;             // numbers
constexpr int64_t LINE = 16;                       // words
constexpr int64_t STEP_WORDS = PANEL * DEPTH / 2;  // of a panel, for DEPTH values of k
constexpr int64_t STEP_LINES = STEP_WORDS / LINE;
constexpr int64_t AHEAD = 4;       // steps, 8 KiB: what is fetched so far ahead is there in time
constexpr int64_t OWN = 64;        // rows up to which each thread cuts them for itself
constexpr int64_t ROOM = 1 << 20;  // bytes of rows that are multiplied with a panel while both are in the cache

inline int64_t steps_of(int64_t inputs) { return (inputs + DEPTH - 1) / DEPTH; }

// The unit, set to a number of rows for as long as this lives: sums in tiles 0 to 3, the parts of the rows in 4 to 6, the
// weight in 7.
class Unit {
  public:
    ~Unit() { _tile_release(); }

    void set(int64_t rows) {
        if (rows == rows_) return;
        rows_ = rows;
        struct {
            uint8_t palette = 1, start = 0, reserved[14] = {};
            uint16_t bytes[16] = {};
            uint8_t rows[16] = {};
        } shape;
        for (int tile = 0; tile < 8; tile++) {
            shape.bytes[tile] = DEPTH * sizeof(uint16_t);
            shape.rows[tile] = tile < 7 ? rows : ROWS;
        }
        _tile_loadconfig(&shape);
    }

  private:
    int64_t rows_ = 0;
};

// Rows cut into parts, tile by tile: [rows / 16][inputs / 32][parts][16][32] numbers in bfloat16. One for each thread.
class Cut {
  public:
    ~Cut() { std::free(numbers_); }

    static int64_t tiles(int64_t rows) { return (rows + ROWS - 1) / ROWS; }

    // By all threads together, for all of them.
    const uint16_t* share(const Linear& layer, const float* x, int64_t rows) {
        reserve(layer, rows);
        uint16_t* numbers = numbers_;
        Pool::instance().each(tiles(rows), [=, &layer](int64_t tile) { cut_tile(layer, x, tile, rows, numbers); });
        return numbers;
    }

    // By each thread for itself, once for a problem: to fetch a few rows from another core would take longer.
    const uint16_t* own(uint64_t problem, const Linear& layer, const float* x, int64_t rows) {
        if (problem != problem_) {
            problem_ = problem;
            reserve(layer, rows);
            for (int64_t tile = 0; tile < tiles(rows); tile++) cut_tile(layer, x, tile, rows, numbers_);
        }
        return numbers_;
    }

  private:
    void reserve(const Linear& layer, int64_t rows) {
        const int64_t size = tiles(rows) * steps_of(layer.inputs) * layer.parts * TILE;
        if (size <= room_) return;
        std::free(numbers_);
        numbers_ = static_cast<uint16_t*>(std::aligned_alloc(64, size * sizeof(uint16_t)));
        room_ = size;
    }

    static void cut_tile(const Linear& layer, const float* x, int64_t tile, int64_t rows, uint16_t* numbers) {
        const int64_t steps = steps_of(layer.inputs);
        for (int64_t row = tile * ROWS; row < rows && row < (tile + 1) * ROWS; row++)
            for (int64_t step = 0; step < steps; step++)
                cut(x + row * layer.inputs, step * DEPTH, layer.inputs, layer.parts,
                    numbers + (tile * steps + step) * layer.parts * TILE + row % ROWS * DEPTH);
    }

    // Each part is what the ones before leave of a number, rounded; what the third leaves is nothing.
    static void cut(const float* line, int64_t k, int64_t inputs, int64_t parts, uint16_t* out) {
        __m512 low, high;
        if (k + DEPTH <= inputs) {
            low = _mm512_loadu_ps(line + k);
            high = _mm512_loadu_ps(line + k + LANES);
        } else {
            float some[DEPTH] = {};
            std::memcpy(some, line + k, (inputs - k) * sizeof(float));
            low = _mm512_loadu_ps(some);
            high = _mm512_loadu_ps(some + LANES);
        }
        for (int64_t part = 0; part < parts; part++) {
            const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(high, low);
            _mm512_store_si512(out + part * TILE, both);
            low = _mm512_sub_ps(low, wide(_mm512_castsi512_si256(both)));
            high = _mm512_sub_ps(high, wide(_mm512_extracti64x4_epi64(both, 1)));
        }
    }

    static __m512 wide(__m256i narrow) {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16));
    }

    uint16_t* numbers_ = nullptr;
    int64_t room_ = 0;
    uint64_t problem_ = 0;
};

thread_local Cut shared_cut, own_cut;
std::atomic<uint64_t> problems{0};

// Products of a tile of rows with one panel or two: low and high outputs of the first, and of the second.
struct alignas(64) Sums {
    float tiles[4][ROWS][LANES];

    F16 low(int64_t row, int panel = 0) const { return load(tiles[2 * panel][row]); }
    F16 high(int64_t row, int panel = 0) const { return load(tiles[2 * panel + 1][row]); }
};

// The parts of the rows times the weight, smallest first. A macro, as the unit's tiles are named by constants.
#define ADD_TO(sum)                  \
    if constexpr (PARTS == ALL) {    \
        _tile_dpbf16ps(sum, 6, 7);   \
        _tile_dpbf16ps(sum, 5, 7);   \
    }                                \
    _tile_dpbf16ps(sum, 4, 7);

// A layer, and a batch of rows as cut.
struct Problem {
    const Linear& layer;
    const float* x;
    int64_t rows;
    const uint16_t* shared;  // the rows as cut; null where each thread cuts them for itself
    uint64_t id = ++problems;
    int64_t tiles = Cut::tiles(rows), steps = steps_of(layer.inputs), words = steps * STEP_WORDS;

    int64_t rows_of(int64_t tile) const { return tile + 1 < tiles ? int64_t(ROWS) : rows - tile * ROWS; }

    // A tile of rows with a panel; with TWO also with `other`, which takes less time than one after the other. The panels
    // that this thread will take next lie `stride` behind.
    template <bool TWO>
    void multiply(Unit& unit, int64_t tile, int64_t panel, int64_t other, int64_t stride, Sums& sums) const {
        unit.set(rows_of(tile));
        if (layer.parts == ALL)
            walk<TWO, ALL>(tile, panel, other, stride, sums);
        else
            walk<TWO, 1>(tile, panel, other, stride, sums);
    }

  private:
    template <bool TWO, int PARTS>
    void walk(int64_t tile, int64_t panel, int64_t other, int64_t stride, Sums& sums) const {
        const uint16_t* x = (shared ? shared : own_cut.own(id, layer, this->x, rows)) + tile * steps * PARTS * TILE;
        const uint32_t *w = at(panel), *v = at(other);
        // As in linear.cpp: where there is one walk it fetches what it comes to, of many each its share of what is next.
        const int64_t from = STEP_LINES * tile / tiles, to = STEP_LINES * (tile + 1) / tiles;
        int64_t distance = tiles == 1 ? AHEAD * STEP_WORDS : stride * words;
        _tile_zero(0);
        _tile_zero(1);
        if constexpr (TWO) {
            _tile_zero(2);
            _tile_zero(3);
        }
        for (int64_t step = 0; step < steps; step++) {
            if (tiles == 1 && step + AHEAD == steps) distance += (stride - 1) * words;
            fetch(w + distance, from, to);
            _tile_loadd(4, x, 64);
            if constexpr (PARTS == ALL) {
                _tile_loadd(5, x + TILE, 64);
                _tile_loadd(6, x + 2 * TILE, 64);
            }
            _tile_loadd(7, w, 64);
            ADD_TO(0)
            _tile_loadd(7, w + STEP_WORDS / 2, 64);
            ADD_TO(1)
            if constexpr (TWO) {
                fetch(v + distance, from, to);
                _tile_loadd(7, v, 64);
                ADD_TO(2)
                _tile_loadd(7, v + STEP_WORDS / 2, 64);
                ADD_TO(3)
            }
            x += PARTS * TILE;
            w += STEP_WORDS;
            v += STEP_WORDS;
        }
        _tile_stored(0, sums.tiles[0], 64);
        _tile_stored(1, sums.tiles[1], 64);
        if constexpr (TWO) {
            _tile_stored(2, sums.tiles[2], 64);
            _tile_stored(3, sums.tiles[3], 64);
        }
    }

    const uint32_t* at(int64_t panel) const { return static_cast<const uint32_t*>(layer.packed) + panel * words; }

    static void fetch(const uint32_t* words, int64_t from, int64_t to) {
        for (int64_t line = from; line < to; line++) __builtin_prefetch(words + line * LINE, 0, 2);
    }
};

// f(first row, problem) for as many rows at a time as fit beside a panel.
template <class F>
void each_batch(const Linear& layer, const float* x, int64_t rows, const F& f) {
    const int64_t tile = steps_of(layer.inputs) * layer.parts * TILE * int64_t(sizeof(uint16_t));
    const int64_t most = tile < ROOM ? ROOM / tile * ROWS : ROWS;
    for (int64_t first = 0; first < rows; first += most) {
        const int64_t count = rows - first < most ? rows - first : most;
        const float* from = x + first * layer.inputs;
        f(first, Problem{layer, from, count, count > OWN ? shared_cut.share(layer, from, count) : nullptr});
    }
}

bool permitted() {
    constexpr long REQUEST = 0x1023, TILE_DATA = 18;  // Linux's ARCH_REQ_XCOMP_PERM and XFEATURE_XTILE_DATA
    return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
}

}  // namespace

bool has_tiles() {
    static const bool answer = permitted();
    return answer;
}

void tiled_linear(const Linear& layer, const float* x, int64_t rows, const float* residual, float* y) {
    const int64_t count = panels(layer.outputs);
    each_batch(layer, x, rows, [&](int64_t before, const Problem& problem) {
        const auto keep = [&](const Sums& sums, int which, int64_t tile, int64_t panel) {
            const PanelBias bias(layer, panel);
            for (int64_t row = 0; row < problem.rows_of(tile); row++)
                put(sums.low(row, which) + bias.low, sums.high(row, which) + bias.high, before + tile * ROWS + row, panel,
                    layer.outputs, residual, y);
        };
        // Two by two, but for the first panel and, of an even number, the last: so two threads have the same to do.
        Pool::instance().each(count / 2 + 1, [&](int64_t task) {
            const int64_t panel = task ? 2 * task - 1 : 0;
            const bool alone = task == 0 || panel + 1 == count;
            Unit unit;
            for (int64_t tile = 0; tile < problem.tiles; tile++) {
                Sums sums;
                if (alone) {
                    problem.multiply<false>(unit, tile, panel, panel, 1, sums);
                    keep(sums, 0, tile, panel);
                } else {
                    problem.multiply<true>(unit, tile, panel, panel + 1, 2, sums);
                    keep(sums, 0, tile, panel);
                    keep(sums, 1, tile, panel + 1);
                }
            }
        });
    });
}

void tiled_gated_linear(const Linear& layer, const float* x, int64_t rows, float* y) {
    const int64_t size = layer.outputs / 2, count = panels(size);
    each_batch(layer, x, rows, [&](int64_t before, const Problem& problem) {
        Pool::instance().each(count, [&](int64_t panel) {
            const PanelBias gate(layer, panel), up(layer, count + panel);
            Unit unit;
            for (int64_t tile = 0; tile < problem.tiles; tile++) {
                Sums sums;
                problem.multiply<true>(unit, tile, panel, count + panel, 1, sums);
                for (int64_t row = 0; row < problem.rows_of(tile); row++)
                    put(silu16(sums.low(row) + gate.low) * (sums.low(row, 1) + up.low),
                        silu16(sums.high(row) + gate.high) * (sums.high(row, 1) + up.high), before + tile * ROWS + row,
                        panel, size, nullptr, y);
            }
        });
    });
}

int64_t tile_words(int64_t outputs, int64_t inputs) { return panels(outputs) * steps_of(inputs) * STEP_WORDS; }

void pack_tiles(const uint16_t* weight, int64_t outputs, int64_t inputs, uint32_t* packed) {
    const int64_t steps = steps_of(inputs);
    Pool::instance().each(panels(outputs), [=](int64_t panel) {
        uint32_t* word = packed + panel * steps * STEP_WORDS;
        const auto at = [=](int64_t output, int64_t k) -> uint32_t {
            return output < outputs && k < inputs ? weight[output * inputs + k] : 0;
        };
        for (int64_t step = 0; step < steps; step++)
            for (int64_t half = 0; half < 2; half++)
                for (int64_t pair = 0; pair < DEPTH / 2; pair++)
                    for (int64_t lane = 0; lane < LANES; lane++) {
                        const int64_t output = panel * PANEL + half * LANES + lane, k = step * DEPTH + 2 * pair;
                        *word++ = at(output, k + 1) << 16 | at(output, k);
                    }
    });
}

#else

#include <cstdlib>

// Never called: nothing has this layout.
bool has_tiles() { return false; }
int64_t tile_words(int64_t, int64_t) { std::abort(); }
void pack_tiles(const uint16_t*, int64_t, int64_t, uint32_t*) { std::abort(); }
void tiled_linear(const Linear&, const float*, int64_t, const float*, float*) { std::abort(); }
void tiled_gated_linear(const Linear&, const float*, int64_t, float*) { std::abort(); }

#endif
