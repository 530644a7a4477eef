/* Causal attention over pages: decode and chunked prefill, grouped heads and latent (MLA) rows, in one pass.
 *
 * A query tile is up to QUERY_TILE query rows (token x head of the group) of one request and one KV head. It walks over
 * the key tiles of its request from position 0 with a running maximum (online softmax); every key tile is decoded once
 * for all rows of the query tile. Keys are split into spans of SPLIT_KEYS whose results are merged from left to right,
 * so that a single long request can be spread over threads.
 *
 * A query row's arithmetic never depends on its neighbours: products are chains of multiply-adds over the elements, or
 * over the keys, in order; key tiles and spans start at fixed positions; and a row leaves out what it cannot see
 * instead of multiplying it by zero, so that not even NaN there reaches it. Hence the same bits alone, batched,
 * chunked, and on any number of threads.
 */
#include <stdlib.h>

#include "attention.h"
#include "attention_tile.h"

#define QUERY_TILE 64
#define SPLIT_KEYS 1024 /* a multiple of KEY_TILE */
#define MOST_SPREAD (1ll << 30) /* bytes of partial results that spreading one step over threads may take */

/* The running state of a query tile: sums are per lane and added up at the end. */
struct part {
    float *out;     /* [rows][padded value dim] */
    float *sum;     /* [rows][LANES] */
    float *largest; /* [rows] */
};

struct item {
    int64_t row, first, count; /* query rows `first` on of request `row`: token x head */
    int64_t end;               /* keys that the farthest-seeing one sees */
};

struct scratch {
    float *keys, *values, *queries, *scores;
    struct part total, span;
};

static int64_t padded_value(const struct attention *a) { return ceil_to(a->value_dim, VALUE_STRIP); }

static int64_t part_floats(const struct attention *a, int64_t rows) { return rows * (padded_value(a) + LANES + 1); }

static int64_t scratch_floats(const struct attention *a) {
    return KEY_TILE * (a->dim + padded_value(a)) + QUERY_TILE * (a->dim + KEY_TILE) + 2 * part_floats(a, QUERY_TILE);
}

static struct part part_at(const struct attention *a, int64_t rows, float *memory) {
    float *sum = memory + rows * padded_value(a);
    return (struct part){memory, sum, sum + rows * LANES};
}

static struct scratch scratch_at(const struct attention *a, float *memory) {
    struct scratch s = {.keys = memory};
    s.values = s.keys + KEY_TILE * a->dim;
    s.queries = s.values + KEY_TILE * padded_value(a);
    s.scores = s.queries + QUERY_TILE * a->dim;
    s.total = part_at(a, QUERY_TILE, s.scores + QUERY_TILE * KEY_TILE);
    s.span = part_at(a, QUERY_TILE, s.scores + QUERY_TILE * KEY_TILE + part_floats(a, QUERY_TILE));
    return s;
}

static int64_t clamped(int64_t value, int64_t low, int64_t high) {
    return value < low ? low : value > high ? high : value;
}

static int64_t context_of(const struct attention *a, int64_t row) {
    return clamped(a->context_lens[row], 0, a->table_pages * a->page_size);
}

static int64_t first_token(const struct attention *a, int64_t row) {
    return clamped(a->query_start[row], 0, a->tokens);
}

/* Keys that a token of a request sees. */
static int64_t visible(const struct attention *a, int64_t row, int64_t token) {
    int64_t context = context_of(a, row);
    return a->positions[token] >= context ? context : clamped(a->positions[token] + 1, 0, context);
}

