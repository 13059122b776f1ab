#include "quantized.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "codes.h"
#include "operand.h"
#include "panel.h"
#include "pool.h"
#include "result.h"
#include "strip.h"

namespace {

// Rows of a tile: each has a sum of floats and one or two of integers, beside a word of codes, one of the row, and a mask.
constexpr int TILE_ROWS = STRIP == 16 ? 8 : 4;
constexpr int64_t MAX_ROWS = 32;  // rows for which a strip's scales are expanded once

typedef float Sums[MAX_ROWS][PANEL];

// Rows of x and their sums for the outputs of a strip.
struct TileRows {
    const Block* x;
    int64_t stride, parts;  // blocks of a row, and blocks of 32 inputs
    float* sums;            // PANEL floats apart
};

// Integer products of a block for M rows, for each half or for all of it.
template <class Codes, class Product, int M, int HALVES, int WORD = 0>
__attribute__((always_inline)) inline void multiply_words(
    const Codes& codes, const uint8_t* block, const Block* const (&x)[M], Product (&dots)[M], StripInts (&sums)[M][HALVES]
) {
    if constexpr (WORD < WORDS) {
        constexpr int PER_SUM = WORDS / HALVES, RUN = std::min(PER_SUM, Product::WORDS);
        constexpr int HALF_INDEX = WORD / PER_SUM, IN_SUM = WORD % PER_SUM, IN_RUN = IN_SUM % RUN;
        const typename Product::Weights weights(codes.template word<WORD>(block));
        for (int m = 0; m < M; m++) {
            const StripInts row = spread_word(x[m]->codes + 4 * WORD);
            if constexpr (IN_RUN == 0 && std::is_same_v<Product, CentredDot<Codes::BITS>>)
                dots[m].template begin<WORD, RUN>(weights, row, x[m]->centres);
            else if constexpr (IN_RUN == 0)
                dots[m].begin(weights, row);
            else
                dots[m].add(weights, row);
            if constexpr (IN_RUN + 1 == RUN || IN_SUM + 1 == PER_SUM) {
                if constexpr (IN_SUM < RUN)
                    sums[m][HALF_INDEX] = dots[m].sum();
                else
                    sums[m][HALF_INDEX] += dots[m].sum();
            }
        }
        multiply_words<Codes, Product, M, HALVES, WORD + 1>(codes, block, x, dots, sums);
    }
}

// Prefetch the codes that follow a block, for tiles of M rows. Distances are in bytes.
//
// Wide strips were measured on Zen 4: with few rows the processor's own prefetching keeps the memory busy, and instructions
// far ahead only delay it (a quarter less speed with one row at 2048 bytes). With many rows a block takes longer than its
// codes, and the lines on their way to the first-level cache are too few to wait for memory, so the second level fetches
// them first (a third more speed for 8 bits and 8 rows).
template <int M, int64_t BLOCK_BYTES>
inline void prefetch(const uint8_t* block) {
    constexpr bool FEW_ROWS = STRIP == 16 && M <= 4, MANY_ROWS = STRIP == 16 && !FEW_ROWS;
    constexpr int64_t NEAR = FEW_ROWS ? 256 : MANY_ROWS ? 512 : 2048, FAR = 8192;
    for (int64_t byte = 0; byte < BLOCK_BYTES; byte += StripShape::CACHE_LINE) {
        if (MANY_ROWS) __builtin_prefetch(block + FAR + byte, 0, 2);
        __builtin_prefetch(block + NEAR + byte, 0, 3);
    }
}

// Add the products of some blocks to the sums of M rows.
template <class Codes, int M, int HALVES, bool MINIMUM>
void add_blocks(
    const QuantSegment& segment, const uint8_t* blocks, int64_t count, const StripScales& s, const TileRows& rows
) {
    constexpr int64_t BLOCK_BYTES = STRIP * Block::SIZE * Codes::STORED_BITS / 8;
    constexpr bool CENTRED = !MINIMUM && HAS_CENTRED_DOT<Codes::BITS>;
    constexpr bool OFFSET = !CENTRED && (!MINIMUM || SHIFT<Codes::BITS> != 0);
    typedef std::conditional_t<CENTRED, CentredDot<Codes::BITS>, Dot<Codes::BITS>> Product;
    const Codes codes(segment);
    StripFloats totals[M];
    for (int m = 0; m < M; m++) totals[m] = load_floats(rows.sums + m * PANEL);
    const Block* x = rows.x;
    for (int64_t i = 0, part = 0; i < count; x++) {
        prefetch<M, BLOCK_BYTES>(blocks);
        const Block* of[M];
        for (int m = 0; m < M; m++) of[m] = x + m * rows.stride;
        Product dots[M];
        StripInts products[M][HALVES];
        multiply_words<Codes, Product, M, HALVES>(codes, blocks, of, dots, products);
        for (int m = 0; m < M; m++) {
            const StripFloats scale = spread_float(of[m]->scale);
            for (int half = 0; half < HALVES; half++) {
                const StripFloats sum = spread_float(
                    HALVES == 1 ? of[m]->sum : half ? of[m]->sum - of[m]->low_sum : of[m]->low_sum
                );
                const int64_t at = HALVES * i + half;
                // All of these integers are below 2^24, so the difference is exact.
                StripFloats product = __builtin_convertvector(products[m][half], StripFloats);
                if (OFFSET) product -= s.offset(at) * sum;
                totals[m] += product * (s.scale(at) * scale);
                if (MINIMUM) totals[m] -= s.minimum(at) * (scale * sum);
            }
        }
        if (++part < rows.parts) continue;
        part = 0;
        i++;
        blocks += BLOCK_BYTES;
    }
    for (int m = 0; m < M; m++) std::memcpy(rows.sums + m * PANEL, &totals[m], sizeof totals[m]);
}

typedef void (*AddBlocks)(const QuantSegment&, const uint8_t*, int64_t, const StripScales&, const TileRows&);

// Functions for tiles of 1 to TILE_ROWS rows.
struct Tiles {
    AddBlocks add[TILE_ROWS + 1] = {};
};

template <class Codes, int HALVES, bool MINIMUM, int M = TILE_ROWS>
void fill(Tiles& tiles) {
    tiles.add[M] = add_blocks<Codes, M, HALVES, MINIMUM>;
    if constexpr (M > 1) fill<Codes, HALVES, MINIMUM, M - 1>(tiles);
}

template <class Codes>
Tiles tiles_of(const QuantSegment& s) {
    Tiles tiles;
    if (s.has_minimums)
        fill<Codes, 1, true>(tiles);
    else
        s.group < Block::SIZE ? fill<Codes, 2, false>(tiles) : fill<Codes, 1, false>(tiles);
    return tiles;
}

Tiles tiles_of(const QuantSegment& s) {
    if (s.has_table) return tiles_of<Table>(s);
    switch (s.bits) {
        case 4: return tiles_of<PackedCodes<4>>(s);
        case 5: return tiles_of<PackedCodes<5>>(s);
        case 6: return tiles_of<PackedCodes<6>>(s);
        default: return tiles_of<PackedCodes<8>>(s);
    }
}

// Return the code of one input in a block.
int64_t code_at(const uint8_t* block, int64_t input, int64_t bits, int64_t lane) {
    int64_t code = 0;
    for (int index = 0; index < MAX_FIELDS; index++) {
        const Field field = field_of(int(bits), int(input / 4), index);
        const int64_t byte = block[field.vector * int64_t(sizeof(StripCodes)) + 4 * lane + input % 4];
        code |= (byte >> field.from & ((1 << field.count) - 1)) << field.to;
    }
    return code;
}

// One panel of a layer.
class QuantPanel {
  public:
    QuantPanel(const Linear& layer, int64_t panel)
        : segment_(segment_of(layer, panel)), shape_(segment_, layer.inputs), tiles_(tiles_of(segment_)) {
        strips_ = static_cast<const uint8_t*>(segment_.packed) + panel * (PANEL / STRIP) * shape_.bytes;
    }

