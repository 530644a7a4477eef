/* Keys are needed transposed, so that a register holds the same element of many keys. Rows are read as 32-bit words
 * (four FP8 or two BF16 elements of one key), the words are transposed, and each element is then cut out of its word
 * by shifts: no byte is moved on its own.
 *
 * FP8 is decoded to 1/256 of its value, which the scales make up for. The obvious way, shifting exponent and mantissa
 * into place and multiplying by 2**120, feeds subnormal float32 to the multiplier, which takes 25 times as long on
 * Intel's cores (measured); neither way below does.
 */
#include "attention_tile.h"

static float element(const uint8_t *row, int64_t index, enum stored stored) {
    uint16_t bits;
    if (stored == STORED_FP8) return e4m3_to_f32(row[index]) * 0x1p-8f;
    memcpy(&bits, row + 2 * index, sizeof bits);
    return bf16_to_f32(bits);
}

#if LANES > 4

#define SIGN ((int32_t)0x80000000)
#define FIELDS 0x07f00000 /* an e4m3 code without its sign, where a float has its low exponent bits */
#define EXPONENT 0x38000000 /* 112 in the exponent field: 8 below what it takes */

#if LANES == 16

#define ROW_BYTES 64

static inline ivec load_words(const uint8_t *from, int64_t bytes) {
    __mmask64 mask = bytes >= 64 ? ~0ull : (1ull << bytes) - 1;
    return (ivec)_mm512_maskz_loadu_epi8(mask, from);
}

static inline int holds_nan(ivec words) {
    __m512i all = _mm512_set1_epi8(0x7f);
    return _mm512_cmpeq_epi8_mask(_mm512_and_si512((__m512i)words, all), all) != 0;
}

static inline ivec masked_or(ivec word, int32_t mask, ivec other) {
    return (ivec)_mm512_ternarylogic_epi32((__m512i)word, _mm512_set1_epi32(mask), (__m512i)other, 0xea);
}

static inline vec half_to_float(const uint8_t *code) {
    __m256i word = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)code));
    return (vec)_mm512_cvtph_ps(_mm256_and_si256(_mm256_slli_epi16(word, 7), _mm256_set1_epi16((short)0xbf80)));
}

static inline vec bf16_load(const uint8_t *from) {
    return (vec)((ivec)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)from)) << 16);
}

static inline void transpose(ivec m[16]) {
    __m512i a[16], b[16];
    for (int i = 0; i < 16; i += 2) {
        a[i] = _mm512_unpacklo_epi32((__m512i)m[i], (__m512i)m[i + 1]);
        a[i + 1] = _mm512_unpackhi_epi32((__m512i)m[i], (__m512i)m[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        b[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
        b[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
        b[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
        b[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        __m512i even = _mm512_shuffle_i32x4(b[i], b[i + 4], 0x88), odd = _mm512_shuffle_i32x4(b[i], b[i + 4], 0xdd);
        __m512i even_high = _mm512_shuffle_i32x4(b[i + 8], b[i + 12], 0x88);
        __m512i odd_high = _mm512_shuffle_i32x4(b[i + 8], b[i + 12], 0xdd);
        m[i] = (ivec)_mm512_shuffle_i32x4(even, even_high, 0x88);
        m[i + 8] = (ivec)_mm512_shuffle_i32x4(even, even_high, 0xdd);
        m[i + 4] = (ivec)_mm512_shuffle_i32x4(odd, odd_high, 0x88);
        m[i + 12] = (ivec)_mm512_shuffle_i32x4(odd, odd_high, 0xdd);
    }
}

#else

#define ROW_BYTES 32

static inline ivec load_words(const uint8_t *from, int64_t bytes) {
    uint8_t padded[32] = {0};
    if (bytes < 32) from = memcpy(padded, from, (size_t)bytes);
    return (ivec)_mm256_loadu_si256((const __m256i *)from);
}

static inline int holds_nan(ivec words) {
    __m256i all = _mm256_set1_epi8(0x7f);
    return _mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_and_si256((__m256i)words, all), all)) != 0;
}

static inline ivec masked_or(ivec word, int32_t mask, ivec other) { return (word & mask) | other; }

static inline vec half_to_float(const uint8_t *code) {
    __m128i word = _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)code));
    return (vec)_mm256_cvtph_ps(_mm_and_si128(_mm_slli_epi16(word, 7), _mm_set1_epi16((short)0xbf80)));
}

static inline vec bf16_load(const uint8_t *from) {
    return (vec)((ivec)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)from)) << 16);
}

