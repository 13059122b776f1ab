#include "amx_linear.h"

#include "amx.h"

#if HAS_AMX

#include <sys/syscall.h>
#include <unistd.h>

#include <vector>

#include "panel.h"
#include "pool.h"
#include "result.h"

namespace {

constexpr int ROWS = Operand::ROWS, DEPTH = Operand::DEPTH, ALL = Operand::ALL;
constexpr int64_t TILE = Operand::TILE;            // values
constexpr int64_t LINE = 16;                       // words per cache line
constexpr int64_t STEP_WORDS = PANEL * DEPTH / 2;  // words of a panel for DEPTH values of k
constexpr int64_t STEP_LINES = STEP_WORDS / LINE;
constexpr int64_t AHEAD = 4;       // prefetch distance in steps: 8 KiB ahead arrives in time
constexpr int64_t BLOCK = 12;      // steps: 24 KiB of a panel stay in the L1 cache together with the rows
constexpr int64_t MAX_BATCH_BYTES = 1 << 20;  // rows of this size stay in the L2 cache

// Products of a tile of rows with a panel: low outputs and high outputs.
struct alignas(64) Sums {
    float tiles[2][ROWS][LANES];

    F16 low(int64_t row) const { return load(tiles[0][row]); }
    F16 high(int64_t row) const { return load(tiles[1][row]); }
};

// Return a thread-local buffer.
template <class T>
T* thread_buffer(int64_t count) {
    thread_local std::vector<T> buffer;
    if (int64_t(buffer.size()) < count) buffer.resize(count);
    return buffer.data();
}

// Move the sums between the unit and memory: all four, or the first two without TWO. Macros, because tile registers must be
// named by constants.
#define MOVE_SUMS(how, sums)             \
    how(0, (sums)[0].tiles[0], 64);      \
    how(1, (sums)[0].tiles[1], 64);      \
    if constexpr (TWO) {                 \
        how(2, (sums)[1].tiles[0], 64);  \
        how(3, (sums)[1].tiles[1], 64);  \
    }
#define CLEAR_SUMS       \
    _tile_zero(0);       \
    _tile_zero(1);       \
    if constexpr (TWO) { \
        _tile_zero(2);   \
        _tile_zero(3);   \
    }

// A layer and a batch of split rows.
struct Problem {
    const Linear& layer;
    const uint16_t* x;
    int64_t rows;
    int64_t tiles = Operand::tiles(rows), steps = Operand::steps(layer.inputs), words = steps * STEP_WORDS;

    // Return whether the tiles of rows are so few that each tile is multiplied with two panels at a time.
    bool is_small() const { return tiles <= (layer.parts == ALL ? 8 : 1); }

    int64_t rows_of(int64_t tile) const { return tile + 1 < tiles ? int64_t(ROWS) : rows - tile * ROWS; }

    // Multiply all tiles of rows with `panel`, and with `other` if TWO, calling done(tile, sums, sums with `other`). The
    // panels that this thread takes next are `stride` panels further.
    template <bool TWO, class Done>
    void multiply(int64_t panel, int64_t other, int64_t stride, const Done& done) const {
        if (layer.parts == ALL)
            multiply<TWO, ALL>(panel, other, stride, done);
        else
            multiply<TWO, 1>(panel, other, stride, done);
    }

