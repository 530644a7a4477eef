/* Rotary embedding. Products are rounded before they are added, as in reference/rotary.py: the same bits. */
#pragma GCC optimize("fp-contract=off")
#include "common.h"

/* Cosine and sine of finite float32 angles, within 1 ulp up to 2**26: n quarter turns are taken off in float64, and the
 * rest, at most pi / 4, goes through Taylor polynomials. Without branches, so that the compiler makes vectors of it. */
static void cosine_sine(const float *phase, float *cosine, float *sine, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        double x = phase[i], turns = x * 0x1.45f306dc9c883p-1 + 0x1.8p52, n = turns - 0x1.8p52;
        double r = (x - n * 0x1.921fb54400000p+0) - n * 0x1.0b4611a626331p-34, rr = r * r;
        double s = r + r * rr * (-1.0 / 6 + rr * (1.0 / 120 + rr * (-1.0 / 5040 + rr * (1.0 / 362880))));
        double c = 1.0 - rr * 0.5 + rr * rr * (1.0 / 24 + rr * (-1.0 / 720 + rr * (1.0 / 40320)));
        int64_t quarter;
        memcpy(&quarter, &turns, sizeof quarter);
        double even = quarter & 1 ? s : c, odd = quarter & 1 ? c : s;
        cosine[i] = (float)((quarter + 1) & 2 ? -even : even);
        sine[i] = (float)(quarter & 2 ? -odd : odd);
    }
}

void rotary_angles(const int64_t *positions, const float *frequencies, float *cosine, float *sine, float amplitude,
                   int64_t tokens, int64_t count, int64_t threads) {
#pragma omp parallel for num_threads((int)threads) schedule(static) if (tokens * count > 8192)
    for (int64_t token = 0; token < tokens; token++) {
        float *own_cosine = cosine + token * count, *own_sine = sine + token * count;
        float position = (float)positions[token];
        for (int64_t i = 0; i < count; i++) own_sine[i] = position * frequencies[i];
        cosine_sine(own_sine, own_cosine, own_sine, count);
        for (int64_t i = 0; i < count; i++) own_cosine[i] *= amplitude, own_sine[i] *= amplitude;
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
