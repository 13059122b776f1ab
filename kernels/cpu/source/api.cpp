// Functions called from Python; keep in sync with kernels/cpu/library.py.
#include "attention.h"
#include "decoder.h"
#include "elementwise.h"
#include "float8.h"
#include "linear.h"
#include "mask.h"
#include "norm.h"
#include "operand.h"
#include "penalties.h"
#include "pool.h"
#include "quantize.h"
#include "quantized.h"
#include "sample.h"
#include "step.h"

extern "C" {

void carousel_set_threads(int threads) { Pool::instance().set_threads(threads); }

void carousel_count_progress(uint64_t* counter) { Pool::instance().count_progress(counter); }

int64_t carousel_has_layout(int64_t layout) { return has_layout(Layout(layout)); }

int64_t carousel_packed_words(int64_t outputs, int64_t inputs, int64_t layout) {
    return packed_words(outputs, inputs, Layout(layout));
}

void carousel_pack(const void* weight, int64_t outputs, int64_t inputs, int64_t layout, void* packed) {
    pack(weight, outputs, inputs, Layout(layout), packed);
}

void carousel_unpack_rows(const Linear* layer, const int64_t* outputs, int64_t count, float* to) {
    Pool::instance().each(count, [=](int64_t i) { unpack_row(*layer, outputs[i], to + i * layer->inputs); });
}

int64_t carousel_quantized_bytes(const QuantSegment* segment, int64_t outputs, int64_t inputs) {
    return quantized_bytes(*segment, outputs, inputs);
}

void carousel_pack_quantized(
    const QuantSegment* segment, const Planes* planes, int64_t outputs, int64_t inputs, void* packed
) {
    pack_quantized(*segment, *planes, outputs, inputs, packed);
}

int64_t carousel_float8_words(int64_t outputs, int64_t inputs, int64_t group) {
    return panels(outputs) * Float8Shape(inputs, group).words;
}

void carousel_pack_float8(
    const uint8_t* codes, const float* scales, int64_t outputs, int64_t inputs, int64_t group, void* packed
) {
    pack_float8(codes, scales, outputs, Float8Shape(inputs, group), packed);
}

void carousel_quantize(
    const float* matrix, int64_t outputs, int64_t inputs, int64_t bits, uint8_t* codes, uint16_t* scales, uint16_t* minimums
) {
    quantize(matrix, outputs, inputs, bits, codes, scales, minimums);
}

void carousel_linear(const Linear* layer, const float* x, int64_t rows, float* y) {
    linear(*layer, Operand::put(*layer, x, rows), rows, Result{y});
}

void carousel_add_linear(const Linear* layer, const float* x, int64_t rows, float multiplier, float* residual) {
    linear(*layer, Operand::put(*layer, x, rows), rows, {residual, nullptr, residual, nullptr, multiplier});
}

void carousel_norm_linear(const Linear* layer, const float* x, const float* norm, float eps, int64_t rows, float* y) {
    norm_linear(*layer, x, norm, eps, rows, y);
}

void carousel_rms_norm(const float* x, const float* weight, int64_t rows, int64_t size, float eps, float* out) {
    rms_norm(x, weight, rows, size, eps, out);
}

void carousel_silu_mul(const float* gate_up, int64_t rows, int64_t size, float* out) {
    silu_mul(gate_up, rows, size, Operand::floats(out, size));
}

void carousel_rope_and_cache(
    const Rope* rope, const int64_t* positions, const int64_t* slot_mapping, int64_t rows, float* q_out
) {
    rope_and_cache(*rope, positions, slot_mapping, rows, q_out);
}

void carousel_write_cache(const Rope* rope, const int64_t* slot_mapping, int64_t rows) { write_cache(*rope, slot_mapping, rows); }

int64_t carousel_supports_attention(int64_t dim, int64_t group) { return supports_attention(dim, group); }

void carousel_attention(const Attention* problem, float* out) {
    attention(*problem, Operand::floats(out, problem->query_heads * problem->dim));
}

void carousel_penalize(const Penalties* penalties) { penalize(*penalties); }

void carousel_mask_logits(const Masking* masking) { mask_logits(*masking); }

void carousel_sample(const Sampling* sampling) { sample(*sampling); }

int64_t carousel_scratch_bytes(const Decoder* decoder, int64_t rows) { return scratch_bytes(*decoder, rows); }

void carousel_forward(const Decoder* decoder, const Step* step) { forward(*decoder, *step); }

int64_t carousel_step_bytes(const Decoder* decoder, const Linear* head, int64_t rows, int64_t sampled) {
    return step_bytes(*decoder, *head, rows, sampled);
}

void carousel_step(const Decoder* decoder, const Linear* head, const Slots* slots, const Work* work) {
    step(*decoder, *head, *slots, *work);
}
}