  private:
    template <bool TWO, int PARTS, class Done>
    void multiply(int64_t panel, int64_t other, int64_t stride, const Done& done) const {
        AmxConfig unit;
        if (is_small()) {
            Sums* const sums = thread_buffer<Sums>(2);
            for (int64_t tile = 0; tile < tiles; tile++) {
                unit.set(rows_of(tile));
                walk_across<TWO, PARTS>(tile, panel, other, stride, sums);
                done(tile, sums[0], sums[1]);
            }
            return;
        }
        unit.set(ROWS);
        Sums *const sums = thread_buffer<Sums>(2 * tiles), *const others = sums + tiles;
        if constexpr (PARTS == 1)
            if (tiles == 2) {
                walk_both(panel, TWO ? other : panel + stride, sums);
                if constexpr (TWO) walk_both(other, panel + stride, others);
                for (int64_t tile = 0; tile < tiles; tile++) done(tile, sums[tile], TWO ? others[tile] : sums[tile]);
                return;
            }
        if constexpr (TWO) {
            walk_down<PARTS>(panel, other, sums, [](int64_t) {});
            walk_down<PARTS>(other, panel + stride, others, [&](int64_t tile) { done(tile, sums[tile], others[tile]); });
        } else {
            walk_down<PARTS>(panel, panel + stride, sums, [&](int64_t tile) { done(tile, sums[tile], sums[tile]); });
        }
    }

    // Multiply one tile of rows with one panel or two.
    template <bool TWO, int PARTS>
    void walk_across(int64_t tile, int64_t panel, int64_t other, int64_t stride, Sums* sums) const {
        const uint16_t* x = this->x + tile * steps * PARTS * TILE;
        const uint32_t *w = at(panel), *v = at(other);
        // Prefetch as in linear.cpp: a single walk prefetches its own panel, several walks each a share of the next panel.
        // One half comes before and one after some loads, which would otherwise wait for all of it.
        const int64_t from = STEP_LINES * tile / tiles, to = STEP_LINES * (tile + 1) / tiles, half = (from + to) / 2;
        int64_t distance = tiles == 1 ? AHEAD * STEP_WORDS : stride * words;
        CLEAR_SUMS
        for (int64_t step = 0; step < steps; step++) {
            if (tiles == 1 && step + AHEAD == steps) distance += (stride - 1) * words;
            fetch(w + distance, from, half);
            _tile_loadd(4, x, 64);
            if constexpr (PARTS == ALL) {
                _tile_loadd(5, x + TILE, 64);
                _tile_loadd(6, x + 2 * TILE, 64);
            }
#define ADD_TO(sum)                \
    if constexpr (PARTS == ALL) {  \
        _tile_dpbf16ps(sum, 6, 7); \
        _tile_dpbf16ps(sum, 5, 7); \
    }                              \
    _tile_dpbf16ps(sum, 4, 7);
            _tile_loadd(7, w, 64);
            ADD_TO(0)
            fetch(w + distance, half, to);
            _tile_loadd(7, w + STEP_WORDS / 2, 64);
            ADD_TO(1)
            if constexpr (TWO) {
                fetch(v + distance, from, half);
                _tile_loadd(7, v, 64);
                ADD_TO(2)
                fetch(v + distance, half, to);
                _tile_loadd(7, v + STEP_WORDS / 2, 64);
                ADD_TO(3)
            }
#undef ADD_TO
            x += PARTS * TILE;
            w += STEP_WORDS;
            v += STEP_WORDS;
        }
        MOVE_SUMS(_tile_stored, sums)
    }

    // Multiply two tiles of rows (all there are) with one panel. The next data is prefetched a quarter step at a time.
    void walk_both(int64_t panel, int64_t next, Sums* sums) const {
        constexpr bool TWO = true;
        const uint16_t *x = this->x, *y = x + steps * TILE;
        const uint32_t *w = at(panel), *ahead = w + AHEAD * STEP_WORDS;
        CLEAR_SUMS
        for (int64_t step = 0; step < steps; step++) {
            if (step + AHEAD == steps) ahead = at(next);
            fetch(ahead, 0, STEP_LINES / 4);
            _tile_loadd(4, x, 64);
            _tile_loadd(6, w, 64);
            _tile_dpbf16ps(0, 4, 6);
            fetch(ahead, STEP_LINES / 4, STEP_LINES / 2);
            _tile_loadd(7, w + STEP_WORDS / 2, 64);
            _tile_dpbf16ps(1, 4, 7);
            fetch(ahead, STEP_LINES / 2, 3 * STEP_LINES / 4);
            _tile_loadd(5, y, 64);
            _tile_dpbf16ps(2, 5, 6);
            fetch(ahead, 3 * STEP_LINES / 4, STEP_LINES);
            _tile_dpbf16ps(3, 5, 7);
            x += TILE;
            y += TILE;
            w += STEP_WORDS;
            ahead += STEP_WORDS;
        }
        MOVE_SUMS(_tile_stored, sums)
    }

