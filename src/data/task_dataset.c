#include "data/task_dataset.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/hash.h"
#include "base/mem.h"
#include "data/random/mt19937.h"

typedef struct TaskPart {
    DatasetPart part;
    TaskSet set;
    int64_t *order; /* [epochs, samples]; NULL means file order */
} TaskPart;

static const TaskConfig *task(const DatasetPart *p) { return p->config->kind_config; }

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

/* Writes [CLS] a [SEP], or [CLS] a [SEP] b [SEP]. A sequence that is too long is truncated, and its last
 * token becomes [SEP], as in build_tokens_types_paddings_from_ids in Megatron-LM's tasks. Returns the number of
 * tokens. */
static int64_t join(const TaskPart *p, const TaskRow *row, const Sample *out) {
    const TaskConfig *c = task(&p->part);
    const TaskSet *s = &p->set;
    const int64_t most = p->part.config->sequence_length - 1;
    int64_t n = put_one(c->cls, 0, most, out, 0);
    n = put(s, row->a, 0, most, out, n);
    if (!row->is_pair) return put_one(c->sep, 0, most + 1, out, n);
    n = put_one(c->sep, 0, most, out, n);
    n = put(s, row->b, c->second_type, most, out, n);
    return put_one(c->sep, c->second_type, most + 1, out, n);
}

static Err get(const DatasetPart *part, int64_t k, Sample *out) {
    const TaskPart *p = (const TaskPart *)part;
    const TaskSet *s = &p->set;
    const int64_t at = k % part->epoch / s->choices, choice = k % s->choices;
    const int64_t length = part->config->sequence_length, pad = part->config->pad;
    const bool padding = at >= s->samples;
    int64_t sample = padding ? 0 : at;
    if (p->order && !padding) sample = p->order[k / part->epoch * s->samples + at];
    const int64_t n = join(p, &s->row[sample * s->choices + choice], out);
    for (int64_t i = n; i < length && pad >= 0; i++) out->tokens[i] = pad;
    out->lengths[0] = n;
    out->sentence_labels[0] = s->label[sample];
    if (padding) out->sample_weights[0] = 0;
    return ERR_OK;
}

/* ---- labels ---- */

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* Sorts the labels in the files by name, and renumbers the samples' labels accordingly. */
static Err sort_labels(TaskLabels *l, TaskSet *set) {
    const size_t bytes = (size_t)l->n * sizeof *l->at;
    char **found = memcpy(mem_alloc(bytes + 1), l->at, bytes);
    int64_t *place = mem_zero((size_t)l->n + 1, sizeof *place);
    qsort(l->at, (size_t)l->n, sizeof *l->at, by_name);
    for (int64_t i = 0; i < l->n; i++)
        while (l->at[place[i]] != found[i]) place[i]++;
    for (int64_t i = 0; i < set->samples; i++) set->label[i] = place[set->label[i]];
    free(found), free(place);
    l->open = false;
    if (l->n >= 2) return ERR_OK;
    return err_user("all samples of the training files have the label %s; at least two classes are needed",
                    quote(l->n ? l->at[0] : "").s);
}

/* Returns the classes that are known before any file is read. */
static TaskLabels known_labels(const TaskConfig *c) {
    const char *const *of_format = task_format_labels(c->format), *const *names =
                                                                      of_format ? of_format : c->names;
    int n = of_format ? 0 : c->num_names;
    while (of_format && of_format[n]) n++;
    TaskLabels l = {.at = mem_zero((size_t)n + 1, sizeof *l.at), .n = n, .open = !n && c->choices == 1};
    for (int i = 0; i < n; i++) l.at[i] = mem_strdup(names[i]);
    return l;
}

/* ---- files ---- */

