/* Compares samplers with Megatron-LM's data_samplers.py and torch.randperm (vectors.h), and tests
 * prefetching. */
#include "fixture.h"
#include "vectors.h"

#include <stdatomic.h>

#include "data/blended_dataset.h"
#include "data/prefetch.h"

static Sampler *sampler(SamplerConfig c) {
    Sampler *s;
    assert_ok(sampler_open(&c, &s));
    return s;
}

/* The samples of a global batch do not depend on mbs or dp. There are 3 micro-steps of mbs * dp = 12
 * samples. */
TEST(single_deals_consecutive_samples) {
    static const struct {
        int64_t mbs;
        int dp;
    } SPLITS[] = {{12, 1}, {3, 4}, {4, 3}, {1, 12}};
    for (size_t k = 0; k < sizeof SPLITS / sizeof *SPLITS; k++) {
        for (int rank = 0; rank < SPLITS[k].dp; rank++) {
            Sampler *s = sampler((SamplerConfig){.total_samples = 7 + 40,
                                                 .consumed_samples = 7,
                                                 .micro_batch_size = SPLITS[k].mbs,
                                                 .dp_rank = rank,
                                                 .dp_size = SPLITS[k].dp});
            int64_t got[12], count;
            for (int step = 0; step < 3; step++) {
                assert_true(sampler_next(s, got, &count));
                assert_int_equal(count, SPLITS[k].mbs);
                for (int64_t i = 0; i < count; i++)
                    assert_int_equal(got[i], 7 + step * 12 + rank * SPLITS[k].mbs + i);
            }
            assert_int_equal(sampler_consumed(s), 7 + 36);
            assert_false(sampler_next(s, got, &count)); /* the 4 remaining samples are too few for a step */
            sampler_free(s);
        }
    }
}

TEST(the_last_partial_step_is_kept_on_request) {
    static const int64_t LEFT[] = {2, 1, 0};
    for (int rank = 0; rank < 3; rank++) {
        Sampler *s = sampler((SamplerConfig){
            .total_samples = 9, .micro_batch_size = 2, .dp_rank = rank, .dp_size = 3, .keep_last = true});
        int64_t got[2], count;
        assert_true(sampler_next(s, got, &count));
        assert_true(sampler_next(s, got, &count));
        assert_int_equal(count, LEFT[rank]);
        for (int64_t i = 0; i < count; i++) assert_int_equal(got[i], 6 + 2 * rank + i);
        assert_int_equal(sampler_consumed(s), 9);
        assert_false(sampler_next(s, got, &count));
        sampler_free(s);
    }
}

static void check_cyclic(int64_t mbs, int dp, int64_t total, int64_t consumed, bool sharding,
                         const int64_t *expected) {
    for (int rank = 0; rank < dp; rank++) {
        Sampler *s =
            sampler((SamplerConfig){SAMPLER_CYCLIC, total, consumed, mbs, rank, dp, false, !sharding, false});
        for (int step = 0; step < 6; step++, expected += mbs) {
            int64_t got[4], count;
            assert_true(sampler_next(s, got, &count));
            assert_memory_equal(got, expected, (size_t)mbs * sizeof *got);
        }
        sampler_free(s);
    }
}

TEST(cyclic_equals_megatron) {
    check_cyclic(2, 2, 21, 0, true, CYCLIC_2_2_21_0_1);
    check_cyclic(2, 2, 21, 8, true, CYCLIC_2_2_21_8_1);
    check_cyclic(2, 3, 38, 12, false, CYCLIC_2_3_38_12_0);
    check_cyclic(1, 4, 26, 24, true, CYCLIC_1_4_26_24_1);
}

/* 40 samples fill 20 micro-batches of 2, but only 6 micro-steps of 6. Every rank must get six micro-batches,
 * and no sample twice. */
TEST(unsharded_ranks_stay_together) {
    int seen[40] = {0};
    for (int rank = 0; rank < 3; rank++) {
        Sampler *s = sampler((SamplerConfig){SAMPLER_CYCLIC, 40, 0, 2, rank, 3, false, true, false});
        for (int step = 0; step < 6; step++) {
            int64_t got[2], count;
            assert_true(sampler_next(s, got, &count));
            for (int i = 0; i < 2; i++) assert_int_equal(seen[got[i]]++, 0);
        }
        assert_int_equal(sampler_consumed(s), 36);
        sampler_free(s);
    }
}

/* With 40 samples and 3 ranks, an epoch has 39 samples, and the 13 samples of a rank are not a multiple of
 * the micro-batch size. */
