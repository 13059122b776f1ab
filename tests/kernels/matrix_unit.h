// Emulated matrix unit (AMX) in ordinary code, so that code for the unit runs on processors without one. Included
// before all other headers, it replaces the unit's instructions. Sums are computed in the unit's order (Intel's
// Software Developer's Manual, TDPBF16PS): products of even k and of odd k, each from k = 0 on, then both together,
// then the previous value.
#pragma once

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

struct EmulatedTile {
    alignas(64) unsigned char line[16][64];
    int rows, bytes;  // of a row
};

inline EmulatedTile& emulated(int number) {
    static thread_local EmulatedTile tiles[8];
    return tiles[number];
}

inline void emulated_configure(const void* config) {
    const unsigned char* const from = static_cast<const unsigned char*>(config);
    for (int i = 0; i < 8; i++) {
        uint16_t bytes;
        std::memcpy(&bytes, from + 16 + 2 * i, sizeof bytes);
        emulated(i) = EmulatedTile{{}, from[48 + i], bytes};
    }
}

inline void emulated_load(int number, const void* from, int64_t stride) {
    EmulatedTile& tile = emulated(number);
    std::memset(tile.line, 0, sizeof tile.line);
    for (int row = 0; row < tile.rows; row++)
        std::memcpy(tile.line[row], static_cast<const char*>(from) + row * stride, tile.bytes);
}

inline void emulated_store(int number, void* to, int64_t stride) {
    const EmulatedTile& tile = emulated(number);
    for (int row = 0; row < tile.rows; row++) std::memcpy(static_cast<char*>(to) + row * stride, tile.line[row], tile.bytes);
}

inline void emulated_clear(int number) { std::memset(emulated(number).line, 0, sizeof emulated(number).line); }

// Convert bfloat16 to float; subnormal numbers become 0.
inline float emulated_wide(uint16_t number) {
    const uint32_t bits = number & 0x7f80 ? uint32_t(number) << 16 : 0;
    float wide;
    std::memcpy(&wide, &bits, sizeof wide);
    return wide;
}

inline void emulated_multiply(int sum, int left, int right) {
    EmulatedTile& c = emulated(sum);
    const EmulatedTile &a = emulated(left), &b = emulated(right);
    const int depth = a.bytes / 4, columns = c.bytes / 4;
    alignas(64) float even_b[16][16], odd_b[16][16];
    for (int k = 0; k < depth; k++)
        for (int n = 0; n < columns; n++) {
            uint16_t pair[2];
            std::memcpy(pair, b.line[k] + 4 * n, sizeof pair);
            even_b[k][n] = emulated_wide(pair[0]);
            odd_b[k][n] = emulated_wide(pair[1]);
        }
    for (int m = 0; m < c.rows; m++) {
        float even[16] = {}, odd[16] = {}, before[16];
        for (int k = 0; k < depth; k++) {
            uint16_t pair[2];
            std::memcpy(pair, a.line[m] + 4 * k, sizeof pair);
            const float first = emulated_wide(pair[0]), second = emulated_wide(pair[1]);
            for (int n = 0; n < columns; n++) {
                even[n] += first * even_b[k][n];
                odd[n] += second * odd_b[k][n];
            }
        }
        std::memcpy(before, c.line[m], sizeof before);
        for (int n = 0; n < columns; n++) before[n] += even[n] + odd[n];
        std::memcpy(c.line[m], before, c.bytes);
    }
}

#undef _tile_loadconfig
#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#undef _tile_release
#define _tile_loadconfig(config) emulated_configure(config)
#define _tile_loadd(tile, from, stride) emulated_load(tile, from, stride)
#define _tile_stored(tile, to, stride) emulated_store(tile, to, stride)
#define _tile_zero(tile) emulated_clear(tile)
#define _tile_dpbf16ps(sum, left, right) emulated_multiply(sum, left, right)
#define _tile_release() ((void)0)

#define __AMX_BF16__ 1
#define syscall(...) 0  // permission of the operating system to use the unit