    // Multiply all tiles of rows, two at a time, with one panel, in blocks that stay in the L1 cache. With two tiles of rows
    // and two of the weight in registers, four loads feed four multiplications. Calls done(tile).
    template <int PARTS, class Done>
    void walk_down(int64_t panel, int64_t next, Sums* sums, const Done& done) const {
        const int64_t blocks = (steps + BLOCK - 1) / BLOCK, size = (steps + blocks - 1) / blocks;
        for (int64_t first = 0; first < steps; first += size) {
            const int64_t last = first + size < steps ? first + size : steps;
            for (int64_t tile = 0; tile < tiles; tile += 2) {
                const bool alone = tile + 1 == tiles;
                if (alone)
                    walk_block<false, PARTS>(tile, panel, next, first, last, sums);
                else
                    walk_block<true, PARTS>(tile, panel, next, first, last, sums);
                if (last < steps) continue;
                done(tile);
                if (!alone) done(tile + 1);
            }
        }
    }

    // Process steps first..last-1 for one tile of rows or two, and prefetch a share of the next block.
    template <bool TWO, int PARTS>
    void walk_block(int64_t tile, int64_t panel, int64_t next, int64_t first, int64_t last, Sums* sums) const {
        const uint16_t *x = this->x + (tile * steps + first) * PARTS * TILE, *y = x + steps * PARTS * TILE;
        const uint32_t *w = at(panel) + first * STEP_WORDS, *ahead = last < steps ? at(panel) + last * STEP_WORDS : at(next);
        const int64_t from = STEP_LINES * tile / tiles, to = STEP_LINES * (tile + (TWO ? 2 : 1)) / tiles;
        if (first) {
            MOVE_SUMS(_tile_loadd, sums + tile)
        } else {
            CLEAR_SUMS
        }
        for (int64_t step = first; step < last; step++) {
            fetch(ahead, from, to);
            _tile_loadd(6, w, 64);
            _tile_loadd(7, w + STEP_WORDS / 2, 64);
            for (int part = PARTS - 1; part >= 0; part--) {
                _tile_loadd(4, x + part * TILE, 64);
                _tile_dpbf16ps(0, 4, 6);
                _tile_dpbf16ps(1, 4, 7);
                if constexpr (TWO) {
                    _tile_loadd(5, y + part * TILE, 64);
                    _tile_dpbf16ps(2, 5, 6);
                    _tile_dpbf16ps(3, 5, 7);
                }
            }
            x += PARTS * TILE;
            y += PARTS * TILE;
            w += STEP_WORDS;
            ahead += STEP_WORDS;
        }
        MOVE_SUMS(_tile_stored, sums + tile)
    }

    const uint32_t* at(int64_t panel) const { return static_cast<const uint32_t*>(layer.packed) + panel * words; }

    static void fetch(const uint32_t* words, int64_t from, int64_t to) {
        for (int64_t line = from; line < to; line++) __builtin_prefetch(words + line * LINE, 0, 2);
    }
};

// Call f(first row, problem) for batches of rows that fit in the cache together with a panel.
template <class F>
void each_batch(const Linear& layer, const Operand& x, int64_t rows, const F& f) {
    const int64_t tile = Operand::steps(layer.inputs) * layer.parts * TILE * int64_t(sizeof(uint16_t));
    const int64_t max_rows = tile < MAX_BATCH_BYTES ? MAX_BATCH_BYTES / tile * ROWS : ROWS;
    for (int64_t first = 0; first < rows; first += max_rows) {
        const int64_t count = rows - first < max_rows ? rows - first : max_rows;
        f(first, Problem{layer, static_cast<const uint16_t*>(x.from(first).data), count});
    }
}

bool permitted() {
    constexpr long REQUEST = 0x1023, TILE_DATA = 18;  // Linux's ARCH_REQ_XCOMP_PERM and XFEATURE_XTILE_DATA
    return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
}

}  // namespace

