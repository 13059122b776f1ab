// Tile registers of the matrix unit (AMX): eight registers of 16 rows of 64 bytes.
#pragma once

#include "operand.h"

#if defined(__linux__) && defined(__AMX_BF16__) && defined(__AVX512BF16__)
#define HAS_AMX 1

#include <immintrin.h>

// Configures the unit for a number of rows while this object lives: sums in tiles 0 to 3, operands with as many rows in 4 to
// 6, a whole tile in 7.
class AmxConfig {
  public:
    ~AmxConfig() { _tile_release(); }

    void set(int64_t rows) {
        if (rows == rows_) return;
        rows_ = rows;
        struct {
            uint8_t palette = 1, start = 0, reserved[14] = {};
            uint16_t bytes[16] = {};
            uint8_t rows[16] = {};
        } shape;
        for (int tile = 0; tile < 8; tile++) {
            shape.bytes[tile] = Operand::DEPTH * sizeof(uint16_t);
            shape.rows[tile] = tile < 7 ? rows : Operand::ROWS;
        }
        _tile_loadconfig(&shape);
    }

  private:
    int64_t rows_ = 0;
};

#endif
