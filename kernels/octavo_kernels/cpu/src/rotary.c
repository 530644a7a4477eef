/* Rotary embedding. Products are rounded before they are added, as in reference/rotary.py: the same bits. */
#pragma GCC optimize("fp-contract=off")
#include "common.h"

void rotary_angles(const int64_t *positions, const float *frequencies, float *cosine, float *sine, float amplitude,
                   int64_t tokens, int64_t count, int64_t threads) {
#pragma omp parallel for num_threads((int)threads) schedule(static) if (tokens * count > 8192)
    for (int64_t token = 0; token < tokens; token++)
        for (int64_t i = 0; i < count; i++) {
            float phase = (float)positions[token] * frequencies[i];
            cosine[token * count + i] = cosf(phase) * amplitude;
            sine[token * count + i] = sinf(phase) * amplitude;
        }
}

static void rotate_halves(const float *x, const float *cosine, const float *sine, float *out, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        out[i] = x[i] * cosine[i] - x[count + i] * sine[i];
        out[count + i] = x[count + i] * cosine[i] + x[i] * sine[i];
    }
}

static void rotate_pairs(const float *x, const float *cosine, const float *sine, float *out, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        out[2 * i] = x[2 * i] * cosine[i] - x[2 * i + 1] * sine[i];
        out[2 * i + 1] = x[2 * i + 1] * cosine[i] + x[2 * i] * sine[i];
    }
}

/* The first 2 * count elements of each head of `dim`. */
void rotary_rotate(const float *x, const float *cosine, const float *sine, float *out, int64_t tokens, int64_t heads,
                   int64_t dim, int64_t count, int64_t interleaved, int64_t threads) {
#pragma omp parallel for num_threads((int)threads) schedule(static) if (tokens * heads * dim > 65536)
    for (int64_t i = 0; i < tokens * heads; i++) {
        const float *from = x + i * dim;
        int64_t angles = i / heads * count;
        (interleaved ? rotate_pairs : rotate_halves)(from, cosine + angles, sine + angles, out + i * dim, count);
        memcpy(out + i * dim + 2 * count, from + 2 * count, (size_t)(dim - 2 * count) * sizeof(float));
    }
}
