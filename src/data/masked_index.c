#include "data/masked_index.h"

#include <inttypes.h>
#include <math.h>
#include <unistd.h>

#include "data/random/mt19937.h"
#include "data/random/mt19937_64.h"

enum { LONG_SENTENCE = 512, COLUMNS = 3 };

/* The state of one pass over all epochs. */
typedef struct Walk {
    const MaskedPlan *plan;
    Mt19937 rng;
    uint32_t short_ratio; /* one in `short_ratio` targets is short; 0 means that no target is short */
    int64_t samples;
    uint64_t digest;
    uint32_t *out; /* the samples, or NULL if samples are only counted */
} Walk;

/* Hashes a row with SplitMix64's final mix. The sum of all samples' hashes does not depend on the order of the
 * samples. */
static uint64_t row_hash(const uint32_t row[COLUMNS]) {
    uint64_t x = ((uint64_t)row[0] << 32 | row[1]) + row[2] * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static uint32_t target_length(Walk *w) {
    uint32_t longest = (uint32_t)w->plan->max_length;
    if (!w->short_ratio) return longest;
    uint32_t r = mt19937_u32(&w->rng);
    return r % w->short_ratio ? longest : 2 + r % (longest - 1);
}

static void add_sample(Walk *w, int64_t first, int64_t end, uint32_t target) {
    const uint32_t row[COLUMNS] = {(uint32_t)first, (uint32_t)end, target};
    w->digest += row_hash(row);
    if (w->out)
        for (int i = 0; i < COLUMNS; i++) w->out[COLUMNS * w->samples + i] = row[i];
    w->samples++;
}

static bool usable(const MaskedPlan *p, int64_t first, int64_t last) {
    if (last - first < p->min_sentences) return false;
    for (int64_t i = first; i < last && last - first > 1; i++)
        if (source_length(p->source, i) > LONG_SENTENCE) return false;
    return true;
}

static void walk_document(Walk *w, int64_t first, int64_t last) {
    uint32_t target = target_length(w);
    int64_t length = 0, sentences = 0;
    for (int64_t i = first, left = last - first - 1; i < last; i++, left--) {
        length += source_length(w->plan->source, i), sentences++;
        if (left && !(length >= target && left > 1 && sentences >= w->plan->min_sentences)) continue;
        add_sample(w, i + 1 - sentences, i + 1, target);
        target = target_length(w);
        length = sentences = 0;
    }
}

/* Runs one pass over all epochs. Sets *first_epoch to the number of samples in one epoch. */
static Walk walk(const MaskedPlan *p, uint32_t *out, int64_t *first_epoch) {
    Walk w = {.plan = p, .out = out};
    if (p->short_probability > 0) w.short_ratio = (uint32_t)round(1 / p->short_probability);
    mt19937_seed(&w.rng, p->seed);
    *first_epoch = -1;
    do {
        for (int64_t d = p->begin; d < p->end; d++) {
            int64_t first = source_document(p->source, d), last = source_document(p->source, d + 1);
            if (last > first && usable(p, first, last)) walk_document(&w, first, last);
        }
        if (*first_epoch < 0) *first_epoch = w.samples;
    } while (w.samples < p->num_samples && w.samples);
    return w;
}

Err masked_plan(MaskedPlan *p) {
    const double row = COLUMNS * sizeof(uint32_t), need = (double)p->num_samples * row,
                 have = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    if (need >= have)
        return err_user("the index of %" PRId64
                        " samples needs %.1f GiB, but this machine has %.1f GiB; request fewer samples",
                        p->num_samples, need / 0x1p30, have / 0x1p30);
    if (p->end <= p->begin)
        return err_user("the split contains none of the %" PRId64 " documents; assign more data to it",
                        p->source->documents);
    if (p->short_probability > 0 && p->short_probability < 1e-9)
        return err_user("--short-seq-prob is %g; it must be 0 or at least 1e-9", p->short_probability);
    for (int64_t i = source_document(p->source, p->begin); i < source_document(p->source, p->end); i++)
        p->tokens += source_length(p->source, i);
    const Walk w = walk(p, NULL, &p->samples_per_epoch);
    p->samples = w.samples, p->digest = w.digest;
    if (p->samples) return ERR_OK;
    return err_user("none of its %" PRId64 " documents has %" PRId32
                    " or more sentences of at most %d tokens; make the data with preprocess "
                    "--split-sentences, or assign more data to this split",
                    p->end - p->begin, p->min_sentences, LONG_SENTENCE);
}

NpyArray masked_index_build(const MaskedPlan *p) {
    NpyArray a = npy_new(NPY_U32, p->samples, COLUMNS);
    uint32_t *rows = a.data;
    int64_t first_epoch;
    walk(p, rows, &first_epoch);
    Mt19937x64 rng;
    mt19937_64_seed(&rng, (uint64_t)p->seed + 1);
    for (int64_t i = p->samples - 1; i > 0; i--) {
        int64_t j = (int64_t)(mt19937_64_u64(&rng) % (uint64_t)(i + 1));
        for (int k = 0; k < COLUMNS; k++) {
            uint32_t t = rows[COLUMNS * i + k];
            rows[COLUMNS * i + k] = rows[COLUMNS * j + k], rows[COLUMNS * j + k] = t;
        }
    }
    return a;
}

bool masked_index_valid(const MaskedPlan *p, const NpyArray *a) {
    if (a->type != NPY_U32 || a->columns != COLUMNS || a->rows != p->samples) return false;
    uint64_t digest = 0;
    for (int64_t i = 0; i < a->rows; i++) digest += row_hash((const uint32_t *)a->data + COLUMNS * i);
    return digest == p->digest;
}
