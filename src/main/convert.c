#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "ckpt/ckpt.h"
#include "ckpt/hf_config.h"
#include "ckpt/hf_folder.h"
#include "main/command.h"
#include "models/model.h"
#include "validate/reference.h"

typedef struct Options {
    const char *from_hf, *to_hf, *check;
    int dtype;
} Options;

static const char *const DTYPE_NAMES[] = {"float32", "float64", "bfloat16", "float16", NULL};
static const DType DTYPE_VALUES[] = {F32, F64, BF16, F16};

static const Arg ROWS[] = {
    {.names = "from-hf",
     .type = ARG_TEXT,
     .offset = offsetof(Options, from_hf),
     .fallback = "none",
     .help = "Folder of a Hugging Face model: config.json and model.safetensors (or its shards)."},
    {.names = "to-hf",
     .type = ARG_TEXT,
     .offset = offsetof(Options, to_hf),
     .fallback = "none",
     .help = "Folder that gets config.json and model.safetensors; the tokenizer's files are yours to copy."},
    {.names = "hf-dtype",
     .type = ARG_ENUM,
     .offset = offsetof(Options, dtype),
     .fallback = "float32",
     .choices = DTYPE_NAMES,
     .help = "How to-hf stores the weights."},
    {.names = "check",
     .type = ARG_TEXT,
     .offset = offsetof(Options, check),
     .fallback = "none",
     .help = "File of logits that tools/oracle/hf_logits.py has computed with transformers: compares the "
             "model's logits with them, before it is saved or exported; exit status 1 if they differ."},
};

typedef struct Job {
    Setup setup;
    Options options;
    Args args;
} Job;

static const char USAGE[] =
    "isotron convert --from-hf DIR --save DIR | --load DIR --to-hf DIR [--check FILE]";

static void begin(Job *j) {
    const uint64_t groups = UINT64_C(1) << GROUP_MODEL | UINT64_C(1) << GROUP_MOE |
                            UINT64_C(1) << GROUP_TOKENIZER | UINT64_C(1) << GROUP_CHECKPOINT |
                            UINT64_C(1) << GROUP_PRECISION | UINT64_C(1) << GROUP_MACHINE;
    args_init(&j->args, j->setup.arena, USAGE, NULL);
    args_use(&j->args, (ArgTable){.rows = ROWS, .count = sizeof ROWS / sizeof *ROWS, .target = &j->options});
    args_use(&j->args, config_table(&j->setup.config, groups));
}

/* An allocated model of the options; its device is model->device. */
static Model *new_model(Setup *s, int64_t vocab_size, DType storage) {
    config_finish(&s->config, s->arena, vocab_size, &s->derived);
    Model *m = model_new(&s->config, &s->derived, NULL);
    model_allocate(m, device_cpu((int)s->config.cpu_threads), storage, 1);
    return m;
}

static void free_model(Model *m) {
    Device *device = m->device;
    model_free(m);
    device_free(device);
}

/* ---- against transformers ---- */

/* --check. A difference is an error. */
static Err convert_check(const Job *j, const Model *m) {
    if (!j->options.check) return ERR_OK;
    Reference r;
    ReferenceReport report;
    Err e = reference_open(j->options.check, &r);
    if (!e.code) e = reference_judge(&r, m, &report);
    if (!e.code) {
        Str text = {0};
        reference_print(&r, m, &report, &text);
        fputs(text.s, stdout);
        str_free(&text);
        if (!report.logits.pass)
            e = err_failed("the logits differ from those in '%s' by more than rounding: nothing is written",
                           j->options.check);
    }
    reference_close(&r);
    return e;
}

/* ---- from Hugging Face ---- */

static Err save(const Job *j, const Model *m) {
    Str text = {0};
    config_json(&j->setup.config, CLASS_ALL, &text);
    json_t *state = json_pack("{s:o, s:I}", "config", json_loadb(text.s, text.len, 0, NULL), "vocab_size",
                              (json_int_t)j->setup.derived.vocab_size);
    CkptItem item = {.suffix = "", .flat = m->registry->masters, .dtype = m->registry->precise};
    Err e = ckpt_save(j->setup.config.save, &(CkptSaveOptions){.iteration = 0}, NULL, m->registry, &item, 1,
                      state);
    json_decref(state);
    str_free(&text);
    return e;
}

static Err import_model(Job *j, const Ckpt *none) {
    (void)none;
    Safetensors *file;
    ERR_RETURN(safetensors_open(j->options.from_hf, &file));
    Model *m = new_model(&j->setup, 0, j->setup.config.lane == LANE_FP64 ? F64 : F32);
    HfMap map;
    Err e = hf_match(file, m->registry, &map);
    if (!e.code) hf_import(file, &map, m->registry);
    hf_map_free(&map);
    if (!e.code) e = convert_check(j, m);
    const bool saves = j->setup.config.save && !e.code;
    if (saves) e = save(j, m);
    if (saves && !e.code)
        printf(
            "%lld tensors from %s saved to %s; load them with --load %s --use-checkpoint-args --finetune\n",
            (long long)file->count, j->options.from_hf, j->setup.config.save, j->setup.config.save);
    free_model(m);
    safetensors_close(file);
    return e;
}