    // Write the weights of the output `lane`.
    void unpack(int64_t lane, int64_t inputs, float* out) const {
        const uint8_t* const strip = strips_ + lane / STRIP * shape_.bytes;
        const QuantSegment& s = segment_;
        const int64_t column = lane % STRIP, float_group = s.shared / s.group;
        for (int64_t group = 0; group * s.group < inputs; group++) {
            const int64_t at = group * STRIP + column;
            float scale = float_at(strip, group / float_group, column), minimum = 0;
            if (s.has_minimums) minimum = float_at(strip + shape_.minimums, group / float_group, column);
            if (s.has_integer_scales) {
                scale *= reinterpret_cast<const int8_t*>(strip)[shape_.group_scales + at];
                if (s.has_minimums) minimum *= strip[shape_.group_minimums + at];
            }
            const int64_t offset = s.has_zeros ? strip[shape_.zeros + at] : s.offset;
            for (int64_t k = group * s.group; k < std::min(inputs, (group + 1) * s.group); k++) {
                const uint8_t* const block = strip + shape_.codes + k / Block::SIZE * shape_.block_bytes;
                const int64_t code = code_at(block, k % Block::SIZE, s.bits, column);
                const int64_t value = s.has_table ? s.table[code] : code;
                out[k] = std::fma(scale, float(value - offset), -minimum);
            }
        }
    }

