/* How fast this machine streams from memory: every thread reads its own part once, in order, and only that. */
#include <omp.h>
#include <stdint.h>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

typedef int64_t line __attribute__((vector_size(64), aligned(64)));

void streaming_read(const char *memory, int64_t bytes, int64_t *sum, int64_t threads) {
    line total = {0};
#pragma omp parallel num_threads((int)threads)
    {
        line a = {0}, b = {0}, c = {0}, d = {0};
        const int64_t part = bytes / threads / 256 * 256;
        const char *from = memory + part * omp_get_thread_num();
        for (int64_t i = 0; i < part; i += 256) {
            a += *(const line *)(from + i);
            b += *(const line *)(from + i + 64);
            c += *(const line *)(from + i + 128);
            d += *(const line *)(from + i + 192);
        }
#pragma omp critical
        total += a + b + c + d;
    }
    *sum = total[0] + total[1] + total[2] + total[3] + total[4] + total[5] + total[6] + total[7];
}

/* Reads a byte and writes four per element, as FP8 to float does, without a conversion in between; past the caches where
 * that is possible, which is what memory can do. `to` lies at a multiple of 64 bytes, `count` is a multiple of 16. */
void streaming_widen(const unsigned char *from, uint32_t *to, int64_t count, int64_t threads) {
#pragma omp parallel for schedule(static) num_threads((int)threads)
    for (int64_t i = 0; i < count; i += 16) {
#if defined(__AVX512F__)
        _mm512_stream_si512((__m512i *)(to + i), _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(from + i))));
#else
        for (int64_t j = i; j < i + 16; j++) to[j] = (uint32_t)from[j] << 20;
#endif
    }
}
