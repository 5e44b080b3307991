#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/amount.h"
#include "base/clock.h"
#include "base/text.h"
#include "ckpt/hf/tokens.h"
#include "data/input.h"
#include "infer/generate.h"
#include "main/command.h"
#include "run/launch.h"
#include "run/model_run.h"
#include "run/source.h"
#include "tokenizer/special.h"

typedef struct Job {
    Setup setup;
    Prompt *prompts;
    int64_t n;
    int64_t *ends, n_ends, start; /* as in GenerateOptions */
} Job;

static bool is_t5(const Job *j) { return j->setup.config.model == MODEL_t5; }
static bool is_hf_t5(const Job *j) {
    const HfModelType type = j->setup.config.hf_model_type;
    return is_t5(j) && (type == TYPE_t5 || type == TYPE_mt5);
}

/* ---- prompts ---- */

/* Adds a prompt. For a Hugging Face T5 model, the tokenizer appends </s>. */
static Err add_prompt(Job *j, const char *text, size_t length) {
    const unsigned flags = is_hf_t5(j) ? TOKENIZER_ADD_SPECIAL : 0;
    int32_t *ids;
    size_t n;
    ERR_RETURN(tokenizer_encode_with(j->setup.tokenizer, flags, text, length, &ids, &n));
    j->prompts = mem_grow(j->prompts, (size_t)j->n + 1, sizeof *j->prompts);
    j->prompts[j->n++] = (Prompt){ids, (int64_t)n};
    return ERR_OK;
}

/* Adds the whole input as one prompt, without the newline at its end. */
static Err add_all(Job *j, Input *in) {
    Str text = {0};
    Err e = ERR_OK;
    for (bool more = true; more && !e.code;) e = input_text(in, &text, &more);
    if (!e.code)
        e = add_prompt(j, text.len ? text.s : "", text.len - (text.len && text.s[text.len - 1] == '\n'));
    str_free(&text);
    return e;
}

static Err add_lines(Job *j, Input *in) {
    Str line = {0};
    Err e;
    for (bool more; !(e = input_line(in, false, &line, &more)).code && more; str_clear(&line))
        if (line.len && (e = add_prompt(j, line.s, line.len)).code) break;
    str_free(&line);
    return e;
}

static Err read_file(Job *j, const char *path, Err (*add)(Job *, Input *)) {
    Input *in;
    ERR_RETURN(input_open(path, (InputOptions){0}, &in));
    const Err e = add(j, in);
    input_close(in);
    return e;
}

static Err read_prompts(Job *j) {
    const Config *c = &j->setup.config;
    for (int64_t i = 0; i < c->prompt.count; i++) {
        const char *prompt = c->prompt.at[i];
        char where[40];
        snprintf(where, sizeof where, "prompt %lld", (long long)i + 1);
        ERR_RETURN(text_check(where, prompt, strlen(prompt)));
        ERR_RETURN(strcmp(prompt, "-") ? add_prompt(j, prompt, strlen(prompt))
                                       : read_file(j, prompt, add_all));
    }
    return c->prompts_file ? read_file(j, c->prompts_file, add_lines) : ERR_OK;
}

/* ---- the first and the last token ---- */

/* Sets the first token of a T5 decoder: that of an imported checkpoint or, if there is none, the one with
 * which the T5 dataset begins. */
static Err find_start(Job *j, const json_t *ids) {
    const json_t *known = json_object_get(ids, "decoder_start_token_id");
    if (!known && is_hf_t5(j)) known = json_object_get(ids, "pad_token_id");
    j->start = json_is_integer(known) ? json_integer_value(known)
                                      : tokenizer_special(j->setup.tokenizer, SPECIAL_BOS);
    if (j->start >= 0) return ERR_OK;
    return err_user("the decoder of a T5 begins with [BOS], [CLS] or padding, and the tokenizer %s has none "
                    "of them: specify the tokenizer that the model was trained with",
                    j->setup.config.tokenizer_type);
}

static Err find_tokens(Job *j) {
    Ckpt *c;
    ERR_RETURN(setup_checkpoint(j->setup.config.load, j->setup.config.ckpt_step, &c));
    const json_t *ids = json_object_get(ckpt_manifest(c)->state, HF_TOKENS);
    setup_ends(&j->setup, ids, &j->ends, &j->n_ends);
    const Err e = is_t5(j) ? find_start(j, ids) : ERR_OK;
    ckpt_close(c);
    return e;
}

/* ---- text ---- */

/* Decodes tokens. A model with a padded vocabulary has more ids than its tokenizer; the additional ids have
 * no text, as in transformers. */
static Err decode(const Job *j, const int32_t *tokens, int64_t n, char **text, size_t *bytes) {
    const Tokenizer *t = j->setup.tokenizer;
    int32_t *known = mem_alloc((size_t)(n + 1) * sizeof *known);
    size_t count = 0;
    for (int64_t i = 0; i < n; i++)
        if (tokens[i] < tokenizer_vocab_size(t)) known[count++] = tokens[i];
    const Err e = tokenizer_decode(t, known, count, text, bytes);
    free(known);
    return e;
}

/* ---- stop texts ---- */

/* Decodes the generated tokens; the caller frees *text. *before is the number of bytes before the first
 * --stop text, or -1 if there is none. */
