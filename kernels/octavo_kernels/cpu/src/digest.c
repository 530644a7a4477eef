/* Page digests, reference/digest.py: sum of (byte + 1) * weight of its place in the page, modulo 2**32. */
#include "common.h"

static uint32_t row_terms(const uint8_t *row, int64_t bytes, uint32_t first) {
    uint32_t sum = 0;
    for (int64_t i = 0; i < bytes; i++) sum += (row[i] + 1u) * (((first + (uint32_t)i) * 0x9E3779B1u) | 1u);
    return sum;
}

/* One slot: its K row, then its V row where there is one. */
static uint32_t slot_terms(const uint8_t *k_pages, const uint8_t *v_pages, int64_t k_bytes, int64_t v_bytes,
                           int64_t page_size, int64_t page, int64_t slot) {
    uint32_t first = (uint32_t)(slot * (k_bytes + v_bytes));
    int64_t place = page * page_size + slot;
    uint32_t sum = row_terms(k_pages + place * k_bytes, k_bytes, first);
    return v_pages ? sum + row_terms(v_pages + place * v_bytes, v_bytes, first + (uint32_t)k_bytes) : sum;
}

void digest_rows(const uint8_t *k_pages, const uint8_t *v_pages, const int64_t *pages, const int64_t *slots,
                 uint32_t *digests, int64_t count, int64_t num_pages, int64_t page_size, int64_t k_bytes,
                 int64_t v_bytes, int64_t threads) {
#pragma omp parallel for num_threads((int)threads) schedule(static) if (count * (k_bytes + v_bytes) > 262144)
    for (int64_t i = 0; i < count; i++) {
        if (pages[i] <= 0 || pages[i] >= num_pages || slots[i] < 0 || slots[i] >= page_size) continue;
        uint32_t terms = slot_terms(k_pages, v_pages, k_bytes, v_bytes, page_size, pages[i], slots[i]);
#pragma omp atomic
        digests[pages[i]] += terms;
    }
}

void digest_pages(const uint8_t *k_pages, const uint8_t *v_pages, const int64_t *pages, const int64_t *fill,
                  uint32_t *digests, int64_t count, int64_t num_pages, int64_t page_size, int64_t k_bytes,
                  int64_t v_bytes, int64_t threads) {
#pragma omp parallel for num_threads((int)threads) schedule(static) \
    if (count * page_size * (k_bytes + v_bytes) > 262144)
    for (int64_t i = 0; i < count; i++) {
        int64_t filled = fill[i] < page_size ? fill[i] : page_size;
        digests[i] = 0;
        if (pages[i] <= 0 || pages[i] >= num_pages) continue;
        for (int64_t slot = 0; slot < filled; slot++)
            digests[i] += slot_terms(k_pages, v_pages, k_bytes, v_bytes, page_size, pages[i], slot);
    }
}
