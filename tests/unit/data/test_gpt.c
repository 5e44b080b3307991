/* Compares datasets, blends and the index cache with Megatron-LM's (vectors.h), and toy and mock datasets
 * with numpy. */
#include <inttypes.h>
#include <sys/stat.h>

#include "data/data.h"
#include "data/gpt_dataset.h"
#include "fixture.h"
#include "vectors.h"

#define TOKENIZER(vocab, eod, pad)                                                                           \
    "{\"class\": \"test.Null\xc3\xa9\", \"vocab_size\": " vocab ", \"eod_id\": " eod ", \"pad_id\": " pad "}"
#define PATHS(...)                                                                                           \
    (const char *const[]){__VA_ARGS__}, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *)

typedef struct Case {
    const char *name, *split;
    const char *const *paths;
    int num_paths;
    int64_t seq, samples[3], pad;
    bool flags, cache, keep_last;
} Case;

/* The configuration of a case of tools/oracle/data_vectors.py. */
static DataConfig config_of(const Case *c) {
    return (DataConfig){.paths = c->paths,
                        .num_paths = c->num_paths,
                        .split = c->split,
                        .samples = {c->samples[0], c->samples[1], c->samples[2]},
                        .sequence_length = c->seq,
                        .vocab_size = 20000,
                        .eod = 0,
                        .pad = c->pad,
                        .seed = 1234,
                        .eod_mask_loss = c->flags,
                        .reset_position_ids = c->flags,
                        .reset_attention_mask = c->flags,
                        .keep_last_partial_validation = c->keep_last,
                        .surplus = 0.005,
                        .cache_dir = c->cache ? "cache" : NULL,
                        .tokenizer_json =
                            c->pad == 21 ? TOKENIZER("20000", "0", "21") : TOKENIZER("20000", "0", "-1")};
}

static void digest(const Dataset *d, int64_t s, int64_t count, char md5[33]) {
    Batch b = batch_new(1, (SampleShape){.positions = s, .fields = GPT_FIELDS});
    Str all = {0};
    for (int64_t i = 0; i < count; i++) {
        assert_ok(data_batch(d, &i, 1, &b));
        str_add(&all, b.tokens, (size_t)s * 8);
        str_add(&all, b.labels, (size_t)s * 8);
        str_add(&all, b.loss_mask, (size_t)s * 4);
        str_add(&all, b.position_ids, (size_t)s * 8);
        str_add(&all, b.document_start, (size_t)s * 8);
    }
    md5_hex(all.s, all.len, md5);
    str_free(&all);
    batch_free(&b);
}

static void check_case(const char *name, const DataConfig *config) {
    Data *data;
    int checked = 0;
    for (int round = 0; round < 2; round++) { /* the second round reads the cache, if there is one */
        assert_ok(data_open(config, &data));
        for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
            if (strcmp(CASES[i].name, name)) continue;
            const Dataset *d = data_split(data, (DataSplit)CASES[i].split);
            char md5[33];
            assert_non_null(d);
            assert_int_equal(data_length(d), CASES[i].length);
            digest(d, config->sequence_length, CASES[i].count, md5);
            if (strcmp(md5, CASES[i].md5))
                fail_msg("%s, split %d: %s, not %s", name, CASES[i].split, md5, CASES[i].md5);
            checked++;
        }
        data_close(data);
    }
    assert_true(checked >= 2);
}