bool has_amx() {
    static const bool answer = permitted();
    return answer;
}

void amx_linear(const Linear& layer, const Operand& x, int64_t rows, const Result& result) {
    const int64_t count = panels(layer.outputs);
    each_batch(layer, x, rows, [&](int64_t before, const Problem& problem) {
        const auto keep = [&](int64_t tile, const Sums& sums, const PanelResult& to) {
            for (int64_t row = 0; row < problem.rows_of(tile); row++)
                to.put(before + tile * ROWS + row, sums.low(row), sums.high(row));
        };
        const auto one = [&](int64_t panel) {
            const PanelResult to(layer, panel, result);
            problem.multiply<false>(panel, panel, 1, [&](int64_t tile, const Sums& sums, const Sums&) {
                keep(tile, sums, to);
            });
        };
        if (!problem.is_small()) return Pool::instance().each(count, one);
        // Panels in pairs, except the first and, if their number is even, the last: this balances two threads.
        Pool::instance().each(count / 2 + 1, [&](int64_t task) {
            const int64_t panel = task ? 2 * task - 1 : 0;
            if (task == 0 || panel + 1 == count) return one(panel);
            const PanelResult to(layer, panel, result), other(layer, panel + 1, result);
            problem.multiply<true>(panel, panel + 1, 2, [&](int64_t tile, const Sums& sums, const Sums& others) {
                keep(tile, sums, to);
                keep(tile, others, other);
            });
        });
    });
}

void amx_gated_linear(const Linear& layer, const Operand& x, int64_t rows, const float* factors, const Operand& y) {
    const int64_t count = panels(layer.outputs / 2);
    each_batch(layer, x, rows, [&](int64_t before, const Problem& problem) {
        Pool::instance().each(count, [&](int64_t panel) {
            const GatedPanel to(layer, panel, factors, y);
            problem.multiply<true>(panel, count + panel, 1, [&](int64_t tile, const Sums& gates, const Sums& ups) {
                for (int64_t row = 0; row < problem.rows_of(tile); row++)
                    to.put(before + tile * ROWS + row, gates.low(row), gates.high(row), ups.low(row), ups.high(row));
            });
        });
    });
}

int64_t amx_words(int64_t outputs, int64_t inputs) { return panels(outputs) * Operand::steps(inputs) * STEP_WORDS; }

void pack_amx(const uint16_t* weight, int64_t outputs, int64_t inputs, uint32_t* packed) {
    const int64_t steps = Operand::steps(inputs);
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

void unpack_amx(const Linear& layer, int64_t output, float* out) {
    const int64_t panel = output / PANEL, half = output % PANEL / LANES, lane = output % LANES;
    const uint32_t* const words = static_cast<const uint32_t*>(layer.packed) +
        panel * Operand::steps(layer.inputs) * STEP_WORDS + half * DEPTH / 2 * LANES + lane;
    for (int64_t k = 0; k < layer.inputs; k++)
        out[k] = widen_half(words[k / DEPTH * STEP_WORDS + k % DEPTH / 2 * LANES], k % 2);
}

#else

#include <cstdlib>

// Never called, because this layout is not supported here.
bool has_amx() { return false; }
int64_t amx_words(int64_t, int64_t) { std::abort(); }
void pack_amx(const uint16_t*, int64_t, int64_t, uint32_t*) { std::abort(); }
void unpack_amx(const Linear&, int64_t, float*) { std::abort(); }
void amx_linear(const Linear&, const Operand&, int64_t, const Result&) { std::abort(); }
void amx_gated_linear(const Linear&, const Operand&, int64_t, const float*, const Operand&) { std::abort(); }

#endif
