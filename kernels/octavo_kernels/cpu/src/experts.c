/* One layer of routed experts in one call: y = sum over k of weight_k * down_e(silu(gate_e(x)) * up_e(x)).
 *
 * (token, k) places are sorted by expert, so that an expert's weights are read once for all of its tokens. First phase:
 * units of one pair of one expert, where a pair is a block of gate rows and the block of up rows that belongs to it.
 * Second phase: units of PAIR output columns over all experts, after which the same thread adds up each token's k
 * parts in routing order. A token's sums never depend on another's.
 */
#include "linear_activations.h"
#include "linear_tile.h"

typedef struct {
    int64_t tokens, top_k, hidden, intermediate, experts;
    packed gate_up, down;
    int integer;
} layer;

typedef struct {
    int64_t places;      /* most (token, k) places in one pass */
    int64_t *order;      /* [places] place of each sorted position */
    int64_t *token;      /* [places] its token */
    int64_t *start;      /* [experts + 1] first sorted position of each expert */
    int64_t *active;     /* [experts] those that have tokens */
    float *x;            /* [tokens, K] padded, where padding is needed */
    float *between;      /* [places, K of down] silu(gate) * up in sorted order */
    float *parts;        /* [threads, places, PAIR] */
    int32_t *finished;   /* [active, spans] pairs of a span of `between` that are computed */
    int8_t *values[2];   /* integers of x and of between, */
    float *scales[2];    /* their scales */
    int32_t *sums[2];    /* and sums */
} scratch;

/* Columns of `between` that whole pairs and whole groups both fill. */
static int64_t span_of(const layer *l) {
    int64_t span = LANES;
    while (span % l->down.group) span += LANES;
    return span;
}

static int64_t spans(const layer *l) { return (l->intermediate + span_of(l) - 1) / span_of(l); }

static void *take(char *memory, int64_t *used, int64_t bytes) {
    void *from = memory ? memory + *used : NULL;
    *used += (bytes + 63) / 64 * 64;
    return from;
}

/* Cuts `memory` up; with memory null the sizes only. Returns the bytes needed. */
static int64_t cut(scratch *s, char *memory, const layer *l, int64_t threads) {
    int64_t used = 0;
    const int64_t rows[2] = {l->tokens, s->places}, in[2] = {l->gate_up.in, l->down.in};
    const int64_t groups[2] = {in[0] / l->gate_up.group, in[1] / l->down.group};
    s->order = take(memory, &used, s->places * 8);
    s->token = take(memory, &used, s->places * 8);
    s->start = take(memory, &used, (l->experts + 1) * 8);
    s->active = take(memory, &used, l->experts * 8);
    s->x = take(memory, &used, !l->integer && in[0] != l->hidden ? rows[0] * in[0] * 4 : 0);
    s->between = take(memory, &used, rows[1] * in[1] * 4);
    s->parts = take(memory, &used, threads * s->places * PAIR * 4);
    s->finished = take(memory, &used, l->integer ? l->experts * spans(l) * 4 : 0);
    for (int i = 0; i < 2; i++) {
        s->values[i] = take(memory, &used, l->integer ? rows[i] * in[i] : 0);
        s->scales[i] = take(memory, &used, l->integer ? rows[i] * groups[i] * 4 : 0);
        s->sums[i] = take(memory, &used, l->integer ? rows[i] * groups[i] * 4 : 0);
    }
    return used;
}

/* Sorts the places by expert, each expert's in order; returns how many experts have any. */
static int64_t sort_places(const layer *l, const int64_t *ids, scratch *s) {
    memset(s->start, 0, (size_t)(l->experts + 1) * 8);
    for (int64_t p = 0; p < s->places; p++) s->start[ids[p] + 1]++;
    int64_t active = 0;
    for (int64_t e = 0; e < l->experts; e++) {
        if (s->start[e + 1]) s->active[active++] = e;
        s->start[e + 1] += s->start[e];
    }
    for (int64_t p = 0; p < s->places; p++) {
        int64_t at = s->start[ids[p]]++;
        s->order[at] = p;
        s->token[at] = p / l->top_k;
    }
    memmove(s->start + 1, s->start, (size_t)l->experts * 8);
    s->start[0] = 0;
    return active;
}

/* Whoever computes the last pair of a span rounds it, while it is near; no thread waits for another. */
static void round_span(const layer *l, const scratch *s, int64_t active, int64_t expert, int64_t pair) {
    const int64_t width = span_of(l), span = pair * LANES / width, start = span * width, group = l->down.group;
    const int64_t stop = start + width < l->intermediate ? start + width : l->intermediate;
    const int64_t expected = (stop - start + LANES - 1) / LANES, groups = l->down.in / group;
    if (__atomic_add_fetch(s->finished + active * spans(l) + span, 1, __ATOMIC_ACQ_REL) < expected) return;
    for (int64_t row = s->start[expert]; row < s->start[expert + 1]; row++)
        for (int64_t k = start; k < stop; k += group)
            integers_of_group(s->between + row * l->down.in + k, group, s->values[1] + row * l->down.in + k,
                              s->scales[1] + row * groups + k / group, s->sums[1] + row * groups + k / group);
}

