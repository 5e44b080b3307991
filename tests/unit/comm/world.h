/* Tests that all transports share; every rank of a world runs them. Expected values are computed from the numbers of
 * members and elements, never from a communicated buffer. */
#pragma once

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/fault.h"
#include "base/mem.h"
#include "base/philox.h"
#include "comm/comm.h"

/* The device whose memory this rank communicates; NULL means host memory. */
static _Thread_local Device *world_device;

static inline Group world_group(const Comm *c) {
    return (Group){.size = comm_world(c),
                   .rank = comm_rank(c),
                   .n_axes = 1,
                   .axis_size = {comm_world(c)},
                   .axis_stride = {1}};
}

/* Values are small integers, so that sums over up to 64 members are exact in every type (3 * 64 < 2^8). */
static inline double value(int member, int64_t at) { return (double)((member * 7 + at * 3 + at / 5) % 4); }

enum { GUARD = 16 };

/* Allocates `n` elements between guard bytes. */
static inline char *buffer_new(DType t, int64_t n) {
    const size_t bytes = (size_t)n * dtype_size(t);
    char *block = mem_alloc(bytes + 2 * GUARD);
    memset(block, 0x5a, bytes + 2 * GUARD);
    return block + GUARD;
}

static inline void buffer_free(char *b, DType t, int64_t n) {
    const size_t bytes = (size_t)n * dtype_size(t);
    for (size_t i = 0; i < GUARD; i++)
        CHECK(b[-1 - (int)i] == 0x5a && b[bytes + i] == 0x5a, "written outside of %lld elements",
              (long long)n);
    free(b - GUARD);
}

/* One member's operation, its buffers, and the expected content of `out`. */
typedef struct Trial {
    CommCall call;
    int64_t n_in, n_out;
    int64_t in_counts[64], out_counts[64];
    bool in_place;
    CommWork *work;
} Trial;

/* The number of elements that member i sends to member j. */
static inline int64_t pair_count(int64_t n, int i, int j) {
    return (i + 2 * j) % 3 == 0 ? 0 : n + i - j > 0 ? n + i - j : 0;
}

static inline double expected_reduction(CommReduction r, int members, int64_t at) {
    double x = value(0, at);
    for (int m = 1; m < members; m++) {
        const double y = value(m, at);
        x = r == COMM_SUM ? x + y : r == COMM_MAX ? (y > x ? y : x) : (y < x ? y : x);
    }
    return x;
}

static inline double expected_a2a(const Trial *t, int64_t at) {
    const int me = t->call.group.rank;
    int from = 0;
    int64_t before = 0, first = 0;
    for (; at - before >= t->out_counts[from]; from++) before += t->out_counts[from];
    for (int j = 0; j < me; j++) first += pair_count(t->call.n, from, j);
    return value(from, first + at - before);
}

static inline double expected(const Trial *t, int64_t at) {
    const CommCall *c = &t->call;
    switch (c->kind) {
    case COMM_BROADCAST:
    case COMM_RECV:
        return value(c->peer, at);
    case COMM_ALL_REDUCE:
        return expected_reduction(c->reduction, c->group.size, at);
    case COMM_ALL_GATHER:
        return value((int)(at / c->n), at % c->n);
    case COMM_REDUCE_SCATTER:
        return expected_reduction(c->reduction, c->group.size, c->group.rank * c->n + at);
    default:
        return expected_a2a(t, at);
    }
}

static inline void trial_sizes(Trial *t) {
    const CommCall *c = &t->call;
    const int size = c->group.size, me = c->group.rank;
    t->n_in = c->kind == COMM_BARRIER || c->kind == COMM_RECV ? 0
              : c->kind == COMM_REDUCE_SCATTER                ? size * c->n
                                                              : c->n;
    t->n_out = c->kind == COMM_BARRIER || c->kind == COMM_SEND ? 0
               : c->kind == COMM_ALL_GATHER                    ? size * c->n
                                                               : c->n;
    if (c->kind != COMM_ALL_TO_ALL) return;
    t->n_in = t->n_out = 0;
    for (int i = 0; i < size; i++) {
        t->n_in += t->in_counts[i] = pair_count(c->n, me, i);
        t->n_out += t->out_counts[i] = pair_count(c->n, i, me);
    }
}

