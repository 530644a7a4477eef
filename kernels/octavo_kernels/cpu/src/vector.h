/* Vectors as wide as the instruction set's registers, and exp.
 *
 * LANES is 16 with AVX-512, 8 with AVX2 and 4 elsewhere. Sums over lanes have a fixed order.
 */
#ifndef OCTAVO_VECTOR_H
#define OCTAVO_VECTOR_H

#include "common.h"

#if defined(__AVX512BW__)
#define LANES 16
#elif defined(__AVX2__) && defined(__FMA__)
#define LANES 8
#else
#define LANES 4
#endif

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ivec __attribute__((vector_size(4 * LANES)));
typedef uint32_t uvec __attribute__((vector_size(4 * LANES)));

static inline vec vec_load(const float *from) {
    vec value;
    memcpy(&value, from, sizeof value);
    return value;
}

static inline void vec_store(float *to, vec value) { memcpy(to, &value, sizeof value); }

static inline vec vec_all(float value) { return value - (vec){0}; }

/* The larger one per lane; `b` where one is NaN. */
static inline vec vec_max(vec a, vec b) {
#if LANES == 16
    return (vec)_mm512_max_ps((__m512)a, (__m512)b);
#elif LANES == 8
    return (vec)_mm256_max_ps((__m256)a, (__m256)b);
#else
    ivec larger = a > b;
    return (vec)(((ivec)a & larger) | ((ivec)b & ~larger));
#endif
}

/* The smaller one per lane; `b` where one is NaN. */
static inline vec vec_min(vec a, vec b) {
#if LANES == 16
    return (vec)_mm512_min_ps((__m512)a, (__m512)b);
#elif LANES == 8
    return (vec)_mm256_min_ps((__m256)a, (__m256)b);
#else
    ivec smaller = a < b;
    return (vec)(((ivec)a & smaller) | ((ivec)b & ~smaller));
#endif
}

/* `value`, but zero where `x` is -inf. */
static inline vec vec_zero_at_minus_infinity(vec x, vec value) {
#if LANES == 16
    __mmask16 keep = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-INFINITY), _CMP_NEQ_UQ);
    return (vec)_mm512_maskz_mov_ps(keep, (__m512)value);
#else
    return (vec)((ivec)value & ~(x == vec_all(-INFINITY)));
#endif
}

static inline float vec_largest(vec value) {
    float lane[LANES], largest = -INFINITY;
    vec_store(lane, value);
#if LANES == 16
    return _mm512_reduce_max_ps((__m512)value);
#endif
    for (int i = 0; i < LANES; i++) largest = lane[i] > largest ? lane[i] : largest;
    return largest;
}

static inline float vec_sum(vec value) {
#if LANES == 16
    return _mm512_reduce_add_ps((__m512)value); /* by halves, too */
#endif
    float lane[LANES];
    vec_store(lane, value);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) lane[i] += lane[i + half];
    return lane[0];
}

/* e**r for |r| <= ln 2 / 2, by its Taylor polynomial of degree 7, whose remainder is below 2**-27 there. */
static inline vec vec_exp_of_rest(vec r) {
    vec p = r * (1.0f / 5040) + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return p;
}

/* e**x for x <= 88, within 1.5 ulp; 0 for -inf, NaN for NaN. Below -87 it stays at e**-87 = 1.6e-38: the result is
 * never subnormal, and a share that is not zero keeps an infinite value infinite.
 *
 * x = n ln 2 + r with |r| <= ln 2 / 2, ln 2 in two parts (Cody and Waite).
 */
static inline vec vec_exp(vec x) {
    const vec magic = vec_all(0x1.8p23f); /* adding it rounds to an integer, which is then in the low bits */
    vec bounded = vec_max(vec_all(-87.0f), x);
    vec t = bounded * 1.44269504f + magic;
    vec n = t - magic;
    vec r = bounded - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    ivec power = (ivec)(((uvec)t << 23) + (127u << 23)); /* 2**n; rubbish for NaN, which r keeps */
    return vec_zero_at_minus_infinity(x, vec_exp_of_rest(r) * (vec)power);
}

static inline float exp_one(float x) { return vec_exp(vec_all(x))[0]; }

/* NaN does not count; -inf for nothing. */
static inline float largest_of(const float *x, int64_t count) {
    vec top = vec_all(-INFINITY);
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) top = vec_max(vec_load(x + i), top);
    float largest = vec_largest(top);
    for (; i < count; i++) largest = x[i] > largest ? x[i] : largest;
    return largest;
}

/* Sum of e**(x - largest), in an order that depends on the count alone. */
static inline float exp_sum(const float *x, int64_t count, float largest) {
    vec sum = {0};
    float rest[LANES];
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) sum += vec_exp(vec_load(x + i) - largest);
    if (i == count) return vec_sum(sum);
    for (int64_t j = 0; j < LANES; j++) rest[j] = i + j < count ? x[i + j] - largest : -INFINITY;
    return vec_sum(sum + vec_exp(vec_load(rest)));
}

#endif
