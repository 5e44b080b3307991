/* Tests device memory with patterns: the host creates a pattern, and the device copies it to each block of a
 * region. The device then compares each block with the pattern, and the host reads the blocks that differ. The
 * region's size is limited by the share of free memory and by the time for all patterns. An error is reported
 * with its address.
 *
 * To compare, ops add the negated pattern to a block as F32, and count the zeros. The sum of two numbers is 0
 * only if one is the negative of the other, so every word of a pattern must be a finite nonzero number. The
 * highest two exponent bits of a word differ, so the sums are not denormal. The pattern starts at a different
 * word in each of SHIFTS consecutive blocks, so that a write to the wrong block is detected. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/amount.h"
#include "base/clock.h"
#include "base/mem.h"
#include "kernels/ops.h"
#include "validate/stage.h"

/* SHIFT: number of bytes by which a block's pattern is shifted from the previous block's pattern. SHIFTS: number of
 * different shifts. */
enum { SHIFT = 256, SHIFTS = 4096, BLOCK_OF_GPU = 64 << 20, BLOCK_OF_HOST = 4 << 20, MOST_OF_HOST = 1 << 30 };
static const uint32_t SIGN = UINT32_C(1) << 31, UPPER = UINT32_C(1) << 30, LOWER = UINT32_C(1) << 29;

static uint32_t address(uint32_t at) { return LOWER + at; }
static uint32_t random_word(uint32_t at) {
    uint32_t x = at * UINT32_C(0x9e3779b9);
    x = (x ^ x >> 16) * UINT32_C(0x85ebca6b);
    x = (x ^ x >> 13) * UINT32_C(0xc2b2ae35);
    return (x & ~LOWER) | (~x & UPPER) >> 1;
}
/* Returns LOWER with one additional bit set. As `at` increases, the additional bit walks over all bits except
 * the exponent's highest two. */
static uint32_t walking_one(uint32_t at) { return LOWER | (at % 30 == 29 ? SIGN : UINT32_C(1) << at % 30); }
static uint32_t fives(uint32_t at) { return UINT32_C(0x55555555) | (at & 0); }

static const struct {
    const char *name;
    uint32_t (*word)(uint32_t at);
    uint32_t inverse; /* XOR mask: all ones to use the complement of `word`, otherwise 0 */
} PATTERNS[] = {{"address", address, 0},
                {"inverse address", address, UINT32_MAX},
                {"random", random_word, 0},
                {"inverse random", random_word, UINT32_MAX},
                {"walking one", walking_one, 0},
                {"walking zero", walking_one, UINT32_MAX},
                {"0101", fives, 0},
                {"1010", fives, UINT32_MAX}};
enum { N_PATTERNS = sizeof PATTERNS / sizeof *PATTERNS };

/* The errors that a rank has found. */
typedef struct Seen {
    /* words: number of faulty words; unsure: number of words that only the device found faulty */
    int64_t words, unsure;
    uint64_t first, last; /* offsets */
    uint64_t address;     /* address of offset 0 */
    uint32_t got, wanted; /* values of the first faulty word */
    int pattern;
    double gib, free_gib;
} Seen;

/* One allocation: the blocks, followed by a sum, the pattern, its negative, and a count for each block. */
typedef struct Region {
    StageRank *r;
    char *at, *sum, *made, *negative;
    int64_t *counts;
    size_t block, bytes;    /* size of a block, and size of all blocks */
    uint32_t *words, *back; /* buffers in host memory, each as large as a pattern */
    int pattern;
    Seen seen;
} Region;

static size_t pattern_bytes(const Region *g) { return g->block + SHIFTS * SHIFT; }
static size_t other_bytes(const Region *g) {
    return g->block + 2 * pattern_bytes(g) + g->bytes / g->block * sizeof *g->counts;
}

static void allocate(Region *g) {
    g->at = device_alloc(g->r->device, g->bytes + other_bytes(g), "memory patterns");
    g->sum = g->at + g->bytes;
    g->made = g->sum + g->block;
    g->negative = g->made + pattern_bytes(g);
    g->counts = (int64_t *)(g->negative + pattern_bytes(g));
    g->words = device_host_alloc(g->r->device, 2 * pattern_bytes(g), "memory patterns");
    g->back = g->words + pattern_bytes(g) / sizeof *g->words;
    g->seen.address = (uint64_t)(uintptr_t)g->at;
}