/* Fills the buffers and starts the operation. If it is in place, one buffer is both input and output. */
static inline void trial_start(Comm *comm, Trial *t) {
    CommCall *c = &t->call;
    const int me = c->group.rank;
    trial_sizes(t);
    char *in = NULL, *out = buffer_new(c->dtype, t->n_out);
    const size_t size = dtype_size(c->dtype);
    if (c->kind == COMM_BROADCAST || (t->in_place && c->kind == COMM_ALL_REDUCE))
        in = out;
    else if (t->in_place && c->kind == COMM_ALL_GATHER)
        in = out + (size_t)(me * c->n) * size;
    else
        in = buffer_new(c->dtype, t->n_in);
    if (c->kind != COMM_BROADCAST || me == c->peer)
        for (int64_t i = 0; i < t->n_in; i++) dtype_store(in, c->dtype, i, value(me, i));
    if (t->in_place && c->kind == COMM_REDUCE_SCATTER) {
        buffer_free(out, c->dtype, t->n_out);
        out = in + (size_t)(me * c->n) * size;
    }
    int64_t in_counts[64], out_counts[64]; /* the operation must not need these after the start */
    memcpy(in_counts, t->in_counts, sizeof in_counts), memcpy(out_counts, t->out_counts, sizeof out_counts);
    c->device = world_device;
    c->in = in, c->out = out, c->in_counts = in_counts, c->out_counts = out_counts;
    t->work = comm_start(comm, c);
    memset(in_counts, -1, sizeof in_counts), memset(out_counts, -1, sizeof out_counts);
    c->in_counts = c->out_counts = NULL;
}

static inline void trial_finish(Comm *comm, Trial *t) {
    CommCall *c = &t->call;
    comm_wait(comm, t->work);
    for (int64_t i = 0; i < t->n_out; i++) {
        const double got = dtype_load(c->out, c->dtype, i), want = expected(t, i);
        CHECK(got == want, "rank %d, kind %d, %s, n %lld: element %lld is %g, not %g", comm_rank(comm),
              (int)c->kind, dtype_name(c->dtype), (long long)c->n, (long long)i, got, want);
    }
    const bool shared = c->kind == COMM_BROADCAST || t->in_place;
    if (!shared)
        for (int64_t i = 0; i < t->n_in; i++)
            CHECK(dtype_load(c->in, c->dtype, i) == value(c->group.rank, i), "an input has changed");
    if (!shared || (t->in_place && c->kind == COMM_REDUCE_SCATTER))
        buffer_free((char *)c->in, c->dtype, t->n_in);
    if (!(t->in_place && c->kind == COMM_REDUCE_SCATTER)) buffer_free(c->out, c->dtype, t->n_out);
}

/* ---- programs of a rank (CommMain) ---- */

/* Runs every kind of operation, type and reduction on odd sizes, below and above the size at which a backend begins to
 * cut operations into pieces. */
static inline void run_all_kinds(void *arg, Comm *comm) {
    static const DType TYPES[] = {F64, F32, BF16, F16, I64, I32, U8};
    static const int64_t SIZES[] = {0, 1, 7, 8, 1000, 4097, 70001};
    const int sizes = *(const int *)arg;
    const Group g = world_group(comm);
    for (int kind = 0; kind < COMM_SEND; kind++) {
        const bool reduces = kind == COMM_ALL_REDUCE || kind == COMM_REDUCE_SCATTER;
        for (int r = 0; r < (reduces ? 3 : 1); r++)
            for (int t = 0; t < 7; t++)
                for (int s = 0; s < sizes; s++)
                    for (int place = 0; place <= (reduces || kind == COMM_ALL_GATHER); place++) {
                        Trial trial = {.call = {.kind = (CommKind)kind,
                                                .reduction = (CommReduction)r,
                                                .dtype = TYPES[t],
                                                .group = g,
                                                .site = "all_kinds",
                                                .n = SIZES[s],
                                                .peer = s % g.size},
                                       .in_place = place};
                        trial_start(comm, &trial);
                        trial_finish(comm, &trial);
                    }
    }
}

