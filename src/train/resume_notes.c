#include "train/resume_notes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/args.h"
#include "optim/schedule.h"
#include "run/option_changes.h"

/* Whether the learning rates of the remaining steps change, and whether their weight decay changes. */
typedef struct Schedules {
    bool rate, decay;
} Schedules;

static Schedules differ(const Trainer *r, const Config *old, int64_t coming) {
    const Config *c = r->run.config;
    const Derived *d = &r->run.config->derived;
    const int64_t at = r->schedule_samples + coming;
    const double lr = schedule_lr(c, c->lr, c->min_lr, at),
                 decoupled = schedule_lr(c, d->decoupled_lr, d->decoupled_min_lr, at);
    return (Schedules){
        .rate = lr != schedule_lr(old, old->lr, old->min_lr, at) ||
                decoupled != schedule_lr(old, old->derived.decoupled_lr, old->derived.decoupled_min_lr, at),
        .decay = schedule_weight_decay(c, at) != schedule_weight_decay(old, at),
    };
}

static bool concerns_schedules(int option) {
    const OptionChange change = option_change(option);
    return change == CHANGES_RATE || change == CHANGES_DECAY || change == CHANGES_LENGTH ||
           change == CHANGES_BATCH;
}

/* Compares the schedules of the remaining steps with the schedules that result from `values`, the checkpoint's
 * values of some options. If the checkpoint's values are not valid with the other options, both schedules count
 * as changed. */
static Schedules changed_by(const Trainer *r, const json_t *values) {
    enum { POINTS = 10000 };
    const Derived *d = &r->run.config->derived;
    Arena *arena = arena_new();
    Config old = *r->run.config;
    Args args;
    Str ignored = {0};
    Schedules sum = {true, true};
    char *text = json_dumps(values, 0);
    args_init(&args, arena, "", NULL);
    for (int i = 0; i < OPTIONS; i++)
        if (config_field_name(i) && json_object_get(values, config_field_name(i))) old.given[i] = 0;
    const Err e = config_from_json(&old, arena, text, strlen(text), CLASS_ALL, &ignored);
    if (!e.code) config_check(&old, CHECK_MODEL | CHECK_TRAIN, &args);
    if (!e.code && !args.num_problems) {
        config_finish(&old, arena, d->vocab_size);
        const int64_t left = d->samples_needed - r->consumed_samples, batch = d->global_batch_size,
                      stride = left / POINTS > batch ? left / POINTS : batch;
        sum = (Schedules){false, false};
        for (int64_t k = 0; k < left; k += stride) {
            const Schedules here = differ(r, &old, k);
            sum.rate |= here.rate, sum.decay |= here.decay;
        }
    }
    args_free(&args);
    str_free(&ignored);
    free(text);
    arena_free(arena);
    return sum;
}

static Schedules changed_by_all(const Trainer *r, const json_t *saved) {
    json_t *some = json_object();
    for (int i = 0; i < OPTIONS; i++) {
        json_t *there = concerns_schedules(i) ? json_object_get(saved, config_field_name(i)) : NULL;
        if (there) json_object_set(some, config_field_name(i), there);
    }
    const Schedules all = changed_by(r, some);
    json_decref(some);
    return all;
}

/* Appends the effect of a changed option. `all` states whether each schedule would change if all schedule
 * options had the values of the checkpoint. */
static void put_consequence(const Trainer *r, int option, const json_t *there, Schedules all, Str *out) {
    const OptionChange change = option_change(option);
    const char *then = option_change_text(change);
    Schedules changed = {false, false};
    if (concerns_schedules(option)) {
        json_t *one = json_object();
        json_object_set(one, config_field_name(option), (json_t *)there);
        changed = changed_by(r, one);
        changed.rate &= all.rate, changed.decay &= all.decay;
        json_decref(one);
    }
    if (change == CHANGES_RATE && !changed.rate)
        then = "the learning rates of the remaining steps do not change";
    else if (change == CHANGES_DECAY && !changed.decay)
        then = "the weight decay of the remaining steps does not change";
    str_puts(out, then);
    if (changed.rate && change != CHANGES_RATE) str_puts(out, ", and the learning rates change");
    if (changed.decay && change != CHANGES_DECAY) str_puts(out, ", and the weight decay changes");
    str_puts(out, "\n");
}

static void put_progress(const Trainer *r, const json_t *state, Str *out) {
    const json_t *there = json_object_get(json_object_get(state, "progress"), "scheduler_samples");
    const long long was = json_integer_value(there), is = r->schedule_samples;
    if (!r->run.config->load_optim)
        str_puts(out, "  note: --no-load-optim: the optimizer, the loss scale and the learning-rate and "
                      "weight-decay schedules restart\n");
    else if (there && was != is)
        str_printf(out,
                   "  note: --override-opt_param-scheduler: the learning-rate and weight-decay schedules "
                   "continue at sample %lld; in the checkpoint, they are at %lld\n",
                   is, was);
}

static bool names_data(int option) {
    return option == OPTION_data_path || option == OPTION_train_data_path || option == OPTION_train_data ||
           option == OPTION_valid_data || option == OPTION_valid_data_path ||
           option == OPTION_test_data_path || option == OPTION_mock_data;
}

void resume_notes(const Trainer *r, const json_t *state, Str *out) {
    const Config *c = r->run.config;
    const json_t *saved = json_object_get(state, "config");
    const char *there_data =
        json_string_value(json_object_get(state, "data")); /* older checkpoints have no fingerprint */
    bool same_names = true;
    Str text = {0};
    config_json(c, CLASS_RUN | CLASS_NUMERIC | CLASS_ARCH, &text);
    json_t *ours = json_loadb(text.s, text.len, 0, NULL);
    const Schedules all = changed_by_all(r, saved);
    for (int i = 0; i < OPTIONS; i++) {
        const char *key = config_field_name(i);
        const json_t *here = key ? json_object_get(ours, key) : NULL,
                     *there = key ? json_object_get(saved, key) : NULL;
        const bool implied = i == OPTION_train_iters && c->task != TASK_NONE; /* by --epochs */
        if (!here || !there || json_equal(here, there) || !option_change(i) || implied) continue;
        str_puts(out, "  note: ");
        option_difference(i, here, there, out);
        str_puts(out, ": ");
        put_consequence(r, i, there, all, out);
        same_names &= !names_data(i);
    }
    put_progress(r, state, out);
    if (r->data_fingerprint && there_data && same_names && strcmp(r->data_fingerprint, there_data))
        str_printf(out, "  note: the data files have changed since the checkpoint: %s\n",
                   option_change_text(CHANGES_DATA));
    json_decref(ours);
    str_free(&text);
}
