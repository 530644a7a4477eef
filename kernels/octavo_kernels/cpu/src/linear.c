/* y = x @ weight.T for a plain weight [N, K] in bfloat16 or float32, row-major.
 *
 * A product is LANES partial sums along K, the last of them with zeros in place of what is not there, then their sum
 * by halves: one order for every tile, so that a row has the same bits in every batch.
 *
 * A few rows read the weights where they lie. Many rows are first copied tile by tile, [K / LANES][TALL][LANES], and so
 * is each unit's weights by its thread: converted once, and in order, where rows of a power of two bytes would compete
 * for the same few places of the cache.
 */
#include "linear_lanes.h"

/* Accumulators of a tile, and what feeds them, fill the registers: 32 with AVX-512, 16 elsewhere. */
enum { TALL = 6, WIDE = LANES == 16 ? 4 : 2, FEW = 4, UNIT = 32, STRETCH = 512 / LANES };

ALWAYS_INLINE vec weight_lanes(const int half, const void *weight, int64_t at) {
    return half ? vec_from_bf16((const uint16_t *)weight + at) : vec_load((const float *)weight + at);
}

ALWAYS_INLINE vec weight_tail(const int half, const void *weight, int64_t at, int64_t count) {
    float value[LANES] = {0};
    for (int64_t i = 0; i < count; i++)
        value[i] = half ? bf16_to_f32(((const uint16_t *)weight)[at + i]) : ((const float *)weight)[at + i];
    return vec_load(value);
}

ALWAYS_INLINE vec row_tail(const float *x, int64_t count) {
    float value[LANES] = {0};
    memcpy(value, x, 4 * (size_t)count);
    return vec_load(value);
}

/* One row with `wide` outputs, weights as they lie. */
ALWAYS_INLINE void row_tile(const int half, const int tall, const int wide, const float *x, const void *weight,
                            int64_t in, float *out, int64_t outputs) {
    vec sum[FEW][WIDE] = {0};
    const int64_t whole = in / LANES * LANES;
    for (int64_t k = 0; k < whole; k += LANES) {
        vec w[WIDE];
#pragma GCC unroll 4
        for (int n = 0; n < wide; n++) {
            w[n] = weight_lanes(half, weight, n * in + k);
            __builtin_prefetch((const char *)weight + (n * in + k) * (half ? 2 : 4) + 1024);
        }
#pragma GCC unroll 4
        for (int m = 0; m < tall; m++) {
            vec value = vec_load(x + m * in + k);
#pragma GCC unroll 4
            for (int n = 0; n < wide; n++) sum[m][n] = value * w[n] + sum[m][n];
        }
    }
    if (whole < in)
        for (int n = 0; n < wide; n++) {
            vec w = weight_tail(half, weight, n * in + whole, in - whole);
            for (int m = 0; m < tall; m++) sum[m][n] = row_tail(x + m * in + whole, in - whole) * w + sum[m][n];
        }
#pragma GCC unroll 4
    for (int m = 0; m < tall; m++)
#pragma GCC unroll 4
        for (int n = 0; n < wide; n++) out[m * outputs + n] = vec_sum(sum[m][n]);
}

ALWAYS_INLINE void few_rows(const int half, const float *x, const char *weight, float *out, int64_t rows, int64_t in,
                            int64_t outputs, int64_t count) {
    const int64_t row_bytes = in * (half ? 2 : 4);
    for (int64_t m = 0; m < rows;) {
        const int tall = rows - m >= FEW ? FEW : 1;
        for (int64_t n = 0; n < count;) {
            const int wide = count - n >= WIDE ? WIDE : 1;
            const float *from = x + m * in;
            const char *at = weight + n * row_bytes;
            float *to = out + m * outputs + n;
            if (tall == FEW && wide == WIDE) row_tile(half, FEW, WIDE, from, at, in, to, outputs);
            else if (tall == FEW) row_tile(half, FEW, 1, from, at, in, to, outputs);
            else if (wide == WIDE) row_tile(half, 1, WIDE, from, at, in, to, outputs);
            else row_tile(half, 1, 1, from, at, in, to, outputs);
            n += wide;
        }
        m += tall;
    }
}

