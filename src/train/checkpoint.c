#include "train/checkpoint.h"

#include <dirent.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/file.h"
#include "base/mem.h"
#include "ckpt/ckpt.h"
#include "models/option_map.h"
#include "nn/bert_head.h"
#include "param/bucket.h"
#include "comm/agree.h"
#include "train/launch.h"
#include "train/resume_notes.h"

/* ---- buffers ---- */

enum { ITEMS = 1 + OPTIM_BUFFERS };

/* Parameters first; only they may be converted from another dtype, because optimizer state of another lane
 * would not continue the run. */
static int items(const Trainer *r, bool optimizer, CkptItem out[ITEMS]) {
    const Registry *g = r->model->registry;
    int n = 0;
    const bool copy = registry_is_copy(g);
    out[n++] =
        (CkptItem){.suffix = "", .flat = g->masters, .dtype = g->precise, .convert = true, .is_copy = copy};
    out[0].ranges = registry_ranges(g, FLAT_MASTERS, &out[0].n_ranges);
    for (int i = 0; optimizer && n < ITEMS && i < r->optimizer->n_buffers; i++, n++) {
        out[n] = (CkptItem){.suffix = r->optimizer->buffer[i].suffix,
                            .flat = r->optimizer->buffer[i].flat,
                            .dtype = r->optimizer->buffer[i].dtype,
                            .is_copy = copy};
        out[n].ranges = registry_ranges(g, FLAT_STATE, &out[n].n_ranges);
    }
    return n;
}

/* ---- progress numbers: one list for saving and loading ---- */

typedef struct Number {
    const char *key;
    int64_t *integer; /* one of the two is set */
    double *real;
} Number;

enum { NUMBERS = 9 };
static void numbers(Trainer *r, Number out[NUMBERS]) {
    const Number list[NUMBERS] = {
        {"consumed_train_samples", &r->consumed_samples, NULL},
        {"consumed_valid_samples", &r->consumed_valid_samples, NULL},
        {"scheduler_samples", &r->schedule_samples, NULL},
        {"skipped_iterations", &r->skipped_iterations, NULL},
        {"optimizer_step", &r->optimizer->step, NULL},
        {"scaler_growth_tracker", &r->scaler.growth_tracker, NULL},
        {"scaler_hysteresis_tracker", &r->scaler.hysteresis_tracker, NULL},
        {"scaler_scale", NULL, &r->scaler.scale},
        {"iteration", &r->iteration, NULL},
    };
    memcpy(out, list, sizeof list);
}

static json_t *config_state(const Config *c, unsigned classes) {
    Str text = {0};
    config_json(c, classes, &text);
    json_t *j = json_loadb(text.s, text.len, 0, NULL);
    CHECK(j, "the configuration is not JSON: %s", text.s);
    str_free(&text);
    return j;
}

static json_t *state_of(const Trainer *r) {
    Number list[NUMBERS];
    numbers((Trainer *)r, list); /* only read here */
    json_t *state = json_object(), *progress = json_object();
    for (int i = 0; i < NUMBERS; i++)
        json_object_set_new(progress, list[i].key,
                            list[i].integer ? json_integer(*list[i].integer) : json_real(*list[i].real));
    json_object_set_new(state, "progress", progress);
    json_object_set_new(state, "config", config_state(r->config, CLASS_ALL));
    json_object_set_new(state, "vocab_size", json_integer(r->derived->vocab_size));
    if (r->data_fingerprint) json_object_set_new(state, "data", json_string(r->data_fingerprint));
    return state;
}

static Err restore_numbers(Trainer *r, const json_t *state, const char *dir) {
    Number list[NUMBERS];
    numbers(r, list);
    const json_t *progress = json_object_get(state, "progress");
    for (int i = 0; i < NUMBERS; i++) {
        const json_t *v = json_object_get(progress, list[i].key);
        if (list[i].integer ? !json_is_integer(v) || json_integer_value(v) < 0 : !json_is_number(v))
            return err_user(
                "the checkpoint in '%s' has no usable \"%s\"; load its weights alone with --finetune", dir,
                list[i].key);
    }
    for (int i = 0; i < NUMBERS; i++) {
        const json_t *v = json_object_get(progress, list[i].key);
        if (list[i].integer)
            *list[i].integer = json_integer_value(v);
        else
            *list[i].real = json_number_value(v);
    }
    return ERR_OK;
}