TEST(a_deal_knows_no_micro_batch_size) {
    for (int k = 0; k < 3 * 3; k++) {
        SamplerConfig one = {.kind = k < 3 ? SAMPLER_SINGLE : SAMPLER_CYCLIC,
                             .total_samples = 40,
                             .consumed_samples = 6,
                             .micro_batch_size = 1,
                             .dp_rank = k % 3,
                             .dp_size = 3,
                             .no_data_sharding = k >= 6},
                      several = one;
        several.micro_batch_size = 4, several.deal = 1;
        Sampler *a = sampler(one), *b = sampler(several);
        int64_t got[4], expected, count, steps = 0;
        for (; steps < 9 && sampler_next(b, got, &count); steps++) {
            assert_int_equal(count, 4);
            for (int i = 0; i < 4; i++) {
                assert_true(sampler_next(a, &expected, &count));
                assert_int_equal(got[i], expected);
            }
            assert_int_equal(sampler_consumed(a), sampler_consumed(b));
        }
        assert_int_equal(steps, k < 3 ? 2 : 9); /* 34 samples are two steps of 12, or three epochs */
        sampler_free(a), sampler_free(b);
    }
}

TEST(sampler_mistakes_are_sentences) {
    Sampler *s;
    assert_err(sampler_open(&(SamplerConfig){SAMPLER_SINGLE, 10, 10, 1, 0, 1, false, false, false}, &s),
               "no samples are left");
    assert_err(sampler_open(&(SamplerConfig){SAMPLER_CYCLIC, 3, 0, 2, 0, 2, false, false, false}, &s),
               "do not fill one micro-step");
    assert_err(sampler_open(&(SamplerConfig){SAMPLER_CYCLIC, 20, 3, 2, 0, 2, false, false, false}, &s),
               "not a multiple of the micro-step's");
    assert_err(
        sampler_open(&(SamplerConfig){SAMPLER_CYCLIC, 20, 0, INT64_MAX, 0, 2, false, false, false}, &s),
        "is too large");
}

static const SampleShape SHAPE = {.positions = 6, .fields = GPT_FIELDS};

static Data *open_more(int64_t vocab_size) {
    static const char *const paths[] = {"more"};
    Data *data;
    assert_ok(data_open(&(DataConfig){.paths = paths,
                                      .num_paths = 1,
                                      .split = "1",
                                      .samples = {100, 0, 0},
                                      .sequence_length = 6,
                                      .vocab_size = vocab_size,
                                      .pad = -1,
                                      .seed = 5},
                        &data));
    return data;
}

TEST(prefetch_keeps_the_order) {
    Data *data = open_more(20000);
    const Dataset *train = data_split(data, SPLIT_TRAIN);
    for (int depth = 1; depth <= 5; depth++) {
        SamplerConfig c = {
            .total_samples = 100, .micro_batch_size = 3, .dp_rank = 1, .dp_size = 2, .keep_last = true};
        Prefetch *p = prefetch_start(train, sampler(c), 3, SHAPE, depth);
        Sampler *direct = sampler(c);
        Batch expected = batch_new(3, SHAPE);
        const Batch *batch;
        int64_t indices[3], count, batches = 0;
        for (; sampler_next(direct, indices, &count); batches++) {
            assert_ok(prefetch_next(p, &batch));
            assert_non_null(batch);
            assert_int_equal(batch->b, count);
            usleep(1000); /* enough time for a faulty reader to write into the batch that is in use */
            assert_ok(data_batch(train, indices, count, &expected));
            assert_memory_equal(batch->indices, indices, (size_t)count * sizeof *indices);
            assert_memory_equal(batch->tokens, expected.tokens, (size_t)count * 6 * sizeof(int64_t));
            assert_memory_equal(batch->labels, expected.labels, (size_t)count * 6 * sizeof(int64_t));
        }
        assert_int_equal(batches, 17);
        for (int i = 0; i < 3; i++) {
            assert_ok(prefetch_next(p, &batch));
            assert_null(batch);
        }
        prefetch_stop(p);
        sampler_free(direct);
        batch_free(&expected);
    }
    data_close(data);
}

/* A dataset that records which samples it has returned. */
typedef struct Traced {
    DatasetPart part;
    atomic_int n;
    int64_t sample[200];
    int readable; /* number of samples before one that cannot be read; 0 if all can be read */
    atomic_bool failed;
} Traced;

static Err get_traced(const DatasetPart *part, int64_t k, Sample *out) {
    Traced *t = (Traced *)part;
    (void)out;
    if (t->readable && t->n == t->readable) {
        t->failed = true;
        return err_user("sample %lld is lost", (long long)k);
    }
    t->sample[t->n] = k;
    t->n++;
    return ERR_OK;
}

static const DatasetKind TRACED = {.class_name = "traced", .size = sizeof(Traced), .get = get_traced};
enum { PATIENCE = 2000 };

