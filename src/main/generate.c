#include "main/generate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/amount.h"
#include "base/clock.h"
#include "base/file.h"
#include "ckpt/hf/tokens.h"
#include "comm/agree.h"
#include "infer/beam.h"
#include "main/draft.h"
#include "run/launch.h"
#include "run/model_run.h"
#include "run/source.h"
#include "tokenizer/special.h"

/* ---- the first and the last token ---- */

/* Sets a T5 decoder's first token to the one that an imported checkpoint specifies, or else to the one that begins the
 * T5 dataset's samples. */
static Err find_start(GenerateJob *j, const json_t *ids) {
    const json_t *known = json_object_get(ids, "decoder_start_token_id");
    if (!known && generate_is_hf_t5(j)) known = json_object_get(ids, "pad_token_id");
    j->start = json_is_integer(known) ? json_integer_value(known)
                                      : tokenizer_special(j->setup.tokenizer, SPECIAL_BOS);
    if (j->start >= 0) return ERR_OK;
    return err_user("the decoder of a T5 begins with [BOS], [CLS] or padding, and the tokenizer %s has none "
                    "of them: specify the tokenizer that the model was trained with",
                    j->setup.config.tokenizer_type);
}

static Err find_tokens(GenerateJob *j) {
    Ckpt *c;
    ERR_RETURN(setup_checkpoint(j->setup.config.load, j->setup.config.ckpt_step, &c));
    const json_t *ids = json_object_get(ckpt_manifest(c)->state, HF_TOKENS);
    const int64_t end = j->setup.config.termination_id;
    if (i64_is_set(end)) {
        j->ends = mem_alloc(sizeof *j->ends);
        j->ends[0] = end, j->n_ends = end >= 0;
    } else {
        setup_ends(&j->setup, ids, &j->ends, &j->n_ends);
    }
    if (comm_process() <= 0 && !j->chat) setup_note_special(&j->setup, ids);
    const Err e = generate_is_t5(j) ? find_start(j, ids) : ERR_OK;
    ckpt_close(c);
    return e;
}

/* ---- a run ---- */

/* A run's state on one rank. */
typedef struct Run {
    const GenerateJob *job;
    Speculation speculation;
    GenerateText *texts;    /* [job->n] */
    GenerateStream *stream; /* NULL if samples are printed at the end, or on another rank */
} Run;

/* Prints new tokens. Returns whether a sample's new text contains a --stop text. */
static bool watch(void *arg, int64_t sample, const Generated *g) {
    const Run *r = arg;
    Str out = {0};
    if (r->stream) generate_stream_print(r->stream);
    if (g->ended || !r->job->stops.n) return false;
    generate_text(r->job, g, &r->texts[sample], &out);
    str_free(&out);
    return r->texts[sample].text.stopped;
}

static GenerateOptions options_of(const GenerateJob *j, Run *run, EngineCounts *counts) {
    const Config *c = &j->setup.config;
    const bool block = config_given(c, inference_dynamic_batching_block_size),
               room = config_given(c, inference_dynamic_batching_buffer_size_gb);
    return (GenerateOptions){
        .sampling = generate_sampling(j),
        .max_each = j->lengths,
        .seed = c->derived.random_seed,
        .ends = j->ends,
        .n_ends = j->n_ends,
        .start = j->start,
        .watch = watch,
        .watch_arg = run,
        .skip_logprobs = !c->logprobs,
        .skip_prompt_logprobs = c->skip_prompt_log_probs,
        .likeliest = c->top_n_logprobs,
        .page = block ? c->inference_dynamic_batching_block_size : 0,
        .requests = i64_or(c->inference_dynamic_batching_max_requests, 0),
        .tokens = i64_or(c->inference_dynamic_batching_max_tokens, 0),
        .room = room ? c->inference_dynamic_batching_buffer_size_gb * (double)(1 << 30) : 0,
        .per_pass = i64_or(c->incoming_requests_per_step, 0),
        .per_second = f64_or(c->incoming_requests_per_sec, 0),
        .suspend_every = i64_or(c->suspend_resume_interval, 0),
        .suspend_s = c->suspend_timeout,
        .suspended = c->rl_kv_cache_management_mode,
        .route = c->inference_dynamic_batching_prefix_caching_coordinator_policy,
        .route_alpha = c->inference_dynamic_batching_prefix_caching_routing_alpha,
        .speculation = run->speculation,
        .counts = counts,
    };
}

