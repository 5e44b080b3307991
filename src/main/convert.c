#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/amount.h"
#include "base/file.h"
#include "base/terminal.h"
#include "ckpt/ckpt.h"
#include "ckpt/hf/config.h"
#include "ckpt/hf/folder.h"
#include "ckpt/hf/problems.h"
#include "ckpt/hf/tokens.h"
#include "ckpt/hf/type.h"
#include "main/command.h"
#include "models/model.h"
#include "parity/reference.h"
#include "run/source.h"
#include "tokenizer/special.h"
#include "tokenizer/text/field.h"

typedef struct Options {
    const char *from_hf, *to_hf, *check;
    int dtype;
    bool overwrite, init_missing_heads;
} Options;

static const char *const DTYPE_NAMES[] = {"float32", "float64", "bfloat16", "float16", NULL};
static const DType DTYPE_VALUES[] = {F32, F64, BF16, F16};

static const Arg ROWS[] = {
    ARG_ROW(Options, from_hf, "from-hf", ARG_TEXT, "none",
            "Folder of a Hugging Face model: config.json and model.safetensors (or its shards)."),
    ARG_ROW(Options, to_hf, "to-hf", ARG_TEXT, "none",
            "Write config.json, generation_config.json, model.safetensors and the tokenizer's files to this "
            "folder. The tokenizer is that of the options or, if they set none, that of the checkpoint."),
    ARG_ROW(Options, dtype, "hf-dtype", ARG_ENUM, "float32", "Data type of the weights that to-hf writes.",
            .choices = DTYPE_NAMES),
    ARG_ROW(Options, check, "check", ARG_TEXT, "none",
            "Compare the model's logits with those in this file, which tools/oracle/hf_logits.py wrote, "
            "before the model is saved or exported. The exit status is 1 if the logits differ."),
    ARG_ROW(Options, init_missing_heads, "init-missing-heads", ARG_FLAG, "off",
            "With from-hf, initialize heads for which the folder has no weights, such as the LM head of a "
            "BertModel, with random numbers from seed. A BERT then has the heads of BertForPreTraining, "
            "unless --bert-no-binary-head is given."),
    ARG_ROW(Options, overwrite, "overwrite", ARG_FLAG, "off",
            "Replace the model in the folder of to-hf, or the import in the folder of save."),
};

typedef struct Job {
    Setup setup;
    Options options;
    Args args;
    HfModelType type; /* model type in the imported config.json */
} Job;

static const char USAGE[] =
    "isotron convert --from-hf DIR --save DIR | --load DIR --to-hf DIR [--check FILE]\n\n"
    "Converts a Hugging Face model to a checkpoint, or a checkpoint to a Hugging Face model.\n\n"
    "example: isotron convert --from-hf Llama-3.2-1B --save imported";

static void begin(Job *j) {
    args_init(&j->args, j->setup.arena, USAGE, NULL);
    args_use(&j->args, ARG_TABLE(ROWS, &j->options));
    args_use(&j->args, config_table(&j->setup.config, USE_CONVERT));
}

/* Creates the model that the options describe, and allocates its memory. free_model frees the model and its device. */
static Model *new_model(Setup *s, int64_t vocab_size, DType storage) {
    config_finish(&s->config, s->arena, vocab_size);
    Model *m = model_new(&s->config, NULL);
    model_allocate(m, device_cpu((int)s->config.cpu_threads), storage, 1, false);
    return m;
}

static void free_model(Model *m) {
    Device *device = m->device;
    model_free(m);
    device_free(device);
}

/* ---- comparison with transformers ---- */

/* Compares the model with the reference file given by --check. Returns an error if the model and the reference
 * differ. */
static Err convert_check(const Job *j, const Model *m) {
    if (!j->options.check) return ERR_OK;
    Reference r;
    ReferenceReport report;
    Err e = reference_open(j->options.check, &r);
    if (!e.code) e = reference_judge(&r, &j->setup.config, m, &report);
    if (!e.code) {
        Str text = {0};
        reference_print(&r, &j->setup.config.derived, &report, &text);
        terminal_report(stdout, text.s);
        str_free(&text);
        if (!report.logits.pass)
            e = err_failed("the logits differ from those in '%s' by more than rounding: nothing is written",
                           j->options.check);
    }
    reference_close(&r);
    return e;
}