static inline __attribute__((always_inline)) void score_block(const float *query, int64_t dim, const float *strip,
                                                               float *scores, const int rows) {
    vec sum[SCORE_ROWS][SCORE_VECTORS] = {{{0}}};
    for (int64_t d = 0; d < dim; d++, strip += KEY_STRIP) {
        vec key[SCORE_VECTORS];
#pragma GCC unroll 4
        for (int j = 0; j < SCORE_VECTORS; j++) key[j] = vec_load(strip + j * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (int j = 0; j < SCORE_VECTORS; j++) sum[r][j] += vec_all(query[r * dim + d]) * key[j];
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int j = 0; j < SCORE_VECTORS; j++) vec_store(scores + r * KEY_TILE + j * LANES, sum[r][j]);
}

static void score_rows(const float *query, int64_t dim, const float *strip, float *scores, int64_t rows) {
    switch (rows) {
    case 1: score_block(query, dim, strip, scores, 1); break;
    case 2: score_block(query, dim, strip, scores, 2); break;
    case 3: score_block(query, dim, strip, scores, 3); break;
    case 4: score_block(query, dim, strip, scores, 4); break;
#if SCORE_ROWS == 8
    case 5: score_block(query, dim, strip, scores, 5); break;
    case 6: score_block(query, dim, strip, scores, 6); break;
    case 7: score_block(query, dim, strip, scores, 7); break;
    case 8: score_block(query, dim, strip, scores, 8); break;
#endif
    }
}

static inline __attribute__((always_inline)) void value_block(const float *shares, int64_t keys, const float *strip,
                                                               float *out, int64_t stride, const int rows) {
    vec sum[VALUE_ROWS][VALUE_VECTORS];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int j = 0; j < VALUE_VECTORS; j++) sum[r][j] = vec_load(out + r * stride + j * LANES);
    for (int64_t k = 0; k < keys; k++, strip += VALUE_STRIP)
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (int j = 0; j < VALUE_VECTORS; j++)
                sum[r][j] += vec_all(shares[r * KEY_TILE + k]) * vec_load(strip + j * LANES);
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int j = 0; j < VALUE_VECTORS; j++) vec_store(out + r * stride + j * LANES, sum[r][j]);
}

static void value_rows(const float *shares, int64_t keys, const float *strip, float *out, int64_t stride,
                       int64_t rows) {
    switch (rows) {
    case 1: value_block(shares, keys, strip, out, stride, 1); break;
    case 2: value_block(shares, keys, strip, out, stride, 2); break;
    case 3: value_block(shares, keys, strip, out, stride, 3); break;
    case 4: value_block(shares, keys, strip, out, stride, 4); break;
    }
}

/* Scores of one row and tile to shares times the value scales; the row's state follows the new maximum. */
static void softmax_row(float *scores, int64_t seen, const float *key_scale, const float *value_scale, float *largest,
                        float *sum, float *out, int64_t dim) {
    vec top = vec_all(-INFINITY);
    for (int k = 0; k < KEY_TILE; k += LANES)
        vec_store(scores + k, vec_load(scores + k) * vec_load(key_scale + k));
    for (int64_t k = seen; k < KEY_TILE; k++) scores[k] = -INFINITY;
    for (int k = 0; k < KEY_TILE; k += LANES) top = vec_max(top, vec_load(scores + k));
    float old = *largest, now = vec_largest(top);
    now = now > old ? now : old;
    *largest = now;
    float base = now == -INFINITY ? 0.0f : now; /* so far each score is -inf: their shares are zero, not NaN */
    vec total = vec_load(sum);
    if (base != old) {
        float fade = exp_one(old - base);
        total *= fade;
        for (int64_t d = 0; d < dim; d += LANES) vec_store(out + d, vec_load(out + d) * fade);
    }
    for (int k = 0; k < KEY_TILE; k += LANES) {
        vec share = vec_exp(vec_load(scores + k) - base);
        total += share;
        vec_store(scores + k, share * vec_load(value_scale + k));
    }
    vec_store(sum, total);
}

/* Where the keys of a tile lie and what they are multiplied by. */
struct rows {
    const uint8_t *keys[KEY_TILE], *values[KEY_TILE];
    float key_scale[KEY_TILE], value_scale[KEY_TILE];
};

/* Keys [begin, end), KEY_TILE of them at most; what is missing repeats the first. Asks for the memory already. */
static void find_rows(const struct attention *a, int64_t row, int64_t head, int64_t begin, int64_t end,
                      struct rows *rows) {
    const int32_t *table = a->block_table + row * a->table_pages * 2;
    float unit = stored_unit(a->stored);
    int64_t index = begin / a->page_size, slot = begin % a->page_size;
    for (int64_t k = 0; k < KEY_TILE; k++) {
        if (begin + k >= end) {
            rows->keys[k] = rows->keys[0];
            rows->key_scale[k] = rows->value_scale[k] = 0.0f;
            continue;
        }
        int64_t page = table[2 * index];
        int64_t place = (page > 0 && page < a->num_pages ? page : 0) * a->page_size + slot;
        int64_t offset = (place * a->kv_heads + head) * a->row_bytes;
        int64_t scale[] = {[SCALE_TENSOR] = 0, [SCALE_HEAD] = head, [SCALE_TOKEN] = place * a->kv_heads + head};
        rows->keys[k] = a->k_pages + offset;
        rows->values[k] = a->v_pages + offset;
        rows->key_scale[k] = a->k_scale[scale[a->k_scales]] * unit;
        rows->value_scale[k] = a->v_scale[scale[a->v_scales]] * unit;
        for (int64_t byte = 0; byte < a->row_bytes; byte += 64) {
            __builtin_prefetch(rows->keys[k] + byte, 0, 2);
            __builtin_prefetch(rows->values[k] + byte, 0, 2);
        }
        if (++slot == a->page_size) slot = 0, index++;
    }
}

