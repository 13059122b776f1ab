// Each filter is a threshold on a row's logits, so ties need no order. Nothing is sorted: the k-th largest logit and the
// top_p threshold are found by selection. Noise is a function of seed, position, choice and column, with the same hashes as
// in kernels/reference/noise.py. It is computed exactly only for columns that could win given an upper bound of their noise.
#include "sample.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "pool.h"
#include "vec.h"

namespace {

constexpr float GREEDY_BELOW = 1e-5f;
constexpr float MAX_NOISE = 23.0f;
constexpr float SLACK = 2e-5f;  // relative slack of the upper bound, for float rounding
constexpr float MAX_BELOW_ONE = 1.0f - 0x1p-24f;
constexpr float LOWEST = -__builtin_inff();
constexpr int64_t NAN_TOKEN = -1;
constexpr int MAX_SORTED = 32;  // ranges up to this size are sorted instead of partitioned

typedef double D16 __attribute__((vector_size(128)));

inline bool any(I16 mask) {
    uint64_t words[8];
    std::memcpy(words, &mask, sizeof mask);
    return words[0] | words[1] | words[2] | words[3] | words[4] | words[5] | words[6] | words[7];
}

// lowbias32 (Chris Wellons, 2018) of a word or a vector of words.
template <class Word>
inline Word mix(Word word) {
    word ^= word >> 16;
    word *= 0x7feb352du;
    word ^= word >> 15;
    word *= 0x846ca68bu;
    return word ^ word >> 16;
}

struct Noise {
    uint32_t a, b;

    Noise(uint64_t seed, uint64_t position, uint64_t choice) : a(0x9e3779b9u), b(0x85ebca6bu) {
        for (const uint32_t word : {uint32_t(seed), uint32_t(seed >> 32), uint32_t(position), uint32_t(choice)}) {
            a = mix(a ^ word);
            b = mix(b ^ word);
        }
    }

    template <class Word>
    Word hash(Word column) const {
        return mix(mix(column + a) ^ b);
    }

    // Standard Gumbel noise: -log(-log1p(-u)) with u = (hash + 1/2) / 2^32.
    static float of(uint32_t hash) {
        const float u = std::min((float(hash) + 0.5f) * 0x1p-32f, MAX_BELOW_ONE);
        return -std::log(-std::log1p(-u));
    }