static Err find_stop(const Job *j, int64_t sample, const int32_t *tokens, int64_t n, char **text,
                     size_t *bytes, int64_t *before) {
    const TextList *stop = &j->setup.config.stop;
    const int64_t skip = is_t5(j) ? 1 : j->prompts[sample].n;
    *before = -1;
    ERR_RETURN(decode(j, tokens + skip, n - skip, text, bytes));
    for (int64_t i = 0; i < stop->count; i++) {
        const char *at = memmem(*text, *bytes, stop->at[i], strlen(stop->at[i]));
        if (at && (*before < 0 || at - *text < *before)) *before = at - *text;
    }
    return ERR_OK;
}

/* Whether the generated text contains a --stop text. */
static bool stop(void *arg, int64_t sample, const int32_t *tokens, int64_t n) {
    const Job *j = arg;
    char *text;
    size_t bytes;
    int64_t before;
    if (!j->setup.config.stop.count || find_stop(j, sample, tokens, n, &text, &bytes, &before).code)
        return false;
    free(text);
    return before >= 0;
}

/* ---- output ---- */

/* Prints a text up to the --stop text, which may end inside the last token. The prompt is also printed,
 * except for T5 models. */
static Err print_text(const Job *j, const Generated *g, int64_t i) {
    char *text, *generated;
    size_t bytes, own;
    int64_t before;
    ERR_RETURN(find_stop(j, i, g->tokens, g->n, &generated, &own, &before));
    free(generated);
    const int64_t skip = is_t5(j) ? 1 : 0;
    ERR_RETURN(decode(j, g->tokens + skip, g->n - skip, &text, &bytes));
    fwrite(text, 1, before < 0 ? bytes : bytes - (own - (size_t)before), stdout);
    putchar('\n');
    free(text);
    return ERR_OK;
}

static Err print(const Job *j, const Generated *out) {
    for (int64_t i = 0; i < j->n; i++) {
        const Generated *g = &out[i];
        if (j->n > 1) printf("%s--- %lld\n", i ? "\n" : "", (long long)i + 1);
        ERR_RETURN(print_text(j, g, i));
        if (!j->setup.config.logprobs) continue;
        for (int64_t k = 1; k < g->n; k++)
            printf("%s %lld\t%d\t%.9g\n", k < g->n_prompt ? "prompt" : "new", (long long)k, g->tokens[k],
                   g->logprobs[k - 1]);
    }
    return ERR_OK;
}

static void tell_cost(const Job *j, const Generated *out, int64_t ns, const Device *d) {
    int64_t tokens = 0;
    for (int64_t i = 0; i < j->n; i++) tokens += out[i].n - out[i].n_prompt;
    fprintf(stderr, "  generated %s in %.2f s: %.1f tokens/s; a rank allocated at most %s\n",
            amount(tokens, "token").s, 1e-9 * (double)ns, 1e9 * (double)tokens / (double)ns,
            bytes_text((double)d->most_allocated).s);
}

/* Generates on one rank; the first rank prints the result. */
static Err generate_on_rank(void *arg, Comm *comm) {
    const Job *j = arg;
    const Setup *s = &j->setup;
    ModelRun r;
    ERR_RETURN(model_run_open(&r, &s->config, comm));
    const GenerateOptions options = {
        .sampling = {s->config.temperature, s->config.top_k, s->config.top_p},
        .max_new_tokens = s->config.tokens_to_generate,
        .seed = s->config.derived.random_seed,
        .ends = j->ends,
        .n_ends = j->n_ends,
        .start = j->start,
        .stop = stop,
        .stop_arg = arg,
        .skip_logprobs = !s->config.logprobs,
    };
    Generated *out = mem_zero((size_t)j->n, sizeof *out);
    const int64_t start = clock_ns();
    Err e = generate(r.model, &r.context, j->prompts, j->n, &options, out);
    const int64_t ns = clock_ns() - start;
    if (!e.code && rank_is_printer(comm)) {
        e = print(j, out);
        if (!e.code) tell_cost(j, out, ns, r.device);
    }
    for (int64_t i = 0; i < j->n; i++) generated_free(&out[i]);
    free(out);
    model_run_close(&r);
    return e;
}

static Err generate_run(void *job) {
    Job *j = job;
    Setup *s = &j->setup;
    ERR_RETURN(setup_finish_for_text(s));
    ERR_RETURN(read_prompts(j));
    if (!j->n) return err_user("there is nothing to continue; set --prompt TEXT or --prompts-file FILE");
    ERR_RETURN(find_tokens(j));
    return world_run(&s->config, generate_on_rank, j);
}

int command_generate(int argc, char **argv) {
    Job j = {.setup = {.arena = arena_new()}};
    Setup *s = &j.setup;
    Args args;
    args_init(&args, s->arena,
              "isotron generate --load DIR --prompt TEXT... [options]\n\n"
              "Continues prompts with the model of a checkpoint that was saved in any layout. A T5 answers "
              "them.\n\n"
              "example: isotron generate --load checkpoints --prompt \"Once upon a time\" --temperature 0.8",
              NULL);
    Err e = config_parse(&s->config, &args, USE_GENERATE, 0, argc, argv);
    const Err loaded = args.help ? ERR_OK : source_args(&s->config, s->arena, &args.notes);
    if (!args.help && !loaded.code) {
        config_check(&s->config, CHECK_MODEL | CHECK_GENERATE, &args);
        e = args_end(&args);
    } else if (!e.code) {
        e = loaded;
    }
    const int status = command_finish(&args, e, generate_run, &j);
    for (int64_t i = 0; i < j.n; i++) free((void *)j.prompts[i].tokens);
    free(j.prompts), free(j.ends);
    setup_free(s);
    return status;
}
