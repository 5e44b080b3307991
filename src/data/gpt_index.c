#include "data/gpt_index.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/mem.h"
#include "data/random/mt19937.h"

static NpyType sample_type(int64_t positions) { return positions <= INT32_MAX ? NPY_I32 : NPY_I64; }
static NpyType shuffle_type(int64_t samples) {
    return samples >= (int64_t)UINT32_MAX - 1 ? NPY_I64 : NPY_U32;
}

static Err check_memory(const GptPlan *p) {
    double positions = (double)p->epochs * (double)(p->end - p->begin);
    double need = positions * 4 + (double)p->samples * 24,
           have = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    if (need < have) return ERR_OK;
    return err_user("the index of %" PRId64 " samples of %" PRId64 " tokens each (%" PRId64
                    " epochs of the %" PRId64
                    " available tokens) needs %.1f GiB, but this machine has %.1f GiB; request fewer samples "
                    "or provide more data",
                    p->samples, p->sequence_length, p->epochs, p->tokens, need / 0x1p30, have / 0x1p30);
}

Err gpt_plan(const TokenSource *source, int64_t begin, int64_t end, int64_t num_samples,
             int64_t sequence_length, bool drop_last, GptPlan *out) {
    CHECK(sequence_length >= 1, "the sequence length cannot be %" PRId64, sequence_length);
    *out = (GptPlan){
        .source = source, .begin = begin, .end = end, .sequence_length = sequence_length, .epochs = 1};
    for (int64_t i = begin; i < end; i++) out->tokens += source_length(source, i);
    int64_t t = out->tokens, s = sequence_length, wanted = 1;
    if (t < 1)
        return err_user("the split contains no token, but %" PRId64 " of the %" PRId64
                        " sequences; assign more data to it",
                        end - begin, source->sequences);
    if (num_samples >= 0 && (__builtin_mul_overflow(num_samples, s, &wanted) || wanted > INT64_MAX / 4))
        return err_user("%" PRId64 " samples of %" PRId64 " tokens each are too many; request fewer samples",
                        num_samples, s);
    if (num_samples >= 0) out->epochs = (wanted + 1 + t - 1) / t;
    int64_t all = out->epochs * t - 1;
    out->samples = drop_last ? all / s : (int64_t)ceilf((float)all / (float)s);
    out->joint_samples = out->samples;
    if (out->epochs > 1) {
        int64_t before_last = ((out->epochs - 1) * t - 1) / s, per_epoch = (t - 1) / s;
        if (num_samples - before_last < (int64_t)(0.80 * (double)per_epoch)) out->joint_samples = before_last;
    }
    return check_memory(out);
}

/* Writes `epochs` copies of the split's sequences, and shuffles them together. */
static void fill_documents(const GptPlan *p, Mt19937 *rng, int64_t epochs, int32_t *out) {
    int64_t n = p->end - p->begin;
    for (int64_t i = 0; i < epochs * n; i++) out[i] = (int32_t)(p->begin + i % n);
    mt19937_shuffle_i32(rng, out, epochs * n);
}

static void put_row(NpyArray *a, int64_t row, int64_t position, int64_t offset) {
    if (a->type == NPY_I64)
        ((int64_t *)a->data)[2 * row] = position, ((int64_t *)a->data)[2 * row + 1] = offset;
    else
        ((int32_t *)a->data)[2 * row] = (int32_t)position,
                                 ((int32_t *)a->data)[2 * row + 1] = (int32_t)offset;
}

