#ifndef OCTAVO_ATTENTION_H
#define OCTAVO_ATTENTION_H

#include "attention_tile.h"

enum scales { SCALE_TENSOR = 0, SCALE_HEAD = 1, SCALE_TOKEN = 2 };

/* Arguments of one attention; shapes as in reference/paged_attention.py. */
struct attention {
    const float *query;
    const uint8_t *k_pages, *v_pages;
    const float *k_scale, *v_scale;
    const int32_t *block_table, *query_start, *context_lens;
    const int64_t *positions;
    float *out; /* [tokens, heads, value_dim], zeroed: tokens of no request and of empty contexts are left alone */
    float softmax_scale;
    int64_t tokens, rows, heads, kv_heads;
    int64_t dim, value_dim; /* elements of a row that are the key, and first elements of a row that are the value */
    int64_t row_bytes;
    int64_t table_pages, num_pages, page_size;
    enum stored stored;
    enum scales k_scales, v_scales;
};

void attend(const struct attention *a, int64_t threads);

#endif