TEST(samples_equal_megatron) {
    const Case cases[] = {
        {"toy8", "1", PATHS("toy"), 4, {8, 0, 0}, -1, false, false, false},
        {"toy12_flags", "1", PATHS("toy"), 4, {12, 0, 0}, -1, true, false, false},
        {"toy17", "1", PATHS("toy"), 4, {17, 0, 0}, -1, false, true, false},
        {"toy_pad", "1", PATHS("toy"), 4, {40, 0, 0}, 21, false, false, false},
        {"more_split", NULL, PATHS("more"), 7, {600, 10, 5}, -1, false, true, false},
        {"more_epoch", "90,9,1", PATHS("more"), 7, {-1, -1, -1}, -1, false, false, false},
        {"blend_weights",
         "60,20,20",
         PATHS("30", "more", "70", "third", "5", "toy"),
         5,
         {300, 20, 7},
         -1,
         false,
         true,
         false},
        {"blend_lengths", "34,33,33", PATHS("more", "third", "toy"), 2, {250, 10, 3}, -1, false, true, false},
        {"blend_exhaustive",
         "34,33,33",
         PATHS("more", "third", "toy"),
         2,
         {-1, -1, -1},
         -1,
         false,
         true,
         false},
        {"keep_last", "50,50", PATHS("more"), 11, {50, -1, 0}, -1, true, false, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        DataConfig c = config_of(&cases[i]);
        check_case(cases[i].name, &c);
    }
    DataConfig per_split =
        config_of(&(Case){.seq = 6, .samples = {300, 20, 0}, .pad = -1, .flags = true, .cache = true});
    const char *const train[] = {"1", "more", "3", "third"}, *const valid[] = {"1.0", "toy"};
    per_split.split_paths[0] = train, per_split.num_split_paths[0] = 4;
    per_split.split_paths[1] = valid, per_split.num_split_paths[1] = 2;
    check_case("per_split", &per_split);
    DataConfig mock = config_of(&(Case){.seq = 1024, .samples = {1000, 20, 10}, .pad = -1, .cache = true});
    mock.mock = true, mock.vocab_size = 128256, mock.eod = 128255;
    mock.tokenizer_json = TOKENIZER("128256", "128255", "-1");
    check_case("mock", &mock);
    /* The cache must equal Megatron-LM's in the names and the content of all files. */
    for (size_t i = 0; i < sizeof CACHE / sizeof *CACHE; i++) {
        char *path = mem_printf("cache/%s", CACHE[i].name);
        assert_true(file_exists(path));
        assert_md5(path, CACHE[i].md5);
        free(path);
    }
}

static void assert_array(const NpyArray *a, const int64_t *expected, int64_t n) {
    for (int64_t i = 0; i < n; i++) assert_int_equal(npy_at(a, i), expected[i]);
}

/* The indices of gpt_dataset.py with numpy 1.24 for documents of 5 7 3 11 2 8 tokens, sequence length 4 and
 * seed 1234. */
TEST(toy_indices_equal_numpy) {
    static const struct {
        int64_t samples, epochs, documents, shuffled, document[12], shuffle[17];
    } TOY[] = {{8, 1, 6, 8, {2, 1, 5, 0, 4, 3}, {5, 0, 3, 4, 2, 6, 1, 7}},
               {12,
                2,
                12,
                17,
                {2, 1, 5, 0, 4, 3, 0, 4, 3, 2, 5, 1},
                {1, 0, 3, 5, 2, 7, 4, 6, 15, 14, 10, 11, 9, 16, 13, 12, 8}},
               {17,
                2,
                12,
                17,
                {1, 2, 5, 2, 3, 4, 1, 0, 4, 5, 0, 3},
                {9, 7, 4, 3, 11, 2, 13, 1, 15, 5, 0, 8, 14, 6, 10, 16, 12}}};
    TokenSource toy;
    assert_ok(source_open("toy", (MockShape){0}, 20000, 0, &toy));
    for (int i = 0; i < 3; i++) {
        GptPlan plan;
        assert_ok(gpt_plan(&toy, 0, 6, TOY[i].samples, 4, true, &plan));
        assert_int_equal(plan.epochs, TOY[i].epochs);
        GptIndex x = gpt_index_build(&plan, 1234);
        assert_int_equal(x.document.rows, TOY[i].documents);
        assert_int_equal(x.shuffle.rows, TOY[i].shuffled);
        assert_array(&x.document, TOY[i].document, TOY[i].documents);
        assert_array(&x.shuffle, TOY[i].shuffle, TOY[i].shuffled);
        assert_true(gpt_index_valid(&plan, &x));
        NpyArray *const part[] = {&x.document, &x.sample, &x.shuffle};
        for (int k = 0; k < 3; k++) { /* the cache of a different plan */
            part[k]->rows--;
            assert_false(gpt_index_valid(&plan, &x));
            part[k]->rows += 2;
            assert_false(gpt_index_valid(&plan, &x));
            part[k]->rows--;
            part[k]->columns++;
            assert_false(gpt_index_valid(&plan, &x));
            part[k]->columns--;
        }
        gpt_index_free(&x);
    }
    source_close(&toy);
}

static void assert_data_md5(const NpyArray *a, size_t size, const char *expected) {
    char md5[33];
    md5_hex(a->data, (size_t)a->rows * size, md5);
    assert_string_equal(md5, expected);
}

TEST(mock_indices_equal_numpy) {
    static const int64_t ROWS[] = {0, 0, 0, 1024, 0, 2048, 1, 71};
    TokenSource mock;
    DataConfig config = {
        .sequence_length = 1024, .seed = 1234, .vocab_size = 128256, .eod = 128255, .pad = -1};
    assert_ok(source_open(NULL, gpt_dataset.mock, config.vocab_size, config.eod, &mock));
    DatasetPart *part, how = {.kind = &gpt_dataset,
                              .source = &mock,
                              .config = &config,
                              .split = SPLIT_TRAIN,
                              .end = 33333,
                              .num_samples = 1000};
    assert_ok(part_open(&how, &part));
    const GptDataset *d = (const GptDataset *)part;
    assert_int_equal(part->samples, 66592);
    assert_int_equal(d->plan.epochs, 1);
    assert_data_md5(&d->index.document, 4, "79405e13734aca780fb3d577a897784c");
    assert_data_md5(&d->index.shuffle, 4, "6f0bf62fef2df92b3f44b4075d94e89b");
    for (int i = 0; i < 8; i++) assert_int_equal(((const int32_t *)d->index.sample.data)[i], ROWS[i]);
    Batch b = batch_new(1, (SampleShape){.positions = 1024, .fields = GPT_FIELDS});
    Sample row = batch_sample(&b, 0);
    assert_ok(part_get(part, 0, &row));
    int64_t text[1025];
    memcpy(text, b.tokens, sizeof(int64_t) * 1024);
    text[1024] = b.labels[1023];
    char md5[33];
    md5_hex(text, sizeof text, md5);
    assert_int_equal(text[0], 117);
    assert_string_equal(md5, "f6c111bb23cd2b3158bbc4b6307d546f");
    batch_free(&b);
    part_close(part);
    source_close(&mock);
}

/* Returns the path of the only cache file whose name contains `part`. */
static char *cache_file(const char *part) {
    DIR *dir = opendir("damaged");
    char *path = NULL;
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));)
        if (!path && strstr(entry->d_name, part)) path = mem_printf("damaged/%s", entry->d_name);
    closedir(dir);
    assert_non_null(path);
    return path;
}

