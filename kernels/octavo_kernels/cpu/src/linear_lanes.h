/* One register of LANES floats or 32-bit integers, on every instruction set, in GCC's vector notation.
 *
 * A product followed by a sum is one fused operation where the target has one (-ffp-contract=fast); every kernel here
 * writes such a pair in one expression, so that a row gets the same bits from every tile height.
 */
#ifndef OCTAVO_LINEAR_LANES_H
#define OCTAVO_LINEAR_LANES_H

#include "common.h"

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX2__)
#define LANES 8
#else
#define LANES 4
#endif
#define PAIR (2 * LANES)

#define ALWAYS_INLINE static inline __attribute__((always_inline))

typedef float vf __attribute__((vector_size(4 * LANES)));
typedef int32_t vi __attribute__((vector_size(4 * LANES)));
typedef uint32_t vu __attribute__((vector_size(4 * LANES)));

ALWAYS_INLINE vf vf_load(const float *from) {
    vf value;
    memcpy(&value, from, sizeof value);
    return value;
}

ALWAYS_INLINE void vf_store(float *to, vf value) { memcpy(to, &value, sizeof value); }

ALWAYS_INLINE vi vi_load(const void *from) {
    vi value;
    memcpy(&value, from, sizeof value);
    return value;
}

ALWAYS_INLINE vf vf_all(float value) { return value - (vf){0}; }

ALWAYS_INLINE vi vi_all(int32_t value) { return value - (vi){0}; }

/* LANES bytes, and LANES 16-bit words, as integers. */
ALWAYS_INLINE vi vi_from_bytes(const uint8_t *from) {
    typedef uint8_t bytes __attribute__((vector_size(LANES)));
    bytes value;
    memcpy(&value, from, sizeof value);
    return __builtin_convertvector(value, vi);
}

ALWAYS_INLINE vf vf_from_bf16(const uint16_t *from) {
    typedef uint16_t words __attribute__((vector_size(2 * LANES)));
    words value;
    memcpy(&value, from, sizeof value);
    return (vf)(__builtin_convertvector(value, vu) << 16);
}

ALWAYS_INLINE vf vf_smaller(vf a, vf b) {
#if defined(__AVX512F__)
    return (vf)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (vf)_mm256_min_ps((__m256)a, (__m256)b);
#else
    vi less = a < b;
    return (vf)(((vi)a & less) | ((vi)b & ~less));
#endif
}

/* 1/256 of e4m3 codes in the top byte of each lane; NaN codes come out as 480/256. An exponent over the fields makes
 * normal codes right; a subnormal one is then 2 a - 2^-14. The smaller of the two is right for both, and no number on
 * the way is a float32 subnormal, which would cost a hundred cycles. */
ALWAYS_INLINE vf vf_from_e4m3(vi code) {
    vf a = (vf)(((vi)((vu)code >> 4) & 0x07f00000) | 0x38000000);
    return (vf)((vi)vf_smaller(a, a * 2.0f - 0x1p-14f) | (code & INT32_MIN));
}

/* The sum of all lanes by halves, in one order on every machine with as many lanes. */
ALWAYS_INLINE float vf_sum(vf value) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)value);
#endif
    float lane[LANES];
    vf_store(lane, value);
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) lane[i] += lane[i + width];
    return lane[0];
}

/* e^x to about 2 units in the last place; NaN stays NaN, beyond the range infinity and zero. */
ALWAYS_INLINE vf vf_exp(vf x) {
    vi over = x > 88.72f, under = x < -103.0f;
    vf capped = (vf)(((vi)vf_all(88.72f) & over) | ((vi)vf_all(-103.0f) & under) | ((vi)x & ~(over | under)));
    vf shifted = capped * 1.44269504f + 0x1.8p23f;
    vi power = (vi)shifted - (vi)vf_all(0x1.8p23f);
    vf whole = shifted - 0x1.8p23f;
    vf r = capped - whole * 0x1.62e4p-1f;
    r = r - whole * 0x1.7f7d1cp-20f;
    vf p = vf_all(1.0f / 5040);
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    vi half = power >> 1;
    p = p * (vf)((half + 127) << 23) * (vf)((power - half + 127) << 23);
    return (vf)(((vi)vf_all(INFINITY) & over) | ((vi)p & ~(over | under)));
}

/* x / (1 + e^-x); minus infinity gives NaN, as the formula does. */
ALWAYS_INLINE vf vf_silu(vf x) { return x / (1.0f + vf_exp(-x)); }

#endif
