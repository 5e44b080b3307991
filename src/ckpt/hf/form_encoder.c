/* Forms for encoders. The class name determines the heads. RoBERTa numbers positions differently from
 * BERT. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "ckpt/hf/form.h"

static const char PRETRAINING[] = "ForPreTraining", MASKED[] = "ForMaskedLM",
                  CLASSES[] = "ForSequenceClassification", CHOICES[] = "ForMultipleChoice";
enum { MOST_CLASSES = 65536 };

/* Returns the part of the file's class name that begins with "For", such as "ForMaskedLM". Returns "" if the class
 * has no head or the file names no class. */
static const char *head_of(const HfReader *r) {
    const char *name = json_string_value(json_array_get(hf_member(r, NULL, "architectures"), 0));
    const char *head = name ? strstr(name, "For") : NULL;
    return head ? head : "";
}

const char *hf_bert_head(const Config *c) {
    if (c->task != TASK_NONE) return c->task == TASK_RACE ? CHOICES : CLASSES;
    return c->bert_binary_head ? PRETRAINING : MASKED;
}

/* Sets the option according to the class name; hf_config_fit_heads later corrects it according to the tensors. */
static void bert_heads_read(HfReader *r, const HfRow *row) {
    hf_set_flag(r, row->option, strcmp(head_of(r), MASKED) != 0);
}

/* ---- text classes ---- */

/* Appends a label in quotes. Returns false if the label is missing, or if it cannot be quoted in an
 * option. */
static bool add_label(const json_t *label, Str *out) {
    const char *text = json_string_value(label);
    if (!text || !*text || strpbrk(text, "\"\n\r")) return false;
    return str_printf(out, "%s\"%s\"", out->len ? " " : "", text), true;
}

/* Appends the names that transformers uses for the classes if a file has no id2label. */
static void default_labels(HfReader *r, Str *labels) {
    const int64_t n = hf_get_size(r, "num_labels", 2);
    if (n > MOST_CLASSES) hf_refuse(r, "num_labels", "more classes than are supported");
    for (int64_t i = 0; i < n && !r->err.code; i++)
        str_printf(labels, "%sLABEL_%lld", i ? " " : "", (long long)i);
}

static void read_labels(HfReader *r, const char *key, Str *labels) {
    const json_t *names = hf_member(r, NULL, key);
    if (!names) default_labels(r, labels);
    for (size_t i = 0; names && i < json_object_size(names); i++) {
        char id[24];
        snprintf(id, sizeof id, "%zu", i);
        if (!add_label(json_object_get(names, id), labels)) {
            hf_refuse(r, key,
                      "not an object that maps the classes 0, 1, ... to texts without quotes and line ends");
            return;
        }
    }
}

static void classes_read(HfReader *r, const HfRow *row) {
    const char *head = head_of(r);
    if (!strcmp(head, CHOICES)) hf_set_text(r, row->option, TaskKind_spellings[TASK_RACE]);
    /* null means the value of hidden_dropout */
    const bool dropout = hf_member(r, NULL, "classifier_dropout") != NULL;
    if (dropout && (!strcmp(head, CHOICES) || !strcmp(head, CLASSES)))
        hf_set_real(r, OPTION_classifier_dropout, hf_get_real(r, NULL, "classifier_dropout", 0));
    if (!*head || !strcmp(head, CHOICES) || !strcmp(head, PRETRAINING) || !strcmp(head, MASKED)) return;
    if (strcmp(head, CLASSES)) {
        hf_refuse(r, row->key,
                  "but only the heads for pretraining, sequence classification and multiple choice are "
                  "supported");
        return;
    }
    const char *problem = hf_get_text(r, NULL, "problem_type", "single_label_classification");
    if (strcmp(problem, "single_label_classification"))
        hf_refuse(r, "problem_type", "but only single_label_classification is supported");
    Str labels = {0};
    read_labels(r, "id2label", &labels);
    hf_set_text(r, row->option, TaskKind_spellings[TASK_LABELS]);
    hf_set_text(r, OPTION_class_labels, labels.len ? labels.s : "");
    str_free(&labels);
}

static void classes_write(HfWriter *w, const HfRow *row) {
    const TextList *labels = &w->config->class_labels;
    (void)row;
    if (f64_is_set(w->config->classifier_dropout))
        hf_put(w, "classifier_dropout", json_real(w->config->classifier_dropout));
    if (strcmp(hf_bert_head(w->config), CLASSES)) return;
    if (w->family == HF_ROBERTA) w->family = HF_ROBERTA_CLASSES;
    json_t *names = json_object(), *ids = json_object();
    for (int64_t i = 0; i < labels->count; i++) {
        char id[24];
        snprintf(id, sizeof id, "%lld", (long long)i);
        json_object_set_new(names, id, json_string(labels->at[i]));
        json_object_set_new(ids, labels->at[i], json_integer(i));
    }
    hf_put(w, "id2label", names);
    hf_put(w, "label2id", ids);
}

/* ---- RoBERTa ---- */

static void padding_read(HfReader *r, const HfRow *row) {
    if (hf_get_count(r, row->key, HF_PADDING_TOKEN) != HF_PADDING_TOKEN)
        hf_refuse(r, row->key, "but RoBERTa counts positions from its padding token, which must be 1");
}

static void padding_write(HfWriter *w, const HfRow *row) {
    const json_t *id = json_object_get(w->tokens, row->key);
    hf_put_size(w, row->key, id ? (int64_t)json_integer_value(id) : HF_PADDING_TOKEN);
}

static void positions_after_padding_read(HfReader *r, const HfRow *row) {
    const int64_t rows = hf_get_option(r, row->option);
    if (rows <= HF_PADDING_ROWS) hf_refuse(r, row->key, "but the first two positions are unused");
    hf_set_size(r, OPTION_seq_length, rows - HF_PADDING_ROWS);
    hf_set_size(r, row->option, rows - HF_PADDING_ROWS);
}

static void positions_after_padding_write(HfWriter *w, const HfRow *row) {
    hf_put_size(w, row->key, w->config->max_position_embeddings + HF_PADDING_ROWS);
}

/* Accepts only gelu, because RoBERTa's LM head always uses this activation, regardless of the layers'
 * activation. */
static void erf_activation_read(HfReader *r, const HfRow *row) {
    if (strcmp(hf_get_text(r, NULL, row->key, row->word), row->word))
        hf_refuse(r, row->key, "but only gelu, the activation of RoBERTa's head, is supported");
    hf_form_activation.read(r, row);
}

static void erf_activation_write(HfWriter *w, const HfRow *row) { hf_form_activation.write(w, row); }

const HfForm hf_form_bert_heads = {bert_heads_read, NULL}, hf_form_classes = {classes_read, classes_write},
             hf_form_padding = {padding_read, padding_write},
             hf_form_positions_after_padding = {positions_after_padding_read, positions_after_padding_write},
             hf_form_erf_activation = {erf_activation_read, erf_activation_write};
