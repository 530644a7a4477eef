/* What all kernels share: number conversions that are exact or round to nearest even, and vectors of 16 floats.
 *
 * Every function below has one meaning on every instruction set. The compiler turns `f16v` into one AVX-512 register,
 * two AVX registers or whatever the target has; hot loops that need more than that are written per instruction set
 * in the kernel's own file, under #if.
 */
#ifndef OCTAVO_COMMON_H
#define OCTAVO_COMMON_H

#include <math.h>
#include <stdint.h>
#include <stddef.h>
#include <string.h>
#include <omp.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

typedef float f16v __attribute__((vector_size(64), aligned(4)));

static inline float bf16_to_f32(uint16_t bits) {
    uint32_t word = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &word, sizeof value);
    return value;
}

/* Nearest even; NaN stays a (quiet) NaN. */
static inline uint16_t f32_to_bf16(float value) {
    uint32_t word;
    memcpy(&word, &value, sizeof word);
    if ((word & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((word >> 16) | 0x40u);
    return (uint16_t)((word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
}

/* e4m3fn, exact; 0x7f and 0xff are NaN. */
static inline float e4m3_to_f32(uint8_t code) {
    uint32_t size = code & 0x7fu, word = (size << 20) + (120u << 23);
    float value;
    if (size == 0x7fu) return NAN;
    memcpy(&value, &word, sizeof value);
    if (size < 8) value = (float)size * 0x1p-9f; /* no float32 subnormal on the way: the multiplier is slow with them */
    return code & 0x80u ? -value : value;
}

/* Nearest even, saturating at 448 (infinity too); NaN gives 0x7f with the sign kept. */
static inline uint8_t f32_to_e4m3(float value) {
    uint32_t word;
    memcpy(&word, &value, sizeof word);
    uint8_t sign = (uint8_t)((word >> 24) & 0x80u);
    uint32_t magnitude = word & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return sign | 0x7fu;
    if (magnitude >= 0x43e80000u) return sign | 0x7eu; /* 464, the middle between 448 and the 480 that is not there */
    if (magnitude < 0x3c800000u) {                     /* below 2^-6: subnormal, in steps of 2^-9 */
        float size;
        memcpy(&size, &magnitude, sizeof size);
        return sign | (uint8_t)(int)rintf(size * 512.0f);
    }
    uint32_t rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u);
    return sign | (uint8_t)((rounded >> 20) - ((127 - 7) << 3));
}

#endif