/* One span of keys [begin, end) for one query tile, from an empty state. */
static void attend_span(const struct attention *a, const struct item *item, int64_t head, int64_t begin, int64_t end,
                        const struct scratch *s, struct part part) {
    int64_t padded = padded_value(a), group = a->heads / a->kv_heads, start = first_token(a, item->row);
    int64_t seen[QUERY_TILE];
    struct rows tiles[2];
    memset(part.out, 0, (size_t)(item->count * padded) * sizeof(float));
    memset(part.sum, 0, (size_t)(item->count * LANES) * sizeof(float));
    for (int64_t r = 0; r < item->count; r++) {
        int64_t place = item->first + r, token = start + place / group;
        const float *query = a->query + (token * a->heads + head * group + place % group) * a->dim;
        for (int64_t d = 0; d < a->dim; d++) s->queries[r * a->dim + d] = query[d] * a->softmax_scale;
        part.largest[r] = -INFINITY;
        seen[r] = visible(a, item->row, token);
    }
    find_rows(a, item->row, head, begin, end, &tiles[0]);
    for (int64_t tile = begin; tile < end; tile += KEY_TILE) {
        const struct rows *rows = &tiles[(tile - begin) / KEY_TILE % 2];
        int64_t count = end - tile < KEY_TILE ? end - tile : KEY_TILE;
        if (tile + KEY_TILE < end)
            find_rows(a, item->row, head, tile + KEY_TILE, end, &tiles[((tile - begin) / KEY_TILE + 1) % 2]);
        decode_keys(rows->keys, count, a->dim, a->stored, s->keys);
        for (int64_t k = 0; k < KEY_TILE && k < count; k += KEY_STRIP)
            for (int64_t r = 0; r < item->count; r += SCORE_ROWS)
                score_rows(s->queries + r * a->dim, a->dim, s->keys + k * a->dim, s->scores + r * KEY_TILE + k,
                           item->count - r < SCORE_ROWS ? item->count - r : SCORE_ROWS);
        for (int64_t r = 0; r < item->count; r++)
            if (seen[r] > tile)
                softmax_row(s->scores + r * KEY_TILE, seen[r] - tile, rows->key_scale, rows->value_scale,
                            part.largest + r, part.sum + r * LANES, part.out + r * padded, padded);
        decode_values(rows->values, count, a->value_dim, a->stored, s->values);
        for (int64_t r = 0, block; r < item->count; r += block) {
            int64_t shown = clamped(seen[r] - tile, 0, count);
            for (block = 1; block < VALUE_ROWS && r + block < item->count; block++)
                if (clamped(seen[r + block] - tile, 0, count) != shown) break;
            for (int64_t d = 0; d < padded && shown; d += VALUE_STRIP)
                value_rows(s->scores + r * KEY_TILE, shown, s->values + d * KEY_TILE, part.out + r * padded + d, padded,
                           block);
        }
    }
}

/* Add a later span to the state of the spans before it. */
static void merge(const struct attention *a, const struct item *item, int64_t begin, struct part total,
                  struct part span) {
    int64_t padded = padded_value(a), group = a->heads / a->kv_heads, start = first_token(a, item->row);
    for (int64_t r = 0; r < item->count; r++) {
        if (visible(a, item->row, start + (item->first + r) / group) <= begin) continue;
        float old = total.largest[r], new = span.largest[r], now = new > old ? new : old;
        float base = now == -INFINITY ? 0.0f : now;
        float keep = exp_one(old - base), add = exp_one(new - base);
        total.largest[r] = now;
        for (int64_t d = 0; d < padded; d += LANES)
            vec_store(total.out + r * padded + d,
                      vec_load(total.out + r * padded + d) * keep + vec_load(span.out + r * padded + d) * add);
        vec_store(total.sum + r * LANES, vec_load(total.sum + r * LANES) * keep + vec_load(span.sum + r * LANES) * add);
    }
}

static void finish(const struct attention *a, const struct item *item, int64_t head, struct part total) {
    int64_t padded = padded_value(a), group = a->heads / a->kv_heads, start = first_token(a, item->row);
    for (int64_t r = 0; r < item->count; r++) {
        int64_t place = item->first + r;
        float *out = a->out + ((start + place / group) * a->heads + head * group + place % group) * a->value_dim;
        float sum = vec_sum(vec_load(total.sum + r * LANES));
        for (int64_t d = 0; d < a->value_dim; d++) out[d] = total.out[r * padded + d] / sum;
    }
}

