/* Routers of reference/router.py. Ranks are by falling score, equal scores by rising id, NaN below everything. */
#include "vector.h"

#define WORTH_THREADS 16384 /* logits */

static float without_nan(float score) { return score != score ? -INFINITY : score; }

/* Put the first `top` of the entries that `taken` allows in order, best first, in `ids`. */
static void rank(const float *scores, const uint8_t *taken, int64_t count, int64_t top, int64_t *ids) {
    int64_t held = 0;
    for (int64_t i = 0; i < count; i++) {
        if (taken && !taken[i]) continue;
        if (held == top && !(scores[i] > scores[ids[held - 1]])) continue;
        int64_t at = held < top ? held++ : held - 1;
        for (; at > 0 && scores[i] > scores[ids[at - 1]]; at--) ids[at] = ids[at - 1];
        ids[at] = i;
    }
}

static void renormalised(float *weights, int64_t count, float floor) {
    float sum = 0.0f;
    for (int64_t i = 0; i < count; i++) sum += weights[i];
    for (int64_t i = 0; i < count; i++) weights[i] /= sum + floor;
}

/* `scratch` float32 [threads, experts]. */
void softmax_top_k(const float *logits, int64_t *ids, float *weights, float *scratch, int64_t tokens, int64_t experts,
                   int64_t top_k, int64_t renormalise, int64_t threads) {
#pragma omp parallel for num_threads((int)threads) schedule(static) if (tokens * experts > WORTH_THREADS)
    for (int64_t token = 0; token < tokens; token++) {
        const float *row = logits + token * experts;
        float *own = weights + token * top_k, *scores = scratch + omp_get_thread_num() * experts;
        for (int64_t i = 0; i < experts; i++) scores[i] = without_nan(row[i]);
        rank(scores, NULL, experts, top_k, ids + token * top_k);
        float largest = largest_of(row, experts), sum = exp_sum(row, experts, largest);
        for (int64_t i = 0; i < top_k; i++) own[i] = exp_one(row[ids[token * top_k + i]] - largest) / sum;
        if (renormalise) renormalised(own, top_k, 0.0f);
    }
}

/* 1 / (1 + e**-x); e**88 is as good as infinity here. */
static void sigmoids(const float *x, float *out, int64_t count) {
    float lane[LANES];
    for (int64_t i = 0; i < count; i += LANES) {
        for (int64_t j = 0; j < LANES; j++) lane[j] = i + j < count ? (x[i + j] < -88.0f ? 88.0f : -x[i + j]) : 0.0f;
        vec_store(lane, 1.0f / (1.0f + vec_exp(vec_load(lane))));
        for (int64_t j = 0; j < LANES && i + j < count; j++) out[i + j] = lane[j];
    }
}

/* The sum of a group's two best, or its only one. */
static float group_score(const float *choice, int64_t size) {
    float first = -INFINITY, second = -INFINITY;
    for (int64_t i = 0; i < size; i++) {
        if (choice[i] > first)
            second = first, first = choice[i];
        else if (choice[i] > second)
            second = choice[i];
    }
    return size == 1 ? first : first + second;
}

/* `scratch` float32 [threads, 4, experts]. */
void sigmoid_top_k(const float *logits, const float *bias, int64_t *ids, float *weights, float *scratch, float scaling,
                   int64_t tokens, int64_t experts, int64_t top_k, int64_t groups, int64_t top_groups,
                   int64_t renormalise, int64_t threads) {
    int64_t size = experts / groups;
#pragma omp parallel for num_threads((int)threads) schedule(static) if (tokens * experts > WORTH_THREADS)
    for (int64_t token = 0; token < tokens; token++) {
        float *scores = scratch + omp_get_thread_num() * 4 * experts, *choice = scores + experts;
        float *of_group = choice + experts, *own = weights + token * top_k;
        uint8_t *taken = (uint8_t *)(of_group + experts);
        int64_t *best = ids + token * top_k;
        sigmoids(logits + token * experts, scores, experts);
        for (int64_t i = 0; i < experts; i++) choice[i] = without_nan(scores[i] + bias[i]);
        for (int64_t group = 0; group < groups; group++) of_group[group] = group_score(choice + group * size, size);
        memset(taken, 0, (size_t)experts);
        for (int64_t i = 0; i < top_groups; i++) {
            int64_t chosen = -1;
            for (int64_t group = 0; group < groups; group++)
                if (!taken[group * size] && (chosen < 0 || of_group[group] > of_group[chosen])) chosen = group;
            memset(taken + chosen * size, 1, (size_t)size);
        }
        rank(choice, taken, experts, top_k, best);
        for (int64_t i = 0; i < top_k; i++) own[i] = scores[best[i]];
        if (renormalise) renormalised(own, top_k, 1e-20f);
        for (int64_t i = 0; i < top_k; i++) own[i] *= scaling;
    }
}
