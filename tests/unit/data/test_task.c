/* Tests samples for fine-tuning: tokens of files, pairs that are too long, epochs, and padding. */
#include "fixture.h"

#include "base/file.h"
#include "base/utf8.h"
#include "data/blended_dataset.h"
#include "data/data.h"
#include "data/random/mt19937.h"
#include "data/task_dataset.h"
#include "unit/temp_dir.h"

enum { CLS = 101, SEP = 102, PAD = 7, LONGEST = 160 };

/* A tokenizer that converts each word to its numerical value, or to 0. It appends the text to *ctx. */
static Err encode(void *ctx, const char *text, size_t n, int32_t **ids, size_t *count) {
    char *copy = strndup(text, n), *rest = copy;
    if (ctx) str_printf(ctx, "[%.*s]", (int)n, text);
    *ids = malloc((n + 1) * sizeof **ids);
    *count = 0;
    for (char *word; (word = strtok_r(rest, " ", &rest));) (*ids)[(*count)++] = atoi(word);
    free(copy);
    return ERR_OK;
}

typedef struct Files {
    char dir[64];
    char *train, *valid;
} Files;

static void write_file(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static Files files(const char *train, const char *valid) {
    Files f;
    temp_dir(f.dir);
    f.train = mem_printf("%s/train", f.dir);
    f.valid = mem_printf("%s/valid", f.dir);
    write_file(f.train, train);
    write_file(f.valid, valid);
    return f;
}

static void files_free(Files *f) {
    assert_ok(file_remove_tree(f->dir));
    free(f->train), free(f->valid);
}

/* The task of the current test, with its classes and data. */
static TaskConfig task;
static TaskLabels labels;

static DataConfig config_of(const Files *f, TaskFormat format, int64_t length) {
    task = (TaskConfig){.format = format,
                        .choices = format == TASK_FORMAT_RACE ? 4 : 1,
                        .epochs = 1,
                        .batch = 1,
                        .valid_batch = 1,
                        .second_type = true,
                        .cls = CLS,
                        .sep = SEP,
                        .encode = encode,
                        .labels = &labels};
    return (DataConfig){.kind = DATASET_task,
                        .split_paths = {(const char *const *)&f->train, (const char *const *)&f->valid},
                        .num_split_paths = {1, 1},
                        .sequence_length = length,
                        .seed = 5,
                        .eod = -1,
                        .pad = PAD,
                        .kind_config = &task};
}

static Data *open_data(const DataConfig *c) {
    Data *data;
    assert_ok(data_open(c, &data));
    return data;
}

static void close_data(Data *data) {
    data_close(data);
    task_labels_free(&labels);
}

static Batch batch_of(const Dataset *d, int64_t first, int64_t n) {
    int64_t *indices = malloc((size_t)n * sizeof *indices);
    for (int64_t i = 0; i < n; i++) indices[i] = first + i;
    Batch b = batch_new(n, d->parts[0]->shape);
    assert_ok(data_batch(d, indices, n, &b));
    free(indices);
    return b;
}

/* Follows build_tokens_types_paddings_from_ids of Megatron-LM's tasks, step by step. If b < 0, the sample is
 * a single text. */
static int64_t reference(int64_t a, int64_t b, int64_t most, int64_t *tokens, int64_t *types) {
    int64_t n = 0, count;
    tokens[n] = CLS, types[n++] = 0;
    for (int64_t i = 0; i < a; i++) tokens[n] = 1 + i, types[n++] = 0;
    tokens[n] = SEP, types[n++] = 0;
    for (int64_t i = 0; i < b; i++) tokens[n] = 201 + i, types[n++] = 1;
    const bool trimmed = n >= most;
    if (trimmed) n = most - 1;
    if (b >= 0 || trimmed) tokens[n] = SEP, types[n++] = b >= 0;
    for (count = n; n < most; n++) tokens[n] = PAD, types[n] = 0;
    return count;
}

static void put_numbers(Str *out, int64_t first, int64_t n) {
    for (int64_t i = 0; i < n; i++) str_printf(out, "%s%d", i ? " " : "", (int)(first + i));
}

TEST(texts_are_joined_and_cut_as_in_megatron_lm) {
    enum { TEXT = 9 };
    Str lines = {0};
    for (int a = 1; a <= TEXT; a++)
        for (int b = 0; b <= TEXT; b++) {
            str_puts(&lines, a % 2 ? "odd\t" : "even\t");
            put_numbers(&lines, 1, a);
            if (b) str_puts(&lines, "\t"), put_numbers(&lines, 201, b);
            str_puts(&lines, "\n");
        }
    Files f = files(lines.s, lines.s);
    for (int64_t most = 4; most <= 2 * TEXT + 5; most++) {
        const DataConfig c = config_of(&f, TASK_FORMAT_LABELS, most);
        Data *data = open_data(&c);
        Batch got = batch_of(data_file(data, 0), 0, (int64_t)TEXT * (TEXT + 1));
        for (int64_t i = 0; i < got.b; i++) {
            int64_t tokens[2 * LONGEST], types[2 * LONGEST], a = 1 + i / (TEXT + 1), b = i % (TEXT + 1);
            assert_int_equal(got.lengths[i], reference(a, b ? b : -1, most, tokens, types));
            assert_memory_equal(got.tokens + i * most, tokens, (size_t)most * sizeof *tokens);
            assert_memory_equal(got.token_types + i * most, types, (size_t)most * sizeof *types);
            assert_int_equal(got.position_ids[i * most + most - 1], most - 1);
            assert_int_equal(got.sentence_labels[i], a % 2); /* even, odd */
        }
        batch_free(&got);
        close_data(data);
    }
    files_free(&f);
    str_free(&lines);
}

/* Writes files in which the samples are the single texts "0", "1", ... */
static Files numbered(int n) {
    Str lines = {0};
    for (int i = 0; i < n; i++) str_printf(&lines, "%c\t%d\n", 'a' + i % 2, i);
    Files f = files(lines.s, lines.s);
    str_free(&lines);
    return f;
}

TEST(an_epoch_is_a_permutation_of_its_own) {
    enum { N = 11, BATCH = 4, EPOCHS = 3 };
    Files f = numbered(N);
    for (int keep = 0; keep < 2; keep++) {
        DataConfig c = config_of(&f, TASK_FORMAT_LABELS, 4);
        task.epochs = EPOCHS, task.batch = BATCH, task.keep_last = keep;
        Data *data = open_data(&c);
        const int64_t epoch = keep ? 12 : 8;
        assert_int_equal(data_facts(data_split(data, SPLIT_TRAIN)).epoch, epoch);
        assert_int_equal(data_length(data_split(data, SPLIT_TRAIN)), EPOCHS * epoch);
        Batch got = batch_of(data_split(data, SPLIT_TRAIN), 0, EPOCHS * epoch);
        for (int64_t i = 0; i < got.b; i++) {
            int64_t order[N];
            mt19937_torch_randperm((uint32_t)(5 + i / epoch), order, N);
            const bool padding = i % epoch >= N;
            assert_true(got.sample_weights[i] == (padding ? 0.0f : 1.0f));
            if (!padding) assert_int_equal(got.tokens[4 * i + 1], order[i % epoch]);
            if (!padding) assert_int_equal(got.sentence_labels[i], order[i % epoch] % 2);
        }
        batch_free(&got);
        close_data(data);
    }
    files_free(&f);
}

TEST(a_validation_file_is_padded_to_whole_batches) {
    Files f = numbered(5);
    DataConfig c = config_of(&f, TASK_FORMAT_LABELS, 4);
    task.valid_batch = 4;
    Data *data = open_data(&c);
    assert_int_equal(data_facts(data_file(data, 0)).samples, 5);
    assert_int_equal(data_length(data_file(data, 0)), 8);
    Batch got = batch_of(data_file(data, 0), 0, 8);
    for (int64_t i = 0; i < 8; i++) assert_true(got.sample_weights[i] == (i < 5 ? 1.0f : 0.0f));
    batch_free(&got);
    close_data(data);
    files_free(&f);
}

/* Each choice becomes a row. It replaces "_" or follows the question, which is truncated to 128 tokens. */
TEST(a_question_is_a_row_for_each_choice) {
    Str line = {0}, seen = {0};
    str_puts(&line, "{\"article\": \"30 31\", \"questions\": [\"is _ it\", \"which\"], \"options\": "
                    "[[\"1\", \"2\", \"3\", \"4\"], [\"5\", \"6\", \"7\", \"");
    put_numbers(&line, 1, 140);
    str_puts(&line, "\"]], \"answers\": [\"D\", \"A\"]}\n");
    Files f = files(line.s, line.s);
    DataConfig c = config_of(&f, TASK_FORMAT_RACE, LONGEST);
    task.encode_ctx = &seen;
    c.num_split_paths[SPLIT_TRAIN] = 0;
    Data *data = open_data(&c);
    assert_int_equal(data_facts(data_file(data, 0)).samples, 2);
    assert_int_equal(data_length(data_file(data, 0)), 8);
    assert_int_equal(strncmp(seen.s, "[30 31][is 1 it][is 2 it][is 3 it][is 4 it][which 5]", 52), 0);
    Batch got = batch_of(data_file(data, 0), 0, 8);
    for (int64_t i = 0; i < 8; i++) assert_int_equal(got.sentence_labels[i], i < 4 ? 3 : 0);
    assert_int_equal(got.tokens[2 * LONGEST + 2], 3);
    assert_int_equal(got.lengths[0], 1 + 3 + 1 + 2 + 1);
    assert_int_equal(got.lengths[7], 1 + 128 + 1 + 2 + 1);
    assert_int_equal(got.tokens[7 * LONGEST + 130], 30);
    batch_free(&got);
    close_data(data);
    files_free(&f);
    str_free(&line), str_free(&seen);
}

/* Asserts which texts the tokenizer gets for these lines. */
static void expect_cleaned(const char *lines, const char *wanted) {
    Str seen = {0};
    Files f = files(lines, "a\tz\n");
    DataConfig c = config_of(&f, TASK_FORMAT_LABELS, 8);
    task.encode_ctx = &seen;
    Data *data = open_data(&c);
    assert_string_equal(seen.s, wanted);
    assert_string_equal(labels.at[1], "b");
    assert_int_equal(labels.n, 2);
    close_data(data);
    files_free(&f);
    str_free(&seen);
}

/* Megatron-LM's clean_text is re.sub(r'\s+', ' ', text), then three times text.replace(' . ', '. '). */
TEST(texts_are_cleaned) {
    expect_cleaned("a\tone  two . three . \xc2\xa0 four\n b \tx . . y\n", "[one two. three. four][x.. y][z]");
    expect_cleaned("a\tx . \nb\t . x .\n", "[x. ][. x .][z]"); /* blanks at both ends */
}

TEST(labels_have_no_blanks_at_their_ends) {
    expect_cleaned("a\tx\n  b\ty\nb  \tx\n \xc2\xa0 \xe3\x80\x80"
                   "b \xe2\x80\x89 \ty\n",
                   "[x][y][x][y][z]");
}

/* These characters are \s for Python's re. The tab and the line breaks of the file are omitted. */
TEST(blanks_are_those_of_python) {
    static const uint32_t BLANKS[] = {0x0b,   0x0c,   0x1c,   0x1d,   0x1e,   0x1f,   0x20,   0x85,   0xa0,
                                      0x1680, 0x2000, 0x2001, 0x2002, 0x2003, 0x2004, 0x2005, 0x2006, 0x2007,
                                      0x2008, 0x2009, 0x200a, 0x2028, 0x2029, 0x202f, 0x205f, 0x3000};
    Str lines = {0}, wanted = {0};
    str_puts(&lines, "b\t1\na\t1");
    str_puts(&wanted, "[1][1");
    for (size_t i = 0; i < sizeof BLANKS / sizeof *BLANKS; i++) {
        utf8_put(&lines, BLANKS[i]);
        str_puts(&lines, "1");
        str_puts(&wanted, " 1");
    }
    str_puts(&lines, "\n");
    str_puts(&wanted, "][z]");
    expect_cleaned(lines.s, wanted.s);
    str_free(&lines), str_free(&wanted);
}

/* Fingerprints are equal only if all samples in the training and validation files are equal. */
TEST(a_fingerprint_is_of_all_samples) {
    static const char *const FILES[][2] = {
        {"a\t1 2\t3\nb\t4\n", "a\t5\n"}, {"b\t1 2\t3\na\t4\n", "a\t5\n"}, {"a\t1 2\t3\nb\t6\n", "a\t5\n"},
        {"a\t1\t2 3\nb\t4\n", "a\t5\n"}, {"a\t1 2\t3\nb\t4\n", "b\t5\n"}, {"a\t1 2\t3\nb\t4\n", "a\t5\t5\n"}};
    enum { N = sizeof FILES / sizeof *FILES };
    char found[N + 1][40];
    for (int i = 0; i <= N; i++) {
        Files f = files(FILES[i % N][0], FILES[i % N][1]);
        const DataConfig c = config_of(&f, TASK_FORMAT_LABELS, 8);
        Data *data = open_data(&c);
        snprintf(found[i], sizeof found[i], "%s", data_fingerprint(data));
        for (int k = 0; k < i; k++) assert_int_equal(!strcmp(found[k], found[i]), k == i % N);
        close_data(data);
        files_free(&f);
    }
}

/* [CLS], [SEP] and one token of each text need four positions. */
TEST(a_pair_needs_four_positions) {
    Files f = files("a\t1 2\t3\nb\t4\t5\n", "a\t1\t2\n");
    DataConfig c = config_of(&f, TASK_FORMAT_LABELS, 4);
    close_data(open_data(&c));
    c = config_of(&f, TASK_FORMAT_LABELS, 3);
    Data *data;
    assert_err(data_open(&c, &data), "the sequence length is 3; a task needs at least 4");
    close_data(data);
    files_free(&f);
}

TEST(both_special_tokens_are_needed) {
    static const int64_t IDS[][2] = {{-1, SEP}, {CLS, -1}, {-1, -1}};
    Files f = numbered(4);
    for (size_t i = 0; i < sizeof IDS / sizeof *IDS; i++) {
        DataConfig c = config_of(&f, TASK_FORMAT_LABELS, 8);
        task.cls = IDS[i][0], task.sep = IDS[i][1];
        Data *data;
        assert_err(data_open(&c, &data), "needs the tokens [CLS] and [SEP]");
        close_data(data);
    }
    for (int first = 0; first < 2; first++) { /* either may be the first token of the vocabulary */
        DataConfig c = config_of(&f, TASK_FORMAT_LABELS, 8);
        *(first ? &task.sep : &task.cls) = 0;
        close_data(open_data(&c));
    }
    files_free(&f);
}
