/* The row checks of reference/integrity.py: every row's pairs against the page records and the row's binding. */
#include "common.h"
#include "page_place.h"

enum finding { RANGE = 1, TAG = 2, LOGICAL = 4, FILL = 8, BINDING = 16 }; /* as in formats/verdict.py */
#define UNCONCLUDED INT32_MIN
#define WORTH_THREADS 65536 /* pairs */

static int64_t needed_fill(int64_t tokens, int64_t index, int64_t page_size) {
    int64_t left = tokens - index * page_size;
    return left < 0 ? 0 : left > page_size ? page_size : left;
}

static uint64_t finalise(uint64_t word) {
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9u;
    word = (word ^ (word >> 27)) * 0x94D049BB133111EBu;
    return word ^ (word >> 31);
}

/* formats/binding.py */
static uint64_t mix(int32_t nonce, int64_t logical, int32_t page, int32_t tag) {
    uint64_t request = ((uint64_t)(uint32_t)nonce << 32) | (uint32_t)logical;
    uint64_t place = ((uint64_t)(uint32_t)page << 32) | (uint32_t)tag;
    return finalise(finalise(request + 0x9E3779B97F4A7C15u) ^ place);
}

static int32_t check_row(const int32_t *pairs, int64_t before, int64_t context, int32_t nonce, int64_t binding,
                         const int32_t *tags, const int32_t *places, int64_t table_pages,
                         int64_t num_pages, int64_t page_size) {
    int32_t found = context > table_pages * page_size ? RANGE : 0;
    uint64_t sum = 0;
    for (int64_t index = 0; index < table_pages; index++) {
        int32_t id = pairs[2 * index], tag = pairs[2 * index + 1];
        int in_pool = id > 0 && id < num_pages, held = id != 0 || tag != 0;
        int64_t page = in_pool ? id : 0;
        if ((held || needed_fill(context, index, page_size) > 0) && !in_pool) found |= RANGE;
        if (held && tags[page] != tag) found |= TAG;
        if (held && logical_of(places[page]) != index) found |= LOGICAL;
        if (fill_of(places[page]) < needed_fill(before, index, page_size)) found |= FILL;
        if (held) sum += mix(nonce, index, id, tag);
    }
    return sum != (uint64_t)binding ? found | BINDING : found;
}

void check_rows(const int32_t *block_table, const int32_t *query_start, const int32_t *context_lens,
                const int32_t *nonces, const int64_t *bindings, const int32_t *tags, const int32_t *places,
                int32_t *verdict, int64_t rows, int64_t table_pages, int64_t num_pages,
                int64_t page_size, int64_t threads) {
#pragma omp parallel for num_threads((int)threads) schedule(static) if (rows * table_pages > WORTH_THREADS)
    for (int64_t row = 0; row < rows; row++) {
        int64_t new = (int64_t)query_start[row + 1] - query_start[row], context = context_lens[row];
        verdict[row] = UNCONCLUDED | check_row(block_table + row * table_pages * 2, context - new, context, nonces[row],
                                               bindings[row], tags, places, table_pages, num_pages, page_size);
    }
}

void conclude(const int32_t *block_table, const int32_t *context_lens, const int32_t *places, int32_t *verdict,
              int64_t rows, int64_t table_pages, int64_t num_pages, int64_t page_size, int64_t step, int64_t threads) {
#pragma omp parallel for num_threads((int)threads) schedule(static) if (rows * table_pages > WORTH_THREADS)
    for (int64_t row = 0; row < rows; row++) {
        int unfilled = 0;
        for (int64_t index = 0; index < table_pages; index++) {
            int32_t id = block_table[(row * table_pages + index) * 2];
            int64_t page = id > 0 && id < num_pages ? id : 0;
            unfilled |= fill_of(places[page]) < needed_fill(context_lens[row], index, page_size);
        }
        if (unfilled) verdict[row] |= UNCONCLUDED | FILL;
        if (verdict[row] == UNCONCLUDED) verdict[row] = (int32_t)step;
    }
}