    // Multiply rows first..last-1.
    void multiply(const Operand& x, int64_t first, int64_t last, Sums& sums) const {
        const int64_t stride = shape_.blocks * x.parts, rows = last - first, count = (rows + TILE_ROWS - 1) / TILE_ROWS;
        const Block* const blocks = static_cast<const Block*>(x.data) + first * stride;
        std::fill_n(sums[0], rows * PANEL, 0.0f);
        StripScales scales(segment_, shape_);
        for (int64_t strip = 0; strip < PANEL / STRIP; strip++) {
            const uint8_t* const at = strips_ + strip * shape_.bytes;
            for (int64_t from = 0; from < shape_.blocks; from += StripScales::BLOCKS) {
                const int64_t some = std::min(StripScales::BLOCKS, shape_.blocks - from);
                scales.expand(at, from, some);
                for (int64_t tile = 0; tile < count; tile++) {
                    const int64_t begin = rows * tile / count, end = rows * (tile + 1) / count;
                    const TileRows to{blocks + begin * stride + from * x.parts, stride, x.parts, sums[begin] + strip * STRIP};
                    tiles_.add[end - begin](segment_, at + shape_.codes + from * shape_.block_bytes, some, scales, to);
                }
            }
        }
    }

  private:
    // Return the segment of a panel, and make `panel` relative to it.
    static const QuantSegment& segment_of(const Linear& layer, int64_t& panel) {
        const QuantSegment* segment = static_cast<const QuantSegment*>(layer.packed);
        int64_t begin = 0;
        for (; panel >= segment->end; segment++) begin = segment->end;
        panel -= begin;
        return *segment;
    }

    float float_at(const uint8_t* plane, int64_t index, int64_t column) const {
        if (segment_.is_float16) return load_floats16(reinterpret_cast<const uint16_t*>(plane) + index * STRIP)[column];
        return load_floats(reinterpret_cast<const float*>(plane) + index * STRIP)[column];
    }

    const QuantSegment& segment_;
    const StripShape shape_;
    const Tiles tiles_;
    const uint8_t* strips_;
};

// Store four codes in the words of one output, as `field_of` describes.
template <int BITS, int WORD = 0, int INDEX = 0>
void pack_words(const uint32_t (&codes)[WORDS], uint8_t* output) {
    if constexpr (WORD < WORDS) {
        constexpr Field FIELD = field_of(BITS, WORD, INDEX);
        if constexpr (FIELD.count) {
            constexpr uint32_t MASK = ((1u << FIELD.count) - 1) * 0x01010101u;
            uint8_t* const at = output + FIELD.vector * sizeof(StripCodes);
            uint32_t word;
            std::memcpy(&word, at, sizeof word);
            word |= (codes[WORD] >> FIELD.to & MASK) << FIELD.from;
            std::memcpy(at, &word, sizeof word);
        }
        constexpr bool IS_LAST = INDEX + 1 == MAX_FIELDS;
        pack_words<BITS, IS_LAST ? WORD + 1 : WORD, IS_LAST ? 0 : INDEX + 1>(codes, output);
    }
}

// Store the codes of one output in a block of zeros.
void pack_codes(const uint8_t* codes, int64_t count, int64_t bits, int64_t lane, uint8_t* block) {
    uint32_t words[WORDS] = {};
    std::memcpy(words, codes, count);
    uint8_t* const output = block + 4 * lane;
    switch (bits) {
        case 4: return pack_words<4>(words, output);
        case 5: return pack_words<5>(words, output);
        case 6: return pack_words<6>(words, output);
        default: return pack_words<8>(words, output);
    }
}

// Copy the elements of one output, [count] -> [count][STRIP].
void pack_plane(const void* from, int64_t output, int64_t count, int64_t bytes, int64_t lane, uint8_t* to) {
    if (!from) return;
    const uint8_t* const line = static_cast<const uint8_t*>(from) + output * count * bytes;
    for (int64_t i = 0; i < count; i++) std::memcpy(to + (i * STRIP + lane) * bytes, line + i * bytes, bytes);
}

}  // namespace