/* Each rank sends several messages to every other rank, and receives them in a different order. */
static inline void run_messages(void *arg, Comm *comm) {
    enum { DEEP = 3 };
    static const int64_t SIZES[DEEP] = {5, 0, 30000};
    (void)arg;
    const Group g = world_group(comm);
    Trial *t = mem_zero((size_t)(2 * g.size * DEEP), sizeof *t);
    int n = 0;
    for (int d = 0; d < DEEP; d++)
        for (int peer = 0; peer < g.size; peer++)
            for (int way = 0; way < 2 && peer != g.rank; way++) {
                t[n].call = (CommCall){.kind = way ? COMM_SEND : COMM_RECV,
                                       .dtype = F32,
                                       .group = g,
                                       .site = "messages",
                                       .n = SIZES[d],
                                       .peer = peer};
                trial_start(comm, &t[n++]);
            }
    while (n--) trial_finish(comm, &t[n]);
    free(t);
}

/* The bits of these sums depend on the order of the additions, which must be that of the members. Sums of
 * 16-bit types must be computed in float and rounded once. */
static inline void run_order(void *arg, Comm *comm) {
    enum { N = 300 };
    static const DType TYPES[] = {F64, F32, BF16, F16};
    (void)arg;
    const Group g = world_group(comm);
    int64_t sensitive = 0;
    for (int k = 0; k < 4; k++) {
        const DType t = TYPES[k];
        const size_t size = dtype_size(t);
        char mine[N * 8], sum[N * 8], parts[64][8];
        double part[64];
        for (int i = 0; i < N; i++)
            dtype_store(mine, t, i, philox_normal(7, (uint64_t)g.rank, (uint64_t)i) * (i % 3 ? 1 : 8));
        comm_run(comm, &(CommCall){.kind = COMM_ALL_REDUCE,
                                   .dtype = t,
                                   .group = g,
                                   .site = "order",
                                   .in = mine,
                                   .out = sum,
                                   .n = N,
                                   .device = world_device});
        for (int i = 0; i < N; i++) {
            for (int m = 0; m < g.size; m++) {
                dtype_store(parts[m], t, 0, philox_normal(7, (uint64_t)m, (uint64_t)i) * (i % 3 ? 1 : 8));
                part[m] = dtype_load(parts[m], t, 0);
            }
            volatile double up = part[0], down = part[g.size - 1];
            for (int m = 1; m < g.size; m++) {
                up =
                    t == F64
                        ? up + part[m]
                        : (double)(float)(up + part[m]); /* the sum is exact in double, and is rounded once */
                down = t == F64 ? down + part[g.size - 1 - m] : (double)(float)(down + part[g.size - 1 - m]);
            }
            char want[8];
            dtype_store(want, t, 0, up);
            CHECK(!memcmp(want, sum + (size_t)i * size, size), "%s sum %d: %.17g, not %.17g", dtype_name(t),
                  i, dtype_load(sum, t, i), up);
            sensitive += up != down;
        }
    }
    CHECK(g.size < 3 || sensitive > 0, "no sum depends on the order: the test says nothing");
}

/* Draws a random number that is less than `below`. Ranks use site 0 for numbers that must be equal on all
 * ranks, and site 1 + rank for others. */
static inline uint32_t draw(uint64_t round, uint64_t site, uint64_t i, uint32_t below) {
    return philox_u32(round, site, i) % below;
}

typedef struct Layout {
    int size[AXES];
    int rounds;
} Layout;

/* Returns this rank's groups for a list of masks, without duplicates. */
static inline int distinct_groups(const Mesh *mesh, const unsigned *mask, int masks, Group *out) {
    int n = 0;
    for (int m = 0; m < masks; m++) {
        const Group plain = mesh_group(mesh, mask[m]), g = group_simplify(&plain);
        int i = 0;
        while (i < n && memcmp(&out[i], &g, sizeof g)) i++;
        if (i == n) out[n++] = g;
    }
    return n;
}

/* Draws operation `id` of a round, which is equal on all members. */
static inline CommCall drawn_call(uint64_t round, int id, Group g) {
    const uint64_t at = 3 * (uint64_t)id;
    return (CommCall){.kind = (CommKind)draw(round, 0, at, COMM_SEND),
                      .dtype = draw(round, 0, at + 1, 2) ? F32 : BF16,
                      .group = g,
                      .site = "interleaved",
                      .n = draw(round, 0, at + 2, 600),
                      .peer = id % g.size};
}

