/* Products with a packed weight: PAIR outputs by one, two or four rows at a time.
 *
 * A weight [N, K] is cut into pairs of blocks of LANES outputs. Along K, one 32-bit word holds what one output needs
 * next: 2 values in BF16, 4 in FP8, 8 in INT4 and NVFP4. Memory: [N / PAIR][K / per_word][2][LANES] words, so that a
 * pair is one stream. Of a word of nibbles, the low half of byte j is value j and the high half value 4 + j.
 * Scales lie as [N / PAIR][K / group][2][LANES], zero points too.
 */
#ifndef OCTAVO_LINEAR_PACKED_H
#define OCTAVO_LINEAR_PACKED_H

#include "linear_lanes.h"

enum format { FORMAT_BF16, FORMAT_INT4, FORMAT_INT4_ZEROS, FORMAT_FP8, FORMAT_NVFP4 };

enum { ROWS = 4 };                /* rows of the tallest tile */
enum { AHEAD = 3072 };            /* bytes that the next loads are announced ahead of their use */

typedef struct {
    int64_t format, in, pairs, group; /* in: K, a multiple of per_word; group divides it */
    const uint8_t *words;
    const void *scales; /* bfloat16 for INT4, float for FP8, e4m3 for NVFP4, none for BF16 */
    const uint8_t *zeros;
    const float *global; /* one per stacked weight, NVFP4 only */
} packed;

typedef struct {
    const float *exact; /* [rows, K], or, when null, the same as integers: */
    const int8_t *values;
    const float *scales;
    const int32_t *sums; /* both [rows, K / group] */
} activations;

ALWAYS_INLINE int per_word(int format) { return format == FORMAT_BF16 ? 2 : format == FORMAT_FP8 ? 4 : 8; }

ALWAYS_INLINE int bits_of(int nibble) { return nibble < 4 ? 8 * nibble : 8 * (nibble - 4) + 4; }

#if defined(__AVX512F__)
ALWAYS_INLINE vec look_up(const float *table, ivec index) {
    return (vec)_mm512_permutexvar_ps((__m512i)index, _mm512_loadu_ps(table));
}
#endif

static const float SIGNED_NIBBLE[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
static const float E2M1[16] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.f, -.5f, -1, -1.5f, -2, -3, -4, -6};

/* Value `i` of each word. INT4 comes out as stored minus 8, FP8 as 1/256 of its value. */
ALWAYS_INLINE vec decode(const int format, ivec word, const int i) {
    if (format == FORMAT_BF16) return (vec)(i ? word & (int32_t)0xffff0000 : word << 16);
    if (format == FORMAT_FP8) return vec_from_e4m3(word << (24 - 8 * i));
    const int shift = bits_of(i);
#if defined(__AVX512F__)
    return look_up(format == FORMAT_NVFP4 ? E2M1 : SIGNED_NIBBLE, (ivec)((uvec)word >> shift));
#else
    if (format == FORMAT_NVFP4) {
        ivec code = word >> shift, sign = code << 28 & INT32_MIN, size = code & 7;
        ivec small = size < 2;
        vec normal = (vec)((size << 22) + (126 << 23)), subnormal = __builtin_convertvector(size, vec) * 0.5f;
        return (vec)(((ivec)normal & ~small) | ((ivec)subnormal & small) | sign);
    }
    return __builtin_convertvector(((word ^ (int32_t)0x88888888) << (28 - shift)) >> 28, vec);
#endif
}

ALWAYS_INLINE vec scale_of(const int format, const packed *w, int64_t index, float global) {
    if (format == FORMAT_INT4 || format == FORMAT_INT4_ZEROS) return vec_from_bf16((const uint16_t *)w->scales + index);
    if (format == FORMAT_FP8) return vec_load((const float *)w->scales + index) * 256.0f;
    if (format == FORMAT_NVFP4) {
        ivec code = ivec_from_bytes((const uint8_t *)w->scales + index);
        ivec nan = ((code & 0x7f) == 0x7f) & 0x7fc00000;
        return (vec)((ivec)(vec_from_e4m3(code << 24) * 256.0f * global) | nan);
    }
    return vec_all(1.0f);
}

/* Exact activations. `first` and `blocks` say which of the pair's two blocks; all are compile-time constants. Even and
 * odd values have a sum of their own within a group: two chains per lane, on every tile height. */
ALWAYS_INLINE void exact_tile(const int format, const int rows, const int first, const int blocks, const packed *w,
                              int64_t stacked, int64_t pair, const float *const *x, float *out) {
    const int step = per_word(format);
    const int64_t group = w->group, groups = w->in / group, base = stacked * w->pairs + pair;
    const uint8_t *words = w->words + base * (w->in / step) * PAIR * 4;
    const float global = format == FORMAT_NVFP4 ? w->global[stacked] : 1.0f;
    vec total[ROWS][2] = {0};
    for (int64_t g = 0; g < groups; g++) {
        const int64_t scale_at = (base * groups + g) * PAIR;
        vec even[ROWS][2] = {0}, odd[ROWS][2] = {0}, offset[2] = {0};
        if (format == FORMAT_INT4_ZEROS)
#pragma GCC unroll 2
            for (int b = 0; b < blocks; b++) {
                ivec zeros = ivec_from_bytes(w->zeros + scale_at + (first + b) * LANES);
                offset[b] = __builtin_convertvector(zeros - 8, vec);
            }
        for (int64_t k = g * group; k < (g + 1) * group; k += step, words += PAIR * 4) {
            if (rows == 1) __builtin_prefetch(words + AHEAD), __builtin_prefetch(words + AHEAD + PAIR * 2);
#pragma GCC unroll 2
            for (int b = 0; b < blocks; b++) {
                ivec word = ivec_load(words + (first + b) * LANES * 4);
#pragma GCC unroll 8
                for (int i = 0; i < step; i++) {
                    vec value = decode(format, word, i);
                    if (format == FORMAT_INT4_ZEROS) value = value - offset[b];
#pragma GCC unroll 4
                    for (int r = 0; r < rows; r++)
                        if (i & 1)
                            odd[r][b] = value * x[r][k + i] + odd[r][b];
                        else
                            even[r][b] = value * x[r][k + i] + even[r][b];
                }
            }
        }
#pragma GCC unroll 2
        for (int b = 0; b < blocks; b++) {
            vec scale = scale_of(format, w, scale_at + (first + b) * LANES, global);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) total[r][b] = (even[r][b] + odd[r][b]) * scale + total[r][b];
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int b = 0; b < blocks; b++) vec_store(out + r * PAIR + (first + b) * LANES, total[r][b]);
}

