/* Chooses a token from a row of logits. Given equal logits, the CPU and the GPU choose the same token. A token's weight
 * is proportional to its probability divided by the likeliest token's probability. Weights are rounded to integers, so
 * their sums do not depend on the order of summation. docs/reference/numerics.md bounds the rounding error. */
#pragma once

#include <stdint.h>

#include "base/host_device.h"

/* Specifies how to choose from a row of logits; stored as a row of an integer operand. If all members are
 * zero, the likeliest token is chosen. */
typedef struct ChoiceRow {
    /* 1 / temperature; if 0, choose the likeliest token (if several are equally likely, the lowest id) */
    double rate;
    /* keep tokens with rate * (logit - largest logit) >= least; -INFINITY keeps all tokens */
    double least;
    double top_p;         /* 0: off */
    double uniform;       /* in (0, 1); selects the token */
    int64_t top_k;        /* 0: off; 1: choose the likeliest token */
    int64_t known, token; /* if `known` is not 0, `token` is chosen */
    int64_t sums;         /* if not 0, compute Chosen.sum */
} ChoiceRow;

typedef struct Chosen {
    /* the chosen token; -1 if a logit is not finite, in which case the other members are not set */
    int64_t token;
    double logit, top; /* the token's logit, and the largest logit */
    uint64_t sum;      /* sum of the weights at temperature 1; 0 if not computed */
} Chosen;

enum {
    CHOICE_ROW_WORDS = sizeof(ChoiceRow) / sizeof(int64_t),
    CHOSEN_WORDS = sizeof(Chosen) / sizeof(int64_t)
};

/* Returns the likeliest token's weight, a power of two such that n weights sum to at most 2^62. */
static inline double choice_scale(int64_t n) {
    double scale = 0x1p62;
    for (; n > 1; n = (n + 1) / 2) scale /= 2;
    return scale;
}

/* Returns the integer part of p * total, but at most `total`. */
HOST_DEVICE static inline uint64_t choice_part(double p, uint64_t total) {
    const double part = p * (double)total;
    return part < (double)total ? (uint64_t)part : total;
}

/* Chooses a token. This function is the reference for all other implementations. Some logits may be -INFINITY,
 * but not all. */
Chosen choice_make(const double *logits, int64_t n, const ChoiceRow *);
/* Returns log softmax(logits)[token]. Chosen.sum must have been computed from n logits. */
double choice_logprob(const Chosen *, int64_t n);