/* ---- saving ---- */

Err trainer_save(Trainer *r) {
    const Config *c = r->config;
    CkptItem list[ITEMS];
    CkptSaveOptions options = {
        .iteration = r->iteration,
        .keep_newest = c->most_recent_k,
        .retain_interval = i64_or(c->save_retain_interval, 0),
    };
    CHECK(!r->saving, "the checkpoint of step %lld is still being written", (long long)r->saving_iteration);
    json_t *state = state_of(r);
    const Registry *g = r->model->registry;
    const int n = items(r, c->save_optim, list);
    Err e = c->async_save ? ckpt_save_start(c->save, &options, r->comm, g, list, n, state, &r->saving)
                          : ckpt_save(c->save, &options, r->comm, g, list, n, state);
    r->saving_iteration = r->iteration;
    json_decref(state);
    return e;
}

Err trainer_finish_save(Trainer *r, bool wait, int64_t *iteration) {
    *iteration = -1;
    if (!r->saving || (!wait && !ckpt_save_is_written(r->saving))) return ERR_OK;
    *iteration = r->saving_iteration;
    CkptSaving *s = r->saving;
    r->saving = NULL;
    return ckpt_save_finish(s);
}

/* ---- loading ---- */

typedef struct Source {
    char *dir;    /* owned; NULL: there is no checkpoint */
    int64_t step; /* -1: the newest */
    bool weights_only;
} Source;

static void source_free(Source *s) {
    free(s->dir);
    s->dir = NULL;
}

/* Finds --load or, while that is empty, --pretrained-checkpoint. */
static Err source_find(const Config *c, Source *s) {
    int64_t latest = -1;
    *s = (Source){.step = -1};
    if (c->load) {
        ERR_RETURN(ckpt_locate(c->load, &s->dir, &s->step));
        Err e = s->step < 0 ? ckpt_latest(s->dir, &latest) : ERR_OK;
        if (s->step >= 0 && i64_is_set(c->ckpt_step) && c->ckpt_step != s->step)
            e = err_user("--load '%s' and --ckpt-step %lld specify two different checkpoints: remove one",
                         c->load, (long long)c->ckpt_step);
        if (!e.code && s->step < 0 && latest >= 0) s->step = i64_or(c->ckpt_step, -1);
        if (!e.code && (s->step >= 0 || latest >= 0)) return ERR_OK;
        source_free(s);
        if (e.code) return e;
    }
    s->weights_only = true;
    return c->pretrained_checkpoint ? ckpt_locate(c->pretrained_checkpoint, &s->dir, &s->step) : ERR_OK;
}

static bool same_folder(const char *a, const char *b) {
    if (!strcmp(a, b)) return true;
    char *x = realpath(a, NULL), *y = realpath(b, NULL);
    const bool same = x && y && !strcmp(x, y);
    free(x);
    free(y);
    return same;
}

static bool is_empty_folder(const char *path) {
    DIR *d = opendir(path);
    int others = 0;
    for (struct dirent *entry; d && (entry = readdir(d));)
        others += strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..");
    if (d) closedir(d);
    return d && !others;
}

/* Megatron-LM starts from scratch if there is no checkpoint, so a mistyped path costs a day. */
static Err check_load(const Config *c) {
    if (c->exit_on_missing_checkpoint)
        return err_user("'%s' holds no checkpoint, and --exit-on-missing-checkpoint is given", c->load);
    if ((c->save && same_folder(c->load, c->save)) || is_empty_folder(c->load)) return ERR_OK;
    return err_user("--load '%s' holds no checkpoint; check the path. To begin a run there that later "
                    "resumes with the same command, set --save to the same folder; otherwise remove --load",
                    c->load);
}

/* A run saves only into a folder whose checkpoints it continues. */
static Err check_save(const Config *c, const Source *s) {
    int64_t newest;
    if (!c->save || c->skip_train || !file_is_dir(c->save)) return ERR_OK;
    ERR_RETURN(ckpt_latest(c->save, &newest));
    if (newest < 0) return ERR_OK;
    if (!s->dir || s->weights_only || c->finetune || !same_folder(s->dir, c->save))
        return err_user("--save '%s' holds the checkpoints of a run that is at step %lld, and this run does "
                        "not continue it: set --load '%s' to continue it, or save to another folder",
                        c->save, (long long)newest, c->save);
    if (s->step >= 0 && s->step < newest)
        printf("  note: checkpoints after step %lld in %s are replaced when this run reaches their steps\n",
               (long long)s->step, c->save);
    return ERR_OK;
}