    // Upper bound of `of`: -log1p(-u) > u, and the bits of a float are a lower bound of its logarithm, in units of 2^-23.
    static F16 at_most(U16 hash) {
        const F16 bits = __builtin_convertvector((I16)__builtin_convertvector(hash, F16), F16);
        return splat(0.693147181f) * (splat(32.0f + 127.0f) - bits * splat(0x1p-23f));
    }
};

// Return the column of the largest value, the lowest among equals; NAN_TOKEN if there is a NaN.
int64_t largest(const float* row, int64_t size) {
    constexpr int WAYS = 4;  // independent chains of maxima, to hide latency
    F16 highest[WAYS];
    for (F16& some : highest) some = splat(LOWEST);
    I16 broken{};
    int64_t column = 0;
    const auto look = [&](F16& some) {
        const F16 v = load(row + column);
        some = larger(v, some);
        broken |= v != v;
        column += LANES;
    };
    while (column + WAYS * LANES <= size)
        for (F16& some : highest) look(some);
    while (column + LANES <= size) look(highest[0]);
    float top = maximum(larger(larger(highest[0], highest[1]), larger(highest[2], highest[3])));
    bool is_broken = any(broken);
    for (; column < size; column++) {
        top = row[column] > top ? row[column] : top;
        is_broken |= row[column] != row[column];
    }
    if (is_broken) return NAN_TOKEN;
    for (column = 0; column + LANES <= size; column += LANES)
        if (any(load(row + column) == splat(top))) break;
    for (; column < size; column++)
        if (row[column] == top) return column;
    return 0;
}

struct Weighed {
    float value, weight;
};

// Return the largest value such that the values not below it, at least one, weigh at least `target` together.
float reaching(Weighed* first, Weighed* last, double target) {
    while (last - first > MAX_SORTED) {
        const float a = first->value, b = first[(last - first) / 2].value, c = last[-1].value;
        const float pivot = std::max(std::min(a, b), std::min(std::max(a, b), c));
        Weighed* const equal = std::partition(first, last, [=](Weighed w) { return w.value > pivot; });
        Weighed* const less = std::partition(equal, last, [=](Weighed w) { return w.value == pivot; });
        double greater_weigh = 0, equal_weigh = 0;
        for (const Weighed* w = first; w < equal; w++) greater_weigh += w->weight;
        for (const Weighed* w = equal; w < less; w++) equal_weigh += w->weight;
        if (equal > first && greater_weigh >= target) {
            last = equal;
        } else if (greater_weigh + equal_weigh >= target || less == last) {
            return pivot;
        } else {
            target -= greater_weigh + equal_weigh;
            first = less;
        }
    }
    std::sort(first, last, [](Weighed a, Weighed b) { return a.value > b.value; });
    for (; first + 1 < last; first++) {
        target -= first->weight;
        if (target <= 0) break;
    }
    return first->value;
}

double sum(D16 lanes) {
    double total = 0;
    for (int lane = 0; lane < LANES; lane++) total += lanes[lane];
    return total;
}

// Return the standard deviation of the finite ones of values[padded], which are padded with minus infinity.
double standard_deviation(const std::vector<float>& values, int64_t size) {
    const F16 infinity = splat(-LOWEST);
    const auto sum_of = [&](auto term) {
        D16 lanes{};
        for (int64_t column = 0; column < size; column += LANES) {
            const F16 v = load(values.data() + column);
            const I16 finite = (v > -infinity) & (v < infinity);
            lanes += term(__builtin_convertvector(choose(finite, v, splat(0.0f)), D16),
                          __builtin_convertvector(choose(finite, splat(1.0f), splat(0.0f)), D16));
        }
        return sum(lanes);
    };
    const double count = std::max(1.0, sum_of([](D16, D16 finite) { return finite; }));
    const double mean = sum_of([](D16 v, D16) { return v; }) / count;
    return std::sqrt(sum_of([=](D16 v, D16 finite) { return (v - mean) * (v - mean) * finite; }) / count);
}

// Return the smallest of values[padded] that the filters keep; minus infinity without filters.
float floor_of(const std::vector<float>& values, int64_t size, float top, const SlotRecord& record) {
    const int32_t top_k = record.top_k;
    const float top_p = record.top_p;
    float floor = record.min_p > 0 ? top + std::log(record.min_p) : LOWEST;
    if (record.top_n_sigma > 0)
        floor = std::max(floor, float(top - double(record.top_n_sigma) * standard_deviation(values, size)));
    if (top_k > 0 && top_k < size) {
        thread_local std::vector<float> some;
        some.assign(values.begin(), values.begin() + size);
        std::nth_element(some.begin(), some.begin() + (top_k - 1), some.end(), std::greater<float>());
        floor = std::max(floor, some[top_k - 1]);
    }
    if (top_p < 1) {
        const auto weigh = [&](int64_t column, float least) {
            const F16 v = load(values.data() + column);
            return choose(v >= splat(least), exp16(v - splat(top)), splat(0.0f));
        };
        D16 masses{};
        for (int64_t column = 0; column < size; column += LANES)
            masses += __builtin_convertvector(weigh(column, floor), D16);
        const double mass = sum(masses);
        // All columns lighter than this together weigh less than top_p may drop, so the threshold is not among them.
        const float light = float((1 - top_p) * mass / double(size));
        thread_local std::vector<Weighed> heavy;
        heavy.clear();
        for (int64_t column = 0; column < size; column += LANES) {
            const F16 weights = weigh(column, floor);
            const I16 mask = weights >= splat(std::max(light, std::numeric_limits<float>::min()));
            if (!any(mask)) continue;
            for (int lane = 0; lane < LANES; lane++)
                if (mask[lane]) heavy.push_back({values[column + lane], weights[lane]});
        }
        floor = std::max(floor, reaching(heavy.data(), heavy.data() + heavy.size(), top_p * mass));
    }
    return floor;
}

int64_t sample_row(const Sampling& s, int64_t row) {
    const int64_t size = s.vocabulary;
    const SlotRecord& record = s.records[row];
    const float *logits = s.logits + row * size, temperature = record.temperature;
    const int64_t first = largest(logits, size);
    if (first == NAN_TOKEN || temperature < GREEDY_BELOW || !std::isfinite(logits[first])) return first;
    thread_local std::vector<float> values;
    values.assign((size + LANES - 1) / LANES * LANES, LOWEST);
    for (int64_t column = 0; column < size; column++) values[column] = logits[column] / temperature;
    const float top = values[first];
    if (!std::isfinite(top)) return first;
    const float floor = floor_of(values, size, top, record);
    const Noise noise(record.seed, s.positions[row], record.choice);
    float best = top + Noise::of(noise.hash(uint32_t(first)));
    int64_t best_column = first;
    const U16 lanes = U16{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    for (int64_t column = 0; column < size; column += LANES) {
        const F16 v = load(values.data() + column);
        I16 open = v >= splat(std::max(floor, best - MAX_NOISE));
        if (!any(open)) continue;
        const U16 hashes = noise.hash(lanes + uint32_t(column));
        open &= v + Noise::at_most(hashes) >= splat(best - SLACK * (1 + std::abs(best)));
        if (!any(open)) continue;
        for (int lane = 0; lane < LANES; lane++) {
            if (!open[lane]) continue;
            const float score = v[lane] + Noise::of(hashes[lane]);
            if (score > best || (score == best && column + lane < best_column)) {
                best = score;
                best_column = column + lane;
            }
        }
    }
    return best_column;
}

}  // namespace

void sample(const Sampling& sampling) {
    Pool::instance().each(sampling.rows, [&](int64_t row) { sampling.ids[row] = sample_row(sampling, row); });
}
