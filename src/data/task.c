#include "data/task.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/hash.h"
#include "base/mem.h"
#include "data/blended_dataset.h"
#include "data/random/mt19937.h"

typedef struct TaskPart {
    DatasetPart part;
    const TaskConfig *task;
    const TaskSet *set;
    int64_t epoch;  /* rows of an epoch, with padding */
    int64_t *order; /* [epochs, samples]; NULL: the files' order */
} TaskPart;

typedef struct TaskSplit {
    TaskSet set;
    BlendedDataset dataset; /* of one TaskPart */
} TaskSplit;

struct Task {
    TaskConfig config;
    DatasetConfig dataset;
    TaskLabels labels;
    TaskSplit train, *valid;
    char fingerprint[33];
};

/* ---- samples ---- */

static int64_t put(const TaskSet *s, TaskText text, int64_t type, int64_t n, const Sample *out, int64_t at) {
    for (int64_t i = 0; i < text.count && at < n; i++, at++)
        out->tokens[at] = s->ids[text.first + i], out->token_types[at] = type;
    return at;
}

static int64_t put_one(int64_t id, int64_t type, int64_t n, const Sample *out, int64_t at) {
    if (at < n) out->tokens[at] = id, out->token_types[at] = type;
    return at + (at < n);
}

/* [CLS] a [SEP], or [CLS] a [SEP] b [SEP]. A longer one loses its end, and the last token is [SEP]
 * (build_tokens_types_paddings_from_ids of Megatron-LM's tasks). Returns the number of tokens. */
static int64_t join(const TaskConfig *c, const TaskSet *s, const TaskRow *row, const Sample *out) {
    const int64_t most = c->sequence_length - 1;
    int64_t n = put_one(c->cls, 0, most, out, 0);
    n = put(s, row->a, 0, most, out, n);
    if (!row->is_pair) return put_one(c->sep, 0, most + 1, out, n);
    n = put_one(c->sep, 0, most, out, n);
    n = put(s, row->b, c->second_type, most, out, n);
    return put_one(c->sep, c->second_type, most + 1, out, n);
}

static Err get(const DatasetPart *part, int64_t k, Sample *out) {
    const TaskPart *p = (const TaskPart *)part;
    const TaskSet *s = p->set;
    const int64_t at = k % p->epoch / s->choices, choice = k % s->choices;
    const bool padding = at >= s->samples;
    int64_t sample = padding ? 0 : at;
    if (p->order && !padding) sample = p->order[k / p->epoch * s->samples + at];
    const int64_t n = join(p->task, s, &s->row[sample * s->choices + choice], out);
    for (int64_t i = n; i < p->task->sequence_length; i++)
        out->tokens[i] = p->task->pad < 0 ? 0 : p->task->pad, out->token_types[i] = 0;
    for (int64_t i = 0; i < p->task->sequence_length; i++) out->position_ids[i] = i;
    out->lengths[0] = n;
    out->sentence_labels[0] = s->label[sample];
    out->sample_weights[0] = padding ? 0 : 1;
    return ERR_OK;
}

static void close_part(DatasetPart *p) { free(((TaskPart *)p)->order); }

static const DatasetKind TASK_KIND = {
    .class_name = "task",
    .size = sizeof(TaskPart),
    .fields = FIELD_SET(tokens) | FIELD_SET(token_types) | FIELD_SET(position_ids) | FIELD_SET(lengths) |
              FIELD_SET(sentence_labels) | FIELD_SET(sample_weights),
    .close = close_part,
    .get = get,
};

/* ---- splits ---- */

static int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

/* `samples` of an epoch, with padding. */
static void open_split(Task *t, TaskSplit *s, int64_t samples, int64_t epochs, bool shuffled) {
    TaskPart *p = mem_zero(1, sizeof *p);
    const int64_t choices = t->config.choices;
    *p = (TaskPart){.part = {.kind = &TASK_KIND,
                             .config = &t->dataset,
                             .samples = samples * choices * epochs,
                             .tokens = s->set.tokens},
                    .task = &t->config,
                    .set = &s->set,
                    .epoch = samples * choices};
    if (shuffled) {
        const int64_t n = s->set.samples;
        p->order = mem_zero((size_t)(n * epochs), sizeof *p->order);
        for (int64_t i = 0; i < epochs; i++)
            mt19937_torch_randperm((uint32_t)(t->config.seed + (uint64_t)i), p->order + i * n, n);
    }
    s->dataset = (BlendedDataset){.n = 1, .parts = mem_zero(1, sizeof *s->dataset.parts)};
    s->dataset.parts[0] = &p->part;
}

static Err open_train(Task *t) {
    const TaskConfig *c = &t->config;
    const int64_t n = t->train.set.samples;
    const int64_t epoch = c->keep_last ? round_up(n, c->batch) : n / c->batch * c->batch;
    int64_t rows;
    if (!epoch)
        return err_user("the training files have %" PRId64 " samples, and a step needs %" PRId64
                        "; lower --global-batch-size, or add --keep-last",
                        n, c->batch);
    if (__builtin_mul_overflow(epoch * c->choices, c->epochs, &rows) || rows > INT64_C(1) << 40)
        return err_user("%" PRId64 " epochs of %" PRId64 " samples are too many; lower --epochs", c->epochs,
                        n);
    open_split(t, &t->train, epoch, c->epochs, true);
    return ERR_OK;
}

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* Sorts the labels of the files, and numbers them again. */
static Err sort_labels(Task *t) {
    TaskLabels *l = &t->labels;
    const size_t bytes = (size_t)l->n * sizeof *l->at;
    char **found = memcpy(mem_alloc(bytes + 1), l->at, bytes);
    int64_t *place = mem_zero((size_t)l->n + 1, sizeof *place);
    qsort(l->at, (size_t)l->n, sizeof *l->at, by_name);
    for (int64_t i = 0; i < l->n; i++)
        while (l->at[place[i]] != found[i]) place[i]++;
    for (int64_t i = 0; i < t->train.set.samples; i++) t->train.set.label[i] = place[t->train.set.label[i]];
    free(found), free(place);
    l->open = false;
    if (l->n >= 2) return ERR_OK;
    return err_user("all samples of the training files have the label %s; at least two classes are needed",
                    quote(l->n ? l->at[0] : "").s);
}

