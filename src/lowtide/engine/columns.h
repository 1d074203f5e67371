/* Sums of columns; nothing here knows Python. */
#ifndef LOWTIDE_COLUMNS_H
#define LOWTIDE_COLUMNS_H

#include "core.h"

/* Types of numbers, in this machine's byte order. A bool is a uint8. */
enum { LT_U8, LT_I8, LT_U16, LT_I16, LT_U32, LT_I32, LT_U64, LT_I64, LT_F16, LT_F32, LT_F64, LT_NUMBERS };

/* One number per column each: what is taken off before summing, and what is added to. NaN are counted and left out. */
typedef struct {
    int kind; /* LT_U8 ... */
    int64_t columns;
    const double *guess;
    double *total, *squares, *low, *high;
    int64_t *nan;
} lt_columns;

void lt_add_columns(const lt_columns *to, const unsigned char *rows, int64_t count);

#endif
