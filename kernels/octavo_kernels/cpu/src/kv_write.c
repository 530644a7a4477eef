/* KV write: which stores are accepted is decided first, token by token; then the accepted ones are done. */
#include <float.h>

#include "fp8_vector.h"
#include "page_place.h"

enum finding { RANGE = 1, TAG = 2, WRITER = 32, SLOT = 64 }; /* as in formats/verdict.py */
#define UNCONCLUDED INT32_MIN
#define REFUSED (-1)

struct tables {
    const int32_t *block_table, *nonces, *tags, *writers;
    const int64_t *token_rows, *positions;
    int32_t *page_places, *verdict;
    int64_t tokens, rows, table_pages, num_pages, page_size;
};

/* page * page_size + slot of a token, or REFUSED, which marks the row's verdict. */
static int64_t accepted_place(const struct tables *t, int64_t token) {
    int64_t row = t->token_rows[token], position = t->positions[token];
    if (row < 0 || row >= t->rows) return REFUSED; /* the caller has checked; no address rests on it */
    int64_t slot = position % t->page_size, index = position / t->page_size;
    if (slot < 0) slot += t->page_size, index--;
    int inside = index >= 0 && index < t->table_pages;
    int64_t held = index < 0 ? 0 : inside ? index : t->table_pages - 1;
    const int32_t *pair = t->block_table + (row * t->table_pages + held) * 2;
    int in_pool = pair[0] > 0 && pair[0] < t->num_pages;
    int64_t page = in_pool ? pair[0] : 0;
    int32_t found = 0;
    if (inside && !in_pool) found |= RANGE;
    if (t->tags[page] != pair[1]) found |= TAG;
    if (t->writers[page] != t->nonces[row]) found |= WRITER;
    if (!inside || slot < fill_of(t->page_places[page])) found |= SLOT;
    if (!found) return page * t->page_size + slot;
    t->verdict[row] |= UNCONCLUDED | found;
    return REFUSED;
}

/* max|x| / 448 without NaN, infinity as the largest number; 1 where that is below the smallest normal number. */
static float dynamic_scale(const float *row, int64_t dim) {
    float largest = 0.0f;
    for (int64_t d = 0; d < dim; d++) {
        float size = fabsf(row[d]);
        largest = size > largest ? size : largest;
    }
    float scale = (largest > FLT_MAX ? FLT_MAX : largest) / 448.0f;
    return scale < FLT_MIN ? 1.0f : scale;
}

static void store_row(const float *row, float scale, uint8_t *to, int64_t dim, int fp8) {
    float scaled[64];
    for (int64_t start = 0; start < dim; start += 64) {
        int64_t count = dim - start < 64 ? dim - start : 64;
        for (int64_t d = 0; d < count; d++) scaled[d] = row[start + d] / scale;
        if (fp8) {
            e4m3_encode(scaled, to + start, count);
            continue;
        }
        for (int64_t d = 0; d < count; d++) {
            uint16_t bits = f32_to_bf16(scaled[d]);
            memcpy(to + 2 * (start + d), &bits, sizeof bits);
        }
    }
}

/* `per_slot`: the scale of each (slot, head) is found and written; else there is one, or one per head. */
static void store(const float *rows, uint8_t *pages, float *scale, const int64_t *places, int64_t tokens, int64_t heads,
                  int64_t dim, int fp8, int64_t scales, int64_t threads) {
#pragma omp parallel for num_threads((int)threads) schedule(static) if (tokens * heads * dim > 65536)
    for (int64_t i = 0; i < tokens * heads; i++) {
        int64_t place = places[i / heads], head = i % heads;
        if (place == REFUSED) continue;
        float *own = scale + (scales == 2 ? place * heads + head : scales == 1 ? head : 0);
        if (scales == 2) *own = dynamic_scale(rows + i * dim, dim);
        store_row(rows + i * dim, *own, pages + (place * heads + head) * dim * (fp8 ? 1 : 2), dim, fp8);
    }
}

/* `value` NULL: rows of MLA, only keys. Pages and scales as in reference/kv_write.py; `places` is scratch [tokens]. */
void kv_write(const float *key, const float *value, uint8_t *k_pages, uint8_t *v_pages, float *k_scale, float *v_scale,
              const int32_t *block_table, const int64_t *token_rows, const int64_t *positions, const int32_t *nonces,
              const int32_t *tags, const int32_t *writers, int32_t *page_places, int32_t *verdict, int64_t *places,
              int64_t tokens, int64_t rows, int64_t table_pages, int64_t num_pages, int64_t page_size, int64_t heads,
              int64_t dim, int64_t fp8, int64_t k_scales, int64_t v_scales, int64_t last_layer, int64_t threads) {
    struct tables t = {block_table, nonces, tags, writers, token_rows, positions, page_places, verdict,
                       tokens, rows, table_pages, num_pages, page_size};
    for (int64_t token = 0; token < tokens; token++) places[token] = accepted_place(&t, token);
    store(key, k_pages, k_scale, places, tokens, heads, dim, (int)fp8, k_scales, threads);
    if (value) store(value, v_pages, v_scale, places, tokens, heads, dim, (int)fp8, v_scales, threads);
    if (!last_layer) return;
    for (int64_t token = 0; token < tokens; token++) {
        if (places[token] == REFUSED) continue;
        int32_t *mark = page_places + places[token] / page_size, end = (int32_t)(places[token] % page_size + 1);
        if (end > fill_of(*mark)) *mark = filled_to(*mark, end);
    }
}