Err checkpoint_check_folders(const Config *c) {
    Source s;
    ERR_RETURN(source_find(c, &s));
    Err e = c->load && !s.dir ? check_load(c) : ERR_OK;
    if (!e.code) e = check_save(c, &s);
    source_free(&s);
    return e;
}

bool checkpoint_saves_where_it_loads(const Config *c) {
    Source s;
    const bool same = c->save && !source_find(c, &s).code && s.dir && same_folder(s.dir, c->save);
    if (c->save) source_free(&s);
    return same;
}

/* A continued run keeps these too, but weights alone do not depend on them. A table of positions does; loading
 * compares its shape. */
static bool concerns_weights(const char *key) {
    static const char *const APART[] = {"seq_length",
                                        "decoder_seq_length",
                                        "max_position_embeddings",
                                        "make_vocab_size_divisible_by",
                                        "hf_model_type",
                                        "task",
                                        "class_labels",
                                        "classifier_dropout"};
    for (size_t i = 0; i < sizeof APART / sizeof *APART; i++)
        if (!strcmp(key, APART[i])) return false;
    return true;
}

Err checkpoint_check_model(const Config *c, const json_t *state, const char *dir, bool weights_only) {
    json_t *ours = config_state(c, CLASS_ARCH);
    const json_t *theirs = json_object_get(state, "config");
    Str differences = {0};
    for (int i = 0; i < OPTIONS; i++) {
        const char *key = config_field_name(i);
        const json_t *here = key ? json_object_get(ours, key) : NULL,
                     *there = key ? json_object_get(theirs, key) : NULL;
        if (!here || !there || i == OPTION_vocab_size || json_equal(here, there)) continue;
        if (resume_may_change(i) || (weights_only && !concerns_weights(key))) continue;
        if (differences.len) str_puts(&differences, "; ");
        resume_difference(i, here, there, &differences);
    }
    Err e = ERR_OK;
    if (differences.len)
        e = err_user(
            "the checkpoint in '%s' is of another model: %s; use its values, or add --use-checkpoint-args%s",
            dir, differences.s, weights_only ? "" : "; lengths may change with --finetune");
    str_free(&differences);
    json_decref(ours);
    return e;
}

/* The rows of the embedding and of the output layer. */
static Err check_vocabulary(const Config *c, int64_t ours, const json_t *state, const char *dir) {
    const int64_t theirs = json_integer_value(json_object_get(state, "vocab_size"));
    if (theirs < 1 || ours == theirs) return ERR_OK;
    const char *file = c->tokenizer_model ? c->tokenizer_model : c->vocab_file;
    const char *type = json_string_value(json_object_get(json_object_get(state, "config"), "tokenizer_type"));
    return err_user(
        "%s%s%s%s has %lld ids, but the model in '%s' has %lld: set --tokenizer-type and its files to "
        "the tokenizer of the training%s%s%s",
        c->tokenizer_type ? "the tokenizer " : "the vocabulary of --vocab-size",
        c->tokenizer_type ? c->tokenizer_type : "", c->tokenizer_type && file ? " " : "",
        c->tokenizer_type && file ? quote(file).s : "", (long long)ours, dir, (long long)theirs,
        type ? ", " : "", type ? type : "",
        c->save ? "; for a new model, choose other folders for --load and --save" : "");
}

static bool scaled_dynamically(const json_t *state) {
    const json_t *config = json_object_get(state, "config");
    const char *lane = json_string_value(json_object_get(config, "lane"));
    return lane && !strcmp(lane, "fp16") && json_is_null(json_object_get(config, "loss_scale"));
}

static bool stores(const Ckpt *ckpt, const char *start) {
    const Manifest *m = ckpt_manifest(ckpt);
    for (int64_t i = 0; i < m->count; i++)
        if (!strncmp(m->tensors[i].name, start, strlen(start))) return true;
    return false;
}

