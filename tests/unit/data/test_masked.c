/* Compares datasets of masked text and their index cache with Megatron-LM's (vectors.h). */
#include "fixture.h"
#include "vectors.h"

#include "data/blended_dataset.h"
#include "data/data.h"
#include "data/masked_dataset.h"

enum { VOCAB = 1000, SENTINELS = 100 };

typedef struct Case {
    const char *name;
    DatasetId kind;
    const char *split, *const *paths;
    int num_paths;
    int64_t seq, samples[3], pad, decoder;
    double mask_prob, short_prob;
    bool no_head;
} Case;

static unsigned char continues[VOCAB];
static int64_t sentinels[SENTINELS];

static int set_up(void **state) {
    for (int i = 0; i < VOCAB; i++) continues[i] = i % 3 == 0 && i >= 200;
    for (int i = 0; i < SENTINELS; i++) sentinels[i] = 900 + i;
    if (enter_folder(state)) return -1;
    write_sentences("sentences", 200);
    write_sentences("few", 30);
    return 0;
}

static MaskedConfig masked; /* arguments of config_of */

/* The configuration of a case, with the tokenizer and the defaults of tools/oracle/data_vectors.py. */
static DataConfig config_of(const Case *c) {
    static char tokenizer[2][128];
    snprintf(tokenizer[c->pad == 63], sizeof *tokenizer,
             "{\"class\": \"test.Null\xc3\xa9\", \"vocab_size\": 1000, \"eod_id\": 104, \"pad_id\": %d}",
             (int)c->pad);
    masked = (MaskedConfig){.tokens = {.cls = 101,
                                       .sep = 102,
                                       .mask = 103,
                                       .bos = 101,
                                       .eos = 102,
                                       .sentinels = sentinels,
                                       .num_sentinels = SENTINELS,
                                       .vocab_size = VOCAB,
                                       .continues = continues},
                            .mask_prob = c->mask_prob,
                            .short_seq_prob = c->short_prob,
                            .binary_head = !c->no_head,
                            .decoder_sequence_length = c->decoder};
    return (DataConfig){.kind = c->kind,
                        .paths = c->paths,
                        .num_paths = c->num_paths,
                        .split = c->split,
                        .samples = {c->samples[0], c->samples[1], c->samples[2]},
                        .sequence_length = c->seq,
                        .vocab_size = VOCAB,
                        .eod = 104,
                        .pad = c->pad,
                        .seed = 1234,
                        .surplus = 0.005,
                        .cache_dir = "masked_cache",
                        .tokenizer_json = tokenizer[c->pad == 63],
                        .kind_config = &masked};
}

static Batch batch_of(const Dataset *d) { return batch_new(1, d->parts[0]->shape); }

static void digest(const DataConfig *c, const Dataset *d, int64_t count, char md5[33]) {
    Batch b = batch_of(d);
    const size_t s = (size_t)b.shape.positions * 8;
    Str all = {0};
    for (int64_t i = 0; i < count; i++) {
        /* Poisons the buffers, because a sample must fill all of its fields. */
        memset(b.tokens, 0xa5, s), memset(b.labels, 0xa5, s), memset(b.loss_mask, 0xa5, s / 2);
        assert_ok(data_batch(d, &i, 1, &b));
        for (int64_t k = 0; k < b.shape.positions; k++) assert_int_equal(b.position_ids[k], k);
        str_add(&all, b.tokens, s), str_add(&all, b.labels, s), str_add(&all, b.loss_mask, s / 2);
        if (c->kind == DATASET_t5) {
            for (int64_t k = 0; k < b.shape.encoder; k++) assert_int_equal(b.encoder_position_ids[k], k);
            str_add(&all, b.lengths, 8), str_add(&all, b.encoder_tokens, (size_t)b.shape.encoder * 8);
            str_add(&all, b.encoder_lengths, 8);
        } else {
            str_add(&all, b.token_types, s), str_add(&all, b.sentence_labels, 8);
            str_add(&all, b.lengths, 8);
        }
    }
    md5_hex(all.s, all.len, md5);
    str_free(&all);
    batch_free(&b);
}