static int64_t new_tokens(const GenerateJob *j, const Generated *out) {
    int64_t tokens = 0;
    for (int64_t i = 0; i < j->n; i++) tokens += out[i].n + out[i].has_end - out[i].n_prompt;
    return tokens;
}

static void free_samples(const GenerateJob *j, Generated *out) {
    for (int64_t i = 0; i < j->n && out; i++) generated_free(&out[i]);
    free(out);
}

/* Checks that a repeated run has generated the same tokens as the first run. */
static Err compare(const GenerateJob *j, const Generated *first, const Generated *again, int64_t repeat) {
    for (int64_t i = 0; i < j->n && first; i++)
        if (first[i].n != again[i].n ||
            memcmp(first[i].tokens, again[i].tokens, (size_t)again[i].n * sizeof(int32_t)))
            return err_user(
                "run %lld of --inference-repeat-n generates different tokens for prompt %lld than the first "
                "run: add --batch-invariant-mode, or remove --incoming-requests-per-sec",
                (long long)repeat + 1, (long long)i + 1);
    return ERR_OK;
}

/* Runs --inference-repeat-n times. If tokens are streamed, only the last run prints them. */
static Err repeat(const GenerateJob *j, const ModelRun *r, Speculation speculation, bool prints,
                  GenerateResults *results) {
    const Config *c = &j->setup.config;
    const BeamOptions beams = {c->beam_width, c->length_penalty};
    Generated *first = NULL;
    Err e = ERR_OK;
    for (int64_t i = 0; i < c->inference_repeat_n && !e.code; i++) {
        Generated *out = mem_zero((size_t)j->n, sizeof *out);
        const bool streams = prints && c->stream && i == c->inference_repeat_n - 1;
        Run run = {j, speculation, mem_zero((size_t)j->n, sizeof *run.texts),
                   streams ? generate_stream_new(j, out) : NULL};
        const GenerateOptions options = options_of(j, &run, &results->counts);
        const int64_t start = clock_ns();
        e = beams.width ? beam_search(r->model, &r->context, j->prompts, j->n, &options, &beams, out)
                        : generate(r->model, &r->context, j->prompts, j->n, &options, out);
        const double took = 1e-9 * (double)(clock_ns() - start);
        generate_stream_free(run.stream);
        for (int64_t k = 0; k < j->n; k++) generate_text_free(&run.texts[k]);
        free(run.texts);
        if (!e.code) e = comm_agree(r->comm, compare(j, first, out, i));
        if (!e.code) results->rates[results->n_rates++] = (double)new_tokens(j, out) / took;
        if (results->out != first) free_samples(j, results->out);
        if (!first) first = out;
        results->out = out;
    }
    if (results->out != first) free_samples(j, first);
    return e;
}

static void tell_cost(const GenerateJob *j, const GenerateResults *r) {
    const int64_t tokens = new_tokens(j, r->out);
    const double rate = r->rates[r->n_rates - 1];
    fprintf(stderr, "  generated %s in %.2f s: %.1f tokens/s; a rank allocated at most %s\n",
            amount(tokens, "token").s, tokens ? (double)tokens / rate : 0, rate,
            bytes_text((double)r->most_bytes).s);
    if (j->setup.config.num_speculative_tokens)
        fprintf(stderr, "  kept %lld of %s, in %lld passes\n", (long long)r->counts.accepted,
                amount(r->counts.drafts, "drafted token").s, (long long)r->counts.passes);
}

static Err report(const GenerateJob *j, const GenerateResults *r) {
    const Config *c = &j->setup.config;
    for (int64_t i = 0; i < j->n && !c->stream; i++) generate_print(j, i, &r->out[i]);
    if (c->output_path) ERR_RETURN(generate_write_json(j, r));
    tell_cost(j, r);
    return ERR_OK;
}

