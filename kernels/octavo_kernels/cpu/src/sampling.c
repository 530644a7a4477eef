/* Sampling and log-probabilities of reference/sampling.py without sorting the vocabulary.
 *
 * Top-k and top-p each leave the first tokens of the order (falling logit, equal ones by rising id), so both together
 * are one cut: the last token of that order which stays. Top-k finds it by radix selection, top-p by adding up the
 * probabilities of steps of 1/64 in the logit and sorting only the step in which p is reached.
 */
#include <float.h>
#include <stdlib.h>

#include "vector.h"

#define STEPS 2048 /* of 1/64: 32 in all; what lies further below the largest logit weighs nothing: 1e-14 of it */
#define GREEDY_BELOW 1e-5f

struct cut {
    float logit;
    int64_t id;
};

static const struct cut EVERYTHING = {-INFINITY, INT64_MAX};

static int stays(float logit, int64_t id, struct cut cut) {
    return logit > cut.logit || (logit == cut.logit && id <= cut.id);
}

static float number(float logit) { return logit != logit ? -INFINITY : logit > FLT_MAX ? FLT_MAX : logit; }

/* Unsigned words in the order of the numbers; both zeros are one. */
static uint32_t order(float logit) {
    uint32_t word;
    logit += 0.0f;
    memcpy(&word, &logit, sizeof word);
    return word & 0x80000000u ? ~word : word | 0x80000000u;
}

/* The k-th of the order, 1 <= k <= count. */
static struct cut kth(const float *logits, int64_t count, int64_t k) {
    static const int shift[] = {21, 10, 0}, bits[] = {11, 11, 10};
    uint32_t prefix = 0, mask = 0;
    for (int pass = 0; pass < 3; pass++) {
        int64_t held[2048] = {0};
        uint32_t digits = (1u << bits[pass]) - 1, digit = digits;
        for (int64_t i = 0; i < count; i++) {
            uint32_t word = order(logits[i]);
            if ((word & mask) == prefix) held[(word >> shift[pass]) & digits]++;
        }
        for (; held[digit] < k; digit--) k -= held[digit];
        prefix |= digit << shift[pass];
        mask |= digits << shift[pass];
    }
    for (int64_t i = 0; i < count; i++)
        if (order(logits[i]) == prefix && --k == 0) return (struct cut){logits[i], i};
    return EVERYTHING;
}

struct entry {
    float logit;
    int32_t id;
};

static int falling(const void *left, const void *right) {
    const struct entry *a = left, *b = right;
    if (a->logit != b->logit) return a->logit > b->logit ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

static int step_of(float logit, float largest) {
    float steps = (largest - logit) * 64.0f;
    return steps < STEPS ? (int)steps : STEPS;
}

static void exp_all(const float *logits, int64_t count, float largest, float *out) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) vec_store(out + i, vec_exp(vec_load(logits + i) - largest));
    for (; i < count; i++) out[i] = exp_one(logits[i] - largest);
}

/* The last token of those that `cut` leaves whose predecessors' probabilities sum to less than p. */
static struct cut nucleus(const float *logits, int64_t count, float largest, struct cut cut, float p,
                          struct entry *members) {
    double mass[STEPS] = {0}, all = 0.0, before = 0.0;
    float *share = (float *)members; /* not needed any more when members are */
    exp_all(logits, count, largest, share);
    for (int64_t i = 0; i < count; i++) {
        int step = step_of(logits[i], largest);
        if (step < STEPS && stays(logits[i], i, cut)) mass[step] += share[i];
    }
    for (int step = 0; step < STEPS; step++) all += mass[step];
    double limit = p * all;
    int step = 0;
    for (; step < STEPS && before + mass[step] < limit; step++) before += mass[step];
    if (step == STEPS) return cut;
    int64_t held = 0;
    for (int64_t i = 0; i < count; i++)
        if (stays(logits[i], i, cut) && step_of(logits[i], largest) == step)
            members[held++] = (struct entry){logits[i], (int32_t)i};
    if (!held) return cut; /* a row without numbers */
    qsort(members, (size_t)held, sizeof *members, falling);
    int64_t last = 0;
    for (; last + 1 < held; last++) {
        before += exp_one(members[last].logit - largest);
        if (before >= limit) break;
    }
    return (struct cut){members[last].logit, members[last].id};
}

static uint64_t finalise(uint64_t word) {
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9u;
    word = (word ^ (word >> 27)) * 0x94D049BB133111EBu;
    return word ^ (word >> 31);
}

