#include "train/checkpoint.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/file.h"
#include "ckpt/ckpt.h"
#include "comm/agree.h"
#include "nn/bert_head.h"
#include "param/bucket.h"
#include "run/launch.h"
#include "run/source.h"
#include "train/resume_notes.h"

/* ---- buffers ---- */

enum { ITEMS = 1 + OPTIM_BUFFERS };

/* Lists the items of a checkpoint. Parameters come first. Only parameters can be converted from a different
 * type, because a run cannot continue with the optimizer state of a different lane. */
static int items(const Trainer *r, bool optimizer, CkptItem out[ITEMS]) {
    const Registry *g = r->run.model->registry;
    int n = 0;
    out[n++] = (CkptItem){
        .suffix = "", .flat = g->masters, .host = g->host_masters, .dtype = g->precise, .convert = true};
    out[0].sharded = g->layout.data.stage > 0;
    out[0].ranges = registry_ranges(g, FLAT_MASTERS, &out[0].n_ranges);
    for (int i = 0; optimizer && n < ITEMS && i < r->optimizer->n_buffers; i++, n++) {
        out[n] = (CkptItem){.suffix = r->optimizer->buffer[i].suffix,
                            .flat = r->optimizer->buffer[i].flat,
                            .host = r->optimizer->buffer[i].host,
                            .dtype = r->optimizer->buffer[i].dtype,
                            .sharded = out[0].sharded};
        *(r->optimizer->buffer[i].layout == FLAT_MATRIX_STATE ? &out[n].with : &out[n].without) =
            PARAM_MATRIX;
        out[n].ranges = registry_ranges(g, r->optimizer->buffer[i].layout, &out[n].n_ranges);
    }
    return n;
}

/* ---- the progress of the run: one list for saving and loading ---- */

