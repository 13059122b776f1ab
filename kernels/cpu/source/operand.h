// Left operand of a layer: rows in the form that the layer's layout takes. The producer of rows stores them in that form
// directly, which saves a pass for repacking.
#pragma once

#include <cstdint>
#include <cstring>

#include "block.h"
#include "linear.h"
#include "vec.h"

#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

struct Operand {
    static constexpr int ROWS = 16;    // rows of a tile
    static constexpr int DEPTH = 32;   // values of a row in a tile
    static constexpr int ALL = 3;      // bfloat16 parts of a float; each has 8 of its 24 bits
    static constexpr int64_t TILE = ROWS * DEPTH;

    enum Form {
        FLOATS,    // [rows, inputs]
        BFLOAT16,  // [rows / height][inputs / 32][parts][height][32]
        BLOCKS,    // [rows][inputs / 32][parts]
    };

    void* data;
    int64_t inputs;  // values of a row
    Form form;
    int64_t parts;   // that add up to a value; each is the rounded remainder after the previous parts
    int64_t height;  // rows of a tile: 16, or 1 for separate rows

    static Operand floats(const float* data, int64_t inputs) { return {const_cast<float*>(data), inputs, FLOATS, 1, 1}; }
    static Operand in_tiles(void* data, int64_t inputs, int64_t parts) { return {data, inputs, BFLOAT16, parts, ROWS}; }

    // Return an operand in the form that `layer` takes.
    static Operand of(const Linear& layer, void* data) {
        switch (layer.layout) {
            case BFLOAT16_TILES: return in_tiles(data, layer.inputs, layer.parts);
            case BFLOAT16_PAIRS: return {data, layer.inputs, BFLOAT16, 1, 1};
            case QUANTIZED: return {data, layer.inputs, BLOCKS, layer.parts, 1};
            default: return {data, layer.inputs, FLOATS, 1, 1};
        }
    }

    // Convert rows of floats to that form on all threads. The result is in a buffer of the calling thread, valid until its
    // next call.
    static Operand put(const Linear& layer, const float* x, int64_t rows);

    static int64_t steps(int64_t inputs) { return (inputs + DEPTH - 1) / DEPTH; }
    static int64_t tiles(int64_t rows) { return (rows + ROWS - 1) / ROWS; }

    // Return the size of a buffer for `rows` rows in any form.
    static int64_t bytes(int64_t rows, int64_t inputs) {
        return tiles(rows) * steps(inputs) * ALL * TILE * int64_t(sizeof(uint16_t));
    }

    // Return the bfloat16 rows from `first` on; `first` must start a tile.
    Operand from(int64_t first) const {
        return {static_cast<uint16_t*>(data) + first * steps(inputs) * parts * DEPTH, inputs, form, parts, height};
    }

    // Writer of one row, 32 or 16 values at a time; values past the last input are zeros. Always inlined, as exp16.
    struct Line {
        float* floats;
        uint16_t* cut;
        Block* blocks;
        int64_t inputs, parts, tile;  // tile: values

        // Store at a multiple of 32. In bfloat16 this is one cache line, stored at once: other cores have read its previous
        // content, so each store waits for the line, longest between cores without a shared cache.
        __attribute__((always_inline)) void put(int64_t column, F16 low, F16 high) const {
            if (floats) {
                put(column, low);
                if (column + LANES < inputs) put(column + LANES, high);
                return;
            }
            if (blocks) return Block::put(low, high, parts, blocks + column / DEPTH * parts);
#if defined(__AVX512BF16__)
            uint16_t* to = cut + column / DEPTH * parts * tile;
            for (int64_t part = 1;; part++, to += tile) {
                const __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
                _mm512_storeu_si512(to, both);
                if (part >= parts) break;
                low -= widened(_mm512_castsi512_si256(both));
                high -= widened(_mm512_extracti64x4_epi64(both, 1));
            }
#endif
        }

        // Store at a multiple of 16; not in blocks.
        __attribute__((always_inline)) void put(int64_t column, F16 v) const {
            if (floats) {
                if (column + LANES <= inputs) return store(floats + column, v);
                float some[LANES];
                store(some, v);
                std::memcpy(floats + column, some, (inputs - column) * sizeof(float));
                return;
            }
            uint16_t* to = cut + column / DEPTH * parts * tile + column % DEPTH;
            put_parts(to, v);
            if (column + LANES >= inputs && column % DEPTH == 0) put_parts(to + LANES, splat(0.0f));
        }

      private:
#if defined(__AVX512BF16__)
        static F16 widened(__m256i narrow) { return (F16)_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16); }
#endif

        // After three parts the remainder is zero.
        void put_parts(uint16_t* to, F16 v) const {
#if defined(__AVX512BF16__)
            for (int64_t part = 0; part < parts; part++) {
                const __m256i narrow = (__m256i)_mm512_cvtneps_pbh((__m512)v);
                std::memcpy(to + part * tile, &narrow, sizeof narrow);
                v -= widened(narrow);
            }
#endif
        }
    };

    Line line(int64_t row) const {
        if (form == FLOATS) return {static_cast<float*>(data) + row * inputs, nullptr, nullptr, inputs, 1, 0};
        if (form == BLOCKS)
            return {nullptr, nullptr, static_cast<Block*>(data) + row * steps(inputs) * parts, inputs, parts, 0};
        const int64_t within = height == 1 ? 0 : row % ROWS;
        uint16_t* cut = static_cast<uint16_t*>(data) + (row - within) * steps(inputs) * parts * DEPTH + within * DEPTH;
        return {nullptr, cut, nullptr, inputs, parts, height * DEPTH};
    }
};