/* Batches must be read in the order of their use, and at most `depth` batches ahead. */
TEST(prefetch_reads_ahead_as_far_as_told) {
    enum { MICRO = 3, SAMPLES = 60 };
    for (int depth = 1; depth <= 5; depth += 2) {
        const SamplerConfig c = {
            .kind = SAMPLER_CYCLIC, .total_samples = SAMPLES, .micro_batch_size = MICRO, .dp_size = 1};
        Traced t = {
            .part = {.kind = &TRACED, .shape = {.positions = 6, .fields = GPT_FIELDS}, .samples = SAMPLES}};
        DatasetPart *parts[] = {&t.part};
        const Dataset all = {.n = 1, .parts = parts};
        Prefetch *p = prefetch_start(&all, sampler(c), MICRO, SHAPE, depth);
        Sampler *direct = sampler(c);
        int64_t wanted[3 * SAMPLES], count;
        for (int i = 0; i < SAMPLES; i += MICRO) assert_true(sampler_next(direct, wanted + i, &count));
        for (int taken = 0; taken < 10; taken++) {
            const int ahead = (taken + depth) * MICRO;
            for (int i = 0; i < PATIENCE && t.n < ahead; i++) usleep(1000);
            usleep(2000); /* enough time for a faulty reader that does not stop */
            assert_int_equal(t.n, ahead);
            const Batch *batch;
            assert_ok(prefetch_next(p, &batch));
            assert_memory_equal(batch->indices, wanted + (int64_t)taken * MICRO, MICRO * sizeof *wanted);
        }
        prefetch_stop(p);
        assert_memory_equal(t.sample, wanted, 10 * MICRO * sizeof *wanted);
        sampler_free(direct);
    }
}

TEST(prefetch_stops_whenever_asked) {
    Data *data = open_more(20000);
    for (int taken = 0; taken < 8; taken++) {
        const Batch *batch;
        Prefetch *p = prefetch_start(
            data_split(data, SPLIT_TRAIN),
            sampler((SamplerConfig){SAMPLER_CYCLIC, 100, 0, 2, 0, 1, false, false, false}), 2, SHAPE, 3);
        for (int i = 0; i < taken; i++) assert_ok(prefetch_next(p, &batch));
        prefetch_stop(p);
    }
    prefetch_stop(NULL);
    data_close(data);
}

TEST(prefetch_hands_on_the_error) {
    Data *data = open_more(500);
    const Batch *batch;
    Prefetch *p = prefetch_start(
        data_split(data, SPLIT_TRAIN),
        sampler((SamplerConfig){.total_samples = 100, .micro_batch_size = 4, .dp_size = 1}), 4, SHAPE, 2);
    Err e = ERR_OK;
    for (int i = 0; i < 25 && !e.code; i++) e = prefetch_next(p, &batch);
    assert_err(e, "another tokenizer");
    assert_err(prefetch_next(p, &batch), "another tokenizer");
    prefetch_stop(p);
    data_close(data);
}

/* The reader fails before the first batch is taken. */
TEST(prefetch_hands_on_the_batches_before_an_error) {
    enum { MICRO = 2, READY = 3, SAMPLES = 20 };
    Traced t = {
        .part = {.kind = &TRACED, .shape = {.positions = 6, .fields = GPT_FIELDS}, .samples = SAMPLES},
        .readable = READY * MICRO + 1};
    DatasetPart *parts[] = {&t.part};
    const Dataset all = {.n = 1, .parts = parts};
    const SamplerConfig c = {.total_samples = SAMPLES, .micro_batch_size = MICRO, .dp_size = 1};
    Prefetch *p = prefetch_start(&all, sampler(c), MICRO, SHAPE, READY + 1);
    const Batch *batch;
    for (int i = 0; i < PATIENCE && !t.failed; i++) usleep(1000);
    assert_true(t.failed);
    usleep(2000); /* enough time for the reader to report the error */
    for (int64_t i = 0; i < READY; i++) {
        assert_ok(prefetch_next(p, &batch));
        assert_non_null(batch);
        assert_int_equal(batch->indices[0], i * MICRO);
    }
    for (int i = 0; i < 2; i++) {
        assert_err(prefetch_next(p, &batch), "sample 7 is lost");
        assert_null(batch);
    }
    prefetch_stop(p);
}

/* As in get_batch_on_this_cp_rank of Megatron-LM core/utils.py: the batch is viewed as [b, 2n, s/2n], and
 * rank r gets chunks r and 2n-1-r. */