static inline void transpose(ivec m[8]) {
    __m256i a[8], b[8];
    for (int i = 0; i < 8; i += 2) {
        a[i] = _mm256_unpacklo_epi32((__m256i)m[i], (__m256i)m[i + 1]);
        a[i + 1] = _mm256_unpackhi_epi32((__m256i)m[i], (__m256i)m[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        b[i] = _mm256_unpacklo_epi64(a[i], a[i + 2]);
        b[i + 1] = _mm256_unpackhi_epi64(a[i], a[i + 2]);
        b[i + 2] = _mm256_unpacklo_epi64(a[i + 1], a[i + 3]);
        b[i + 3] = _mm256_unpackhi_epi64(a[i + 1], a[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        m[i] = (ivec)_mm256_permute2x128_si256(b[i], b[i + 4], 0x20);
        m[i + 4] = (ivec)_mm256_permute2x128_si256(b[i], b[i + 4], 0x31);
    }
}

#endif

/* 1/256 of an e4m3 code: `magnitude` has it at bits 20 to 26, `sign` at bit 31. With an exponent put over the fields a
 * normal code is right, at a, and a subnormal one is where 2 a - 2**-14 is right: the smaller of the two, in each case.
 */
static inline vec fp8_value(ivec magnitude, ivec sign) {
    vec a = (vec)masked_or(magnitude, FIELDS, (ivec){0} + EXPONENT);
    return (vec)masked_or(sign, SIGN, (ivec)vec_min(a, a * 2.0f - 0x1p-14f));
}

/* LANES keys into their place of a strip; whether one of them has an FP8 NaN, which is decoded wrongly here. */
static inline __attribute__((always_inline)) int key_block(const uint8_t *const *rows, int64_t dim,
                                                            const enum stored stored, float *strip) {
    const int64_t per_word = stored == STORED_FP8 ? 4 : 2, size = 4 / per_word, whole = dim / per_word;
    int nan = 0;
    for (int64_t start = 0; start < whole; start += LANES) {
        ivec word[LANES];
        for (int key = 0; key < LANES; key++) {
            word[key] = load_words(rows[key] + 4 * start, dim * size - 4 * start);
            if (stored == STORED_FP8) nan |= holds_nan(word[key]);
        }
        transpose(word);
        float *out = strip + start * per_word * KEY_STRIP;
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++, out += per_word * KEY_STRIP) {
            if (start + i >= whole) break;
            if (stored == STORED_FP8) {
                vec_store(out, fp8_value(word[i] << 20, word[i] << 24));
                vec_store(out + KEY_STRIP, fp8_value(word[i] << 12, word[i] << 16));
                vec_store(out + 2 * KEY_STRIP, fp8_value(word[i] << 4, word[i] << 8));
                vec_store(out + 3 * KEY_STRIP, fp8_value(word[i] >> 4, word[i]));
            } else {
                vec_store(out, (vec)(word[i] << 16));
                vec_store(out + KEY_STRIP, (vec)(word[i] & (int32_t)0xffff0000));
            }
        }
    }
    for (int64_t d = whole * per_word; d < dim; d++)
        for (int key = 0; key < LANES; key++) strip[d * KEY_STRIP + key] = element(rows[key], d, stored);
    return nan;
}

static int row_holds_nan(const uint8_t *row, int64_t dim) {
    int nan = 0;
    for (int64_t start = 0; start < dim; start += ROW_BYTES) nan |= holds_nan(load_words(row + start, dim - start));
    return nan;
}

#endif

static void keys_one_by_one(const uint8_t *const *rows, int64_t keys, int64_t dim, enum stored stored, float *strip) {
    for (int64_t key = 0; key < keys; key++)
        for (int64_t d = 0; d < dim; d++) strip[d * KEY_STRIP + key] = element(rows[key], d, stored);
}

void decode_keys(const uint8_t *const *rows, int64_t count, int64_t dim, enum stored stored, float *tile) {
    for (int64_t first = 0; first < ceil_to(count, KEY_STRIP); first += LANES) {
        float *strip = tile + first / KEY_STRIP * KEY_STRIP * dim + first % KEY_STRIP;
#if LANES > 4
        int nan = stored == STORED_FP8 ? key_block(rows + first, dim, STORED_FP8, strip)
                                       : key_block(rows + first, dim, STORED_BF16, strip);
        if (!nan) continue;
#endif
        keys_one_by_one(rows + first, LANES, dim, stored, strip);
    }
}

/* One strip of a row whose elements from `left` on do not exist; `plain`: without an FP8 NaN. */
static inline __attribute__((always_inline)) void value_strip(const uint8_t *from, int64_t left, int plain,
                                                               const enum stored stored, float *to) {
    int64_t d = 0;
#if LANES > 4
    for (; plain && d < VALUE_STRIP && d + LANES <= left; d += LANES)
        vec_store(to + d, stored == STORED_FP8 ? half_to_float(from + d) : bf16_load(from + 2 * d));
#endif
    for (; d < VALUE_STRIP; d++) to[d] = d < left ? element(from, d, stored) : 0.0f;
    (void)plain;
}

void decode_values(const uint8_t *const *rows, int64_t count, int64_t dim, enum stored stored, float *tile) {
    for (int64_t key = 0; key < count; key++) {
        float *out = tile + key * VALUE_STRIP;
        int plain = 1;
#if LANES > 4
        if (stored == STORED_FP8) plain = !row_holds_nan(rows[key], dim);
#endif
        for (int64_t start = 0; start < dim; start += VALUE_STRIP, out += KEY_TILE * VALUE_STRIP)
            if (stored == STORED_FP8)
                value_strip(rows[key] + start, dim - start, plain, STORED_FP8, out);
            else
                value_strip(rows[key] + 2 * start, dim - start, 1, STORED_BF16, out);
    }
}
