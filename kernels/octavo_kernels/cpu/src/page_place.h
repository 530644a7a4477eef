/* formats/place.py: the logical index of a page and its fill mark in one word. */
#ifndef OCTAVO_PAGE_PLACE_H
#define OCTAVO_PAGE_PLACE_H

#include <stdint.h>

static inline int32_t logical_of(int32_t place) { return place >> 8; }
static inline int32_t fill_of(int32_t place) { return place & 255; }
static inline int32_t filled_to(int32_t place, int32_t fill) { return (place & ~255) | fill; }

#endif
