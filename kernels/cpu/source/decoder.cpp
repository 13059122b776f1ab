#include "decoder.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "attention.h"
#include "elementwise.h"
#include "norm.h"
#include "operand.h"
#include "pool.h"

namespace {

// Write the vector of a token.
void look_up(const Decoder& d, int64_t token, float* out) {
    if (!d.embedding) return unpack_row(d.packed_embedding, token, out);
    const int64_t first = token * d.hidden;
    if (!d.embedding_is_bf16) {
        std::memcpy(out, static_cast<const float*>(d.embedding) + first, d.hidden * sizeof(float));
        return;
    }
    const uint16_t* const narrow = static_cast<const uint16_t*>(d.embedding) + first;
    int64_t i = 0;
    for (; i + LANES <= d.hidden; i += LANES) store(out + i, widen(narrow + i));
    for (; i < d.hidden; i++) out[i] = widen_half(narrow[i], false);
}

// Look up the tokens in the embedding, and feed the rows to the first norm.
void embed(const Decoder& d, const Step& s, float* out, const Norm& norm) {
    Pool::instance().each(Operand::tiles(s.rows), [&](int64_t tile) {
        const int64_t begin = tile * Operand::ROWS, end = std::min(s.rows, begin + Operand::ROWS);
        for (int64_t row = begin; row < end; row++) look_up(d, s.tokens[row], out + row * d.hidden);
        if (d.embedding_multiplier != 1.0f)
            for (int64_t i = begin * d.hidden; i < end * d.hidden; i++) out[i] *= d.embedding_multiplier;
        norm.put(out, begin, end);
    });
}

// Attention arguments of the decode rows, without their queries.
Attention decodes(const Decoder& d, const Step& s, int64_t layer) {
    Attention a{};
    a.k = s.k[layer];
    a.v = s.v[layer];
    a.query_heads = d.query_heads;
    a.kv_heads = d.kv_heads;
    a.dim = d.dim;
    a.page_size = s.page_size;
    a.page_stride = s.page_stride;
    a.window = d.layers[layer].window;
    a.is_bf16 = s.cache_is_bf16;
    a.scale = d.scale;
    a.allow_bf16_activations = d.allow_bf16_activations;
    a.page_table = s.decode_table;
    a.width = s.decode_width;
    a.chunks = s.decodes;
    a.context_lens = s.decode_contexts;
    return a;
}

// Compute attention into a buffer, and return it in the form of the output projection. Heads that are no whole blocks are
// quantised afterwards.
Operand attend(const Decoder& d, const Step& s, int64_t layer, const float* q, void* buffer) {
    const Linear& next = d.layers[layer].out;
    Operand out = Operand::of(next, buffer);
    const bool is_cut = out.form == Operand::BLOCKS && d.dim % Block::SIZE;
    if (is_cut) out = Operand::floats(static_cast<float*>(buffer), next.inputs);
    Attention a = decodes(d, s, layer);
    a.q = q;
    if (s.decodes) attention(a, out);
    if (s.chunks) {
        a.first = s.decodes;
        a.page_table = s.chunk_table;
        a.width = s.chunk_width;
        a.chunks = s.chunks;
        a.query_starts = s.chunk_starts;
        a.context_lens = s.chunk_contexts;
        attention(a, out);
    }
    return is_cut ? Operand::put(next, static_cast<const float*>(buffer), s.rows) : out;
}

// Prefetches a layer's KV cache for the decode rows during the four preceding products, in proportion to their weights.
class CacheAhead {
  public:
    CacheAhead(const Decoder& d, const Step& s) : d_(d), s_(s) {
        const Layer& layer = d.layers[0];
        has_prefetch_time_ = s.decodes && has_prefetch_time(layer.qkv, s.rows);
        all_ = weights(layer.out) + weights(layer.gate_up) + weights(layer.down) + weights(layer.qkv);
    }

    // Start prefetching for `layer`. Call after attention of the previous layer.
    void begin(int64_t layer) {
        whole_ = {};
        given_ = 0;
        if (!has_prefetch_time_ || layer == d_.num_layers) return;
        const Attention a = decodes(d_, s_, layer);
        if (a.window != window_) {  // layers with the same window have the same ranges
            cache_ranges_ = cache_ranges(a);
            window_ = a.window;
        }
        whole_ = {a.k, a.v, cache_ranges_.data(), cache_ranges_.data() + cache_ranges_.size()};
    }

    // Return the part to prefetch during the product of `layer`.
    CachePrefetcher part(const Linear& layer) {
        const int64_t before = given_;
        given_ += weights(layer);
        return whole_.part(before, given_, all_);
    }

  private:
    static int64_t weights(const Linear& layer) { return layer.outputs * layer.inputs; }