typedef struct Number {
    const char *key;
    int64_t *integer; /* either `integer` or `real` is set */
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

static json_t *state_of(const Trainer *r) {
    Number list[NUMBERS];
    numbers((Trainer *)r, list); /* casting away const is safe, because the numbers are only read */
    json_t *state = json_object(), *progress = json_object();
    for (int i = 0; i < NUMBERS; i++)
        json_object_set_new(progress, list[i].key,
                            list[i].integer ? json_integer(*list[i].integer) : json_real(*list[i].real));
    json_object_set_new(state, "progress", progress);
    json_object_set_new(state, "config", source_options(r->run.config, CLASS_ALL));
    json_object_set_new(state, "vocab_size", json_integer(r->run.config->derived.vocab_size));
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
                "the checkpoint in '%s' has no usable \"%s\"; load only its weights with --finetune", dir,
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
    const Config *c = r->run.config;
    CkptItem list[ITEMS];
    CkptSaveOptions options = {
        .iteration = r->iteration,
        .keep_newest = c->most_recent_k,
        .retain_interval = i64_or(c->save_retain_interval, 0),
    };
    CHECK(!r->saving, "the checkpoint of step %lld is still being written", (long long)r->saving_iteration);
    json_t *state = state_of(r);
    const Registry *g = r->run.model->registry;
    const int n = items(r, c->save_optim, list);
    Err e = c->async_save ? ckpt_save_start(c->save, &options, r->run.comm, g, list, n, state, &r->saving)
                          : ckpt_save(c->save, &options, r->run.comm, g, list, n, state);
    r->saving_iteration = r->iteration;
    json_decref(state);
    return e;
}

size_t trainer_save_bytes(const Trainer *r) {
    CkptItem list[ITEMS];
    const int n = items(r, r->run.config->save_optim, list);
    return (size_t)ckpt_save_bytes(r->run.model->registry, list, n);
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

/* Rejects a --save folder with checkpoints that this run does not continue. */
static Err check_save(const Config *c, const Source *s) {
    int64_t newest;
    if (!c->save || c->skip_train || !file_is_dir(c->save)) return ERR_OK;
    ERR_RETURN(ckpt_latest(c->save, &newest));
    if (newest < 0) return ERR_OK;
    if (!s->dir || s->weights_only || c->finetune || !file_is_same(s->dir, c->save))
        return err_user(
            "--save '%s' contains the checkpoints of another run, which has reached step %lld: set "
            "--load '%s' to continue that run, or save to another folder",
            c->save, (long long)newest, c->save);
    if (s->step >= 0 && s->step < newest)
        printf("  note: checkpoints after step %lld in %s are replaced when this run reaches their steps\n",
               (long long)s->step, c->save);
    return ERR_OK;
}

Err checkpoint_check_folders(const Config *c) {
    Source s;
    ERR_RETURN(source_find(c, &s));
    Err e = c->load && !s.dir ? source_check_missing(c) : ERR_OK;
    if (!e.code) e = check_save(c, &s);
    source_free(&s);
    return e;
}

bool checkpoint_saves_where_it_loads(const Config *c) {
    Source s;
    const bool same = c->save && !source_find(c, &s).code && s.dir && file_is_same(s.dir, c->save);
    if (c->save) source_free(&s);
    return same;
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

static void tell_heads(const Trainer *r, const Ckpt *ckpt) {
    const char *output = r->run.config->derived.choices > 1 ? "multichoice_head." : "classification_head.";
    Str others = {0};
    for (int i = 0; BERT_HEADS[i]; i++) {
        const char *head = BERT_HEADS[i];
        const bool own = !strcmp(head, output) || !strcmp(head, "pooler.");
        if (!own && stores(ckpt, head))
            str_printf(&others, "%s%.*s", others.len ? ", " : "", (int)strlen(head) - 1, head);
        if (own && !stores(ckpt, head))
            printf("  the checkpoint has no %.*s: this part is initialized from --seed %lld\n",
                   (int)strlen(head) - 1, head, (long long)r->run.config->seed);
    }
    if (others.len) printf("  the checkpoint's %s are omitted\n", others.s);
    str_free(&others);
}

/* Sets the positions of the schedules. As in Megatron-LM's checkpointing.py, the schedules are loaded with the
 * optimizer. Schedules that the options override continue at consumed_samples, which includes skipped steps. */
static void place_schedules(Trainer *r) {
    if (!r->run.config->load_optim)
        r->schedule_samples = 0;
    else if (r->run.config->override_opt_param_scheduler)
        r->schedule_samples = r->consumed_samples;
}

static Err no_optimizer(const char *dir, const char *what) {
    return err_user("the checkpoint in '%s' has no optimizer state (%s); load the checkpoint with "
                    "--no-load-optim or --finetune",
                    dir, what);
}

static Err check_folder_of_saves(const char *dir) {
    int lock;
    ERR_RETURN(file_check_folder(dir));
    if (!file_exists(dir)) return ERR_OK;
    const Err e = ckpt_lock(dir, &lock);
    if (!e.code) close(lock);
    return e;
}

Err checkpoint_check_files(const Config *c) {
    Source s;
    Ckpt *ckpt = NULL;
    ERR_RETURN(checkpoint_check_folders(c));
    if (c->save) ERR_RETURN(check_folder_of_saves(c->save));
    ERR_RETURN(source_find(c, &s));
    const bool weights_only = s.weights_only || c->finetune;
    Err e = s.dir ? ckpt_open(s.dir, s.step, NULL, &ckpt) : ERR_OK;
    if (ckpt) e = source_check(c, ckpt, s.dir, weights_only, NULL);
    const json_t *saved = ckpt ? json_object_get(ckpt_manifest(ckpt)->state, "config") : NULL;
    if (ckpt && !e.code && !weights_only && c->load_optim &&
        json_is_false(json_object_get(saved, "save_optim")))
        e = no_optimizer(s.dir, "it was saved with --no-save-optim");
    ckpt_close(ckpt);
    source_free(&s);
    return e;
}

static Err load_into(Trainer *r, const Ckpt *ckpt, const char *dir, bool weights_only) {
    const Config *c = r->run.config;
    const json_t *state = ckpt_manifest(ckpt)->state;
    const bool new_head = weights_only && c->task != TASK_NONE;
    ERR_RETURN(source_check(c, ckpt, dir, weights_only, NULL));
    if (new_head) registry_init(r->run.model->registry, r->run.context.seed);
    bool optimizer = !weights_only && c->load_optim && r->optimizer;
    for (int i = 0; optimizer && i < r->optimizer->n_buffers; i++)
        if (!ckpt_has(ckpt, r->optimizer->buffer[i].suffix))
            return no_optimizer(dir, r->optimizer->buffer[i].suffix);
    CkptItem list[ITEMS];
    const int n = items(r, optimizer, list);
    if (new_head) list[0].optional = BERT_HEADS;
    Trainer numbers_first = *r; /* a copy, so that everything is checked before r changes */
    Optimizer step_first;
    if (!weights_only) {
        step_first = *r->optimizer;
        numbers_first.optimizer = &step_first;
        ERR_RETURN(restore_numbers(&numbers_first, state, dir));
        if (!c->load_optim || !r->scaler.dynamic || !scaled_dynamically(state))
            numbers_first.scaler = r->scaler;
        place_schedules(&numbers_first);
    }
    ERR_RETURN(ckpt_load(ckpt, r->run.model->registry, list, n));
    trainer_publish(r);
    if (weights_only) return ERR_OK;
    if (!optimizer) step_first.step = 0;
    *r->optimizer = step_first;
    numbers_first.optimizer = r->optimizer;
    *r = numbers_first;
    return ERR_OK;
}

static void tell_loaded(const Trainer *r, const Ckpt *ckpt, const Source *s, bool weights_only) {
    Str notes = {0};
    if (!weights_only) resume_notes(r, ckpt_manifest(ckpt)->state, &notes);
    printf("  successfully loaded checkpoint from %s at iteration %lld\n%s", s->dir,
           (long long)ckpt_manifest(ckpt)->iteration, notes.len ? notes.s : "");
    model_run_note_fp8(&r->run, ckpt, stdout);
    if (weights_only && r->run.config->task != TASK_NONE) tell_heads(r, ckpt);
    str_free(&notes);
}

Err trainer_load(Trainer *r, bool *loaded) {
    Source s;
    *loaded = false;
    Err e = comm_agree(r->run.comm, source_find(r->run.config, &s));
    if (e.code || !s.dir) {
        if (!e.code && r->run.config->load && rank_is_printer(r->run.comm))
            printf("  no checkpoint in %s: starting anew\n", r->run.config->load);
        if (!e.code && r->run.config->task != TASK_NONE && rank_is_printer(r->run.comm))
            printf("  no --pretrained-checkpoint: all weights are initialized from --seed %lld\n",
                   (long long)r->run.config->seed);
        source_free(&s);
        return e;
    }
    const bool weights_only = s.weights_only || r->run.config->finetune;
    Ckpt *ckpt;
    e = ckpt_open(s.dir, s.step, r->run.comm, &ckpt);
    if (!e.code) e = load_into(r, ckpt, s.dir, weights_only);
    if (!e.code && rank_is_printer(r->run.comm)) tell_loaded(r, ckpt, &s, weights_only);
    ckpt_close(ckpt);
    source_free(&s);
    *loaded = !e.code;
    return e;
}

/* Returns the checkpoint's schedule options. If the checkpoint contains no decay length, the decay length is
 * the saved run's planned length. Marks the schedule options as not given by the user. */
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
            e = err_user("'%s' contains a %s model, but a task fine-tunes a BERT model: load a checkpoint of "
                         "--model bert",
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
    e = source_restore(c, arena, some, CLASS_ALL, &none);
    json_decref(some);
    str_free(&none);
    ckpt_close(ckpt);
    return e;
}
