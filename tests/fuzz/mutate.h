/* A deterministic mutator: mutation `number` of a corpus is a pure function of (seed, number). It changes
 * bytes and, because most formats here are JSON or key = value, also numbers, words and the nesting of
 * text. */
#pragma once

#include <stdint.h>

#include "base/str.h"

/* Clears `out` and writes one of the n seeds to it, with one to six changes. */
void mutate(const Str *seeds, int n, uint64_t seed, uint64_t number, Str *out);