static void tell_heads(const Trainer *r, const Ckpt *ckpt, FILE *to) {
    const char *output = r->derived->choices > 1 ? "multichoice_head." : "classification_head.";
    Str others = {0};
    for (int i = 0; BERT_HEADS[i]; i++) {
        const char *head = BERT_HEADS[i];
        const bool own = !strcmp(head, output) || !strcmp(head, "pooler.");
        if (!own && stores(ckpt, head))
            str_printf(&others, "%s%.*s", others.len ? ", " : "", (int)strlen(head) - 1, head);
        if (own && !stores(ckpt, head))
            fprintf(to, "  the checkpoint has no %.*s: it is initialised from --seed %lld\n",
                    (int)strlen(head) - 1, head, (long long)r->config->seed);
    }
    if (others.len) fprintf(to, "  the checkpoint's %s are left out\n", others.s);
    str_free(&others);
}

/* Megatron-LM's checkpointing.py loads the schedules with the optimizer. If the options override them, they continue at the
 * samples of all steps, including skipped ones. */
static void place_schedules(Trainer *r) {
    if (!r->config->load_optim)
        r->schedule_samples = 0;
    else if (r->config->override_opt_param_scheduler)
        r->schedule_samples = r->consumed_samples;
}

static Err no_optimizer(const char *dir, const char *what) {
    return err_user(
        "the checkpoint in '%s' has no optimizer state (%s); load it with --no-load-optim or --finetune", dir,
        what);
}

static Err check_fits(const Config *c, const Derived *d, const Ckpt *ckpt, const char *dir,
                      bool weights_only) {
    const json_t *state = ckpt_manifest(ckpt)->state;
    ERR_RETURN(checkpoint_check_model(c, state, dir, weights_only));
    return check_vocabulary(c, d->vocab_size, state, dir);
}

static Err check_folder_of_saves(const char *dir) {
    int lock;
    ERR_RETURN(file_check_folder(dir));
    if (!file_exists(dir)) return ERR_OK;
    const Err e = ckpt_lock(dir, &lock);
    if (!e.code) close(lock);
    return e;
}

Err checkpoint_check_files(const Config *c, const Derived *d) {
    Source s;
    Ckpt *ckpt = NULL;
    ERR_RETURN(checkpoint_check_folders(c));
    if (c->save) ERR_RETURN(check_folder_of_saves(c->save));
    ERR_RETURN(source_find(c, &s));
    const bool weights_only = s.weights_only || c->finetune;
    Err e = s.dir ? ckpt_open(s.dir, s.step, NULL, &ckpt) : ERR_OK;
    if (ckpt) e = check_fits(c, d, ckpt, s.dir, weights_only);
    const json_t *saved = ckpt ? json_object_get(ckpt_manifest(ckpt)->state, "config") : NULL;
    if (ckpt && !e.code && !weights_only && c->load_optim &&
        json_is_false(json_object_get(saved, "save_optim")))
        e = no_optimizer(s.dir, "it was saved with --no-save-optim");
    ckpt_close(ckpt);
    source_free(&s);
    return e;
}

static Err load_into(Trainer *r, const Ckpt *ckpt, const char *dir, bool weights_only) {
    const Config *c = r->config;
    const json_t *state = ckpt_manifest(ckpt)->state;
    ERR_RETURN(check_fits(c, r->derived, ckpt, dir, weights_only));
    bool optimizer = !weights_only && c->load_optim && r->optimizer;
    for (int i = 0; optimizer && i < r->optimizer->n_buffers; i++)
        if (!ckpt_has(ckpt, r->optimizer->buffer[i].suffix))
            return no_optimizer(dir, r->optimizer->buffer[i].suffix);
    CkptItem list[ITEMS];
    const int n = items(r, optimizer, list);
    if (weights_only && c->task != TASK_NONE) list[0].optional = BERT_HEADS;
    Trainer numbers_first = *r; /* all is checked before anything changes */
    Optimizer step_first;
    if (!weights_only) {
        step_first = *r->optimizer;
        numbers_first.optimizer = &step_first;
        ERR_RETURN(restore_numbers(&numbers_first, state, dir));
        if (!c->load_optim || !r->scaler.dynamic || !scaled_dynamically(state))
            numbers_first.scaler = r->scaler;
        place_schedules(&numbers_first);
    }
    ERR_RETURN(ckpt_load(ckpt, r->model->registry, list, n));
    trainer_publish(r);
    if (weights_only) return ERR_OK;
    if (!optimizer) step_first.step = 0;
    *r->optimizer = step_first;
    numbers_first.optimizer = r->optimizer;
    *r = numbers_first;
    return ERR_OK;
}