/* ---- import from Hugging Face ---- */

static Err save(const Job *j, const Model *m, json_t *tokens) {
    Str text = {0};
    config_json(&j->setup.config, CLASS_ALL, &text);
    json_t *state =
        json_pack("{s:o, s:I, s:O}", "config", json_loadb(text.s, text.len, 0, NULL), "vocab_size",
                  (json_int_t)j->setup.config.derived.vocab_size, HF_TOKENS, tokens);
    CkptItem item = {.suffix = "", .flat = m->registry->masters, .dtype = m->registry->precise};
    Err e = ckpt_save(j->setup.config.save, &(CkptSaveOptions){.iteration = 0}, NULL, m->registry, &item, 1,
                      state);
    json_decref(state);
    str_free(&text);
    return e;
}

/* Returns an error if the import would be written into the folder of a training run. Although an import has
 * step 0, --load would read it as the folder's newest checkpoint. Only another import may be overwritten. */
static Err check_save_folder(const char *dir, bool overwrite) {
    int64_t *all, n;
    Err e = ckpt_list(dir, &all, &n);
    if (n && all[n - 1] > 0)
        e = err_user(
            "'%s' already contains checkpoints of a run, the newest of step %lld: use another folder for "
            "--save",
            dir, (long long)all[n - 1]);
    else if (n && !overwrite)
        e = err_user("'%s' already contains checkpoints, the newest of step 0: use another folder for "
                     "--save, or add --overwrite to replace it",
                     dir);
    free(all);
    return e;
}

/* Reads an import's weights, and initializes heads that the file lacks. */
static Err read_weights(const Job *j, const Safetensors *file, const Model *m) {
    const HfSource source = {HF_TYPE[j->type].family, j->options.init_missing_heads};
    const long long seed = (long long)j->setup.config.seed;
    HfMap map = {0};
    HfProblem missing = {0};
    Str note = {0};
    registry_init(m->registry, (uint64_t)seed);
    Err e = hf_match(file, m->registry, &source, &map);
    if (!e.code) e = hf_import(file, &map, m->registry);
    for (int64_t i = 0; i < map.count && !e.code; i++)
        if (!hf_find(file, &map, &map.tensors[i]).values) hf_problem_add(&missing, map.tensors[i].name, "");
    hf_problem_report(&note, &missing, "missing");
    if (note.len)
        fprintf(stderr, "note: heads are initialized from --seed %lld; tensors: %s\n", seed, note.s);
    if (!e.code && hf_leaves_pooler(file, &map))
        fputs("note: the file's pooler is omitted, because no head uses it\n", stderr);
    if (!e.code && hf_leaves_layers(file, &map))
        fputs(
            "note: the file's layers for multi-token prediction (MTP), which follow the model's last layer, "
            "are omitted\n",
            stderr);
    str_free(&note);
    hf_map_free(&map);
    return e;
}

static void keep_language_model(Safetensors *file) {
    HfProblem left = {0};
    Str note = {0};
    hf_keep_language_model(file, &left);
    hf_problem_report(&note, &left, "omitted");
    if (note.len) fprintf(stderr, "note: only the language model is imported; tensors: %s\n", note.s);
    str_free(&note);
}

