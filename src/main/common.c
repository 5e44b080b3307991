#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/terminal.h"
#include "base/version.h"
#include "ckpt/hf/config.h"
#include "comm/comm.h"
#include "data/input.h"
#include "main/command.h"
#include "tokenizer/special.h"

static void print_error(const char *sentence, const char *more) {
    if (*sentence) fprintf(stderr, "isotron: %s\n%s", sentence, more);
}

/* Prints an error on process 0, and returns the exit status. With MPI, the launcher kills the other processes
 * when process 0 ends, so they wait a few seconds. With TCP, the other processes report their failure to
 * process 0. A process prints its error itself if it was not killed or cannot reach process 0. */
static int say(Err e, const char *more) {
    enum { PATIENCE_S = 3 };
    const CommOptions options = {.meet_s = PATIENCE_S, .build = isotron_commit()};
    CommLaunch launch;
    comm_launch(&launch);
    if (launch.process == 0) print_error(e.msg, more);
    if (launch.by != COMM_TCP && launch.process) sleep(PATIENCE_S);
    const bool told = launch.by == COMM_TCP && comm_tcp_give_up(&launch, &options, &e);
    if (launch.process && !told) print_error(e.msg, more);
    return e.code;
}

int command_fail(Err e) { return say(e, ""); }

bool command_ready(const Args *args, Err e, int *status) {
    const bool speaks = comm_process() == 0;
    if (args->help) {
        Str text = {0};
        args_help(args, terminal_width(stdout), &text);
        if (speaks) fputs(text.s, stdout);
        str_free(&text);
        *status = 0;
        return false;
    }
    for (const char *line = args->notes.s; line && *line && speaks; line = strchr(line, '\n') + 1) {
        char note[1100];
        snprintf(note, sizeof note, "note: %.*s\n", (int)strcspn(line, "\n"), line);
        terminal_print(stderr, note);
    }
    if (!e.code) return true;
    /* e's message is the first problem; the others are printed after it */
    *status = say(e, args->num_problems > 1 ? strchr(args->problems.s, '\n') + 1 : "");
    return false;
}

int command_finish(Args *args, Err e, CommandRun *run, void *arg) {
    int status;
    if (command_ready(args, e, &status)) {
        e = run(arg);
        status = e.code ? command_fail(e) : 0;
    }
    args_free(args);
    return status;
}

static void refuse_same(Args *args, const NamedFile *output, const NamedFile *other) {
    if (!output->path || !other->path || file_is_stream(output->path)) return;
    if (file_is_same(output->path, other->path))
        args_problem(args, "%s and %s are the same file '%s': choose another path for one of them.",
                     output->option, other->option, output->path);
}

void command_refuse_same_files(Args *args, const NamedFile *outputs, int num_outputs, const NamedFile *inputs,
                               int num_inputs) {
    for (int i = 0; i < num_outputs; i++) {
        for (int k = i + 1; k < num_outputs; k++) refuse_same(args, &outputs[i], &outputs[k]);
        for (int k = 0; k < num_inputs; k++) refuse_same(args, &outputs[i], &inputs[k]);
        for (int64_t k = 0; k < args->configs.count; k++)
            refuse_same(args, &outputs[i], &(NamedFile){"--config", args->configs.at[k]});
    }
}

Err command_write_report(const char *path, const Str *report) {
    Err e = path ? file_write_atomic(path, report->s, report->len) : ERR_OK;
    if (e.code) e.code = ERR_INFRA;
    return e;
}

const char *const command_input_formats[] = {"jsonl", "text", "paragraphs", NULL};

void command_check_encoding(Args *args, const char *encoding) {
    const Err e = input_check_encoding(encoding);
    if (e.code) args_problem(args, "%s.", e.msg);
}

/* Makes a path absolute, because a checkpoint stores it, and a process in another working directory may load the
 * checkpoint. */
static void absolute(const char **path, Arena *arena) {
    char *full = *path ? realpath(*path, NULL) : NULL;
    if (full) *path = arena_printf(arena, "%s", full);
    free(full);
}

void setup_absolute_paths(Config *c, Arena *arena) {
    absolute(&c->tokenizer_model, arena);
    absolute(&c->vocab_file, arena);
    absolute(&c->merge_file, arena);
}

/* Lists the special tokens that the options set, followed by <extra_id_0>, <extra_id_1>, ... The caller frees the list
 * and its last `extra` texts. */