int64_t quantized_bytes(const QuantSegment& segment, int64_t outputs, int64_t inputs) {
    return panels(outputs) * (PANEL / STRIP) * StripShape(segment, inputs).bytes;
}

void pack_quantized(const QuantSegment& segment, const Planes& planes, int64_t outputs, int64_t inputs, void* packed) {
    const StripShape shape(segment, inputs);
    const int64_t groups = StripShape::divided(inputs, segment.group), floats = StripShape::divided(inputs, segment.shared);
    Pool::instance().each(panels(outputs) * PANEL / STRIP, [=](int64_t strip) {
        uint8_t* const at = static_cast<uint8_t*>(packed) + strip * shape.bytes;
        std::memset(at, 0, shape.bytes);
        for (int64_t lane = 0; lane < std::min<int64_t>(STRIP, outputs - strip * STRIP); lane++) {
            const int64_t output = strip * STRIP + lane;
            pack_plane(planes.scales, output, floats, shape.float_bytes, lane, at);
            pack_plane(planes.minimums, output, floats, shape.float_bytes, lane, at + shape.minimums);
            pack_plane(planes.group_scales, output, groups, 1, lane, at + shape.group_scales);
            pack_plane(planes.group_minimums, output, groups, 1, lane, at + shape.group_minimums);
            pack_plane(planes.zeros, output, groups, 1, lane, at + shape.zeros);
            for (int64_t block = 0; block < shape.blocks; block++) {
                const int64_t from = block * Block::SIZE, count = std::min<int64_t>(Block::SIZE, inputs - from);
                const uint8_t* const codes = planes.codes + output * inputs + from;
                pack_codes(codes, count, segment.bits, lane, at + shape.codes + block * shape.block_bytes);
            }
        }
    });
}

void unpack_quantized(const Linear& layer, int64_t output, float* out) {
    QuantPanel(layer, output / PANEL).unpack(output % PANEL, layer.inputs, out);
}

void quantized_linear(const Linear& layer, const Operand& x, int64_t rows, const Result& result) {
    Pool::instance().each(panels(layer.outputs), [=](int64_t panel) {
        const QuantPanel weights(layer, panel);
        const PanelResult to(layer, panel, result);
        Sums sums;
        for (int64_t first = 0, last; first < rows; first = last) {
            last = std::min(rows, first + MAX_ROWS);
            weights.multiply(x, first, last, sums);
            for (int64_t row = first; row < last; row++) {
                const float* const line = sums[row - first];
                to.put(row, load(line), load(line + LANES));
            }
        }
    });
}

void quantized_gated_linear(const Linear& layer, const Operand& x, int64_t rows, const float* factors, const Operand& y) {
    const int64_t half = panels(layer.outputs / 2);
    Pool::instance().each(half, [=](int64_t panel) {
        const QuantPanel gates(layer, panel), ups(layer, half + panel);
        const GatedPanel to(layer, panel, factors, y);
        Sums gate, up;
        for (int64_t first = 0, last; first < rows; first = last) {
            last = std::min(rows, first + MAX_ROWS);
            gates.multiply(x, first, last, gate);
            ups.multiply(x, first, last, up);
            for (int64_t row = first; row < last; row++) {
                const float *const g = gate[row - first], *const u = up[row - first];
                to.put(row, load(g), load(g + LANES), load(u), load(u + LANES));
            }
        }
    });
}