static Err import_model(Job *j, const Ckpt *none) {
    (void)none;
    Safetensors *file;
    if (j->setup.config.save) ERR_RETURN(check_save_folder(j->setup.config.save, j->options.overwrite));
    ERR_RETURN(safetensors_open(j->options.from_hf, &file));
    if (j->setup.config.given[OPTION_hf_model_type] == j->args.line) keep_language_model(file);
    const int64_t depths = j->setup.config.mtp_num_layers;
    hf_config_fit(&j->setup.config, file);
    if (j->setup.config.mtp_num_layers != depths)
        fputs("note: the file has no layers for multi-token prediction (MTP), so the model has none\n",
              stderr);
    if (j->setup.config.given[OPTION_bert_binary_head] != j->args.line)
        hf_config_fit_heads(&j->setup.config, file, j->options.init_missing_heads);
    Model *m = new_model(&j->setup, 0, j->setup.config.lane == LANE_FP64 ? F64 : F32);
    Err e = ERR_OK;
    if (j->setup.config.hf_model_type != j->type) e = hf_config_check_type(&j->setup.config);
    if (!e.code) e = read_weights(j, file, m);
    if (!e.code) e = convert_check(j, m);
    json_t *tokens = json_object();
    Str notes = {0};
    if (!e.code) e = hf_tokens_read(tokens, j->options.from_hf, j->setup.config.derived.vocab_size, &notes);
    if (notes.len) fputs(notes.s, stderr);
    const bool saves = j->setup.config.save && !e.code;
    if (saves) e = save(j, m, tokens);
    json_decref(tokens), str_free(&notes);
    if (saves && !e.code)
        printf("%s from %s saved to %s; load them with --load %s --use-checkpoint-args --finetune\n",
               amount(file->count, "tensor").s, j->options.from_hf, j->setup.config.save,
               j->setup.config.save);
    free_model(m);
    safetensors_close(file);
    return e;
}

/* Adds the options for the folder's tokenizer, if its type is supported. A path can contain any byte, so the options
 * are added as command-line words instead of text in a file. */
static void add_tokenizer(Args *args, Arena *arena, const char *dir) {
    char type[] = "--tokenizer-type=HuggingFaceTokenizer", *path = tokenizer_find_vocabulary(dir);
    if (path) args_line(args, 2, (char *[]){type, arena_printf(arena, "--tokenizer-model=%s", path)});
    free(path);
}

/* Opens the tokenizer. An unsupported tokenizer is an error if the command line sets it. Otherwise, the checkpoint
 * stores no tokenizer. */
static Err check_tokenizer(Job *j) {
    Config *c = &j->setup.config;
    const Err e = setup_tokenizer(c, &j->setup.tokenizer);
    if (!e.code) return setup_absolute_paths(c, j->setup.arena), ERR_OK;
    if (c->given[OPTION_tokenizer_type] == j->args.line || c->given[OPTION_tokenizer_model] == j->args.line)
        return e;
    fprintf(stderr, "note: the checkpoint stores no tokenizer: %s\n", e.msg);
    c->tokenizer_type = c->tokenizer_model = c->vocab_file = c->merge_file = NULL;
    return ERR_OK;
}

static void refuse_for_import(Args *args) {
    static const char *const NAMES[] = {"load", "ckpt-step", "use-checkpoint-args", "hf-dtype"};
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) args_refuse(args, NAMES[i], "with --from-hf");
}

static Err check_hf_folder(const char *dir, Arena *arena) {
    if (!file_is_dir(dir))
        return err_user(
            "'%s' is not a folder; Isotron does not download models, so specify the folder of a downloaded "
            "model",
            dir);
    if (file_exists(arena_printf(arena, "%s/oracle.safetensors", dir)))
        return err_user("'%s' is a golden case, not a Hugging Face model: pass it to isotron parity", dir);
    return ERR_OK;
}

