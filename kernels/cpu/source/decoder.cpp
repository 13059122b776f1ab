#include "decoder.h"

#include <cstring>

#include "attention.h"
#include "elementwise.h"

namespace {

void embed(const Decoder& d, const Step& s, float* out) {
    for (int64_t row = 0; row < s.rows; row++) {
        float* line = out + row * d.hidden;
        const int64_t first = s.tokens[row] * d.hidden;
        if (!d.embedding_is_bf16) {
            std::memcpy(line, static_cast<const float*>(d.embedding) + first, d.hidden * sizeof(float));
            continue;
        }
        const uint16_t* narrow = static_cast<const uint16_t*>(d.embedding) + first;
        for (int64_t i = 0; i < d.hidden; i++) {
            const uint32_t wide = uint32_t(narrow[i]) << 16;
            std::memcpy(line + i, &wide, sizeof wide);
        }
    }
}

void attend(const Decoder& d, const Step& s, int64_t layer, const float* q, float* out) {
    Attention a{};
    a.k = s.k[layer];
    a.v = s.v[layer];
    a.query_heads = d.query_heads;
    a.kv_heads = d.kv_heads;
    a.dim = d.dim;
    a.page_size = s.page_size;
    a.window = d.layers[layer].window;
    a.is_bf16 = s.cache_is_bf16;
    a.scale = d.scale;
    if (s.decodes) {
        a.q = q;
        a.out = out;
        a.page_table = s.decode_table;
        a.width = s.decode_width;
        a.chunks = s.decodes;
        a.context_lens = s.decode_contexts;
        attention(a);
    }
    if (s.chunks) {
        const int64_t skipped = s.decodes * d.query_heads * d.dim;
        a.q = q + skipped;
        a.out = out + skipped;
        a.page_table = s.chunk_table;
        a.width = s.chunk_width;
        a.chunks = s.chunks;
        a.query_starts = s.chunk_starts;
        a.context_lens = s.chunk_contexts;
        attention(a);
    }
}

}  // namespace

int64_t scratch_floats(const Decoder& d) {
    const Layer& layer = d.layers[0];
    return 2 * d.hidden + layer.qkv.outputs + 2 * layer.out.inputs + layer.gate_up.outputs + layer.down.inputs;
}

void forward(const Decoder& d, const Step& s) {
    const Layer& shape = d.layers[0];
    const int64_t rows = s.rows, qkv_size = shape.qkv.outputs, inner = shape.down.inputs;
    float* residual = s.scratch;
    float* x = residual + rows * d.hidden;
    float* qkv = x + rows * d.hidden;
    float* q = qkv + rows * qkv_size;
    float* attended = q + rows * shape.out.inputs;
    float* gate_up = attended + rows * shape.out.inputs;
    float* gated = gate_up + rows * shape.gate_up.outputs;
    embed(d, s, residual);
    for (int64_t index = 0; index < d.num_layers; index++) {
        const Layer& layer = d.layers[index];
        rms_norm(residual, layer.input_norm, rows, d.hidden, d.eps, x);
        linear(layer.qkv, x, rows, nullptr, qkv);
        const float *k = qkv + d.query_heads * d.dim, *v = k + d.kv_heads * d.dim;
        const Rope rope{
            qkv,          k,     v,             qkv_size,   qkv_size, qkv_size,   d.cos_sin, s.k[index], s.v[index],
            layer.q_norm, layer.k_norm, d.eps, d.query_heads, d.kv_heads, d.dim,    s.page_size, s.cache_is_bf16};
        rope_and_cache(rope, s.positions, s.slots, rows, q);
        attend(d, s, index, q, attended);
        linear(layer.out, attended, rows, residual, residual);
        rms_norm(residual, layer.mlp_norm, rows, d.hidden, d.eps, x);
        if (gated_fits(layer.gate_up)) {
            gated_linear(layer.gate_up, x, rows, gated);
        } else {
            linear(layer.gate_up, x, rows, nullptr, gate_up);
            silu_mul(gate_up, rows, inner, gated);
        }
        linear(layer.down, gated, rows, residual, residual);
    }
    rms_norm(residual, d.final_norm, rows, d.hidden, d.eps, s.out);
}