/* Continues the prompts on one rank. The first rank prints the results. */
static Err continue_prompts(const GenerateJob *j, const ModelRun *r, Comm *comm) {
    const Config *c = &j->setup.config;
    ModelRun draft;
    Speculation speculation;
    ERR_RETURN(draft_open(&j->setup, &j->draft, r, &draft, &speculation));
    const bool prints = rank_is_printer(comm);
    GenerateResults results = {.rates = mem_zero((size_t)c->inference_repeat_n, sizeof *results.rates)};
    Err e = repeat(j, r, speculation, prints, &results);
    results.most_bytes = (int64_t)r->device->most_allocated;
    if (!e.code && comm)
        comm_all_reduce(comm, comm_everyone(comm), "most allocated", COMM_MAX, I64, &results.most_bytes, 1);
    if (!e.code && prints) e = report(j, &results);
    free_samples(j, results.out);
    free(results.rates);
    draft_close(&j->setup, &draft);
    return e;
}

static Err check_vocabulary(const Config *c, int64_t vocab) {
    if (c->top_n_logprobs > vocab)
        return err_user("--top-n-logprobs %lld exceeds the vocabulary of %lld tokens: lower it",
                        (long long)c->top_n_logprobs, (long long)vocab);
    if (c->termination_id >= vocab)
        return err_user("--termination-id %lld is outside the vocabulary of %lld tokens: set an id in the "
                        "vocabulary, or -1",
                        (long long)c->termination_id, (long long)vocab);
    return ERR_OK;
}

static Err generate_on_rank(void *arg, Comm *comm) {
    const GenerateJob *j = arg;
    ModelRun r;
    ERR_RETURN(model_run_open(&r, &j->setup.config, comm));
    Err e = check_vocabulary(&j->setup.config, r.model->plan.vocab);
    if (!e.code) e = j->chat ? generate_chat(j, &r, comm) : continue_prompts(j, &r, comm);
    model_run_close(&r);
    return e;
}

static Err generate_run(void *job) {
    GenerateJob *j = job;
    Setup *s = &j->setup;
    const bool first = comm_process() <= 0;
    if (s->config.output_path && first) ERR_RETURN(file_check_target(s->config.output_path));
    ERR_RETURN(setup_finish_for_text(s));
    ERR_RETURN(draft_setup(s, &j->draft));
    j->stops = (StopList){.at = (char **)s->config.stop.at, .n = s->config.stop.count};
    if (s->config.interactive)
        ERR_RETURN(setup_chat(&s->config, s->tokenizer, &j->chat));
    else if (first || s->config.beam_width)
        ERR_RETURN(generate_read_prompts(j));
    ERR_RETURN(find_tokens(j));
    return world_run(&s->config, generate_on_rank, j);
}

int command_generate(int argc, char **argv) {
    GenerateJob j = {.setup = {.arena = arena_new()}, .draft = {.arena = arena_new()}};
    Setup *s = &j.setup;
    Args args;
    args_init(&args, s->arena,
              "isotron generate --load DIR --prompt TEXT... [options]\n\n"
              "Continues prompts with the model in a checkpoint, which may have been saved in any layout. A "
              "T5 model answers the prompts.\n\n"
              "example: isotron generate --load checkpoints --prompt \"Once upon a time\" --temperature 0.8",
              NULL);
    Err e = config_parse(&s->config, &args, USE_GENERATE, 0, argc, argv);
    Err loaded = args.help ? ERR_OK : source_args(&s->config, s->arena, &args.notes);
    if (!args.help && !loaded.code) loaded = world_size(&s->config);
    if (!args.help && !loaded.code) {
        const Config *c = &s->config;
        const NamedFile output = {"--output-path", c->output_path},
                        inputs[] = {{"--prompt-file", c->prompt_file}, {"--prompts-file", c->prompts_file}};
        command_refuse_same_files(&args, &output, 1, inputs, 2);
        config_check(&s->config, CHECK_MODEL | CHECK_GENERATE, &args);
        e = args_end(&args);
    } else if (!e.code) {
        e = loaded;
    }
    const int status = command_finish(&args, e, generate_run, &j);
    for (int64_t i = 0; i < j.n; i++) free((void *)j.prompts[i].tokens), free(j.texts[i]);
    free(j.prompts), free(j.texts), free(j.lengths), free(j.ends);
    chat_free(j.chat);
    setup_free(s), setup_free(&j.draft);
    return status;
}
