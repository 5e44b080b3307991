#include "tokenizer/text/ages.h"

#include <stddef.h>

#include "tokenizer/text/ages_table.h"

/* Returns the row [first, last, ...] with first <= c <= last, or NULL if there is none. */
static const uint32_t *find(const uint32_t *table, size_t rows, size_t width, uint32_t c) {
    size_t low = 0, high = rows;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const uint32_t *row = table + middle * width;
        if (c < row[0])
            high = middle;
        else if (c > row[1])
            low = middle + 1;
        else
            return row;
    }
    return NULL;
}

uint32_t age_stand_in(uint32_t c) {
    const uint32_t *row =
        c < STAND_INS[0][0] ? NULL : find(STAND_INS[0], sizeof STAND_INS / sizeof *STAND_INS, 3, c);
    return row ? row[2] : c;
}

bool age_unordered(uint32_t c) {
    return c >= UNORDERED[0][0] && find(UNORDERED[0], sizeof UNORDERED / sizeof *UNORDERED, 2, c);
}

uint32_t age_lower(uint32_t c) {
    const uint32_t *row = c < LOWER[0][0] ? NULL : find(LOWER[0], sizeof LOWER / sizeof *LOWER, 3, c);
    return row ? row[2] + (c - row[0]) : c;
}

#define IN(table, c) (find(table[0], sizeof table / sizeof *table, 2, c) != NULL)
bool age_is_control(uint32_t c) { return IN(CONTROLS, c); }
bool age_is_punctuation(uint32_t c) { return IN(PUNCTUATION, c); }
bool age_is_nonspacing(uint32_t c) { return IN(NONSPACING, c); }
bool age_is_mark(uint32_t c) { return IN(MARKS, c); }