/* Reads the options from config.json. The command line may override them. */
static Err read_hf_options(Job *j, int argc, char **argv) {
    const char *dir = j->options.from_hf; /* saved, because the options are parsed again below */
    char *path = arena_printf(j->setup.arena, "%s/config.json", dir);
    Str conf = {0};
    Err e = check_hf_folder(dir, j->setup.arena);
    if (!e.code) e = hf_config_import(path, j->setup.config.hf_model_type, &conf);
    if (!e.code) {
        const Config *c = &j->setup.config;
        Config alone = {0}; /* only the options from config.json */
        const Err of_file = hf_config_parse(path, &conf, j->setup.arena, &alone);
        j->type = alone.hf_model_type;
        args_free(&j->args);
        begin(j);
        args_bytes(&j->args, path, conf.s, conf.len);
        add_tokenizer(&j->args, j->setup.arena, dir);
        args_line(&j->args, argc, argv);
        refuse_for_import(&j->args);
        if (!j->options.init_missing_heads) args_refuse(&j->args, "seed", "without --init-missing-heads");
        if (!j->options.check) args_refuse(&j->args, "attention-backend", "without --check");
        if (c->lane != LANE_FP32 && c->lane != LANE_FP64)
            args_problem(&j->args,
                         "--lane %s cannot be used here, because a checkpoint stores weights as fp32, or as "
                         "fp64 with --fp64: remove it",
                         Lane_spellings[c->lane]);
        config_check(c, CHECK_MODEL | CHECK_STRICT, &j->args);
        if (!c->save && !j->options.check)
            args_problem(&j->args, "--from-hf needs --save with a folder for the checkpoint, or --check.");
        e = args_end(&j->args);
        if (e.code && of_file.code) e = of_file;
        if (!e.code) e = check_tokenizer(j);
    }
    str_free(&conf);
    return e;
}

/* ---- export to Hugging Face ---- */

/* Adds the file `from` if it exists. Takes ownership of `from`. */
static void add_file(HfExtras *x, char *from, const char *name) {
    if (file_exists(from))
        x->files[x->num_files++] = (HfFile){.from = from, .name = name};
    else
        free(from);
}

static void name_token(json_t *config, const char *key, const Tokenizer *t, int64_t id) {
    size_t n;
    const char *text =
        id < 0 || !tokenizer_is_special(t, (int32_t)id) ? NULL : tokenizer_token_text(t, (int32_t)id, &n);
    if (text) json_object_set_new(config, key, json_stringn(text, n));
}

/* Adds tokenizer_config.json. Without this file, AutoTokenizer would choose a class by the model's type, and that class
 * may replace parts of tokenizer.json. Special tokens that options set are only in this file. */
static void add_tokenizer_config(HfExtras *x, const Config *c, const Tokenizer *t, json_t *config) {
    static const struct {
        const char *key, *names[2];
    } NAMED[] = {{"unk_token", {"[UNK]", "<unk>"}},
                 {"cls_token", {"[CLS]", "<cls>"}},
                 {"sep_token", {"[SEP]", "<sep>"}},
                 {"mask_token", {"[MASK]", "<mask>"}}};
    json_t *added = json_array();
    json_object_set_new(config, "tokenizer_class", json_string("PreTrainedTokenizerFast"));
    json_object_set_new(config, "clean_up_tokenization_spaces", json_false());
    json_object_del(config, "added_tokens_decoder");
    name_token(config, "bos_token", t, tokenizer_bos(t));
    name_token(config, "eos_token", t, tokenizer_eod(t));
    name_token(config, "pad_token", t, tokenizer_pad(t));
    for (size_t i = 0; i < 2 * (sizeof NAMED / sizeof *NAMED); i++)
        if (!json_object_get(config, NAMED[i / 2].key))
            name_token(config, NAMED[i / 2].key, t, tokenizer_token_id(t, NAMED[i / 2].names[i % 2]));
    for (int64_t i = 0; i < c->tokenizer_special_tokens.count; i++)
        json_array_append_new(added, json_string(c->tokenizer_special_tokens.at[i]));
    for (int64_t i = 0; i < c->vocab_extra_ids; i++)
        json_array_append_new(added, json_sprintf("<extra_id_%lld>", (long long)i));
    if (json_array_size(added)) json_object_set(config, "additional_special_tokens", added);
    char *text = json_dumps(config, JSON_INDENT(2));
    x->files[x->num_files++] = (HfFile){.name = "tokenizer_config.json", .content = text};
    json_decref(added);
}