static Err read_all(const Task *t, const char *const *paths, int n, TaskLabels *labels, TaskSet *set) {
    const TaskConfig *c = &t->config;
    set->choices = c->choices;
    for (int i = 0; i < n; i++)
        ERR_RETURN(task_read(c->format, paths[i], c->encode, c->encode_ctx, labels, set));
    return ERR_OK;
}

static Err set_labels(Task *t) {
    const TaskConfig *c = &t->config;
    const char *const *own = task_format_labels(c->format), *const *names = own ? own : c->labels;
    int n = own ? 0 : c->num_labels;
    while (own && own[n]) n++;
    t->labels = (TaskLabels){.at = mem_zero((size_t)n + 1, sizeof *t->labels.at), .n = n};
    for (int i = 0; i < n; i++) t->labels.at[i] = mem_strdup(names[i]);
    t->labels.open = !n && c->choices == 1;
    if (!t->labels.open || c->num_train) return ERR_OK;
    return err_user("the classes are not known without training files; add --class-labels, or "
                    "--use-checkpoint-args to take them from the checkpoint");
}

static void add_to_hash(HashStream *h, const TaskSet *s) {
    hash128_add(h, s->ids, (size_t)s->tokens * sizeof *s->ids);
    hash128_add(h, s->label, (size_t)s->samples * sizeof *s->label);
    for (int64_t i = 0; i < s->rows; i++) {
        const int64_t row[] = {s->row[i].a.first, s->row[i].a.count, s->row[i].b.first, s->row[i].b.count};
        hash128_add(h, row, sizeof row);
    }
}

static void take_fingerprint(Task *t) {
    HashStream *h = hash128_begin();
    add_to_hash(h, &t->train.set);
    for (int i = 0; i < t->config.num_valid; i++) add_to_hash(h, &t->valid[i].set);
    hash_hex(hash128_end(h), t->fingerprint);
}

static Err open_all(Task *t) {
    const TaskConfig *c = &t->config;
    if (c->cls < 0 || c->sep < 0)
        return err_user("a task needs the tokens [CLS] and [SEP], and the tokenizer lacks one; use one that "
                        "has them, such as a WordPiece tokenizer");
    ERR_RETURN(set_labels(t));
    ERR_RETURN(read_all(t, c->train, c->num_train, &t->labels, &t->train.set));
    if (t->labels.open) ERR_RETURN(sort_labels(t));
    if (c->num_train) ERR_RETURN(open_train(t));
    for (int i = 0; i < c->num_valid; i++) {
        TaskSplit *s = &t->valid[i];
        ERR_RETURN(read_all(t, &c->valid[i], 1, &t->labels, &s->set));
        open_split(t, s, round_up(s->set.samples, c->valid_batch), 1, false);
    }
    take_fingerprint(t);
    return ERR_OK;
}

Err task_open(const TaskConfig *c, Task **out) {
    enum { SHORTEST = 4 }; /* [CLS] a [SEP] and a token of b */
    *out = NULL;
    CHECK(c->batch > 0 && c->valid_batch > 0 && c->choices > 0, "batches of %" PRId64 " samples", c->batch);
    if (c->sequence_length < SHORTEST)
        return err_user("the sequence length is %" PRId64 "; a task needs at least %d", c->sequence_length,
                        SHORTEST);
    Task *t = mem_zero(1, sizeof *t);
    t->config = *c;
    t->dataset.sequence_length = c->sequence_length;
    t->valid = mem_zero((size_t)c->num_valid + 1, sizeof *t->valid);
    const Err e = open_all(t);
    if (e.code)
        task_close(t);
    else
        *out = t;
    return e;
}

static void close_split(TaskSplit *s) {
    if (s->dataset.parts) blended_close(&s->dataset);
    task_set_free(&s->set);
}

void task_close(Task *t) {
    if (!t) return;
    close_split(&t->train);
    for (int i = 0; i < t->config.num_valid; i++) close_split(&t->valid[i]);
    task_labels_free(&t->labels);
    free(t->valid);
    free(t);
}

const TaskLabels *task_labels(const Task *t) { return &t->labels; }
int64_t task_choices(const Task *t) { return t->config.choices; }
int64_t task_train_samples(const Task *t) { return t->train.set.samples; }

int64_t task_steps_per_epoch(const Task *t) {
    const Dataset *d = task_train(t);
    return d ? ((const TaskPart *)d->parts[0])->epoch / (t->config.batch * t->config.choices) : 0;
}

const Dataset *task_train(const Task *t) { return t->config.num_train ? &t->train.dataset : NULL; }
int task_valid_files(const Task *t) { return t->config.num_valid; }
const Dataset *task_valid(const Task *t, int file) { return &t->valid[file].dataset; }
int64_t task_valid_samples(const Task *t, int file) { return t->valid[file].set.samples; }
const char *task_valid_name(const Task *t, int file) { return t->config.valid[file]; }
const char *task_fingerprint(const Task *t) { return t->fingerprint; }
