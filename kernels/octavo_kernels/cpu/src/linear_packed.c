/* y = x @ weight.T with a packed weight: one call, whatever the number of rows. */
#include "linear_activations.h"
#include "linear_tile.h"

enum { BLOCK_ROWS = 64 }; /* rows that one unit takes through a pair, so that their activations stay near */

/* Scratch, where needed: padded rows, or integers with their scales and sums, for all rows. */
void packed_linear(const float *x, float *out, float *padded, int8_t *values, float *scales, int32_t *sums,
                   const uint8_t *words, const void *weight_scales, const uint8_t *zeros, const float *global,
                   int64_t format, int64_t group, int64_t in, int64_t pairs, int64_t given, int64_t outputs,
                   int64_t rows, int64_t threads) {
    const packed w = {format, in, pairs, group, words, weight_scales, zeros, global};
    const activations a = {values ? NULL : padded ? padded : x, values, scales, sums};
    const int64_t groups = in / group, row_blocks = (rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
#pragma omp parallel num_threads((int)threads)
    {
        if (values || padded) {
#pragma omp for schedule(static)
            for (int64_t r = 0; r < rows; r++)
                if (values)
                    integers_of_row(x + r * given, given, in, group, values + r * in, scales + r * groups,
                                    sums + r * groups);
                else
                    padded_row(x + r * given, given, in, padded + r * in);
        }
#pragma omp for schedule(dynamic)
        for (int64_t unit = 0; unit < row_blocks * pairs; unit++) {
            const int64_t pair = unit % pairs, start = unit / pairs * BLOCK_ROWS;
            const int64_t stop = start + BLOCK_ROWS < rows ? start + BLOCK_ROWS : rows;
            const int64_t column = pair * PAIR, room = outputs - column < PAIR ? outputs - column : PAIR;
            for (int64_t at = start; at < stop; at += ROWS) {
                const int count = stop - at < ROWS ? (int)(stop - at) : ROWS;
                const int64_t row[ROWS] = {at, at + 1, at + 2, at + 3};
                float tile[ROWS * PAIR];
                packed_tile(count, &w, 0, pair, &a, row, tile);
                for (int r = 0; r < count; r++)
                    memcpy(out + (at + r) * outputs + column, tile + r * PAIR, 4 * (size_t)room);
            }
        }
    }
}
