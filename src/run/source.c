#include "run/source.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/file.h"
#include "run/option_changes.h"

void source_free(Source *s) {
    free(s->dir);
    s->dir = NULL;
}

Err source_find(const Config *c, Source *s) {
    int64_t latest = -1;
    *s = (Source){.step = -1};
    if (c->load) {
        ERR_RETURN(ckpt_locate(c->load, &s->dir, &s->step));
        Err e = s->step < 0 ? ckpt_latest(s->dir, &latest) : ERR_OK;
        if (s->step >= 0 && i64_is_set(c->ckpt_step) && c->ckpt_step != s->step)
            e = err_user("--load '%s' and --ckpt-step %lld specify two different checkpoints: remove one of "
                         "the options",
                         c->load, (long long)c->ckpt_step);
        if (!e.code && s->step < 0 && latest >= 0) s->step = i64_or(c->ckpt_step, -1);
        if (!e.code && (s->step >= 0 || latest >= 0)) return ERR_OK;
        source_free(s);
        if (e.code) return e;
    }
    s->weights_only = true;
    return c->pretrained_checkpoint ? ckpt_locate(c->pretrained_checkpoint, &s->dir, &s->step) : ERR_OK;
}

static bool is_empty_folder(const char *path) {
    DIR *d = opendir(path);
    int others = 0;
    for (struct dirent *entry; d && (entry = readdir(d));)
        others += strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..");
    if (d) closedir(d);
    return d && !others;
}

Err source_check_missing(const Config *c) {
    if (c->exit_on_missing_checkpoint)
        return err_user("'%s' contains no checkpoint, and --exit-on-missing-checkpoint is given", c->load);
    if ((c->save && file_is_same(c->load, c->save)) || is_empty_folder(c->load)) return ERR_OK;
    return err_user(
        "--load '%s' contains no checkpoint; check the path. To start a new run in this folder that can "
        "later be resumed with the same command, set --save to the same folder; otherwise, remove --load",
        c->load);
}

json_t *source_options(const Config *c, unsigned classes) {
    Str text = {0};
    config_json(c, classes, &text);
    json_t *j = json_loadb(text.s, text.len, 0, NULL);
    CHECK(j, "the configuration is not JSON: %s", text.s);
    str_free(&text);
    return j;
}

/* Returns whether the weights depend on an option. Sequence lengths affect no weight except the table of
 * positions; its shape is compared when it is loaded. */
static bool concerns_weights(const char *key) {
    static const char *const APART[] = {"seq_length",
                                        "decoder_seq_length",
                                        "max_position_embeddings",
                                        "make_vocab_size_divisible_by",
                                        "hf_model_type",
                                        "task",
                                        "class_labels"};
    for (size_t i = 0; i < sizeof APART / sizeof *APART; i++)
        if (!strcmp(key, APART[i])) return false;
    return true;
}

Err source_check_model(const Config *c, const json_t *state, const char *dir, bool weights_only,
                       const char *remedy) {
    json_t *ours = source_options(c, CLASS_ARCH);
    const json_t *theirs = json_object_get(state, "config");
    Str differences = {0};
    for (int i = 0; i < OPTIONS; i++) {
        const char *key = config_field_name(i);
        const json_t *here = key ? json_object_get(ours, key) : NULL,
                     *there = key ? json_object_get(theirs, key) : NULL;
        if (!here || !there || i == OPTION_vocab_size || json_equal(here, there)) continue;
        if (option_change(i) || (weights_only && !concerns_weights(key))) continue;
        if (differences.len) str_puts(&differences, "; ");
        option_difference(i, here, there, &differences);
    }
    Err e = ERR_OK;
    if (differences.len)
        e = err_user("the checkpoint in '%s' contains a different model: %s; %s%s", dir, differences.s,
                     remedy ? remedy : "use the checkpoint's values, or add --use-checkpoint-args",
                     weights_only ? "" : "; lengths may change with --finetune");
    str_free(&differences);
    json_decref(ours);
    return e;
}

/* Checks the number of rows in the embedding and in the output layer. */
static Err check_vocabulary(const Config *c, int64_t ours, const json_t *state, const char *dir,
                            const char *remedy) {
    const int64_t theirs = json_integer_value(json_object_get(state, "vocab_size"));
    if (theirs < 1 || ours == theirs) return ERR_OK;
    const char *type = json_string_value(json_object_get(json_object_get(state, "config"), "tokenizer_type"));
    return err_user("%s%s has %lld tokens, but the model in '%s' has %lld: %s%s%s%s",
                    c->tokenizer_type ? "the tokenizer " : "the vocabulary of --vocab-size",
                    c->tokenizer_type ? config_tokenizer_text(c).s : "", (long long)ours, dir,
                    (long long)theirs,
                    remedy ? remedy : "set --tokenizer-type and its files to the tokenizer used in training",
                    type && !remedy ? ", " : "", type && !remedy ? type : "",
                    c->save ? "; for a new model, choose other folders for --load and --save" : "");
}

Err source_check(const Config *c, const Ckpt *ckpt, const char *dir, bool weights_only, const char *remedy) {
    const json_t *state = ckpt_manifest(ckpt)->state;
    ERR_RETURN(source_check_model(c, state, dir, weights_only, remedy));
    return check_vocabulary(c, c->derived.vocab_size, state, dir, remedy);
}

/* Returns the checkpoint's options that specify the tokenizer, if there are any. */
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

/* Returns the checkpoint's load-balancing options if they change how experts are selected even during
 * generation, and are therefore part of the model. */
static json_t *routing_options(const json_t *config) {
    static const char NAME[] = "moe_router_load_balancing_type";
    json_t *types = json_object_get(config, NAME), *some = json_object();
    const char *type = json_string_value(json_array_get(types, 0));
    const int found = type ? enum_find(LoadBalancing_spellings, type) : -1;
    if (found == BALANCE_SINKHORN || found == BALANCE_QUANTILE) json_object_set(some, NAME, types);
    return some;
}

Err source_restore(Config *c, Arena *arena, const json_t *from, unsigned classes, Str *notes) {
    char *text = json_dumps(from ? from : json_null(), JSON_ENCODE_ANY);
    Err e = config_from_json(c, arena, text, strlen(text), classes, notes);
    free(text);
    return e;
}

Err source_args(Config *c, Arena *arena, Str *notes) {
    Source s;
    const bool tokenizer = !c->tokenizer_type && !i64_is_set(c->vocab_size);
    ERR_RETURN(source_find(c, &s));
    if (!s.dir && c->use_checkpoint_args && c->load) return source_check_missing(c); /* a new run */
    if (!s.dir)
        return c->load ? ckpt_missing(c->load)
                       : err_user("--load is missing; set it to the folder of the checkpoint");
    Ckpt *ckpt;
    Err e = ckpt_open(s.dir, s.step, NULL, &ckpt);
    source_free(&s);
    if (e.code) return e;
    json_t *config = json_copy(json_object_get(ckpt_manifest(ckpt)->state, "config"));
    static const char *const OF_TASK[] = {"task", "class_labels", "classifier_dropout"};
    for (size_t i = 0; s.weights_only && i < sizeof OF_TASK / sizeof *OF_TASK; i++)
        json_object_del(config, OF_TASK[i]);
    e = source_restore(c, arena, config, CLASS_ARCH, notes);
    json_t *some = routing_options(config);
    if (tokenizer) json_object_update_new(some, tokenizer_options(config));
    if (!e.code) e = source_restore(c, arena, some, CLASS_ALL, notes);
    json_decref(some);
    json_decref(config);
    ckpt_close(ckpt);
    return e;
}