/* Runs operations on several groups of a mesh concurrently. Each rank interleaves the groups' sequences, and waits for
 * them, in a different order. */
static inline void run_interleaved(void *arg, Comm *comm) {
    enum { MASKS = 7, EACH = 4 };
    static const unsigned MASK[MASKS] = {
        1 << AXIS_TP, 1 << AXIS_CP, 1 << AXIS_DP, 1 << AXIS_PP, 1 << AXIS_DP | 1 << AXIS_CP,
        1 << AXIS_EP, MASK_DENSE};
    const Layout *layout = arg;
    const Mesh mesh = mesh_make(comm_world(comm), comm_rank(comm), layout->size);
    const uint64_t own = 1 + (uint64_t)comm_rank(comm);
    Group group[MASKS];
    const int groups = distinct_groups(&mesh, MASK, MASKS, group);
    for (uint64_t round = 0; round < (uint64_t)layout->rounds; round++) {
        Trial t[MASKS * EACH] = {0}, *order[MASKS * EACH];
        int started[MASKS] = {0};
        for (int k = 0; k < groups * EACH; k++) {
            int g = (int)draw(round, own, (uint64_t)k, (uint32_t)groups);
            while (started[g] == EACH) g = (g + 1) % groups;
            t[k].call = drawn_call(round, g * EACH + started[g]++, group[g]);
            trial_start(comm, &t[k]);
            const uint32_t at = draw(round, own, 100 + (uint64_t)k, (uint32_t)k + 1);
            order[k] = order[at];
            order[at] = &t[k];
        }
        for (int k = 0; k < groups * EACH; k++) trial_finish(comm, order[k]);
    }
}

enum { LATE_MS = 100 };

static inline void be_late(void) { nanosleep(&(struct timespec){.tv_nsec = LATE_MS * 1000000L}, NULL); }

/* Rank 0 first waits for a late member. While a second operation is in progress, all ranks compute for the same
 * time. */
static inline void run_exposed(void *arg, Comm *comm) {
    (void)arg;
    const Mesh mesh = mesh_make(comm_world(comm), comm_rank(comm), (int[AXES]){1, 1, 0, 1, 1, 1, 0});
    CommProfile profile[COMM_PROFILE] = {{.bytes = 0}}, *dp = &profile[1 << AXIS_DP];
    float x = 1, y;
    const CommCall call = {.kind = COMM_ALL_REDUCE,
                           .dtype = F32,
                           .group = mesh_group(&mesh, MASK_DENSE),
                           .site = "exposed",
                           .in = &x,
                           .out = &y,
                           .n = 1,
                           .device = world_device};
    comm_run(comm, &call);
    comm_profile(comm, profile, NULL);
    if (mesh.rank) be_late();
    comm_run(comm, &call);
    const double exposed = (double)dp->exposed.ns * 1e-6;
    if (!mesh.rank) CHECK(exposed > 0.9 * LATE_MS, "%g ms were exposed, not %d", exposed, LATE_MS);
    CommWork *work = comm_start(comm, &call);
    be_late();
    comm_wait(comm, work);
    const double hidden = (double)dp->exposed.ns * 1e-6 - exposed;
    CHECK(hidden < 0.5 * LATE_MS, "%g ms were exposed during work of %d ms", hidden, LATE_MS);
    comm_profile(comm, NULL, NULL);
    comm_run(comm, &call);
    for (int i = 0; i < COMM_PROFILE; i++)
        CHECK(profile[i].exposed.calls == (&profile[i] == dp ? 2 : 0), "axes %#x have %lld operations",
              (unsigned)i, (long long)profile[i].exposed.calls);
    const double n = mesh.world, bytes = 2 * 2 * (n - 1) / n * (double)sizeof x, late = 2 * LATE_MS;
    CHECK(fabs(dp->bytes - bytes) < 1e-9, "%g bytes, not %g", dp->bytes, bytes);
    if (!mesh.rank)
        CHECK((double)dp->flight.ns * 1e-6 > 0.9 * late, "%g ms in flight, not %g",
              (double)dp->flight.ns * 1e-6, late);
}
