/* RMSNorm. A row's sum of squares is taken in 16 lanes, in an order that depends on its length alone. */
#include "common.h"

static float sum_of_squares(const float *x, int64_t count) {
    f16v sum = {0};
    float lane[16], tail = 0.0f;
    int64_t i = 0;
    for (; i + 16 <= count; i += 16) {
        f16v value = *(const f16v *)(x + i);
        sum += value * value;
    }
    for (; i < count; i++) tail += x[i] * x[i];
    memcpy(lane, &sum, sizeof lane);
    for (int half = 8; half; half /= 2)
        for (int j = 0; j < half; j++) lane[j] += lane[j + half];
    return lane[0] + tail;
}

void rms_norm(const float *x, const float *weight, float *out, float epsilon, int64_t rows, int64_t count,
              int64_t threads) {
#pragma omp parallel for num_threads((int)threads) schedule(static) if (rows * count > 65536)
    for (int64_t row = 0; row < rows; row++) {
        const float *from = x + row * count;
        float *to = out + row * count;
        float factor = 1.0f / sqrtf(sum_of_squares(from, count) / (float)count + epsilon);
        for (int64_t i = 0; i < count; i++) to[i] = from[i] * factor * weight[i];
    }
}
