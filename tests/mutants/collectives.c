/* Planted bugs in communication between ranks: an operation is skipped or repeated, or its result is corrupted.
 * All members of the group do this consistently, so the watchdog reports nothing. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "comm/transport.h"
#include "mutants/mutants.h"

/* Number of elements that the operation writes to `out`. */
static int64_t received(const CommCall *c) {
    int64_t n = 0;
    switch (c->kind) {
    case COMM_ALL_GATHER:
        return c->n * c->group.size;
    case COMM_ALL_TO_ALL:
        for (int i = 0; i < c->group.size; i++) n += c->out_counts[i];
        return n;
    case COMM_ALL_REDUCE:
    case COMM_REDUCE_SCATTER:
    case COMM_RECV:
        return c->n;
    default:
        return 0;
    }
}

/* A function that corrupts the n elements in c->out. */
typedef void Spoil(const CommCall *c, int64_t n);

static void scale(const CommCall *c, int64_t n, double factor) {
    for (int64_t i = 0; i < n; i++)
        if (c->dtype == F64)
            ((double *)c->out)[i] *= factor;
        else if (c->dtype == F32)
            ((float *)c->out)[i] *= (float)factor;
}

static void averaged(const CommCall *c, int64_t n) { scale(c, n, 1.0 / c->group.size); }
static void halved(const CommCall *c, int64_t n) { scale(c, n, 0.5); }
static void zero(const CommCall *c, int64_t n) { scale(c, n, 0); }
static void slightly_more(const CommCall *c, int64_t n) { scale(c, n, 1 + mutant_value(1e-9)); }

static void last_eight_zero(const CommCall *c, int64_t n) {
    const size_t size = dtype_size(c->dtype), last = n < 8 ? (size_t)n : 8;
    memset((char *)c->out + ((size_t)n - last) * size, 0, last * size);
}

/* Swaps the first half of the members' parts with the second half. */
static void permuted(const CommCall *c, int64_t n) {
    const size_t half = (size_t)(n / 2) * dtype_size(c->dtype);
    char *first = c->out, *second = first + (size_t)n * dtype_size(c->dtype) - half,
         *kept = mem_alloc(half + 1);
    memcpy(kept, first, half);
    memcpy(first, second, half);
    memcpy(second, kept, half);
    free(kept);
}

/* Replaces every member's part by the part of this member. */
static void own_part(const CommCall *c, int64_t n) {
    const size_t part = (size_t)(n / c->group.size) * dtype_size(c->dtype);
    for (int i = 0; i < c->group.size; i++)
        if (i != c->group.rank)
            memcpy((char *)c->out + (size_t)i * part, (char *)c->out + (size_t)c->group.rank * part, part);
}

/* Zeroes the gradients of a T5's encoder output. They follow the gradients of the decoder's stream, and in
 * the cell that tests this bug they are twice as long. */
static void encoded_zero(const CommCall *c, int64_t n) {
    const int64_t decoder = n / 3;
    if (c->dtype == F64) memset((double *)c->out + decoder, 0, (size_t)(n - decoder) * sizeof(double));
}

static void first_half_twice(const CommCall *c, int64_t n) {
    const size_t half = (size_t)(n / 2) * dtype_size(c->dtype);
    memmove((char *)c->out + half, c->out, half);
}

enum { SOME_ELEMENT = 70 };

static void not_a_number(const CommCall *c, int64_t n) {
    if (c->dtype == F64 && n > SOME_ELEMENT) ((double *)c->out)[SOME_ELEMENT] = NAN;
}

static void one_element(const CommCall *c, int64_t n) {
    if (c->dtype == F64 && n > SOME_ELEMENT) ((double *)c->out)[SOME_ELEMENT] *= 1 + mutant_value(1e-7);
}

/* AT_ONCE: an operation completes when it is started, so that what is read too early does not depend on the timing of
 * threads. */
typedef enum Change { NOT_DONE, DONE_TWICE, AT_ONCE, SPOILT } Change;