static Err check(const DatasetPart *p) {
    enum { SHORTEST = 4 }; /* minimum number of tokens: [CLS], one token of a, [SEP] and one token of b */
    const TaskConfig *c = task(p);
    CHECK(c->batch > 0 && c->valid_batch > 0 && c->choices > 0, "batches of %" PRId64 " samples", c->batch);
    if (p->config->sequence_length < SHORTEST)
        return err_user("the sequence length is %" PRId64 "; a task needs at least %d",
                        p->config->sequence_length, SHORTEST);
    if (c->cls < 0 || c->sep < 0)
        return err_user("a task needs the tokens [CLS] and [SEP], but the tokenizer does not have both; use "
                        "a tokenizer with these tokens, such as a WordPiece tokenizer");
    if (!c->labels->open || p->split == SPLIT_TRAIN) return ERR_OK;
    return err_user("without training files, the classes are unknown; add --class-labels, or "
                    "--use-checkpoint-args to read them from the checkpoint");
}

static Err count_samples(DatasetPart *p, int64_t n) {
    const TaskConfig *c = task(p);
    const bool trains = p->split == SPLIT_TRAIN;
    const int64_t batch = trains ? c->batch : c->valid_batch, whole = n / batch * batch,
                  epoch = whole == n || (trains && !c->keep_last) ? whole : whole + batch,
                  epochs = trains ? c->epochs : 1;
    if (!epoch)
        return err_user("the training files have %" PRId64 " samples, but a step needs %" PRId64
                        "; lower --global-batch-size, or add --keep-last",
                        n, c->batch);
    if (__builtin_mul_overflow(epoch * c->choices, epochs, &p->samples) || p->samples > INT64_C(1) << 40)
        return err_user("%" PRId64 " epochs of %" PRId64 " samples are too many; lower --epochs", epochs, n);
    p->num_samples = n, p->epoch = epoch * c->choices, p->epochs = (double)epochs;
    return ERR_OK;
}

static Err open_part(DatasetPart *part) {
    TaskPart *p = (TaskPart *)part;
    const TaskConfig *c = task(part);
    TaskSet *set = &p->set;
    const bool trains = part->split == SPLIT_TRAIN;
    if (!c->labels->at) *c->labels = known_labels(c);
    ERR_RETURN(check(part));
    set->choices = c->choices;
    for (int i = 0; i < part->num_files; i++)
        ERR_RETURN(task_read(c->format, part->files[i], c->encode, c->encode_ctx, c->labels, set));
    if (c->labels->open) ERR_RETURN(sort_labels(c->labels, set));
    ERR_RETURN(count_samples(part, set->samples));
    part->tokens = set->tokens;
    if (!trains) return ERR_OK;
    p->order = mem_zero((size_t)(set->samples * c->epochs), sizeof *p->order);
    for (int64_t i = 0; i < c->epochs; i++)
        mt19937_torch_randperm((uint32_t)(part->config->seed + (uint64_t)i), p->order + i * set->samples,
                               set->samples);
    return ERR_OK;
}

static void close_part(DatasetPart *p) {
    free(((TaskPart *)p)->order);
    task_set_free(&((TaskPart *)p)->set);
}

static void hash_part(const DatasetPart *p, HashStream *h) {
    const TaskSet *s = &((const TaskPart *)p)->set;
    hash128_add(h, s->ids, (size_t)s->tokens * sizeof *s->ids);
    hash128_add(h, s->label, (size_t)s->samples * sizeof *s->label);
    for (int64_t i = 0; i < s->rows; i++) {
        const int64_t row[] = {s->row[i].a.first, s->row[i].a.count, s->row[i].b.first, s->row[i].b.count};
        hash128_add(h, row, sizeof row);
    }
}

const DatasetKind task_dataset = {
    .class_name = "task",
    .size = sizeof(TaskPart),
    .config_size = sizeof(TaskConfig),
    .fields = FIELD_SET(tokens) | FIELD_SET(token_types) | FIELD_SET(position_ids) | FIELD_SET(lengths) |
              FIELD_SET(sentence_labels) | FIELD_SET(sample_weights),
    .open = open_part,
    .close = close_part,
    .get = get,
    .hash = hash_part,
};
