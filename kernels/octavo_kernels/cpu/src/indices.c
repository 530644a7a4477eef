/* What Python asks of indices before another function goes by them. */
#include "common.h"

/* The first place with a value outside 0 to size - 1, or -1. */
int64_t first_outside(const int64_t *values, int64_t count, int64_t size, int64_t threads) {
    (void)threads;
    for (int64_t i = 0; i < count; i++)
        if (values[i] < 0 || values[i] >= size) return i;
    return -1;
}