static const struct {
    MutantId id;
    const char *site;
    Change change;
    Spoil *spoil;
} TABLE[] = {
    {M_tied_not_summed, "tied_grad_sum", NOT_DONE, NULL},
    {M_tied_summed_twice, "tied_grad_sum", DONE_TWICE, NULL},
    {M_relative_not_summed, "tied_grad_sum", NOT_DONE, NULL},
    {M_dp_not_summed, "grad_sum", NOT_DONE, NULL},
    {M_summed_too_early, "grad_sum", AT_ONCE, NULL},
    {M_dp_averaged, "grad_sum", SPOILT, averaged},
    {M_grad_tail_dropped, "replicated_grad_sum", SPOILT, last_eight_zero},
    {M_replicated_not_summed, "replicated_grad_sum", NOT_DONE, NULL},
    {M_replicated_summed_twice, "replicated_grad_sum", DONE_TWICE, NULL},
    {M_values_of_last_step, "param_gather", NOT_DONE, NULL},
    {M_values_permuted, "param_gather", SPOILT, permuted},
    {M_sum_tail_dropped, "all_reduce", SPOILT, last_eight_zero},
    {M_scatter_averages, "reduce_scatter", SPOILT, averaged},
    {M_gather_permuted, "all_gather", SPOILT, permuted},
    {M_loss_of_own_columns, "cross_entropy_gather", SPOILT, own_part},
    {M_norm_of_own_rank, "world_sum", NOT_DONE, NULL},
    {M_tokens_of_own_rank, "report", NOT_DONE, NULL},
    {M_cp_keys_repeated, "ring_keys", SPOILT, first_half_twice},
    {M_cp_gradients_lost, "ring_gradients", SPOILT, zero},
    {M_cp_heads_permuted, "seq_to_heads", SPOILT, permuted},
    {M_cp_gathered_permuted, "gather_keys", SPOILT, permuted},
    {M_cp_scatter_averages, "scatter_gradients", SPOILT, averaged},
    {M_pipeline_read_early, "pipeline_activation", SPOILT, zero},
    {M_pipeline_gradient_halved, "pipeline_gradient", SPOILT, halved},
    {M_encoded_gradient_lost, "pipeline_gradient", SPOILT, encoded_zero},
    {M_pipeline_tail_dropped, "pipeline_activation", SPOILT, last_eight_zero},
    {M_moe_counts_of_own_rank, "sum_tokens", NOT_DONE, NULL},
    {M_moe_sent_permuted, "send_to_experts", SPOILT, permuted},
    {M_moe_returned_permuted, "return_from_experts", SPOILT, permuted},
    {M_gradient_scaled, "grad_sum", SPOILT, slightly_more},
    {M_gradient_nan, "grad_sum", SPOILT, not_a_number},
    {M_gradient_element, "grad_sum", SPOILT, one_element},
};

/* Whether the call is for a tied parameter other than a table of relative biases, which is the smallest one. */
static bool is_other_table(const CommCall *c, MutantId id) {
    enum { ELEMENTS = 256 };
    return id == M_relative_not_summed && c->n > ELEMENTS;
}

static int planted(const CommCall *c) {
    for (int i = 0; i < (int)(sizeof TABLE / sizeof *TABLE); i++)
        if (mutant_is(TABLE[i].id) && !strcmp(c->site, TABLE[i].site) && !is_other_table(c, TABLE[i].id))
            return i;
    return -1;
}

static void spoil(const CommCall *c, int i, int64_t n) {
    if (i >= 0 && TABLE[i].change == SPOILT && n) TABLE[i].spoil(c, n);
}

extern __typeof__(comm_start) __real_comm_start;
extern __typeof__(comm_wait) __real_comm_wait;

/* Runs the operation without hooks. Some linkers also replace the calls in comm_run. */
static void run(Comm *comm, const CommCall *c) { __real_comm_wait(comm, __real_comm_start(comm, c)); }

/* Called before an operation; returns true if the operation must be skipped. */
static bool before(Comm *comm, const CommCall *c, int i) {
    if (i < 0) return false;
    const Change change = TABLE[i].change;
    if (change == DONE_TWICE || change == AT_ONCE) run(comm, c);
    return change == NOT_DONE || change == AT_ONCE;
}

HOOK(CommWork *, comm_start, Comm *comm, const CommCall *c) {
    return before(comm, c, planted(c)) ? NULL : __real_comm_start(comm, c);
}

HOOK(void, comm_wait, Comm *comm, CommWork *work) {
    const CommCall c = work->call; /* a copy, because the caller's counts are not valid after the wait */
    const int64_t n = received(&c);
    __real_comm_wait(comm, work);
    spoil(&c, planted(&c), n);
}

HOOK(void, comm_run, Comm *comm, const CommCall *c) {
    const int i = planted(c);
    if (before(comm, c, i)) return;
    run(comm, c);
    spoil(c, i, received(c));
}

HOOK(void, comm_all_reduce, Comm *comm, Group group, const char *site, CommReduction reduction, DType dtype,
     void *x, int64_t n) {
    __wrap_comm_run(comm, &(CommCall){.kind = COMM_ALL_REDUCE,
                                      .reduction = reduction,
                                      .dtype = dtype,
                                      .group = group,
                                      .site = site,
                                      .in = x,
                                      .out = x,
                                      .n = n});
}