/* Divides the documents into samples of s + 1 tokens. Successive samples share one token. */
static NpyArray walk_samples(const GptPlan *p, const NpyArray *documents) {
    const int32_t *document = documents->data;
    NpyArray out = npy_new(sample_type(documents->rows), p->samples + 1, 2);
    int64_t position = 0, offset = 0;
    put_row(&out, 0, 0, 0);
    for (int64_t row = 1; row <= p->samples; row++) {
        for (int64_t missing = p->sequence_length + 1;;) {
            int64_t length = source_length(p->source, document[position]);
            if (missing <= length - offset) {
                offset += missing - 1;
                break;
            }
            missing -= length - offset;
            if (position == documents->rows - 1) { /* the last, shorter sample */
                offset = length - 1;
                break;
            }
            position++, offset = 0;
        }
        put_row(&out, row, position, offset);
    }
    return out;
}

static void shuffle_range(Mt19937 *rng, NpyArray *a, int64_t begin, int64_t end) {
    if (a->type == NPY_I64) {
        int64_t *v = a->data;
        for (int64_t i = begin; i < end; i++) v[i] = i;
        mt19937_shuffle_i64(rng, v + begin, end - begin);
    } else {
        uint32_t *v = a->data;
        for (int64_t i = begin; i < end; i++) v[i] = (uint32_t)i;
        mt19937_shuffle_u32(rng, v + begin, end - begin);
    }
}

GptIndex gpt_index_build(const GptPlan *p, uint32_t seed) {
    Mt19937 rng;
    mt19937_seed(&rng, seed);
    int64_t n = p->end - p->begin, apart = p->joint_samples < p->samples;
    GptIndex x = {.document = npy_new(NPY_I32, p->epochs * n, 0)};
    fill_documents(p, &rng, p->epochs - apart, x.document.data);
    if (apart) fill_documents(p, &rng, 1, (int32_t *)x.document.data + (p->epochs - 1) * n);
    x.sample = walk_samples(p, &x.document);
    x.shuffle = npy_new(shuffle_type(p->samples), p->samples, 0);
    shuffle_range(&rng, &x.shuffle, 0, p->joint_samples);
    shuffle_range(&rng, &x.shuffle, p->joint_samples, p->samples);
    return x;
}

static bool shaped(const NpyArray *a, NpyType type, int64_t rows, int64_t columns) {
    return a->type == type && a->rows == rows && a->columns == columns;
}

/* Returns whether elements [from, to) contain every value in [begin, end) exactly `times` times. */
static bool covers(const NpyArray *a, int64_t from, int64_t to, int64_t begin, int64_t end, int64_t times) {
    uint32_t *seen = mem_zero((size_t)(end - begin), sizeof *seen);
    bool ok = true;
    for (int64_t i = from; ok && i < to; i++) {
        int64_t v = npy_at(a, i);
        ok = v >= begin && v < end && ++seen[v - begin] <= times;
    }
    free(seen);
    return ok && to - from == (end - begin) * times;
}

bool gpt_index_valid(const GptPlan *p, const GptIndex *x) {
    int64_t n = p->end - p->begin, positions = p->epochs * n, joint = p->joint_samples;
    int64_t first = (p->epochs - (joint < p->samples)) * n;
    if (!shaped(&x->document, NPY_I32, positions, 0) ||
        !shaped(&x->sample, sample_type(positions), p->samples + 1, 2) ||
        !shaped(&x->shuffle, shuffle_type(p->samples), p->samples, 0))
        return false;
    if (!covers(&x->document, 0, first, p->begin, p->end, first / n) ||
        (first < positions && !covers(&x->document, first, positions, p->begin, p->end, 1)))
        return false;
    if (!covers(&x->shuffle, 0, joint, 0, joint, 1) ||
        !covers(&x->shuffle, joint, p->samples, joint, p->samples, 1))
        return false;
    NpyArray walked = walk_samples(p, &x->document);
    size_t row = walked.type == NPY_I64 ? 16 : 8;
    bool same = !memcmp(walked.data, x->sample.data, (size_t)walked.rows * row);
    npy_free(&walked);
    return same;
}

void gpt_index_free(GptIndex *x) {
    npy_free(&x->document);
    npy_free(&x->sample);
    npy_free(&x->shuffle);
}
