/* Picks the tile for a format and a number of rows; a row's bits are the same from every one of them. */
#ifndef OCTAVO_LINEAR_TILE_H
#define OCTAVO_LINEAR_TILE_H

#include "linear_packed.h"

/* AVX2 has 16 registers: three and four rows take one block of the pair after the other there. */
#define BOTH_BLOCKS(rows) (LANES == 16 || (rows) <= 2)

ALWAYS_INLINE void tile_of(const int format, const int rows, const packed *w, int64_t stacked, int64_t pair,
                           const activations *x, const int64_t *row, float *out) {
    if (x->exact) {
        const float *from[ROWS];
        for (int r = 0; r < rows; r++) from[r] = x->exact + row[r] * w->in;
        if (BOTH_BLOCKS(rows)) {
            exact_tile(format, rows, 0, 2, w, stacked, pair, from, out);
        } else {
            exact_tile(format, rows, 0, 1, w, stacked, pair, from, out);
            exact_tile(format, rows, 1, 1, w, stacked, pair, from, out);
        }
    } else if (format == FORMAT_INT4 || format == FORMAT_INT4_ZEROS) {
        if (BOTH_BLOCKS(rows)) {
            integer_tile(format, rows, 0, 2, w, stacked, pair, x, row, out);
        } else {
            integer_tile(format, rows, 0, 1, w, stacked, pair, x, row, out);
            integer_tile(format, rows, 1, 1, w, stacked, pair, x, row, out);
        }
    }
}

#define TILES_OF(FORMAT, NAME)                                                                                         \
    static void NAME(int rows, const packed *w, int64_t stacked, int64_t pair, const activations *x,                   \
                     const int64_t *row, float *out) {                                                                 \
        if (rows == 1) tile_of(FORMAT, 1, w, stacked, pair, x, row, out);                                              \
        else if (rows == 2) tile_of(FORMAT, 2, w, stacked, pair, x, row, out);                                         \
        else tile_of(FORMAT, ROWS, w, stacked, pair, x, row, out);                                                     \
    }
TILES_OF(FORMAT_BF16, tile_bf16)
TILES_OF(FORMAT_INT4, tile_int4)
TILES_OF(FORMAT_INT4_ZEROS, tile_int4_zeros)
TILES_OF(FORMAT_FP8, tile_fp8)
TILES_OF(FORMAT_NVFP4, tile_nvfp4)

/* out[r * PAIR + n] for `rows` of 1 to 4 rows; out has room for four, of which those beyond `rows` mean nothing. */
static void packed_tile(int rows, const packed *w, int64_t stacked, int64_t pair, const activations *x,
                        const int64_t *row, float *out) {
    const int64_t four[ROWS] = {row[0], row[rows > 1], row[rows > 2 ? 2 : 0], row[rows > 3 ? 3 : 0]};
    switch (w->format) {
    case FORMAT_BF16: tile_bf16(rows, w, stacked, pair, x, four, out); break;
    case FORMAT_INT4: tile_int4(rows, w, stacked, pair, x, four, out); break;
    case FORMAT_INT4_ZEROS: tile_int4_zeros(rows, w, stacked, pair, x, four, out); break;
    case FORMAT_FP8: tile_fp8(rows, w, stacked, pair, x, four, out); break;
    default: tile_nvfp4(rows, w, stacked, pair, x, four, out);
    }
}

#endif
