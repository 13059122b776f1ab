// Normalisation, the gate of the feed-forward layer, rotary embedding and the write to the cache. Rows are independent.
#include "elementwise.h"

#include <cmath>
#include <vector>

#include "pool.h"
#include "vec.h"

namespace {

constexpr int64_t MAX_HEAD_DIM = 512;
constexpr int64_t FLOATS_PER_TASK = 8192;  // a smaller task is not worth another thread

template <class F>
void each_row(int64_t rows, int64_t floats, const F& f) {
    const int64_t tasks = (rows * floats + FLOATS_PER_TASK - 1) / FLOATS_PER_TASK;
    const int64_t count = tasks < rows ? tasks : rows;
    Pool::instance().each(count, [&](int64_t task) {
        for (int64_t row = rows * task / count; row < rows * (task + 1) / count; row++) f(row);
    });
}

void norm_row(const float* x, const float* weight, int64_t size, float eps, float* out) {
    F16 squares = splat(0.0f);
    for (int64_t i = 0; i < size; i += LANES) {
        const F16 v = load_some(x, i, size);
        squares += v * v;
    }
    const F16 factor = splat(1.0f / std::sqrt(sum(squares) / float(size) + eps));
    const Operand::Line line = Operand::floats(out, size).line(0);
    const auto normed = [&](int64_t i) { return load_some(x, i, size) * factor * load_some(weight, i, size); };
    for (int64_t i = 0; i < size; i += 2 * LANES) line.put(i, normed(i), normed(i + LANES));
}

}  // namespace

void rms_norm(const float* x, const float* weight, int64_t rows, int64_t size, float eps, float* out) {
    each_row(rows, size, [&](int64_t row) { norm_row(x + row * size, weight, size, eps, out + row * size); });
}

// gate_up[rows, 2 size] -> out[rows, size]
void silu_mul(const float* gate_up, int64_t rows, int64_t size, const Operand& out) {
    each_row(rows, 4 * size, [&](int64_t row) {
        const float *gate = gate_up + row * 2 * size, *up = gate + size;
        const Operand::Line line = out.line(row);
        const auto gated = [&](int64_t i) { return silu16(load_some(gate, i, size)) * load_some(up, i, size); };
        for (int64_t i = 0; i < size; i += 2 * LANES) line.put(i, gated(i), gated(i + LANES));
    });
}

namespace {

inline void keep(const float* from, int64_t size, float* to) { std::memcpy(to, from, size * sizeof(float)); }

inline void keep(const float* from, int64_t size, uint16_t* to) {
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) {
        const H16 some = narrow(load(from + i));
        std::memcpy(to + i, &some, sizeof some);
    }
    if (i == size) return;
    const H16 some = narrow(load_some(from, i, size));
    std::memcpy(to + i, &some, (size - i) * sizeof(uint16_t));
}

// Write one token's keys and values, heads of `dim` floats, to its cache position.
template <class Number>
void keep_token(const Rope& r, int64_t slot, const float* k, const float* v) {
    const int64_t page = slot / r.page_size, offset = slot % r.page_size;
    for (int64_t head = 0; head < r.kv_heads; head++) {
        const int64_t at = page * r.page_stride + (head * r.page_size + offset) * r.dim;
        keep(k + head * r.dim, r.dim, static_cast<Number*>(r.k_cache) + at);
        keep(v + head * r.dim, r.dim, static_cast<Number*>(r.v_cache) + at);
    }
}

inline void keep_token(const Rope& r, int64_t slot, const float* k, const float* v) {
    if (slot < 0) return;
    if (r.is_bf16)
        keep_token<uint16_t>(r, slot, k, v);
    else
        keep_token<float>(r, slot, k, v);
}

}  // namespace

void rope_and_cache(const Rope& r, const int64_t* positions, const int64_t* slot_mapping, int64_t rows, float* q_out) {
    const int64_t half = r.rotary / 2, kept = r.dim - r.rotary;
    const auto turn = [&](const float* from, const float* norm, const float* angles, float* to) {
        float normed[MAX_HEAD_DIM];
        if (norm) {
            norm_row(from, norm, r.dim, r.eps, normed);
            from = normed;
        }
        int64_t i = 0;
        for (; i + LANES <= half; i += LANES) {
            const F16 low = load(from + i), high = load(from + i + half), c = load(angles + i), s = load(angles + i + half);
            store(to + i, low * c - high * s);
            store(to + i + half, high * c + low * s);
        }
        for (; i < half; i++) {
            const float low = from[i], high = from[i + half], c = angles[i], s = angles[i + half];
            to[i] = low * c - high * s;
            to[i + half] = high * c + low * s;
        }
        if (kept) std::memcpy(to + r.rotary, from + r.rotary, kept * sizeof(float));
    };
    each_row(rows, 2 * (r.query_heads + 2 * r.kv_heads) * r.dim, [&](int64_t row) {
        const float* angles = r.cos_sin + positions[row] * r.rotary;
        for (int64_t head = 0; head < r.query_heads; head++)
            turn(r.q + row * r.q_stride + head * r.dim, r.q_norm, angles, q_out + (row * r.query_heads + head) * r.dim);
        thread_local std::vector<float> keys;
        keys.resize(r.kv_heads * r.dim);
        for (int64_t head = 0; head < r.kv_heads; head++)
            turn(r.k + row * r.k_stride + head * r.dim, r.k_norm, angles, keys.data() + head * r.dim);
        keep_token(r, slot_mapping[row], keys.data(), r.v + row * r.v_stride);
    });
}

void write_cache(const Rope& r, const int64_t* slot_mapping, int64_t rows) {
    each_row(rows, 2 * r.kv_heads * r.dim, [&](int64_t row) {
        keep_token(r, slot_mapping[row], r.k + row * r.k_stride, r.v + row * r.v_stride);
    });
}