static void check_case(const Case *c) {
    const DataConfig config = config_of(c);
    int checked = 0;
    for (int round = 0; round < 2;
         round++) { /* built in the first round, read from the cache in the second */
        Data *data;
        assert_ok(data_open(&config, &data));
        for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
            if (strcmp(CASES[i].name, c->name)) continue;
            const Dataset *d = data_split(data, (DataSplit)CASES[i].split);
            char md5[33];
            assert_non_null(d);
            assert_int_equal(data_length(d), CASES[i].length);
            digest(&config, d, CASES[i].count, md5);
            if (strcmp(md5, CASES[i].md5))
                fail_msg("%s, split %d: %s, not %s", c->name, CASES[i].split, md5, CASES[i].md5);
            checked++;
        }
        data_close(data);
    }
    assert_true(checked >= 2);
}

#define PATHS(...)                                                                                           \
    .paths = (const char *const[]){__VA_ARGS__},                                                             \
    .num_paths = sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *)

TEST(samples_equal_megatron) {
    const Case cases[] = {
        {"bert", DATASET_bert, "80,10,10", PATHS("sentences"), 40, {30000, 20, 10}, 0, 0, 0.15, 0.1, false},
        {"bert_long", DATASET_bert, "1", PATHS("sentences"), 160, {400, 0, 0}, 0, 0, 0.4, 0, false},
        {"bert_no_head", DATASET_bert, "1", PATHS("sentences"), 24, {400, 0, 0}, 63, 0, 0.15, 0.3, true},
        {"bert_blend",
         DATASET_bert,
         "1",
         PATHS("0.3", "sentences", "0.7", "few"),
         40,
         {300, 0, 0},
         0,
         0,
         0.15,
         0.15,
         false},
        {"t5", DATASET_t5, "80,10,10", PATHS("sentences"), 40, {400, 20, 10}, 0, 24, 0.15, 0.1, false},
        {"t5_long", DATASET_t5, "1", PATHS("sentences"), 160, {400, 0, 0}, 63, 140, 0.4, 0.5, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_case(&cases[i]);
    for (size_t i = 0; i < sizeof MASKED_CACHE / sizeof *MASKED_CACHE; i++) {
        char *path = mem_printf("masked_cache/%s", MASKED_CACHE[i].name);
        assert_true(file_exists(path));
        assert_md5(path, MASKED_CACHE[i].md5);
        free(path);
    }
}

static Case small(DatasetId kind) {
    static const char *const paths[] = {"sentences"};
    return (Case){"", kind, "1", paths, 1, 40, {300, 0, 0}, 0, 24, 0.15, 0.1, false};
}

/* One cache is truncated, one has a changed value, and one belongs to different samples. */
TEST(a_damaged_cache_is_rebuilt) {
    const Case c = small(DATASET_bert);
    DataConfig config = config_of(&c);
    config.cache_dir = "damaged";
    Data *data;
    assert_ok(data_open(&config, &data));
    data_close(data);
    char *path = NULL, sound[33], after[33];
    DIR *dir = opendir("damaged");
    for (struct dirent *entry; (entry = readdir(dir));)
        if (strstr(entry->d_name, "sample_index.npy")) path = mem_printf("damaged/%s", entry->d_name);
    closedir(dir);
    assert_non_null(path);
    file_md5(path, sound);
    Str whole = {0};
    assert_ok(file_read(path, &whole));
    for (int damage = 0; damage < 3; damage++) {
        Str torn = {0};
        str_add(&torn, whole.s, whole.len - (damage == 0 ? 12 : 0));
        if (damage == 1) torn.s[whole.len - 1] ^= 1;
        if (damage == 2) memcpy(torn.s + whole.len - 12, torn.s + whole.len - 24, 12);
        assert_ok(file_write_atomic(path, torn.s, torn.len));
        assert_ok(data_open(&config, &data));
        data_close(data);
        file_md5(path, after);
        assert_string_equal(after, sound);
        str_free(&torn);
    }
    str_free(&whole);
    free(path);
}

/* An epoch has as many samples as the dataset has if no number of samples is requested. */
TEST(epochs_count_the_requested_samples) {
    DataFacts facts[2];
    for (int i = 0; i < 2; i++) {
        Case c = small(DATASET_bert);
        c.samples[0] = i ? 100 : -1;
        const DataConfig config = config_of(&c);
        Data *data;
        assert_ok(data_open(&config, &data));
        facts[i] = data_facts(data_split(data, SPLIT_TRAIN));
        data_close(data);
    }
    assert_true(facts[1].epochs == 100 / (double)facts[0].samples);
}

/* *tokens and *spans receive the number of tokens and spans of the decoder. */
static Err first_sample(const DataConfig *config, int64_t *tokens, int64_t *spans) {
    Data *data;
    assert_ok(data_open(config, &data));
    Batch b = batch_of(data_split(data, SPLIT_TRAIN));
    const Err e = data_batch(data_split(data, SPLIT_TRAIN), &(int64_t){0}, 1, &b);
    if (!e.code) *tokens = b.lengths[0], *spans = 0;
    for (int64_t i = 0; i < b.lengths[0]; i++) *spans += b.tokens[i] == sentinels[*spans];
    batch_free(&b);
    data_close(data);
    return e;
}

TEST(each_special_token_is_needed) {
    const struct {
        DatasetId type;
        int64_t *token;
        const char *name;
    } rows[] = {{DATASET_bert, &masked.tokens.cls, "needs the token [CLS]"},
                {DATASET_bert, &masked.tokens.sep, "needs the token [SEP]"},
                {DATASET_bert, &masked.tokens.mask, "needs the token [MASK]"},
                {DATASET_t5, &masked.tokens.bos, "needs the token <s>, [CLS] or <pad>"},
                {DATASET_t5, &masked.tokens.eos, "needs the token [EOS] or [SEP]"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Data *data;
        Case c = small(rows[i].type);
        DataConfig config = config_of(&c);
        const int64_t token = *rows[i].token;
        config.cache_dir = NULL, *rows[i].token = -1;
        assert_err(data_open(&config, &data), rows[i].name);
        *rows[i].token = token;
    }
}

TEST(mistakes_have_messages) {
    Data *data;
    Case c = small(DATASET_bert);
    DataConfig config = config_of(&c);
    config.cache_dir = NULL, config.sequence_length = 4;
    assert_err(data_open(&config, &data), "needs at least 5");
    config = config_of(&c);
    config.split = "999,1,0", config.samples[1] = 1, config.cache_dir = NULL;
    assert_err(data_open(&config, &data),
               "valid split of 'sentences': the split contains none of the 200 documents");
    write_dataset("single", INDEXED_U16, 6, 5, 17, 2);
    config = config_of(&c);
    config.paths = (const char *const[]){"single"};
    assert_err(data_open(&config, &data), "preprocess --split-sentences");
    c = small(DATASET_t5);
    config = config_of(&c);
    masked.tokens.num_sentinels = 0;
    assert_err(data_open(&config, &data), "--vocab-extra-ids");

    int64_t room = 100, spans = SENTINELS;
    const char *const parts[] = {"raise --vocab-extra-ids", "raise --decoder-seq-length",
                                 "the vocabulary has only 10 tokens"};
    config = config_of(&c);
    masked.mask_prob = 0.9;
    for (int i = 0; i < 2; i++) { /* exactly as many tokens and spans as are necessary */
        masked.decoder_sequence_length = room, masked.tokens.num_sentinels = spans;
        assert_ok(first_sample(&config, &room, &spans));
    }
    for (int i = 0; i < 3; i++) {
        config = config_of(&c);
        masked.mask_prob = 0.9, masked.decoder_sequence_length = room - (i == 1);
        if (i == 0) masked.tokens.num_sentinels = spans - 1;
        if (i == 2) masked.tokens.vocab_size = 10;
        assert_err(first_sample(&config, &room, &spans), parts[i]);
    }
}

/* Mock datasets of every kind need no files. */
TEST(mock_data_have_samples) {
    for (int kind = 0; kind < DATASETS; kind++) {
        Case c = small((DatasetId)kind);
        if (!dataset_kind(c.kind)->mock.longest) continue; /* this kind always reads files */
        c.paths = NULL, c.num_paths = 0, c.split = NULL;
        DataConfig config = config_of(&c);
        config.mock = true, config.cache_dir = NULL;
        Data *data;
        assert_ok(data_open(&config, &data));
        const Dataset *d = data_split(data, SPLIT_TRAIN);
        Batch b = batch_of(d);
        assert_ok(data_batch(d, (const int64_t[]){data_length(d) - 1}, 1, &b));
        float weight = 0;
        for (int64_t i = 0; i < b.shape.positions; i++) weight += b.loss_mask[i];
        assert_true(weight > 0);
        batch_free(&b);
        data_close(data);
    }
}

int main(void) { return run_all_tests(set_up, leave_folder); }