/* A stretch of K of TALL rows with WIDE outputs, both copied; partial sums come from `sums` and go there. */
static void copied_stretch(const float *x, const float *weight, int64_t steps, vec sums[TALL][WIDE]) {
    vec sum[TALL][WIDE];
#pragma GCC unroll 6
    for (int m = 0; m < TALL; m++)
#pragma GCC unroll 4
        for (int n = 0; n < WIDE; n++) sum[m][n] = sums[m][n];
    for (int64_t k = 0; k < steps; k++, x += TALL * LANES, weight += WIDE * LANES) {
        vec w[WIDE];
#pragma GCC unroll 4
        for (int n = 0; n < WIDE; n++) w[n] = vec_load(weight + n * LANES);
#pragma GCC unroll 6
        for (int m = 0; m < TALL; m++) {
            vec value = vec_load(x + m * LANES);
#pragma GCC unroll 4
            for (int n = 0; n < WIDE; n++) sum[m][n] = value * w[n] + sum[m][n];
        }
    }
#pragma GCC unroll 6
    for (int m = 0; m < TALL; m++)
#pragma GCC unroll 4
        for (int n = 0; n < WIDE; n++) sums[m][n] = sum[m][n];
}

/* TALL rows with a unit's outputs, stretch by stretch: what all the outputs read of the rows stays in the first-level
 * cache. What lies beyond `rows` and `count` is computed and dropped. */
static void copied_tile(const float *x, const float *weights, int64_t steps, float *out, int64_t rows, int64_t count,
                        int64_t outputs) {
    vec sums[UNIT / WIDE][TALL][WIDE] = {0};
    for (int64_t k = 0; k < steps; k += STRETCH)
        for (int64_t n = 0; n < count; n += WIDE)
            copied_stretch(x + k * TALL * LANES, weights + (n * steps + k * WIDE) * LANES,
                           steps - k < STRETCH ? steps - k : STRETCH, sums[n / WIDE]);
    for (int64_t m = 0; m < TALL && m < rows; m++)
        for (int64_t n = 0; n < count; n++) out[m * outputs + n] = vec_sum(sums[n / WIDE][m][n % WIDE]);
}

/* Copies `height` rows of `in` values, of which `rows` are there, into [K / LANES][height][LANES]. */
ALWAYS_INLINE void copy_rows(const int half, const int height, const void *from, int64_t rows, int64_t in, float *to) {
    const int64_t whole = in / LANES * LANES, steps = (in + LANES - 1) / LANES;
    for (int m = 0; m < height; m++)
        for (int64_t s = 0; s < steps; s++) {
            vec value = {0};
            if (m < rows && s * LANES < whole) value = weight_lanes(half, from, m * in + s * LANES);
            else if (m < rows) value = weight_tail(half, from, m * in + whole, in - whole);
            vec_store(to + (s * height + m) * LANES, value);
        }
}

/* Scratch, for more than FEW rows: `copy` has the rows and `weights` UNIT outputs per thread, both padded to whole
 * tiles and lanes. */
void linear(const float *x, const void *weight, float *out, float *copy, float *weights, int64_t half, int64_t rows,
            int64_t in, int64_t outputs, int64_t threads) {
    const int64_t steps = (in + LANES - 1) / LANES, tiles = (rows + TALL - 1) / TALL;
#pragma omp parallel num_threads((int)threads)
    {
        if (copy) {
#pragma omp for schedule(static)
            for (int64_t t = 0; t < tiles; t++)
                copy_rows(0, TALL, x + t * TALL * in, rows - t * TALL, in, copy + t * TALL * steps * LANES);
        }
#pragma omp for schedule(dynamic)
        for (int64_t start = 0; start < outputs; start += UNIT) {
            const int64_t count = outputs - start < UNIT ? outputs - start : UNIT;
            const char *from = (const char *)weight + start * in * (half ? 2 : 4);
            if (!copy) {
                if (half) few_rows(1, x, from, out + start, rows, in, outputs, count);
                else few_rows(0, x, from, out + start, rows, in, outputs, count);
                continue;
            }
            float *mine = weights + omp_get_thread_num() * UNIT * steps * LANES;
            for (int64_t n = 0; n < count; n += WIDE) {
                float *to = mine + n * steps * LANES;
                if (half) copy_rows(1, WIDE, from + n * in * 2, count - n, in, to);
                else copy_rows(0, WIDE, from + n * in * 4, count - n, in, to);
            }
            for (int64_t t = 0; t < tiles; t++)
                copied_tile(copy + t * TALL * steps * LANES, mine, steps, out + t * TALL * outputs + start,
                            rows - t * TALL, count, outputs);
        }
    }
}