/* sum[r][b] += nibbles of one group times 8-bit integers, exact on every instruction set. */
ALWAYS_INLINE void integer_group(const int rows, const int first, const int blocks, const uint8_t *words,
                                 int64_t count, const int8_t *const *x, ivec sum[ROWS][2]) {
    const ivec low = ivec_all(0x0f0f0f0f);
#if defined(__AVX512VNNI__)
    for (int64_t k = 0; k < count; k += 8, words += PAIR * 4) {
        if (rows == 1) __builtin_prefetch(words + AHEAD), __builtin_prefetch(words + AHEAD + PAIR * 2);
#pragma GCC unroll 2
        for (int b = 0; b < blocks; b++) {
            ivec word = ivec_load(words + (first + b) * LANES * 4);
            ivec near = word & low, far = (word >> 4) & low;
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) {
                int32_t four[2];
                memcpy(four, x[r] + k, sizeof four);
                sum[r][b] = (ivec)_mm512_dpbusd_epi32((__m512i)sum[r][b], (__m512i)near, _mm512_set1_epi32(four[0]));
                sum[r][b] = (ivec)_mm512_dpbusd_epi32((__m512i)sum[r][b], (__m512i)far, _mm512_set1_epi32(four[1]));
            }
        }
    }
#elif defined(__AVX2__)
    /* A product of two pairs is at most 2 * 15 * 127 = 3810: eight of them fit 16 bits, which is 32 values of K. */
    const __m256i ones = _mm256_set1_epi16(1);
    for (int64_t start = 0; start < count; start += 32) {
        const int64_t stop = start + 32 < count ? start + 32 : count;
        __m256i part[ROWS][2];
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
            for (int b = 0; b < blocks; b++) part[r][b] = _mm256_setzero_si256();
        for (int64_t k = start; k < stop; k += 8, words += PAIR * 4) {
            if (rows == 1) __builtin_prefetch(words + AHEAD);
#pragma GCC unroll 2
            for (int b = 0; b < blocks; b++) {
                ivec word = ivec_load(words + (first + b) * LANES * 4);
                ivec near = word & low, far = (word >> 4) & low;
#pragma GCC unroll 4
                for (int r = 0; r < rows; r++) {
                    int32_t four[2];
                    memcpy(four, x[r] + k, sizeof four);
                    part[r][b] = _mm256_add_epi16(
                        part[r][b], _mm256_maddubs_epi16((__m256i)near, _mm256_set1_epi32(four[0])));
                    part[r][b] = _mm256_add_epi16(
                        part[r][b], _mm256_maddubs_epi16((__m256i)far, _mm256_set1_epi32(four[1])));
                }
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
            for (int b = 0; b < blocks; b++) sum[r][b] += (ivec)_mm256_madd_epi16(part[r][b], ones);
    }
#else
    (void)low;
    for (int64_t k = 0; k < count; k += 8, words += PAIR * 4)
#pragma GCC unroll 2
        for (int b = 0; b < blocks; b++) {
            ivec word = ivec_load(words + (first + b) * LANES * 4);
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++)
#pragma GCC unroll 4
                for (int r = 0; r < rows; r++) sum[r][b] += ((word >> bits_of(i)) & 15) * (int32_t)x[r][k + i];
        }
#endif
}

/* Activations as 8-bit integers with a scale per (row, group): y += (weight scale * row scale) * (dot - zero * sum). */
ALWAYS_INLINE void integer_tile(const int format, const int rows, const int first, const int blocks, const packed *w,
                                int64_t stacked, int64_t pair, const activations *x, const int64_t *row, float *out) {
    const int64_t group = w->group, groups = w->in / group, base = stacked * w->pairs + pair;
    const uint8_t *words = w->words + base * (w->in / 8) * PAIR * 4;
    const int8_t *values[ROWS];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) values[r] = x->values + row[r] * w->in;
    vec total[ROWS][2] = {0};
    for (int64_t g = 0; g < groups; g++) {
        const int64_t scale_at = (base * groups + g) * PAIR;
        ivec sum[ROWS][2] = {0};
        integer_group(rows, first, blocks, words, group, values, sum);
        words += group / 8 * PAIR * 4;
#pragma GCC unroll 2
        for (int b = 0; b < blocks; b++) {
            vec scale = scale_of(format, w, scale_at + (first + b) * LANES, 1.0f);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) {
                const int64_t at = row[r] * groups + g;
                ivec centred = sum[r][b] - 8 * x->sums[at];
                if (format == FORMAT_INT4_ZEROS)
                    centred = sum[r][b] - ivec_from_bytes(w->zeros + scale_at + (first + b) * LANES) * x->sums[at];
                total[r][b] = __builtin_convertvector(centred, vec) * (scale * x->scales[at]) + total[r][b];
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) values[r] += group;
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int b = 0; b < blocks; b++) vec_store(out + r * PAIR + (first + b) * LANES, total[r][b]);
}

#endif
