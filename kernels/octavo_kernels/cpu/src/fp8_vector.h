/* LANES FP8 codes at a time; the same results as e4m3_to_f32 and f32_to_e4m3. */
#ifndef OCTAVO_FP8_VECTOR_H
#define OCTAVO_FP8_VECTOR_H

#include "vector.h"

typedef uint8_t bvec __attribute__((vector_size(LANES)));

static inline uvec uvec_select(ivec mask, uvec yes, uvec no) { return (yes & (uvec)mask) | (no & ~(uvec)mask); }

static inline void e4m3_encode_lanes(vec values, uint8_t *to) {
    uvec word = (uvec)values, size = word & 0x7fffffffu;
    /* Below 2**-6 a code counts steps of 2**-9: adding 1.5 * 2**14, whose last bit is one step, rounds to them. */
    uvec small = (uvec)((vec)size + 0x1.8p14f) - 0x46c00000u;
    uvec code = ((size + 0x7ffffu + ((size >> 20) & 1u)) >> 20) - (120u << 3);
    code = uvec_select(size < 0x3c800000u, small, code);
    code = uvec_select(size >= 0x43e80000u, (uvec){0} + 0x7eu, code);
    code = uvec_select(size > 0x7f800000u, (uvec){0} + 0x7fu, code);
    bvec bytes = __builtin_convertvector(code | ((word >> 24) & 0x80u), bvec);
    memcpy(to, &bytes, sizeof bytes);
}

static inline vec e4m3_decode_lanes(const uint8_t *from) {
#if LANES == 16
    /* By way of float16, which has one exponent bit more: a conversion that is as fast for subnormal numbers. */
    __m128i code = _mm_loadu_si128((const __m128i *)from), all = _mm_set1_epi8(0x7f);
    __mmask16 nan = _mm_cmpeq_epi8_mask(_mm_and_si128(code, all), all);
    __m256i half = _mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepi8_epi16(code), 7), _mm256_set1_epi16((short)0xbf80));
    __m512 value = _mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(256.0f));
    return (vec)_mm512_mask_mov_ps(value, nan, _mm512_set1_ps(NAN));
#else
    bvec code;
    memcpy(&code, from, sizeof code);
    uvec word = __builtin_convertvector(code, uvec), size = word & 0x7fu;
    /* A normal code with its exponent put right is a; a subnormal one is 2 a - 2**-6. */
    vec a = (vec)((size << 20) + (120u << 23));
    uvec bits = uvec_select(size < 8, (uvec)(a * 2.0f - 0x1p-6f), (uvec)a);
    bits = uvec_select(size == 0x7f, (uvec){0} + 0x7fc00000u, bits);
    return (vec)(bits | ((word & 0x80u) << 24));
#endif
}

static inline void e4m3_encode(const float *from, uint8_t *to, int64_t count) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) e4m3_encode_lanes(vec_load(from + i), to + i);
    for (; i < count; i++) to[i] = f32_to_e4m3(from[i]);
}

#endif