/* The tokenizer's files, if the folder has any that we read. */
static void add_tokenizer(const char *dir, Str *conf) {
    char *json = mem_printf("%s/tokenizer.json", dir), *vocab = mem_printf("%s/vocab.json", dir);
    char *merges = mem_printf("%s/merges.txt", dir);
    if (file_exists(json))
        str_printf(conf, "tokenizer-type = HuggingFaceTokenizer\ntokenizer-model = \"%s\"\n", json);
    else if (file_exists(vocab) && file_exists(merges))
        str_printf(conf, "tokenizer-type = GPT2BPETokenizer\nvocab-file = \"%s\"\nmerge-file = \"%s\"\n",
                   vocab, merges);
    free(json), free(vocab), free(merges);
}

/* The options of config.json, and over them those of the command line. */
static Err read_hf_options(Job *j, int argc, char **argv) {
    char *path = arena_printf(j->setup.arena, "%s/config.json", j->options.from_hf);
    Str conf = {0};
    Err e = hf_config_import(path, &conf);
    if (!e.code) {
        add_tokenizer(j->options.from_hf, &conf);
        args_free(&j->args);
        begin(j);
        args_bytes(&j->args, path, conf.s, conf.len);
        args_line(&j->args, argc, argv);
        config_check(&j->setup.config, CHECK_MODEL, &j->args);
        if (!j->setup.config.save && !j->options.check)
            args_problem(&j->args, "--from-hf needs --save, the folder for the checkpoint, or --check.");
        e = args_end(&j->args);
    }
    str_free(&conf);
    return e;
}

/* ---- to Hugging Face ---- */

static Err export_model(const Job *j, const Model *m) {
    const char *dir = j->options.to_hf;
    Str notes = {0};
    Err e = hf_folder_write(dir, m, DTYPE_VALUES[j->options.dtype], &notes);
    if (notes.len) fputs(notes.s, stderr);
    if (!e.code) printf("%s/model.safetensors and %s/config.json written\n", dir, dir);
    str_free(&notes);
    return e;
}

static Err export_checkpoint(Job *j, const Ckpt *c) {
    const Manifest *m = ckpt_manifest(c);
    const json_t *vocab = json_object_get(m->state, "vocab_size");
    if (!json_is_integer(vocab) || json_integer_value(vocab) < 1 || !m->count)
        return err_user("the checkpoint in '%s' does not say its vocabulary's size; save it again",
                        j->setup.config.load);
    Model *model = new_model(&j->setup, json_integer_value(vocab), m->tensors[0].dtype == F64 ? F64 : F32);
    CkptItem item = {
        .suffix = "", .flat = model->registry->masters, .dtype = model->registry->precise, .convert = true};
    Err e = ckpt_load(c, model->registry, &item, 1);
    if (!e.code) e = convert_check(j, model);
    if (!e.code && j->options.to_hf) e = export_model(j, model);
    free_model(model);
    return e;
}

/* The options of the checkpoint, which those of the command line must not contradict. */
static Err read_checkpoint_options(Job *j, const Ckpt *c) {
    Config *config = &j->setup.config;
    char *text = json_dumps(json_object_get(ckpt_manifest(c)->state, "config"), JSON_ENCODE_ANY);
    if (!text)
        return err_user("the checkpoint in '%s' does not say its options; save it again", config->load);
    Err e = config_from_json(config, j->setup.arena, text, strlen(text), CLASS_ARCH, &j->args.notes);
    free(text);
    if (e.code) return e;
    config_check(config, CHECK_MODEL, &j->args);
    return args_end(&j->args);
}

static int finish(Job *j, Err e, Err (*run)(Job *, const Ckpt *), const Ckpt *c) {
    int status;
    if (!command_ready(&j->args, e, &status)) return status;
    e = run(j, c);
    return e.code ? command_fail(e) : 0;
}

int command_convert(int argc, char **argv) {
    Job j = {.setup = {.arena = arena_new()}};
    begin(&j);
    args_line(&j.args, argc, argv);
    const Options *o = &j.options;
    const Config *c = &j.setup.config;
    if (o->from_hf ? o->to_hf != NULL : !o->to_hf && !(o->check && c->load))
        args_problem(&j.args, "Give one of --from-hf and --to-hf; or --load and --check.");
    else if (o->to_hf && !c->load)
        args_problem(&j.args, "--to-hf needs --load, the folder of the checkpoint.");
    Err e = args_end(&j.args);
    int status = 0;
    if (!e.code && !j.args.help && o->from_hf) {
        status = finish(&j, read_hf_options(&j, argc, argv), import_model, NULL);
    } else if (!e.code && !j.args.help) {
        Ckpt *ckpt;
        e = ckpt_open(c->load, i64_is_set(c->ckpt_step) ? c->ckpt_step : -1, NULL, &ckpt);
        status =
            e.code ? command_fail(e) : finish(&j, read_checkpoint_options(&j, ckpt), export_checkpoint, ckpt);
        ckpt_close(ckpt);
    } else {
        command_ready(&j.args, e, &status);
    }
    args_free(&j.args);
    setup_free(&j.setup);
    return status;
}
