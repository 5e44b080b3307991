/* Patterns in device memory: each is written over a region, then read back and compared. The region is as
 * large as the share of free memory allows and the time lets all patterns finish. An error is located by
 * its address. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "acceptance/stage.h"
#include "base/amount.h"
#include "base/clock.h"
#include "base/mem.h"

enum { WORDS = 1 << 20 }; /* of 8 bytes, that the host handles at once */
static const size_t PIECE = WORDS * sizeof(uint64_t), MOST_OF_HOST = 1 << 30;

static uint64_t zeros(uint64_t at) { return at & 0; }
static uint64_t ones(uint64_t at) { return ~zeros(at); }
static uint64_t fives(uint64_t at) { return zeros(at) | UINT64_C(0x5555555555555555); }
static uint64_t tens(uint64_t at) { return ~fives(at); }
static uint64_t walking_one(uint64_t at) { return UINT64_C(1) << at % 64; }
static uint64_t walking_zero(uint64_t at) { return ~walking_one(at); }
static uint64_t address(uint64_t at) { return at * sizeof(uint64_t); }
static uint64_t random_word(uint64_t at) {
    uint64_t x = at * UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    return (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
}

static const struct {
    const char *name;
    uint64_t (*word)(uint64_t at);
    bool varies; /* from piece to piece */
} PATTERNS[] = {{"address", address, true},
                {"random", random_word, true},
                {"zeros", zeros, false},
                {"ones", ones, false},
                {"walking one", walking_one, false},
                {"walking zero", walking_zero, false},
                {"0101", fives, false},
                {"1010", tens, false}};
enum { N_PATTERNS = sizeof PATTERNS / sizeof *PATTERNS };

/* The errors of a rank. */
typedef struct Seen {
    int64_t words; /* that are wrong */
    uint64_t offset, address, got, wanted;
    int pattern;
    double gib, free_gib;
} Seen;

typedef struct Region {
    StageRank *r;
    char *at;
    size_t bytes;           /* a multiple of PIECE */
    uint64_t *words, *back; /* [WORDS] of the host */
    int made;               /* the pattern in `words` */
    Seen seen;
} Region;

static void make_piece(Region *g, int pattern, size_t offset) {
    if (g->made == pattern && !PATTERNS[pattern].varies) return;
    g->made = pattern;
    for (uint64_t i = 0; i < WORDS; i++) g->words[i] = PATTERNS[pattern].word(offset / sizeof(uint64_t) + i);
}

static void write_piece(Region *g, int pattern, size_t offset) {
    make_piece(g, pattern, offset);
    device_write(g->r->device, g->at + offset, g->words, PIECE);
}

static void check_piece(Region *g, int pattern, size_t offset) {
    device_read(g->r->device, g->back, g->at + offset, PIECE);
    make_piece(g, pattern, offset);
    if (!memcmp(g->words, g->back, PIECE)) return;
    for (size_t i = 0; i < WORDS; i++) {
        Seen *s = &g->seen;
        if (g->words[i] == g->back[i] || s->words++) continue;
        s->offset = offset + i * sizeof(uint64_t);
        s->address = (uint64_t)(uintptr_t)(g->at + s->offset);
        s->got = g->back[i], s->wanted = g->words[i], s->pattern = pattern;
    }
}

/* As much memory as all patterns can visit in the budget, by the rate of one piece. */
static size_t affordable(Region *g, size_t most) {
    write_piece(g, 1, 0), check_piece(g, 1, 0); /* warms up */
    const int64_t start = clock_ns();
    write_piece(g, 1, 0), check_piece(g, 1, 0);
    const double piece = (double)(clock_ns() - start) * 1e-9,
                 pieces = 0.8 * g->r->in->seconds / piece / N_PATTERNS;
    const size_t bytes = (pieces < 1 ? 1 : (size_t)pieces) * PIECE;
    return bytes < most ? bytes : most;
}

static void report(const StageRank *r, const Seen *all) {
    for (int i = 0; i < r->world; i++) {
        const Seen *s = &all[i];
        if (s->words)
            outcome_add(r->out, ACCEPT_FAIL, stage_suspect(r, i).s,
                        "%" PRId64 " words of its memory are wrong, the first at address 0x%" PRIx64
                        " (offset %" PRIu64 "): pattern '%s' has 0x%016" PRIx64 ", not 0x%016" PRIx64,
                        s->words, s->address, s->offset, PATTERNS[s->pattern].name, s->got, s->wanted);
    }
    double least = all[0].gib;
    for (int i = 1; i < r->world; i++) least = all[i].gib < least ? all[i].gib : least;
    const double gib = least * r->sharing, free_gib = all[0].free_gib * r->sharing;
    const int devices = r->world / r->sharing;
    outcome_sum_up(r->out, "%d patterns over %.2f of %.1f GiB of free memory on %s%s", (int)N_PATTERNS, gib,
                   free_gib, devices > 1 ? "each of " : "", amount(devices, "device").s);
    if (gib < 0.9 * free_gib)
        outcome_limit(
            r->out,
            "memory: the %.1f GiB of free memory of each device that the time or --memory-share left out",
            free_gib - gib);
}

static Err on_rank(StageRank *r) {
    const bool gpu = device_is_discrete(r->device);
    const double unused = stage_reduce(r, COMM_MIN, (double)device_memory_available(r->device)) / r->sharing,
                 share = r->in->options->memory_share * unused;
    const size_t all_bytes = share < (double)PIECE ? PIECE : (size_t)share / PIECE * PIECE;
    Seen *all = mem_zero((size_t)r->world, sizeof *all);
    Region g = {.r = r, .made = -1, .bytes = gpu || all_bytes < MOST_OF_HOST ? all_bytes : MOST_OF_HOST};
    g.at = device_alloc(r->device, g.bytes, "memory patterns");
    g.words = device_host_alloc(r->device, 2 * PIECE, "memory patterns");
    g.back = g.words + WORDS;
    const size_t region = affordable(&g, g.bytes);
    for (int p = 0; p < N_PATTERNS; p++) {
        STAGE_DOING(r, "pattern '%s' over %zu bytes", PATTERNS[p].name, region);
        for (size_t at = 0; at < region; at += PIECE) write_piece(&g, p, at);
        for (size_t at = 0; at < region; at += PIECE) check_piece(&g, p, at);
    }
    g.seen.gib = (double)region / (1 << 30), g.seen.free_gib = unused / (1 << 30);
    stage_gather(r, &g.seen, all, sizeof g.seen);
    if (r->out) report(r, all);
    device_host_release(r->device, g.words, 2 * PIECE);
    device_release(r->device, g.at, g.bytes);
    free(all);
    return ERR_OK;
}

Err stage_memory(const StageInput *in) { return stage_on_ranks(in, on_rank); }
