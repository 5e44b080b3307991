/* Files of fine-tuning tasks. The first bytes select the format. The target reads the samples and, if there
 * are any, batches. */
#include "fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "data/blended_dataset.h"
#include "data/data.h"
#include "data/task_dataset.h"

enum { LENGTH = 12, MOST_SAMPLES = 200 };

static const char LABELS[] = "good\ta text\nbad\ta text\tand another\n",
                  MNLI[] = "h\nA\tb\tc\td\te\tf\tg\th\tone text\tother . text\tx\tneutral\n",
                  QQP[] = "h\nA\tb\tc\tone \xc2\xa0 text\tother\t1\n",
                  RACE[] =
                      "{\"article\": \"a b\", \"questions\": [\"is _ it\", \"who\"], \"options\": [[\"1\", "
                      "\"2\", \"3\", \"4\"], [\"a\", \"b\", \"c\", \"d\"]], \"answers\": [\"A\", \"D\"]}\n";

/* A tokenizer that has one token for each byte. */
static Err encode(void *ctx, const char *text, size_t n, int32_t **ids, size_t *count) {
    (void)ctx;
    *ids = mem_zero(n + 1, sizeof **ids);
    for (*count = 0; *count < n; ++*count) (*ids)[*count] = (unsigned char)text[*count];
    return ERR_OK;
}

static TaskFormat format_of(const uint8_t *bytes, size_t n) {
    if (n && bytes[0] == '{') return TASK_FORMAT_RACE;
    if (n < 2 || memcmp(bytes, "h\n", 2)) return TASK_FORMAT_LABELS;
    size_t tabs = 0;
    for (size_t i = 0; i < n; i++) tabs += bytes[i] == '\t';
    return tabs > 6 ? TASK_FORMAT_MNLI : TASK_FORMAT_QQP;
}

static void read_samples(const Dataset *d, int64_t classes) {
    Batch b = batch_new(1, d->parts[0]->shape);
    for (int64_t i = 0; i < data_length(d) && i < MOST_SAMPLES; i++) {
        CHECK(fuzz_ok(data_batch(d, &i, 1, &b)), "sample %lld", (long long)i);
        CHECK(b.lengths[0] >= 3 && b.lengths[0] <= LENGTH && b.sentence_labels[0] >= 0 &&
                  b.sentence_labels[0] < classes,
              "sample %lld has %lld tokens", (long long)i, (long long)b.lengths[0]);
    }
    batch_free(&b);
}

bool fuzz_one(const uint8_t *bytes, size_t n) {
    char *path = fuzz_file("task", bytes, n);
    TaskLabels labels = {0};
    const TaskFormat format = format_of(bytes, n);
    const TaskConfig task = {.format = format,
                             .choices = format == TASK_FORMAT_RACE ? 4 : 1,
                             .epochs = 2,
                             .batch = 1,
                             .valid_batch = 2,
                             .cls = 1,
                             .sep = 2,
                             .encode = encode,
                             .labels = &labels};
    const DataConfig c = {.kind = DATASET_task,
                          .split_paths = {(const char *const *)&path, (const char *const *)&path},
                          .num_split_paths = {1, 1},
                          .sequence_length = LENGTH,
                          .kind_config = &task};
    Data *data;
    const bool ok = fuzz_ok(data_open(&c, &data));
    if (ok) read_samples(data_file(data, 0), task.choices > 1 ? task.choices : labels.n);
    data_close(data);
    task_labels_free(&labels);
    free(path);
    return ok;
}

void fuzz_seeds(Corpus *c) {
    corpus_add(c, LABELS, sizeof LABELS - 1);
    corpus_add(c, MNLI, sizeof MNLI - 1);
    corpus_add(c, QQP, sizeof QQP - 1);
    corpus_add(c, RACE, sizeof RACE - 1);
}