static const char **extra_tokens(const Config *c, int64_t extra) {
    const int64_t given = c->tokenizer_special_tokens.count;
    const char **list = mem_zero((size_t)(given + extra) + 1, sizeof *list);
    for (int64_t i = 0; i < given; i++) list[i] = c->tokenizer_special_tokens.at[i];
    for (int64_t i = 0; i < extra; i++) list[given + i] = mem_printf("<extra_id_%lld>", (long long)i);
    return list;
}

Err setup_tokenizer(const Config *c, Tokenizer **out) { return setup_tokenizer_export(c, NULL, out, NULL); }

Err setup_tokenizer_export(const Config *c, const char *model_type, Tokenizer **out, char **json) {
    enum { BERT_CASE_EXTRA = 100, TIKTOKEN_SPECIAL = 1000 }; /* from Megatron-LM's build_tokenizer.py */
    *out = NULL;
    if (!c->tokenizer_type) return ERR_OK;
    const bool null = !strcmp(c->tokenizer_type, "NullTokenizer");
    const bool bert_case = !strcmp(c->tokenizer_type, "BertWordPieceCase");
    const int64_t wanted = bert_case && !c->vocab_extra_ids && !config_given(c, vocab_extra_ids)
                               ? BERT_CASE_EXTRA
                               : c->vocab_extra_ids;
    const int64_t given = c->tokenizer_special_tokens.count;
    const int64_t extra = strcmp(c->tokenizer_type, "TikTokenizer") ? wanted : 0;
    const bool said =
        c->tiktoken_num_special_tokens != TIKTOKEN_SPECIAL || config_given(c, tiktoken_num_special_tokens);
    const int64_t special = said ? c->tiktoken_num_special_tokens : -1;
    const char **tokens = extra_tokens(c, extra);
    TokenizerConfig t = {
        .type = c->tokenizer_type,
        .model = c->tokenizer_model,
        .vocab_file = c->vocab_file,
        .merge_file = c->merge_file,
        .vocab_size = i64_or(c->vocab_size, 0),
        .eod_id = null ? i64_or(c->null_tokenizer_eod_id, -1) : -1,
        .pad_id = null ? c->null_tokenizer_pad_id : -1,
        .extra_tokens = tokens,
        .num_extra_tokens = (size_t)(given + extra),
        .tiktoken_pattern = c->tiktoken_pattern,
        .tiktoken_num_special = special,
        .include_special = c->tokenizer_hf_include_special_tokens,
        .export_json = json,
        .export_type = model_type,
    };
    const Err e = tokenizer_open(&t, out);
    for (int64_t i = 0; i < extra; i++) free((char *)tokens[given + i]);
    free(tokens);
    const bool stored =
        !config_given(c, tokenizer_type) && !config_given(c, tokenizer_model) && !config_given(c, vocab_file);
    if (!e.code || !stored) return e;
    return err_user(
        "the checkpoint's tokenizer cannot be opened: %.600s; set --tokenizer-type with its files", e.msg);
}

void setup_check_tokenizer(const Config *c, Args *args) {
    if (!c->tokenizer_type && c->given[OPTION_tokenizer_type] != ARG_BAD)
        args_problem(args, "The text needs a tokenizer: set --tokenizer-type.");
}

/* Returns whether --vocab-size defines all or part of the vocabulary for this tokenizer type. */
static bool reads_vocab_size(const char *type) {
    return !strcmp(type, "NullTokenizer") || !strcmp(type, "ByteLevelTokenizer") ||
           !strcmp(type, "TikTokenizer");
}

Err setup_tokenizer_alone(const Config *c, Tokenizer **out) {
    ERR_RETURN(setup_tokenizer(c, out));
    if (i64_is_set(c->vocab_size) && !reads_vocab_size(c->tokenizer_type))
        fprintf(stderr, "note: --vocab-size has no effect: %s has %d tokens\n", c->tokenizer_type,
                tokenizer_vocab_size(*out));
    return ERR_OK;
}

