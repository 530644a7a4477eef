/* Rows of activations as a packed weight wants them: padded with zeros, or as 8-bit integers. */
#ifndef OCTAVO_LINEAR_ACTIVATIONS_H
#define OCTAVO_LINEAR_ACTIVATIONS_H

#include "linear_lanes.h"

/* One group: the scale is its largest magnitude / 127, or 1 where that is no normal number; values round to nearest
 * even. A NaN or an infinity makes the scale NaN, so that everything computed from the group is NaN. */
static void integers_of_group(const float *x, int64_t count, int8_t *values, float *scale, int32_t *sum) {
    int32_t largest = 0, total = 0;
    for (int64_t k = 0; k < count; k++) {
        int32_t bits;
        memcpy(&bits, x + k, sizeof bits);
        bits &= 0x7fffffff;
        largest = bits > largest ? bits : largest;
    }
    float size;
    memcpy(&size, &largest, sizeof size);
    const float step = size / 127.0f;
    if (largest >= 0x7f800000 || step < 0x1p-126f) {
        memset(values, 0, (size_t)count);
        *scale = largest >= 0x7f800000 ? NAN : 1.0f;
        *sum = 0;
        return;
    }
    for (int64_t k = 0; k < count; k++) {
        float steps = rintf(x[k] / step);
        steps = steps > 127.0f ? 127.0f : steps < -127.0f ? -127.0f : steps;
        int32_t value = (int32_t)steps;
        values[k] = (int8_t)value;
        total += value;
    }
    *scale = step;
    *sum = total;
}

/* A row of `in` floats (a multiple of `group`) of which `given` are there and the others zero. */
static void integers_of_row(const float *x, int64_t given, int64_t in, int64_t group, int8_t *values, float *scales,
                            int32_t *sums) {
    for (int64_t g = 0; g * group < in; g++) {
        const int64_t start = g * group, count = given - start < group ? given - start : group;
        if (count < group) memset(values + start, 0, (size_t)group);
        if (count > 0) integers_of_group(x + start, count, values + start, scales + g, sums + g);
        else scales[g] = 1.0f, sums[g] = 0;
    }
}

static void padded_row(const float *x, int64_t given, int64_t in, float *out) {
    memcpy(out, x, (size_t)given * sizeof *out);
    memset(out + given, 0, (size_t)(in - given) * sizeof *out);
}

#endif
