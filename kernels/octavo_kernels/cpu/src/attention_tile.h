/* Tiles of keys and values in float32, decoded from the pages they lie in. */
#ifndef OCTAVO_ATTENTION_TILE_H
#define OCTAVO_ATTENTION_TILE_H

#include "vector.h"

#define KEY_TILE 64 /* keys between two updates of the running maximum; counted from position 0, so fixed per token */
#define SCORE_VECTORS 2 /* a score product's block: SCORE_ROWS queries x SCORE_VECTORS vectors of keys */
#define VALUE_ROWS 4    /* a value product's block: VALUE_ROWS queries x VALUE_VECTORS vectors of elements */
#if LANES == 16
#define SCORE_ROWS 8
#define VALUE_VECTORS 4
#else
#define SCORE_ROWS 4
#define VALUE_VECTORS 2
#endif
#define KEY_STRIP (SCORE_VECTORS * LANES)
#define VALUE_STRIP (VALUE_VECTORS * LANES)

enum stored { STORED_BF16 = 0, STORED_FP8 = 1 };

/* What a decoded element must be multiplied by: FP8 is decoded to 1/256 of its value. */
static inline float stored_unit(enum stored stored) { return stored == STORED_FP8 ? 256.0f : 1.0f; }

static inline int64_t ceil_to(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

/* The strips of KEY_STRIP keys that hold the first `count` of KEY_TILE rows of `dim` elements, each [dim][KEY_STRIP]:
 * transposed. */
void decode_keys(const uint8_t *const *rows, int64_t count, int64_t dim, enum stored stored, float *tile);

/* `count` rows of `dim` elements to strips of VALUE_STRIP elements, each [KEY_TILE][VALUE_STRIP], zero past `dim`. */
void decode_values(const uint8_t *const *rows, int64_t count, int64_t dim, enum stored stored, float *tile);

#endif