/* FP8's scales are not part of the model: a run of the other kind ignores them, or starts with new ones. */
static void tell_fp8_state(const Config *c, const Ckpt *ckpt, FILE *to) {
    const bool stored = ckpt_has_fp8_state(ckpt),
               wanted = c->fp8_format != FP8_NONE && c->fp8_recipe == FP8_DELAYED;
    if (stored && !wanted)
        fprintf(to, "  the FP8 scales of the checkpoint are left out: this run has no delayed ones\n");
    if (!stored && wanted) fprintf(to, "  the checkpoint has no FP8 scales: they begin as in a first step\n");
}

static void tell_loaded(const Trainer *r, const Ckpt *ckpt, const Source *s, bool weights_only, FILE *to) {
    Str notes = {0};
    if (!weights_only) resume_notes(r, ckpt_manifest(ckpt)->state, &notes);
    fprintf(to, "  successfully loaded checkpoint from %s at iteration %lld\n%s", s->dir,
            (long long)ckpt_manifest(ckpt)->iteration, notes.len ? notes.s : "");
    tell_fp8_state(r->config, ckpt, to);
    if (weights_only && r->config->task != TASK_NONE) tell_heads(r, ckpt, to);
    str_free(&notes);
}

/* Prints to `to`. */
static Err checkpoint_load(Trainer *r, bool weights_only, FILE *to, bool *loaded) {
    Source s;
    *loaded = false;
    Err e = comm_agree(r->comm, source_find(r->config, &s));
    if (e.code || !s.dir) {
        if (!e.code && r->config->load && rank_is_printer(r->comm))
            fprintf(to, "  no checkpoint in %s: starting anew\n", r->config->load);
        source_free(&s);
        return e;
    }
    weights_only |= s.weights_only;
    Ckpt *ckpt;
    e = ckpt_open(s.dir, s.step, r->comm, &ckpt);
    if (!e.code) e = load_into(r, ckpt, s.dir, weights_only);
    if (!e.code && rank_is_printer(r->comm)) tell_loaded(r, ckpt, &s, weights_only, to);
    ckpt_close(ckpt);
    source_free(&s);
    *loaded = !e.code;
    return e;
}

Err trainer_load(Trainer *r, bool *loaded) { return checkpoint_load(r, r->config->finetune, stdout, loaded); }

/* The options that name the tokenizer, if the checkpoint has any. */
static json_t *tokenizer_options(const json_t *config) {
    static const char *const NAMES[] = {"tokenizer_type",
                                        "tokenizer_model",
                                        "vocab_file",
                                        "merge_file",
                                        "null_tokenizer_eod_id",
                                        "null_tokenizer_pad_id",
                                        "vocab_extra_ids",
                                        "tokenizer_special_tokens",
                                        "tiktoken_pattern",
                                        "tiktoken_num_special_tokens"};
    json_t *some = json_object();
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        json_t *value = json_object_get(config, NAMES[i]);
        if (value) json_object_set(some, NAMES[i], value);
    }
    return some;
}

/* The options of the schedules in a checkpoint. Without a length the decay is as long as the planned run. */
static json_t *schedule_options(Config *c, const json_t *config) {
    static const char *const NAMES[] = {
        "lr",
        "min_lr",
        "lr_warmup_fraction",
        "lr_warmup_iters",
        "lr_warmup_samples",
        "weight_decay",
        "lr_decay_style",
        "lr_decay_iters",
        "lr_decay_samples",
        "weight_decay_incr_style",
        "decoupled_lr",
        "decoupled_min_lr",
        "start_weight_decay",
        "end_weight_decay",
    };
    json_t *some = json_object();
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        json_t *value = json_object_get(config, NAMES[i]);
        if (json_is_null(value) && !strcmp(NAMES[i], "lr_decay_iters"))
            value = json_object_get(config, "train_iters");
        if (json_is_null(value) && !strcmp(NAMES[i], "lr_decay_samples"))
            value = json_object_get(config, "train_samples");
        if (value) json_object_set(some, NAMES[i], value);
        for (int k = 0; k < OPTIONS; k++)
            if (config_field_name(k) && !strcmp(config_field_name(k), NAMES[i])) c->given[k] = 0;
    }
    return some;
}