/* Adds the tokenizer's files. Unless `json` is NULL, it becomes tokenizer.json. x takes ownership of `json`. */
static void add_tokenizer_files(HfExtras *x, const Config *c, const Tokenizer *t, char *json) {
    static const char *const OTHERS[] = {"chat_template.jinja", "special_tokens_map.json",
                                         "added_tokens.json"};
    const char *model = c->tokenizer_model ? c->tokenizer_model : c->vocab_file,
               *slash = model ? strrchr(model, '/') : NULL;
    const bool hugging_face = !strcmp(c->tokenizer_type, "HuggingFaceTokenizer");
    const bool spm =
        strstr(c->tokenizer_type, "SentencePiece") || !strcmp(c->tokenizer_type, "Llama2Tokenizer");
    if (!model || (!json && !hugging_face && !spm)) return;
    const bool folder = file_is_dir(model);
    char *dir = folder  ? mem_strdup(model)
                : slash ? mem_printf("%.*s", (int)(slash - model), model)
                        : mem_strdup(".");
    char *config_path = mem_printf("%s/tokenizer_config.json", dir),
         *tekken = mem_printf("%s/tekken.json", dir);
    json_t *config = NULL;
    /* the tokenizer has already read this file */
    if (!spm && file_exists(config_path)) json_file(config_path, &config);
    if (json)
        x->files[x->num_files++] = (HfFile){.name = "tokenizer.json", .content = json};
    else if (spm)
        add_file(x, mem_strdup(model), "tokenizer.model");
    else if (folder || strcmp(model, tekken))
        add_file(x, folder ? mem_printf("%s/tokenizer.json", model) : mem_strdup(model), "tokenizer.json");
    if (!x->num_files) add_file(x, mem_strdup(tekken), "tekken.json");
    if (config && !json)
        add_file(x, mem_strdup(config_path), "tokenizer_config.json");
    else
        add_tokenizer_config(x, c, t, config ? config : (config = json_object()));
    for (size_t i = 0; i < (json || spm ? 1 : sizeof OTHERS / sizeof *OTHERS); i++)
        add_file(x, mem_printf("%s/%s", dir, OTHERS[i]), OTHERS[i]);
    json_decref(config);
    free(dir), free(config_path), free(tekken);
}

static void take_id(json_t *from, const char *key, int64_t id) {
    if (id >= 0) json_object_set_new(from, key, json_integer(id));
}

/* Adds the token ids that the import stored in the checkpoint, then the tokenizer's ids and files. If the
 * tokenizer is set only in the checkpoint, a missing file causes a note instead of an error, because the file
 * may be on another machine. */
static Err add_tokens(Job *j, const json_t *state, json_t *tokens, HfExtras *x, Str *notes) {
    const Config *c = &j->setup.config;
    const int64_t vocab_size = j->setup.config.derived.vocab_size;
    hf_tokens_take(tokens, json_object_get(state, HF_TOKENS), "the checkpoint", vocab_size, notes);
    const char *type = hf_config_type(c);
    char *json = NULL;
    const Err e = setup_tokenizer_export(c, type, &j->setup.tokenizer, &json);
    if (e.code && config_given(c, tokenizer_type)) return e;
    if (e.code) str_printf(notes, "note: the tokenizer's files are not written: %s\n", e.msg);
    const Tokenizer *t = j->setup.tokenizer;
    if (!t) return ERR_OK;
    if (tokenizer_vocab_size(t) > vocab_size) {
        free(json);
        return err_user("the tokenizer has %d tokens, but the model's embedding has %lld rows: specify the "
                        "tokenizer that the model was trained with",
                        tokenizer_vocab_size(t), (long long)vocab_size);
    }
    if (json && type && !strcmp(type, "qwen2"))
        str_printf(notes,
                   "note: transformers 5's AutoTokenizer reads the tokenizer of every qwen2 model as a "
                   "Qwen2Tokenizer; load other tokenizers with PreTrainedTokenizerFast\n");
    json_t *own = json_object();
    take_id(own, "bos_token_id", tokenizer_bos(t));
    take_id(own, "eos_token_id", tokenizer_eod(t));
    take_id(own, "pad_token_id", tokenizer_pad(t));
    if (c->model == MODEL_t5) take_id(own, "decoder_start_token_id", tokenizer_special(t, SPECIAL_BOS));
    hf_tokens_take(tokens, own, "the tokenizer", vocab_size, notes);
    json_decref(own);
    add_tokenizer_files(x, c, t, json);
    return ERR_OK;
}