static void open_damaged_cache(char md5[33]) {
    DataConfig c = config_of(
        &(Case){"", "1", PATHS("0.5", "more", "0.5", "toy"), 4, {40, 0, 0}, -1, false, false, false});
    c.cache_dir = "damaged";
    Data *data;
    assert_ok(data_open(&c, &data));
    digest(data_split(data, SPLIT_TRAIN), 4, 40, md5);
    data_close(data);
}

TEST(a_damaged_cache_is_rebuilt) {
    static const char *const PARTS[] = {"document_index.npy", "sample_index.npy",
                                        "shuffle_index.npy",  "-GPTDataset-train-description.txt",
                                        "dataset_index.npy",  "dataset_sample_index.npy"};
    char good[33], now[33];
    open_damaged_cache(good);
    for (size_t i = 0; i < sizeof PARTS / sizeof *PARTS; i++) {
        char *path = cache_file(PARTS[i]);
        Str whole = {0};
        assert_ok(file_read(path, &whole));
        char sound[33], after[33];
        file_md5(path, sound);
        /* The file is truncated, has a changed last value, has a broken header, or is empty. */
        for (int damage = 0; damage < 4; damage++) {
            Str torn = {0};
            str_add(&torn, whole.s, damage == 0 ? whole.len - 3 : damage == 3 ? 0 : whole.len);
            if (damage == 1) torn.s[whole.len - 3] ^= 1;
            if (damage == 2) torn.s[20] ^= 8;
            assert_ok(file_write_atomic(path, torn.s ? torn.s : "", torn.len));
            open_damaged_cache(now);
            assert_string_equal(now, good);
            file_md5(path, after);
            assert_string_equal(after, sound);
            str_free(&torn);
        }
        str_free(&whole);
        free(path);
    }
}