    const Decoder& d_;
    const Step& s_;
    bool has_prefetch_time_;
    int64_t all_, given_ = 0;
    CachePrefetcher whole_;
    std::vector<ByteRange> cache_ranges_;
    int64_t window_ = -1;  // window that `cache_ranges_` belong to
};

// Layout of `Step::scratch`. Layers may take their rows in different forms; each buffer has room for any of them.
struct Scratch {
    float *residual, *qkv, *q, *gate_up, *squares, *factors;
    void *normed, *attended, *gated;
    int64_t bytes = 0;

    Scratch(const Decoder& d, int64_t rows, void* memory) : memory_(static_cast<char*>(memory)) {
        const Layer& layer = d.layers[0];
        residual = floats(rows, d.hidden);
        qkv = floats(rows, layer.qkv.outputs);
        q = floats(rows, layer.out.inputs);
        gate_up = floats(rows, supports_gated(layer.gate_up) ? 0 : layer.gate_up.outputs);
        squares = floats(panels(d.hidden), Norm::padded(rows));
        factors = floats(1, Norm::padded(rows));
        normed = operand(rows, d.hidden);
        attended = operand(rows, layer.out.inputs);
        gated = operand(rows, layer.down.inputs);
    }

  private:
    void* take(int64_t size) {
        char* const at = memory_ ? memory_ + bytes : nullptr;
        bytes += (size + 63) / 64 * 64;
        return at;
    }

    float* floats(int64_t rows, int64_t size) { return static_cast<float*>(take(rows * size * int64_t(sizeof(float)))); }
    void* operand(int64_t rows, int64_t size) { return take(Operand::bytes(rows, size)); }

    char* memory_;
};

}  // namespace

int64_t scratch_bytes(const Decoder& d, int64_t rows) { return Scratch(d, rows, nullptr).bytes; }

void forward(const Decoder& d, const Step& s) {
    const Scratch scratch(d, s.rows, s.scratch);
    const int64_t rows = s.rows, qkv_size = d.layers[0].qkv.outputs, inner = d.layers[0].down.inputs;
    float *const residual = scratch.residual, *const qkv = scratch.qkv, *const q = scratch.q;
    const auto norm = [&](const float* weight, const Linear& layer) {
        return Norm{weight, Operand::of(layer, scratch.normed), scratch.squares, rows};
    };
    CacheAhead ahead(d, s);
    Norm before_qkv = norm(d.layers[0].input_norm, d.layers[0].qkv);
    embed(d, s, residual, before_qkv);
    for (int64_t index = 0; index < d.num_layers; index++) {
        const Layer& layer = d.layers[index];
        const bool is_last = index + 1 == d.num_layers;
        linear(layer.qkv, before_qkv.rows, rows, {qkv, before_qkv.finish(d.eps, scratch.factors)}, ahead.part(layer.qkv));
        const float *k = qkv + d.query_heads * d.dim, *v = k + d.kv_heads * d.dim;
        const Rope rope{
            qkv,           k,            v,            qkv_size, qkv_size,      qkv_size,   d.cos_sin, s.k[index],
            s.v[index],    layer.q_norm, layer.k_norm, d.eps,    d.query_heads, d.kv_heads, d.dim,     layer.rotary,
            s.page_size,   s.page_stride, s.cache_is_bf16};
        rope_and_cache(rope, s.positions, s.slot_mapping, rows, q);
        const Operand attended = attend(d, s, index, q, scratch.attended);
        ahead.begin(index + 1);
        const Norm before_mlp = norm(layer.mlp_norm, layer.gate_up);
        const Result to_mlp{residual, nullptr, residual, &before_mlp, d.residual_multiplier};
        linear(layer.out, attended, rows, to_mlp, ahead.part(layer.out));
        const float* factors = before_mlp.finish(d.eps, scratch.factors);
        const Operand gated = Operand::of(layer.down, scratch.gated);
        if (supports_gated(layer.gate_up)) {
            gated_linear(layer.gate_up, before_mlp.rows, rows, factors, gated, ahead.part(layer.gate_up));
        } else {
            linear(layer.gate_up, before_mlp.rows, rows, {scratch.gate_up, factors}, ahead.part(layer.gate_up));
            silu_mul(scratch.gate_up, rows, inner, gated);
        }
        if (!is_last) before_qkv = norm(d.layers[index + 1].input_norm, d.layers[index + 1].qkv);
        const Result to_next{residual, nullptr, residual, is_last ? nullptr : &before_qkv, d.residual_multiplier};
        linear(layer.down, gated, rows, to_next, ahead.part(layer.down));
    }
    rms_norm(residual, d.final_norm, rows, d.hidden, d.eps, s.out);
}
