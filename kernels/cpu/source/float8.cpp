#include "float8.h"

#include "pool.h"

void pack_float8(const uint8_t* codes, const float* scales, int64_t outputs, const Float8Shape& shape, void* packed) {
    Pool::instance().each(panels(outputs), [=](int64_t panel) {
        float* const to = static_cast<float*>(packed) + panel * shape.words;
        uint32_t* const words = static_cast<uint32_t*>(packed) + panel * shape.words + shape.groups * PANEL;
        std::memset(to, 0, shape.words * sizeof(uint32_t));
        for (int64_t lane = 0; lane < PANEL && panel * PANEL + lane < outputs; lane++) {
            const int64_t output = panel * PANEL + lane, shift = 24 - lane / Float8Panel::WORDS * 8;
            for (int64_t group = 0; group < shape.groups; group++)
                to[group * PANEL + lane] = scales[output * shape.groups + group];
            const uint8_t* const line = codes + output * shape.inputs;
            for (int64_t k = 0; k < shape.inputs; k++)
                words[k * Float8Panel::WORDS + lane % Float8Panel::WORDS] |= uint32_t(line[k]) << shift;
        }
    });
}

void unpack_float8(const Linear& layer, int64_t output, float* out) {
    const Float8Shape shape(layer.inputs, layer.group);
    const int64_t panel = output / PANEL, lane = output % PANEL, shift = lane / Float8Panel::WORDS * 8;
    const uint32_t* const words = shape.codes(layer.packed, panel) + lane % Float8Panel::WORDS;
    const float* const scales = shape.scales(layer.packed, panel) + lane;
    for (int64_t k = 0; k < layer.inputs; k++) {
        const int32_t word = int32_t(words[k * Float8Panel::WORDS] << shift);
        const uint32_t bits = uint32_t(word >> 4) & 0x87f00000u;
        float value;
        std::memcpy(&value, &bits, sizeof value);
        out[k] = value * FLOAT8_UNIT * scales[k / layer.group * PANEL];
    }
}