static void gate_up_unit(const layer *l, const scratch *s, const activations *x, int64_t active, int64_t pair) {
    float out[ROWS * PAIR];
    const int64_t expert = s->active[active];
    const int64_t stop = s->start[expert + 1];
    for (int64_t at = s->start[expert]; at < stop; at += ROWS) {
        const int rows = stop - at < ROWS ? (int)(stop - at) : ROWS;
        packed_tile(rows, &l->gate_up, expert, pair, x, s->token + at, out);
        for (int r = 0; r < rows; r++) {
            vec gate = vec_load(out + r * PAIR), up = vec_load(out + r * PAIR + LANES);
            float product[LANES];
            vec_store(product, vec_silu(gate) * up);
            const int64_t column = pair * LANES, room = l->intermediate - column;
            memcpy(s->between + (at + r) * l->down.in + column, product, 4 * (size_t)(room < LANES ? room : LANES));
        }
    }
    if (l->integer) round_span(l, s, active, expert, pair);
}

static void down_unit(const layer *l, const scratch *s, const activations *x, int64_t active, int64_t pair,
                      const float *weights, float *parts, float *out) {
    for (int64_t a = 0; a < active; a++) {
        const int64_t expert = s->active[a], stop = s->start[expert + 1];
        for (int64_t at = s->start[expert]; at < stop; at += ROWS) {
            const int rows = stop - at < ROWS ? (int)(stop - at) : ROWS;
            const int64_t row[ROWS] = {at, at + 1, at + 2, at + 3};
            float tile[ROWS * PAIR];
            packed_tile(rows, &l->down, expert, pair, x, row, tile);
            for (int r = 0; r < rows; r++) memcpy(parts + s->order[at + r] * PAIR, tile + r * PAIR, PAIR * 4);
        }
    }
    const int64_t column = pair * PAIR, room = l->hidden - column;
    for (int64_t t = 0; t < l->tokens; t++) {
        vec sum[2] = {0};
        for (int64_t k = 0; k < l->top_k; k++)
            for (int b = 0; b < 2; b++)
                sum[b] = vec_load(parts + (t * l->top_k + k) * PAIR + b * LANES) * weights[t * l->top_k + k] + sum[b];
        memcpy(out + t * l->hidden + column, sum, 4 * (size_t)(room < PAIR ? room : PAIR));
    }
}

static void prepare_rows(const layer *l, const scratch *s, const float *x, int threads) {
    const int64_t in = l->gate_up.in, groups = in / l->gate_up.group;
#pragma omp parallel for num_threads(threads) if (l->tokens >= 8)
    for (int64_t t = 0; t < l->tokens; t++)
        if (l->integer)
            integers_of_row(x + t * l->hidden, l->hidden, in, l->gate_up.group, s->values[0] + t * in,
                            s->scales[0] + t * groups, s->sums[0] + t * groups);
        else
            padded_row(x + t * l->hidden, l->hidden, in, s->x + t * in);
}

static void one_pass(const layer *l, scratch *s, const float *x, const int64_t *ids, const float *weights, float *out,
                     int threads) {
    const int64_t active = sort_places(l, ids, s), pairs = l->gate_up.pairs, middle = l->down.in;
    const int padded = !l->integer && l->gate_up.in != l->hidden;
    const activations first = {l->integer ? NULL : padded ? s->x : x, s->values[0], s->scales[0], s->sums[0]};
    const activations second = {l->integer ? NULL : s->between, s->values[1], s->scales[1], s->sums[1]};
    if (l->integer || padded) prepare_rows(l, s, x, threads);
    if (l->integer) memset(s->finished, 0, (size_t)(active * spans(l)) * 4);
    if (middle != l->intermediate)
        for (int64_t p = 0; p < s->places; p++)
            memset(s->between + p * middle + l->intermediate, 0, 4 * (size_t)(middle - l->intermediate));
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(dynamic)
        for (int64_t unit = 0; unit < active * pairs; unit++)
            gate_up_unit(l, s, &first, unit / pairs, unit % pairs);
#pragma omp for schedule(dynamic)
        for (int64_t pair = 0; pair < l->down.pairs; pair++)
            down_unit(l, s, &second, active, pair, weights, s->parts + omp_get_thread_num() * s->places * PAIR, out);
    }
}

/* Both weights as `packed`. With out null, *bytes becomes the scratch memory needed and nothing is computed; else
 * `memory` has as much. No pass takes more than `most` tokens, which bounds it. */
void experts_apply(const float *x, const int64_t *ids, const float *weights, float *out, char *memory, int64_t *bytes,
                   const uint8_t *gate_up_words, const void *gate_up_scales, const uint8_t *gate_up_zeros,
                   const float *gate_up_global, const uint8_t *down_words, const void *down_scales,
                   const uint8_t *down_zeros, const float *down_global, int64_t tokens, int64_t format,
                   int64_t integer, int64_t gate_up_group, int64_t gate_up_in, int64_t gate_up_pairs,
                   int64_t down_group, int64_t down_in, int64_t down_pairs, int64_t experts, int64_t hidden,
                   int64_t intermediate, int64_t top_k, int64_t most, int64_t threads) {
    const int64_t once = tokens < most ? tokens : most;
    layer l = {once, top_k, hidden, intermediate, experts,
               {format, gate_up_in, gate_up_pairs, gate_up_group, gate_up_words, gate_up_scales, gate_up_zeros,
                gate_up_global},
               {format, down_in, down_pairs, down_group, down_words, down_scales, down_zeros, down_global},
               integer != 0};
    scratch s = {.places = once * top_k};
    const int64_t needed = cut(&s, memory, &l, threads);
    if (!out) {
        *bytes = needed;
        return;
    }
    for (int64_t done = 0; done < tokens; done += most) {
        l.tokens = tokens - done < most ? tokens - done : most;
        s.places = l.tokens * top_k;
        one_pass(&l, &s, x + done * hidden, ids + done * top_k, weights + done * top_k, out + done * hidden,
                 (int)threads);
    }
}