static Err restore_options(Config *c, Arena *arena, const json_t *from, unsigned classes, Str *notes) {
    char *text = json_dumps(from ? from : json_null(), JSON_ENCODE_ANY);
    Err e = config_from_json(c, arena, text, strlen(text), classes, notes);
    free(text);
    return e;
}

Err checkpoint_args(Config *c, Arena *arena, Str *notes) {
    Source s;
    const bool tokenizer = !c->tokenizer_type && !i64_is_set(c->vocab_size);
    ERR_RETURN(source_find(c, &s));
    if (!s.dir && c->use_checkpoint_args && c->load) return check_load(c); /* a run that begins */
    if (!s.dir)
        return c->load ? err_user("'%s' holds no checkpoint; check the path", c->load)
                       : err_user("--load is missing; which checkpoint?");
    Ckpt *ckpt;
    Err e = ckpt_open(s.dir, s.step, NULL, &ckpt);
    source_free(&s);
    if (e.code) return e;
    json_t *config = json_copy(json_object_get(ckpt_manifest(ckpt)->state, "config"));
    static const char *const OF_TASK[] = {"task", "class_labels", "classifier_dropout"};
    for (size_t i = 0; s.weights_only && i < sizeof OF_TASK / sizeof *OF_TASK; i++)
        json_object_del(config, OF_TASK[i]);
    e = restore_options(c, arena, config, CLASS_ARCH, notes);
    if (!e.code && tokenizer) {
        json_t *some = tokenizer_options(config);
        e = restore_options(c, arena, some, CLASS_ALL, notes);
        json_decref(some);
    }
    json_decref(config);
    ckpt_close(ckpt);
    return e;
}

Err checkpoint_check_task(const Config *c) {
    Source s;
    Ckpt *ckpt = NULL;
    Err e = ERR_OK;
    ERR_RETURN(source_find(c, &s));
    if (s.dir) e = ckpt_open(s.dir, s.step, NULL, &ckpt);
    if (ckpt) {
        const json_t *config = json_object_get(ckpt_manifest(ckpt)->state, "config");
        const char *model = json_string_value(json_object_get(config, "model"));
        if (model && strcmp(model, ModelFamily_spellings[MODEL_bert]))
            e = err_user("'%s' holds a %s, but a task fine-tunes a BERT: load a checkpoint of --model bert",
                         s.dir, quote(model).s);
        ckpt_close(ckpt);
    }
    source_free(&s);
    return e;
}

Err checkpoint_schedule(Config *c, Arena *arena) {
    Source s;
    Ckpt *ckpt = NULL;
    ERR_RETURN(source_find(c, &s));
    const bool first_run = !s.dir || s.weights_only || c->finetune || !c->load_optim;
    Err e = first_run ? ERR_OK : ckpt_open(s.dir, s.step, NULL, &ckpt);
    source_free(&s);
    if (!ckpt) return e;
    json_t *some = schedule_options(c, json_object_get(ckpt_manifest(ckpt)->state, "config"));
    Str none = {0};
    e = restore_options(c, arena, some, CLASS_ALL, &none);
    json_decref(some);
    str_free(&none);
    ckpt_close(ckpt);
    return e;
}

Err trainer_open_for_inference(const Config *c, const Derived *d, Comm *comm, Trainer **out) {
    Device *device;
    char transport[200];
    *out = NULL;
    ERR_RETURN(rank_open_device(c, d, comm, &device, transport));
    Trainer *r = trainer_new(c, d, NULL, comm, device);
    bool loaded;
    Err e = comm_agree(comm, checkpoint_load(r, true, stderr, &loaded));
    if (!e.code && !loaded) e = err_user("'%s' holds no checkpoint", c->load);
    if (!e.code) trainer_refresh_states(r, false);
    if (e.code) trainer_free(r);
    *out = e.code ? NULL : r;
    return e;
}
