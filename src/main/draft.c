#include "main/draft.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "run/source.h"

/* Parses the checkpoint's options. Copies the options for the machine, layout and precision from the run. */
static Err parse(const Config *c, Setup *draft, Args *args) {
    char *words[] = {"--load", (char *)c->speculative_model};
    json_t *own = source_options(c, CLASS_NUMERIC | CLASS_LAYOUT);
    args_init(args, draft->arena, "", NULL);
    Err e = config_parse(&draft->config, args, USE_GENERATE, 0, 2, words);
    if (!e.code)
        e = source_restore(&draft->config, draft->arena, own, CLASS_NUMERIC | CLASS_LAYOUT, &args->notes);
    json_decref(own);
    if (!e.code) e = source_args(&draft->config, draft->arena, &args->notes);
    if (e.code) return e;
    config_check(&draft->config, CHECK_MODEL, args);
    e = args_end(args);
    return e.code ? e : setup_finish(draft);
}

/* Returns a token's spelling, or its bytes if the vocabulary has no spelling. The caller frees the result. */
static char *spelling(const Tokenizer *t, int32_t id, size_t *n) {
    const char *text = tokenizer_token_text(t, id, n);
    char *bytes = NULL;
    if (text) return memcpy(mem_alloc(*n + 1), text, *n);
    *n = 0;
    return tokenizer_decode(t, &id, 1, &bytes, n).code ? NULL : bytes;
}

/* Returns the id of the first token that the tokenizers spell differently, or -1 if there is none. */
static int32_t different(const Tokenizer *a, const Tokenizer *b) {
    for (int32_t i = 0; i < tokenizer_vocab_size(a); i++) {
        size_t n, m;
        char *x = spelling(a, i, &n), *y = spelling(b, i, &m);
        const bool same = n == m && (!n || !memcmp(x, y, n));
        free(x), free(y);
        if (!same) return i;
    }
    return -1;
}

static Err check(const Setup *s, const Setup *draft) {
    const int64_t vocab = s->config.derived.vocab_size, own = draft->config.derived.vocab_size;
    if (draft->config.model != MODEL_gpt)
        return err_user("the model is not a GPT; specify the checkpoint of a GPT");
    if (vocab != own)
        return err_user("its vocabulary has %lld tokens, but the --load model's vocabulary has %lld; specify "
                        "a model with the same tokenizer",
                        (long long)own, (long long)vocab);
    if (!s->tokenizer || !draft->tokenizer) return ERR_OK;
    if (tokenizer_vocab_size(s->tokenizer) != tokenizer_vocab_size(draft->tokenizer))
        return err_user("its tokenizer has %d tokens, but the --load model's tokenizer has %d; specify a "
                        "model with the same tokenizer",
                        tokenizer_vocab_size(draft->tokenizer), tokenizer_vocab_size(s->tokenizer));
    const int32_t id = different(s->tokenizer, draft->tokenizer);
    if (id < 0) return ERR_OK;
    return err_user("token %d has a different text in the --load model's tokenizer; specify a model with the "
                    "same tokenizer",
                    id);
}

Err draft_setup(const Setup *s, Setup *draft) {
    if (!s->config.speculative_model) return ERR_OK;
    Args args;
    Err e = parse(&s->config, draft, &args);
    if (!e.code) e = check(s, draft);
    args_free(&args);
    return e.code ? err_user("--speculative-model %s: %s", s->config.speculative_model, e.msg) : ERR_OK;
}

Err draft_open(const Setup *s, const Setup *draft, const ModelRun *main, ModelRun *run, Speculation *out) {
    *out = (Speculation){.tokens = s->config.num_speculative_tokens};
    if (!s->config.speculative_model) return ERR_OK;
    ERR_RETURN(model_run_load(run, &draft->config, main->comm, main->device));
    out->model = run->model, out->context = &run->context;
    return ERR_OK;
}

void draft_close(const Setup *s, ModelRun *run) {
    if (s->config.speculative_model) model_run_free(run);
}
