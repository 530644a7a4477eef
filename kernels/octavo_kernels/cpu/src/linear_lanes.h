/* What products with weights need of a register beyond `vector.h`.
 *
 * A product followed by a sum is one fused operation where the target has one (-ffp-contract=fast); every kernel here
 * writes such a pair in one expression, so that a row gets the same bits from every tile height.
 */
#ifndef OCTAVO_LINEAR_LANES_H
#define OCTAVO_LINEAR_LANES_H

#include "vector.h"

#define PAIR (2 * LANES)

#define ALWAYS_INLINE static inline __attribute__((always_inline))

ALWAYS_INLINE ivec ivec_load(const void *from) {
    ivec value;
    memcpy(&value, from, sizeof value);
    return value;
}

ALWAYS_INLINE ivec ivec_all(int32_t value) { return value - (ivec){0}; }

/* LANES bytes, and LANES 16-bit words, as integers. */
ALWAYS_INLINE ivec ivec_from_bytes(const uint8_t *from) {
    typedef uint8_t bytes __attribute__((vector_size(LANES)));
    bytes value;
    memcpy(&value, from, sizeof value);
    return __builtin_convertvector(value, ivec);
}

ALWAYS_INLINE vec vec_from_bf16(const uint16_t *from) {
    typedef uint16_t words __attribute__((vector_size(2 * LANES)));
    words value;
    memcpy(&value, from, sizeof value);
    return (vec)(__builtin_convertvector(value, uvec) << 16);
}

/* 1/256 of e4m3 codes in the top byte of each lane; NaN codes come out as 480/256. An exponent over the fields makes
 * normal codes right; a subnormal one is then 2 a - 2^-14. The smaller of the two is right for both, and no number on
 * the way is a float32 subnormal, which would cost a hundred cycles. */
ALWAYS_INLINE vec vec_from_e4m3(ivec code) {
    vec a = (vec)(((ivec)((uvec)code >> 4) & 0x07f00000) | 0x38000000);
    return (vec)((ivec)vec_min(a, a * 2.0f - 0x1p-14f) | (code & INT32_MIN));
}

/* `vec_exp` over the whole range: e^x to about 2 units in the last place; NaN stays NaN, beyond the range infinity and
 * zero. */
ALWAYS_INLINE vec vec_exp_wide(vec x) {
    ivec over = x > 88.72f, under = x < -103.0f;
    vec capped = (vec)(((ivec)vec_all(88.72f) & over) | ((ivec)vec_all(-103.0f) & under) | ((ivec)x & ~(over | under)));
    vec shifted = capped * 1.44269504f + 0x1.8p23f;
    ivec power = (ivec)shifted - (ivec)vec_all(0x1.8p23f);
    vec whole = shifted - 0x1.8p23f;
    vec r = capped - whole * 0x1.62e4p-1f;
    r = r - whole * 0x1.7f7d1cp-20f;
    ivec half = power >> 1;
    vec p = vec_exp_of_rest(r) * (vec)((half + 127) << 23) * (vec)((power - half + 127) << 23);
    return (vec)(((ivec)vec_all(INFINITY) & over) | ((ivec)p & ~(over | under)));
}

/* x / (1 + e^-x); minus infinity gives NaN, as the formula does. */
ALWAYS_INLINE vec vec_silu(vec x) { return x / (1.0f + vec_exp_wide(-x)); }

#endif