Err setup_finish(Setup *s) {
    ERR_RETURN(setup_tokenizer(&s->config, &s->tokenizer));
    setup_absolute_paths(&s->config, s->arena);
    config_finish(&s->config, s->arena, s->tokenizer ? tokenizer_vocab_size(s->tokenizer) : 0);
    if (!s->config.derived.vocab_size)
        return err_user(
            "the size of the vocabulary is unknown; set --tokenizer-type (with its files) or --vocab-size%s",
            s->config.vocab_file && !s->config.merge_file && s->config.model == MODEL_gpt
                ? "; for a BERT or T5, whose only file is --vocab-file, set --model bert or --model t5"
                : "");
    if (s->tokenizer && tokenizer_vocab_size(s->tokenizer) > s->config.derived.vocab_size)
        return err_user(
            "the %s has %d tokens, but the vocabulary of the model (--vocab-size) has %lld: specify the "
            "tokenizer of this model, or remove --vocab-size for a new model",
            config_tokenizer_text(&s->config).s, tokenizer_vocab_size(s->tokenizer),
            (long long)s->config.derived.vocab_size);
    if (s->config.derived.padded_vocab_size <
        /* The tokenizer's vocabulary size is known only here. The rules check only --vocab-size. */
        s->config.derived.vocab_size)
        return err_user("--padded-vocab-size %lld is less than the %lld tokens of the %s: raise or remove it",
                        (long long)s->config.derived.padded_vocab_size,
                        (long long)s->config.derived.vocab_size, s->config.tokenizer_type);
    return ERR_OK;
}

Err setup_finish_for_text(Setup *s) {
    ERR_RETURN(setup_finish(s));
    if (s->tokenizer) return ERR_OK;
    return err_user("the checkpoint does not record a tokenizer: set --tokenizer-type GPT2BPETokenizer, "
                    "HuggingFaceTokenizer, ByteLevelTokenizer or NullTokenizer, with its files");
}

Err setup_chat(const Config *c, const Tokenizer *t, Chat **out) {
    ERR_RETURN(chat_open(c->tokenizer_model, t, out));
    if (*out) return ERR_OK;
    return tokenizer_named(t)
               ? err_user("the %s has no chat template: add chat_template.jinja, or \"chat_template\" in "
                          "tokenizer_config.json, to its folder",
                          config_tokenizer_text(c).s)
               : err_user("a chat template must be in the folder of a tokenizer: set --tokenizer-type "
                          "HuggingFaceTokenizer, and set --tokenizer-model to the folder");
}

Err setup_check_type(const Setup *s) {
    return config_given(&s->config, hf_model_type) ? hf_config_check_type(&s->config) : ERR_OK;
}

static void mock_mask_tokens(const Setup *s, MaskTokens *out) {
    enum { SENTINELS = 100, OTHERS = 3 };
    const int64_t vocab = s->config.derived.vocab_size, room = vocab - OTHERS,
                  n = room < SENTINELS ? room : SENTINELS;
    int64_t *sentinels = arena_alloc(s->arena, (size_t)(n > 0 ? n : 0) * sizeof *sentinels);
    for (int64_t i = 0; i < n; i++) sentinels[i] = room - n + i;
    *out = (MaskTokens){.cls = vocab - 3,
                        .sep = vocab - 2,
                        .mask = vocab - 1,
                        .bos = vocab - 3,
                        .eos = vocab - 2,
                        .sentinels = sentinels,
                        .num_sentinels = n,
                        .vocab_size = vocab};
}

Err setup_mask_tokens(const Setup *s, MaskTokens *out) {
    const Tokenizer *t = s->tokenizer;
    const bool known = t && tokenizer_special(t, SPECIAL_MASK) >= 0;
    if (!known && s->config.mock_data) mock_mask_tokens(s, out);
    if (!known && s->config.mock_data) return ERR_OK;
    *out = (MaskTokens){
        .cls = -1, .sep = -1, .mask = -1, .bos = -1, .eos = -1, .vocab_size = s->config.derived.vocab_size};
    if (!t) return ERR_OK;
    *out = (MaskTokens){.cls = tokenizer_special(t, SPECIAL_CLS),
                        .sep = tokenizer_special(t, SPECIAL_SEP),
                        .mask = tokenizer_special(t, SPECIAL_MASK),
                        .bos = tokenizer_special(t, SPECIAL_BOS),
                        .eos = tokenizer_special(t, SPECIAL_EOS),
                        .vocab_size = tokenizer_vocab_size(t)};
    int64_t *sentinels;
    unsigned char *continues;
    out->num_sentinels = tokenizer_sentinels(t, &sentinels);
    const Err e = tokenizer_continuations(t, &continues);
    if (!e.code) {
        const size_t bytes = (size_t)out->num_sentinels * sizeof *sentinels, ids = (size_t)out->vocab_size;
        out->sentinels =
            memcpy(arena_alloc(s->arena, bytes + 1), sentinels ? sentinels : &(int64_t){0}, bytes);
        out->continues = memcpy(arena_alloc(s->arena, ids), continues, ids);
        free(continues);
    }
    free(sentinels);
    return e;
}

