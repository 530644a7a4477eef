/* y = x @ weight.T for a plain weight [N, K] in bfloat16 or float32, row-major.
 *
 * A product is LANES partial sums along K, the last of them with zeros in place of what is not there, then their sum
 * by halves: one order for every tile, so that a row has the same bits in every batch. Tiles of up to 4 rows by 4
 * outputs; a unit of BLOCK outputs keeps its weights in the second-level cache while all rows go through it.
 */
#include "linear_lanes.h"

enum { WIDE = 4, TALL = 4, BLOCK = 32 };

ALWAYS_INLINE vf weight_lanes(const int half, const void *weight, int64_t at) {
    return half ? vf_from_bf16((const uint16_t *)weight + at) : vf_load((const float *)weight + at);
}

ALWAYS_INLINE vf weight_tail(const int half, const void *weight, int64_t at, int64_t count) {
    float value[LANES] = {0};
    for (int64_t i = 0; i < count; i++)
        value[i] = half ? bf16_to_f32(((const uint16_t *)weight)[at + i]) : ((const float *)weight)[at + i];
    return vf_load(value);
}

ALWAYS_INLINE void plain_tile(const int half, const int tall, const int wide, const float *x, const void *weight,
                              int64_t in, float *out, int64_t outputs) {
    vf sum[TALL][WIDE] = {0};
    const int64_t whole = in / LANES * LANES;
    for (int64_t k = 0; k < whole; k += LANES) {
        vf w[WIDE];
#pragma GCC unroll 4
        for (int n = 0; n < wide; n++) {
            w[n] = weight_lanes(half, weight, n * in + k);
            if (tall == 1) __builtin_prefetch((const char *)weight + (n * in + k) * (half ? 2 : 4) + 1024);
        }
#pragma GCC unroll 4
        for (int m = 0; m < tall; m++) {
            vf value = vf_load(x + m * in + k);
#pragma GCC unroll 4
            for (int n = 0; n < wide; n++) sum[m][n] = value * w[n] + sum[m][n];
        }
    }
    if (whole < in)
        for (int m = 0; m < tall; m++) {
            float value[LANES] = {0};
            memcpy(value, x + m * in + whole, 4 * (size_t)(in - whole));
            for (int n = 0; n < wide; n++)
                sum[m][n] = vf_load(value) * weight_tail(half, weight, n * in + whole, in - whole) + sum[m][n];
        }
#pragma GCC unroll 4
    for (int m = 0; m < tall; m++)
#pragma GCC unroll 4
        for (int n = 0; n < wide; n++) out[m * outputs + n] = vf_sum(sum[m][n]);
}

ALWAYS_INLINE void plain_unit(const int half, const float *x, const void *weight, float *out, int64_t rows,
                              int64_t in, int64_t outputs, int64_t count) {
    const int64_t bytes = half ? 2 : 4;
    for (int64_t m = 0; m < rows;) {
        const int tall = rows - m >= TALL ? TALL : 1;
        for (int64_t n = 0; n < count;) {
            const int wide = count - n >= WIDE ? WIDE : 1;
            const float *from = x + m * in;
            const char *at = (const char *)weight + n * in * bytes;
            float *to = out + m * outputs + n;
            if (tall == TALL && wide == WIDE) plain_tile(half, TALL, WIDE, from, at, in, to, outputs);
            else if (tall == TALL) plain_tile(half, TALL, 1, from, at, in, to, outputs);
            else if (wide == WIDE) plain_tile(half, 1, WIDE, from, at, in, to, outputs);
            else plain_tile(half, 1, 1, from, at, in, to, outputs);
            n += wide;
        }
        m += tall;
    }
}

void linear(const float *x, const void *weight, float *out, int64_t half, int64_t rows, int64_t in, int64_t outputs,
            int64_t threads) {
#pragma omp parallel for schedule(dynamic) num_threads((int)threads)
    for (int64_t start = 0; start < outputs; start += BLOCK) {
        const int64_t count = outputs - start < BLOCK ? outputs - start : BLOCK;
        if (half)
            plain_unit(1, x, (const uint16_t *)weight + start * in, out + start, rows, in, outputs, count);
        else
            plain_unit(0, x, (const float *)weight + start * in, out + start, rows, in, outputs, count);
    }
}