TEST(context_ranks_hold_two_chunks) {
    enum { B = 3, S = 24, WIDE = 3 };
    Batch whole = batch_new(B, (SampleShape){.positions = S,
                                             .encoder = 2 * S,
                                             .fields = GPT_FIELDS | FIELD_SET(encoder_tokens) |
                                                       FIELD_SET(lengths) | FIELD_SET(token_types),
                                             .width = {[FIELD_token_types] = WIDE}});
    for (int64_t i = 0; i < B * S * WIDE; i++) whole.token_types[i] = 5000 + i;
    for (int64_t i = 0; i < B * S; i++) {
        whole.tokens[i] = i, whole.labels[i] = 1000 + i, whole.position_ids[i] = 2000 + i;
        whole.loss_mask[i] = (float)i / 2, whole.document_start[i] = 3000 + i;
    }
    for (int64_t i = 0; i < B; i++) whole.indices[i] = 70 + i, whole.lengths[i] = 90 + i;
    for (int64_t i = 0; i < B * 2 * S; i++) whole.encoder_tokens[i] = 4000 + i;
    Arena *arena = arena_new();
    for (int n = 1; n <= 4; n++)
        for (int r = 0; r < n; r++) {
            const Batch b = batch_slice(&whole, n, r, arena);
            const int64_t chunk = S / (2 * n);
            assert_int_equal(b.b, B), assert_int_equal(b.shape.positions, S / n);
            assert_memory_equal(b.indices, whole.indices, B * sizeof *b.indices);
            assert_memory_equal(b.lengths, whole.lengths, B * sizeof *b.lengths);
            assert_null(b.sentence_labels);
            int64_t dim[3];
            assert_int_equal(batch_dims(&b, FIELD_token_types, dim), 3);
            assert_true(dim[0] == B && dim[1] == S / n && dim[2] == WIDE);
            for (int64_t i = 0; i < B; i++)
                for (int64_t c = 0; c < 2; c++)
                    for (int64_t j = 0; j < chunk; j++) {
                        const int64_t at = i * b.shape.positions + c * chunk + j,
                                      from = i * S + (c ? 2 * n - 1 - r : r) * chunk + j;
                        assert_int_equal(b.tokens[at], from);
                        assert_int_equal(b.labels[at], 1000 + from);
                        /* the encoder has twice as many positions, so its chunks are twice as long */
                        const int64_t twice = i * 2 * b.shape.positions + 2 * (c * chunk + j),
                                      its = i * 2 * S + 2 * ((c ? 2 * n - 1 - r : r) * chunk + j);
                        assert_int_equal(b.encoder_tokens[twice], 4000 + its);
                        assert_int_equal(b.encoder_tokens[twice + 1], 4000 + its + 1);
                        assert_int_equal(b.position_ids[at], 2000 + from);
                        for (int w = 0; w < WIDE; w++)
                            assert_int_equal(b.token_types[WIDE * at + w], 5000 + WIDE * from + w);
                        assert_int_equal(b.document_start[at], 3000 + from);
                        assert_true(b.loss_mask[at] == (float)from / 2);
                    }
        }
    arena_free(arena);
    batch_free(&whole);
}

/* Two documents: positions 0 to 2 and 3 to 4. */
TEST(elements_ahead_are_those_of_the_document) {
    enum { B = 2, S = 5, AHEAD = 3 };
    Batch b = batch_new(B, (SampleShape){.positions = S,
                                         .fields = GPT_FIELDS | AHEAD_FIELDS,
                                         .width = {[FIELD_tokens_ahead] = AHEAD,
                                                   [FIELD_labels_ahead] = AHEAD,
                                                   [FIELD_loss_mask_ahead] = AHEAD}});
    static const int64_t WHOLE[S][AHEAD] = {{1, 2, 3}, {2, 3, 4}, {3, 4}, {4}, {0}},
                         SPLIT[S][AHEAD] = {{1, 2}, {2}, {0}, {4}, {0}};
    for (int documents = 1; documents <= 2; documents++) {
        for (int64_t i = 0; i < B * S; i++) {
            b.tokens[i] = i, b.labels[i] = 100 + i, b.loss_mask[i] = (float)i / 2;
            b.document_start[i] = documents == 2 && i % S >= 3 ? 3 : 0;
        }
        batch_look_ahead(&b);
        for (int64_t i = 0; i < B * S * AHEAD; i++) {
            const int64_t to = (documents == 2 ? SPLIT : WHOLE)[i / AHEAD % S][i % AHEAD],
                          from = i / AHEAD / S * S + to;
            assert_int_equal(b.tokens_ahead[i], to ? from : 0);
            assert_int_equal(b.labels_ahead[i], to ? 100 + from : 0);
            assert_true(b.loss_mask_ahead[i] == (to ? (float)from / 2 : 0));
        }
    }
    batch_free(&b);
}

int main(void) { return run_all_tests(write_datasets, leave_folder); }