/* argmax of logit + Gumbel noise over what stays. -log(-log u) <= -log(1 - u), whose power of two is read off the hash:
 * only tokens that could win by that bound get their two logarithms. */
static int64_t draw(const float *logits, int64_t count, struct cut cut, float largest, float least, uint32_t seed,
                    uint32_t position) {
    uint64_t request = finalise((((uint64_t)seed << 32) | position) + 0x9E3779B97F4A7C15u);
    float best = -INFINITY;
    int64_t token = 0;
    for (int64_t i = 0; i < count; i++) {
        if (!stays(logits[i], i, cut) || logits[i] - largest < least) continue;
        uint32_t bits = (uint32_t)finalise(request ^ ((uint64_t)i << 32));
        int zeros = __builtin_clzll(((uint64_t)(uint32_t)~bits << 1) | 1u) - 31; /* 2**-(zeros + 1) <= 1 - u */
        if (logits[i] + (0.6931472f * (float)(zeros + 1) + 0.01f) < best) continue;
        double uniform = ((double)bits + 0.5) / 4294967296.0;
        float score = logits[i] - (float)log(-log(uniform));
        if (score > best) best = score, token = i;
    }
    return token;
}

static int64_t likeliest(const float *logits, int64_t count) {
    float largest = number(largest_of(logits, count));
    for (int64_t i = 0; i < count && largest > -INFINITY; i++)
        if (logits[i] >= largest) return i;
    return 0;
}

/* `scratch` float32 [threads, 3, vocabulary]; min_p may be NULL. */
void sample(const float *logits, const float *temperature, const int64_t *top_k, const float *top_p, const float *min_p,
            const int64_t *seed, const int64_t *position, int64_t *tokens, float *scratch, int64_t rows,
            int64_t vocabulary, int64_t threads) {
#pragma omp parallel for num_threads((int)threads) schedule(dynamic, 1) if (rows > 1)
    for (int64_t row = 0; row < rows; row++) {
        const float *own = logits + row * vocabulary;
        float *scaled = scratch + omp_get_thread_num() * 3 * vocabulary;
        if (!(temperature[row] >= GREEDY_BELOW)) {
            tokens[row] = likeliest(own, vocabulary);
            continue;
        }
        for (int64_t i = 0; i < vocabulary; i++) scaled[i] = number(own[i] / temperature[row]);
        float largest = largest_of(scaled, vocabulary);
        struct cut cut = EVERYTHING;
        if (top_k[row] > 0 && top_k[row] < vocabulary) cut = kth(scaled, vocabulary, top_k[row]);
        if (top_p[row] < 1.0f)
            cut = nucleus(scaled, vocabulary, largest, cut, top_p[row], (struct entry *)(scaled + vocabulary));
        float least = min_p ? logf(min_p[row]) : -INFINITY;
        tokens[row] =
            draw(scaled, vocabulary, cut, largest, least, (uint32_t)seed[row], (uint32_t)position[row]);
    }
}

/* `scratch` float32 [threads, 3, vocabulary]; `best` [rows, top]. */
void logprobs(const float *logits, const int64_t *tokens, float *chosen, int64_t *top_ids, float *best, float *scratch,
              int64_t rows, int64_t vocabulary, int64_t top, int64_t threads) {
#pragma omp parallel for num_threads((int)threads) schedule(dynamic, 1) if (rows > 1)
    for (int64_t row = 0; row < rows; row++) {
        const float *own = logits + row * vocabulary;
        float *numbers = scratch + omp_get_thread_num() * 3 * vocabulary;
        struct entry *first = (struct entry *)(numbers + vocabulary);
        float largest = largest_of(own, vocabulary), log_sum = logf(exp_sum(own, vocabulary, largest));
        chosen[row] = own[tokens[row]] - largest - log_sum;
        if (!top) continue;
        for (int64_t i = 0; i < vocabulary; i++) numbers[i] = number(own[i]);
        struct cut cut = kth(numbers, vocabulary, top);
        int64_t held = 0;
        for (int64_t i = 0; i < vocabulary && held < top; i++)
            if (stays(numbers[i], i, cut)) first[held++] = (struct entry){numbers[i], (int32_t)i};
        qsort(first, (size_t)held, sizeof *first, falling);
        for (int64_t i = 0; i < held; i++) {
            top_ids[row * top + i] = first[i].id;
            best[row * top + i] = own[first[i].id] - largest - log_sum;
        }
    }
}