Err setup_fim_tokens(const Setup *s, FimTokens *out) {
    const Config *c = &s->config;
    const struct {
        const char *option, *token;
        int64_t *id;
    } rows[] = {{"prefix-token", c->fim_prefix_token, &out->prefix},
                {"middle-token", c->fim_middle_token, &out->middle},
                {"suffix-token", c->fim_suffix_token, &out->suffix},
                {"pad-token", c->fim_pad_token, &out->pad},
                {"eod-token", c->fim_eod_token, &out->eod},
                {"split-sample", c->fim_split_sample, &out->split}};
    Str missing = {0};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *token = rows[i].token ? rows[i].token : "none";
        *rows[i].id = rows[i].token ? tokenizer_token_id(s->tokenizer, token) : -1;
        if (*rows[i].id < 0 && (rows[i].token || rows[i].id != &out->split))
            str_printf(&missing, "%s%s (--fim-%s)", missing.len ? ", " : "", quote(token).s, rows[i].option);
    }
    if (!missing.len) return ERR_OK;
    const Err e = err_user("the %s lacks these tokens that --fim-data needs: %s; specify other tokens, or "
                           "add them with --tokenizer-special-tokens",
                           c->tokenizer_type, missing.s);
    str_free(&missing);
    return e;
}

Err setup_encode(void *tokenizer, const char *text, size_t n, int32_t **ids, size_t *count) {
    return tokenizer_encode(tokenizer, text, n, ids, count);
}

Err setup_decode(void *tokenizer, const int32_t *ids, size_t n, char **text, size_t *bytes) {
    return tokenizer_decode_with(tokenizer, TOKENIZER_SKIP_SPECIAL, ids, n, text, bytes);
}

Err setup_checkpoint(const char *path, int64_t ckpt_step, Ckpt **out) {
    char *dir;
    int64_t step;
    *out = NULL;
    ERR_RETURN(ckpt_locate(path, &dir, &step));
    Err e = ERR_OK;
    if (step >= 0 && i64_is_set(ckpt_step) && step != ckpt_step)
        e = err_user("'%s' and --ckpt-step %lld specify two different checkpoints: remove one of them", path,
                     (long long)ckpt_step);
    if (!e.code) e = ckpt_open(dir, step >= 0 ? step : i64_or(ckpt_step, -1), NULL, out);
    free(dir);
    return e;
}

static void add_end(int64_t **ends, int64_t *n, int64_t id) {
    *ends = mem_grow(*ends, (size_t)*n + 1, sizeof **ends);
    (*ends)[(*n)++] = id;
}

void setup_ends(const Setup *s, const json_t *ids, int64_t **ends, int64_t *n) {
    const Tokenizer *t = s->tokenizer;
    const json_t *known = json_object_get(ids, "eos_token_id");
    const int64_t own = s->config.model == MODEL_t5 ? tokenizer_special(t, SPECIAL_EOS) : tokenizer_eod(t);
    *ends = NULL, *n = 0;
    if (!known || config_given(&s->config, null_tokenizer_eod_id)) {
        if (own >= 0) add_end(ends, n, own);
        return;
    }
    if (json_is_integer(known)) add_end(ends, n, json_integer_value(known));
    for (size_t i = 0; i < json_array_size(known); i++)
        add_end(ends, n, json_integer_value(json_array_get(known, i)));
}

void setup_note_special(const Setup *s, const json_t *ids) {
    const Config *c = &s->config;
    int32_t *added = NULL;
    size_t n = 0, bytes;
    if (!ids || c->model != MODEL_gpt || c->tokenizer_hf_include_special_tokens ||
        config_given(c, tokenizer_hf_include_special_tokens) || !c->tokenizer_type ||
        strcmp(c->tokenizer_type, "HuggingFaceTokenizer"))
        return;
    const bool adds =
        !tokenizer_encode_with(s->tokenizer, TOKENIZER_ADD_SPECIAL, "", 0, &added, &n).code && n;
    const char *text = adds ? tokenizer_token_text(s->tokenizer, added[0], &bytes) : NULL;
    char *first = mem_printf("%.*s", text ? (int)bytes : 0, text ? text : "");
    if (adds)
        fprintf(
            stderr,
            "note: unlike in transformers, prompts are encoded without the tokenizer's special tokens, such "
            "as %s: set --tokenizer-hf-include-special-tokens, or --tokenizer-hf-no-include-special-tokens "
            "to omit this note\n",
            quote(first).s);
    free(first);
    free(added);
}

void setup_free(Setup *s) {
    tokenizer_free(s->tokenizer);
    arena_free(s->arena);
}