static void release(const Region *g) {
    device_host_release(g->r->device, g->words, 2 * pattern_bytes(g));
    device_release(g->r->device, g->at, g->bytes + other_bytes(g));
}

/* ---- patterns ---- */

static size_t shift_of(const Region *g, size_t offset) { return offset / g->block % SHIFTS * SHIFT; }

/* Reads device memory, and records the words that differ from `wanted`. Returns the number of differing
 * words. */
static int64_t check_words(Region *g, const char *at, const uint32_t *wanted, size_t bytes, uint32_t flip) {
    int64_t wrong = 0;
    device_read(g->r->device, g->back, at, bytes);
    for (size_t i = 0; i < bytes / sizeof *wanted; i++) {
        Seen *s = &g->seen;
        const uint32_t got = g->back[i] ^ flip;
        if (got == wanted[i]) continue;
        wrong++;
        s->last = (uint64_t)(at - g->at) + i * sizeof *wanted;
        if (s->words++) continue;
        s->first = s->last, s->got = got, s->wanted = wanted[i], s->pattern = g->pattern;
    }
    return wrong;
}

/* Creates the pattern and its negative on the host and on the device. */
static void make_pattern(Region *g, int pattern) {
    const size_t bytes = pattern_bytes(g), n = bytes / sizeof *g->words;
    g->pattern = pattern;
    for (uint32_t i = 0; i < n; i++) {
        g->words[i] = PATTERNS[pattern].word(i) ^ PATTERNS[pattern].inverse;
        g->back[i] = g->words[i] ^ SIGN;
    }
    device_write(g->r->device, g->made, g->words, bytes);
    device_write(g->r->device, g->negative, g->back, bytes);
    device_wait(g->r->device);
    check_words(g, g->made, g->words, bytes, 0);
    check_words(g, g->negative, g->words, bytes, SIGN);
}

static void write_block(const Region *g, size_t offset) {
    device_copy(g->r->device, g->at + offset, g->made + shift_of(g, offset), g->block);
}

/* Counts the correct words of a block. The number of correct words stays in device memory. */
static void count_block(const Region *g, size_t offset) {
    const int64_t n = (int64_t)(g->block / sizeof(float)), one = 1;
    Tensor block = tensor_make(g->at + offset, F32, 1, &n),
           negative = tensor_make(g->negative + shift_of(g, offset), F32, 1, &n),
           sum = tensor_make(g->sum, F32, 1, &n),
           count = tensor_make(g->counts + offset / g->block, I64, 1, &one);
    Device *d = g->r->device;
    call_run(&OPS[OP_add], &(Call){.in = {&block, &negative}, .out = {&sum}, .device = d});
    call_run(&OPS[OP_count_zeros], &(Call){.in = {&sum}, .out = {&count}, .device = d});
}

/* Checks the counts. The host also compares each block in which the device found a difference. */
static void check_counts(Region *g, size_t region) {
    const size_t blocks = region / g->block;
    const int64_t words = (int64_t)(g->block / sizeof(float));
    int64_t *counts = mem_alloc(blocks * sizeof *counts);
    device_read(g->r->device, counts, g->counts, blocks * sizeof *counts);
    for (size_t i = 0; i < blocks; i++) {
        const size_t offset = i * g->block;
        const uint32_t *wanted = g->words + shift_of(g, offset) / sizeof *wanted;
        if (counts[i] != words && !check_words(g, g->at + offset, wanted, g->block, 0))
            g->seen.unsure += words - counts[i];
    }
    free(counts);
}

/* Returns the time for one block: the mean over several blocks that are not in the caches. */
static double seconds_of_block(const Region *g) {
    enum { SOME = 8 };
    const size_t all = g->bytes / g->block, n = all < SOME ? all : SOME;
    const int64_t start = clock_ns();
    for (size_t i = 0; i < n; i++) write_block(g, (all - 1 - i) * g->block);
    for (size_t i = 0; i < n; i++) count_block(g, (all - 1 - i) * g->block);
    device_wait(g->r->device);
    return (double)(clock_ns() - start) * 1e-9 / (double)n;
}

/* Measures the time for a pattern and for a block, and returns the number of bytes that all patterns can cover
 * within the budget. */