/* A rebuilt cache would be a new file, so an unchanged inode shows that the cache was read. */
TEST(a_sound_cache_is_read) {
    static const char *const PARTS[] = {"document_index.npy", "dataset_index.npy"};
    char md5[33];
    open_damaged_cache(md5);
    ino_t before[2];
    struct stat st;
    for (int again = 0; again < 2; again++) {
        for (int i = 0; i < 2; i++) {
            char *path = cache_file(PARTS[i]);
            assert_int_equal(stat(path, &st), 0);
            if (again) assert_int_equal(st.st_ino, before[i]);
            before[i] = st.st_ino;
            free(path);
        }
        open_damaged_cache(md5);
    }
}

TEST(mistakes_are_sentences) {
    Data *data;
    DataConfig c = config_of(&(Case){"", "969,30,1", PATHS("toy"), 4, {8, 0, 3}, -1, false, false, false});
    assert_err(data_open(&c, &data), "test split of 'toy': the split contains no token");
    c.samples[2] = 0, c.samples[0] = INT64_MAX;
    assert_err(data_open(&c, &data), "but it must be at most");
    c.samples[0] = 1ll << 38;
    assert_err(data_open(&c, &data), "request fewer samples or provide more data");
    c.samples[0] = 8, c.sequence_length = 0;
    assert_err(data_open(&c, &data), "sequence length is 0");
    c.sequence_length = 4, c.mock = true;
    assert_err(data_open(&c, &data), "are mutually exclusive");
    c.mock = false, c.num_paths = 0;
    assert_err(data_open(&c, &data), "there is no data");
    c.num_paths = 1, c.paths = (const char *const[]){"absent"};
    assert_err(data_open(&c, &data), "absent.idx");
    c.paths = (const char *const[]){"toy"}, c.tokenizer_json = "[1]";
    assert_err(data_open(&c, &data), "not a JSON object");
    c.tokenizer_json = NULL, c.cache_dir = "toy.idx/cache";
    assert_err(data_open(&c, &data), "--data-cache-path");
    c.cache_dir = NULL;
    const char *const weighted[] = {"1", "more", "1", "toy"};
    c.paths = weighted, c.num_paths = 4, c.samples[0] = -1;
    assert_err(data_open(&c, &data), "weights but no number");
    c.samples[0] = 8, c.surplus = -1;
    assert_err(data_open(&c, &data), "surplus");
}

TEST(a_token_outside_the_vocabulary_is_named) {
    Data *data;
    DataConfig c = config_of(&(Case){"", "1", PATHS("toy"), 4, {8, 0, 0}, -1, false, false, false});
    c.vocab_size = 60;
    assert_ok(data_open(&c, &data));
    Batch b = batch_new(8, (SampleShape){.positions = 4, .fields = GPT_FIELDS});
    const int64_t all[] = {0, 1, 2, 3, 4, 5, 6, 7};
    assert_err(data_batch(data_split(data, SPLIT_TRAIN), all, 8, &b), "made with another tokenizer");
    batch_free(&b);
    data_close(data);
}

TEST(a_float_dataset_is_refused) {
    IndexedBuilder *b;
    assert_ok(indexed_builder_open("float", INDEXED_F32, &b));
    assert_ok(indexed_builder_add(b, (const float[]){1, 2}, 2));
    indexed_builder_end_document(b);
    assert_ok(indexed_builder_finalize(b));
    TokenSource s;
    assert_err(source_open("float", (MockShape){0}, 10, 0, &s), "float32 values, not token ids");
}

int main(void) { return run_all_tests(write_datasets, leave_folder); }
