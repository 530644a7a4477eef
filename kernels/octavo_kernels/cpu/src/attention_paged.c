/* What paged_attention.py and mla_attention.py call. */
#include "attention.h"

void paged_attention(const float *query, const uint8_t *k_pages, const uint8_t *v_pages, const float *k_scale,
                     const float *v_scale, const int32_t *block_table, const int32_t *query_start,
                     const int32_t *context_lens, const int64_t *positions, float *out, float softmax_scale,
                     int64_t tokens, int64_t rows, int64_t heads, int64_t kv_heads, int64_t dim, int64_t value_dim,
                     int64_t table_pages, int64_t num_pages, int64_t page_size, int64_t stored, int64_t k_scales,
                     int64_t v_scales, int64_t threads) {
    struct attention a = {
        .query = query, .k_pages = k_pages, .v_pages = v_pages, .k_scale = k_scale, .v_scale = v_scale,
        .block_table = block_table, .query_start = query_start, .context_lens = context_lens, .positions = positions,
        .out = out, .softmax_scale = softmax_scale, .tokens = tokens, .rows = rows, .heads = heads,
        .kv_heads = kv_heads, .dim = dim, .value_dim = value_dim, .row_bytes = dim * (stored == STORED_FP8 ? 1 : 2),
        .table_pages = table_pages, .num_pages = num_pages, .page_size = page_size, .stored = (enum stored)stored,
        .k_scales = (enum scales)k_scales, .v_scales = (enum scales)v_scales,
    };
    attend(&a, threads);
}