static size_t affordable(Region *g) {
    make_pattern(g, 0), write_block(g, 0), count_block(g, 0); /* a warm-up */
    device_wait(g->r->device);
    const int64_t start = clock_ns();
    make_pattern(g, 0);
    const double making = (double)(clock_ns() - start) * 1e-9, block = seconds_of_block(g),
                 blocks = (0.8 * g->r->in->seconds / N_PATTERNS - making) / block;
    /* forgets the errors found so far, because the patterns will find them again */
    g->seen = (Seen){.address = g->seen.address};
    const size_t bytes = (blocks < 1 ? 1 : (size_t)blocks) * g->block;
    return bytes < g->bytes ? bytes : g->bytes;
}

static void run_pattern(Region *g, int pattern, size_t region) {
    STAGE_DOING(g->r, "pattern '%s' over %zu bytes", PATTERNS[pattern].name, region);
    make_pattern(g, pattern);
    for (size_t at = 0; at < region; at += g->block) write_block(g, at);
    for (size_t at = 0; at < region; at += g->block) count_block(g, at);
    check_counts(g, region);
}

/* ---- the stage ---- */

static void report(const StageRank *r, const Seen *all) {
    for (int i = 0; i < r->world; i++) {
        const Seen *s = &all[i];
        if (s->words)
            outcome_add(r->out, VALIDATE_FAIL, stage_suspect(r, i).s,
                        "%" PRId64 " words of its memory are wrong, the first at address 0x%" PRIx64
                        " (offset %" PRIu64 "), the last at 0x%" PRIx64 ": pattern '%s' has 0x%08" PRIx32
                        ", not 0x%08" PRIx32,
                        s->words, s->address + s->first, s->first, s->address + s->last,
                        PATTERNS[s->pattern].name, s->got, s->wanted);
        if (s->unsure)
            outcome_add(
                r->out, VALIDATE_FAIL, stage_suspect(r, i).s,
                "%" PRId64
                " words of its memory are wrong according to the device, but correct according to the host",
                s->unsure);
    }
    double least = all[0].gib;
    for (int i = 1; i < r->world; i++) least = all[i].gib < least ? all[i].gib : least;
    const double gib = least * r->sharing, free_gib = all[0].free_gib * r->sharing;
    const int devices = r->world / r->sharing;
    char host[60] = "";
    if (!device_is_discrete(r->device))
        snprintf(host, sizeof host, " or the limit of a host, %.0f GiB for each rank",
                 ldexp(MOST_OF_HOST, -30));
    outcome_sum_up(r->out, "%d patterns over %.2f of %.1f GiB (%.2g %%) of free memory on %s%s",
                   (int)N_PATTERNS, gib, free_gib, 100 * gib / free_gib, devices > 1 ? "each of " : "",
                   amount(devices, "device").s);
    if (gib < 0.9 * free_gib)
        outcome_limit(
            r->out,
            "memory: %.1f of %.1f GiB of free memory of each device, because of the time%s--memory-share%s",
            free_gib - gib, free_gib, *host ? ", " : " or ", host);
}

static Err on_rank(StageRank *r) {
    const bool gpu = device_is_discrete(r->device);
    const double unused = stage_reduce(r, COMM_MIN, (double)device_memory_available(r->device)) / r->sharing;
    Region g = {.r = r, .block = gpu ? BLOCK_OF_GPU : BLOCK_OF_HOST};
    const double share = r->in->options->memory_share * unused - (double)other_bytes(&g),
                 most = gpu || share < MOST_OF_HOST ? share : MOST_OF_HOST;
    Seen *all = mem_zero((size_t)r->world, sizeof *all);
    g.bytes = (most < (double)g.block ? 1 : (size_t)(most / (double)g.block)) * g.block;
    allocate(&g);
    const size_t region = affordable(&g);
    for (int p = 0; p < N_PATTERNS; p++) run_pattern(&g, p, region);
    g.seen.gib = (double)region / (1 << 30), g.seen.free_gib = unused / (1 << 30);
    stage_gather(r, &g.seen, all, sizeof g.seen);
    if (r->out) report(r, all);
    release(&g);
    free(all);
    return ERR_OK;
}

Err stage_memory(const StageInput *in) { return stage_on_ranks(in, on_rank); }
