/* Bulk conversion between float32 and FP8, at the speed of memory. */
#include "fp8_vector.h"

#define CHUNK 16384          /* elements of one piece of work: both sides of it fit into L2 */
#define STREAMED (8ll << 20) /* bytes of a result from which on it bypasses the caches, too small for it anyway */

static void decode_chunk(const uint8_t *from, float *to, int64_t count, int streamed) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        vec value = e4m3_decode_lanes(from + i);
#if LANES == 16
        if (streamed) {
            _mm512_stream_ps(to + i, (__m512)value);
            continue;
        }
#elif LANES == 8
        if (streamed) {
            _mm256_stream_ps(to + i, (__m256)value);
            continue;
        }
#endif
        vec_store(to + i, value);
    }
    for (; i < count; i++) to[i] = e4m3_to_f32(from[i]);
#if LANES > 4
    if (streamed) _mm_sfence();
#endif
    (void)streamed;
}

void fp8_to_float(const uint8_t *from, float *to, int64_t count, int64_t threads) {
    int streamed = count * 4 >= STREAMED && (uintptr_t)to % 64 == 0;
#pragma omp parallel for num_threads((int)threads) schedule(static) if (count > 2 * CHUNK)
    for (int64_t start = 0; start < count; start += CHUNK)
        decode_chunk(from + start, to + start, count - start < CHUNK ? count - start : CHUNK, streamed);
}

void fp8_encode(const float *from, uint8_t *to, int64_t count, int64_t threads) {
#pragma omp parallel for num_threads((int)threads) schedule(static) if (count > 2 * CHUNK)
    for (int64_t start = 0; start < count; start += CHUNK)
        e4m3_encode(from + start, to + start, count - start < CHUNK ? count - start : CHUNK);
}