static Err export_model(Job *j, const Model *m, const json_t *state) {
    const char *dir = j->options.to_hf;
    Str notes = {0};
    json_t *tokens = json_object();
    HfExtras x = {.tokens = tokens, .overwrite = j->options.overwrite};
    Err e = add_tokens(j, state, tokens, &x, &notes);
    const HfModel model = {&j->setup.config, m->registry};
    if (!e.code) e = hf_folder_write(dir, &model, DTYPE_VALUES[j->options.dtype], &x, &notes);
    if (notes.len) fputs(notes.s, stderr);
    if (!e.code) printf("wrote %s: config.json, generation_config.json, model.safetensors", dir);
    for (int i = 0; !e.code && i < x.num_files; i++) printf(", %s", x.files[i].name);
    if (!e.code) printf("\n");
    for (int i = 0; i < x.num_files; i++) free(x.files[i].from), free(x.files[i].content);
    json_decref(tokens), str_free(&notes);
    return e;
}

static Err export_checkpoint(Job *j, const Ckpt *c) {
    const Manifest *m = ckpt_manifest(c);
    const json_t *vocab = json_object_get(m->state, "vocab_size");
    if (!json_is_integer(vocab) || json_integer_value(vocab) < 1 || !m->count)
        return err_user(
            "the checkpoint in '%s' does not record the vocabulary size; save the checkpoint again",
            j->setup.config.load);
    Model *model = new_model(&j->setup, json_integer_value(vocab), m->tensors[0].dtype == F64 ? F64 : F32);
    CkptItem item = {
        .suffix = "", .flat = model->registry->masters, .dtype = model->registry->precise, .convert = true};
    Err e = ckpt_load(c, model->registry, &item, 1);
    if (!e.code) e = convert_check(j, model);
    if (!e.code && j->options.to_hf) e = export_model(j, model, m->state);
    free_model(model);
    return e;
}

/* Reads the options in the checkpoint. The command line must not contradict these options. */
static Err read_checkpoint_options(Job *j, const Ckpt *c) {
    Config *config = &j->setup.config;
    const json_t *state = ckpt_manifest(c)->state;
    if (!json_object_get(state, "config"))
        return err_user(
            "the checkpoint in '%s' does not record the model's options; save the checkpoint again",
            config->load);
    ERR_RETURN(source_args(config, j->setup.arena, &j->args.notes));
    ERR_RETURN(source_check_model(config, state, config->load, true, NULL));
    config_check(config, CHECK_MODEL | CHECK_STRICT, &j->args);
    return args_end(&j->args);
}

static void refuse_for_export(Args *args, const Options *o) {
    static const char *const NAMES[] = {"save", "lane", "init-missing-heads", "seed"};
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++)
        args_refuse(args, NAMES[i], "without --from-hf");
    if (!o->check) args_refuse(args, "attention-backend", "without --check");
    if (o->to_hf) return;
    args_refuse(args, "hf-dtype", "without --to-hf");
    args_refuse(args, "overwrite", "without --to-hf or --save");
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
        args_problem(&j.args, "Set either --from-hf or --to-hf, or --load with --check.");
    else if (o->to_hf && !c->load)
        args_problem(&j.args, "--to-hf needs a checkpoint: set --load.");
    if (!o->from_hf) refuse_for_export(&j.args, o);
    Err e = args_end(&j.args);
    int status = 0;
    if (!e.code && !j.args.help && o->from_hf) {
        status = finish(&j, read_hf_options(&j, argc, argv), import_model, NULL);
    } else if (!e.code && !j.args.help) {
        Ckpt *ckpt;
        e = setup_checkpoint(c->load, c->ckpt_step, &ckpt);
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