static void attend_item(const struct attention *a, const struct item *item, int64_t head, const struct scratch *s) {
    for (int64_t begin = 0; begin < item->end; begin += SPLIT_KEYS) {
        int64_t end = item->end - begin < SPLIT_KEYS ? item->end : begin + SPLIT_KEYS;
        attend_span(a, item, head, begin, end, s, begin ? s->span : s->total);
        if (begin) merge(a, item, begin, s->total, s->span);
    }
    finish(a, item, head, s->total);
}

/* Few query tiles and long contexts: spans go to different threads, and are merged when all are there. No query tile
 * has more than `rows`. */
static void attend_spread(const struct attention *a, const struct item *items, int64_t count, int64_t rows,
                          int64_t spans, float *parts, float *memory, int64_t threads) {
    int64_t tasks = count * a->kv_heads, floats = part_floats(a, rows);
#pragma omp parallel num_threads((int)threads)
    {
        struct scratch s = scratch_at(a, memory + omp_get_thread_num() * scratch_floats(a));
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < tasks * spans; task++) {
            const struct item *item = items + task / spans / a->kv_heads;
            int64_t begin = task % spans * SPLIT_KEYS, end = clamped(item->end, 0, begin + SPLIT_KEYS);
            if (begin < end)
                attend_span(a, item, task / spans % a->kv_heads, begin, end, &s,
                            part_at(a, rows, parts + task * floats));
        }
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < tasks; task++) {
            const struct item *item = items + task / a->kv_heads;
            struct part total = part_at(a, rows, parts + task * spans * floats);
            for (int64_t span = 1; span * SPLIT_KEYS < item->end; span++)
                merge(a, item, span * SPLIT_KEYS, total, part_at(a, rows, parts + (task * spans + span) * floats));
            finish(a, item, task % a->kv_heads, total);
        }
    }
}

static int64_t list_items(const struct attention *a, struct item *items) {
    int64_t count = 0, group = a->heads / a->kv_heads;
    for (int64_t row = 0; row < a->rows; row++) {
        int64_t start = first_token(a, row), end = clamped(a->query_start[row + 1], start, a->tokens);
        if (!context_of(a, row)) continue;
        for (int64_t first = 0; first < (end - start) * group; first += QUERY_TILE, count++) {
            if (!items) continue;
            int64_t left = (end - start) * group - first;
            struct item item = {row, first, left < QUERY_TILE ? left : QUERY_TILE, 0};
            for (int64_t place = first; place < first + item.count; place++) {
                int64_t seen = visible(a, row, start + place / group);
                item.end = seen > item.end ? seen : item.end;
            }
            items[count] = item;
        }
    }
    return count;
}

void attend(const struct attention *a, int64_t threads) {
    int64_t count = list_items(a, NULL), tasks = count * a->kv_heads, longest = 0, tallest = 0;
    if (!count) return;
    struct item *items = malloc((size_t)count * sizeof *items);
    float *memory = aligned_alloc(64, (size_t)ceil_to(threads * scratch_floats(a) * 4, 64)), *parts = NULL;
    if (!items || !memory) { /* no memory: an answer that nobody takes for one */
        for (int64_t i = 0; i < a->tokens * a->heads * a->value_dim; i++) a->out[i] = NAN;
        goto done;
    }
    list_items(a, items);
    for (int64_t i = 0; i < count; i++) {
        longest = items[i].end > longest ? items[i].end : longest;
        tallest = items[i].count > tallest ? items[i].count : tallest;
    }
    int64_t spans = (longest + SPLIT_KEYS - 1) / SPLIT_KEYS;
    int64_t spread = ceil_to(tasks * spans * part_floats(a, tallest) * 4, 64);
    if (threads > 1 && tasks < 4 * threads && spans > 1 && spread <= MOST_SPREAD)
        parts = aligned_alloc(64, (size_t)spread);
    if (parts) {
        attend_spread(a, items, count, tallest, spans, parts, memory, threads);
        goto done;
    }
#pragma omp parallel num_threads((int)threads) if (tasks > 1)
    {
        struct scratch s = scratch_at(a, memory + omp_get_thread_num() * scratch_floats(a));
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = tasks - 1; task >= 0; task--) /* the last tiles of a prefill see most: they start first */
            attend_item(a, items + task / a->kv_heads, task % a->kv_heads, &s);
    }
done:
    free(items);
    free(memory);
    free(parts);
}
