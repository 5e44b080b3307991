/* A deterministic mutator: mutation `number` of a corpus is a pure function of (seed, number). It works on
 * bytes and, since most formats here are JSON or key = value, on numbers, words and nesting of text. */
#pragma once

#include <stdint.h>

#include "base/str.h"

/* Writes into `out` (cleared first) one of the n seeds with one to six changes. */
void mutate(const Str *seeds, int n, uint64_t seed, uint64_t number, Str *out);
