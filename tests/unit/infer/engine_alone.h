/* Tests that a request's tokens and log-probabilities are bitwise equal alone and among others. The sizes of the
 * pool and of a pass, the order of arrivals, preemptions, aborts and drafts must not change them. */
#pragma once

#include <stdlib.h>

#include "unit/err.h"
#include "unit/model_helper.h"

#include "infer/engine.h"

#define SIZES                                                                                                \
    "--num-layers 2 --hidden-size 24 --num-attention-heads 4 --max-position-embeddings 200 --vocab-size 31 " \
    "--init-method-std 0.3 --batch-invariant-mode "
#define ROPE   "--position-embedding-type rope --normalization RMSNorm --disable-bias-linear "
#define GROUPS "--group-query-attention --num-query-groups 2 "
#define MLA                                                                                                  \
    "--multi-latent-attention --kv-lora-rank 10 --q-lora-rank 12 --qk-head-dim 6 --qk-pos-emb-head-dim 4 "   \
    "--v-head-dim 5 "
#define DRAFT                                                                                                \
    "--num-layers 1 --hidden-size 16 --num-attention-heads 2 --max-position-embeddings 170 --vocab-size 31 "
static const char *const STYLES[] = {
    SIZES "--fp64 ",
    SIZES ROPE GROUPS "--swiglu --softmax-type learnable --window-size 70,0 --bf16 --mtp-num-layers 3 ",
    SIZES ROPE "--attn-logit-softcapping 5 --attention-chunk-size 66 ",
    SIZES "--position-embedding-type alibi ",
    SIZES ROPE MLA "--fp16 --mtp-num-layers 2 --mtp-use-repeated-layer ",
    SIZES ROPE MLA "--cache-mla-latents --mtp-num-layers 1 ",
    SIZES ROPE
    "--num-experts 6 --moe-router-topk 2 --moe-ffn-hidden-size 20 --moe-router-load-balancing-type none "
    "--moe-shared-expert-intermediate-size 8 --moe-latent-size 12 ",
    "--model t5 --seq-length 150 --decoder-seq-length 150 " SIZES
    "--position-embedding-type relative --relative-attention-num-buckets 8 --relative-attention-max-distance "
    "40 ",
};
enum {
    STYLE_COUNT = sizeof STYLES / sizeof *STYLES,
    REQUESTS = 24,
    ROUNDS = 3,
    LONGEST = 110,
    NEW = 80,
    PAGE = 64
};

typedef struct Result {
    int32_t tokens[LONGEST + NEW];
    double logprobs[LONGEST + NEW];
    int64_t n, ended;
} Result;

typedef struct Case {
    TestModel *m;
    Setup *draft_setup;
    Model *draft; /* on the device of m */
    int32_t prompt[REQUESTS][LONGEST];
    Request request[REQUESTS];
    Result want[REQUESTS], got[REQUESTS];
} Case;

static uint64_t draw(uint64_t round, uint64_t i, uint64_t most) { return philox_u32(7, round, i) % most; }

static void case_init(Case *c, const char *words, Device *device) {
    static const int64_t END = 3;
    static const TokenBias BIAS[] = {{7, 1.5}, {9, -100}};
    c->m = test_model_on(setup_new("%s", words), device);
    c->draft_setup = setup_new("%s", DRAFT);
    c->draft = model_new(&c->draft_setup->config, NULL);
    model_allocate(c->draft, device, c->m->run.dtype, 170, true);
    registry_init(c->draft->registry, 1);
    for (int i = 0; i < REQUESTS; i++) {
        const int64_t n = 1 + (int64_t)(i % 3 ? draw(1, (uint64_t)i, 20) : draw(2, (uint64_t)i, LONGEST));
        for (int64_t k = 0; k < n; k++) /* some prompts have equal first pages */
            c->prompt[i][k] =
                (int32_t)draw(3, (uint64_t)((k < PAGE && i % 3 == 0 ? 0 : i) * LONGEST + k), 31);
        c->request[i] = (Request){
            .id = 100 - i,
            .prompt = c->prompt[i],
            .n = n,
            .start = 5,
            .sampling = {.temperature = i % 4 ? 1.5 : 0,
                         .top_k = i % 4 >= 2 ? 5 : 0,
                         .top_p = i % 4 == 3 ? 0.9 : 0,
                         .min_p = i % 7 == 1 ? 0.1 : 0,
                         .presence = i % 7 == 2 ? 0.5 : 0,
                         .frequency = i % 7 == 3 ? 0.25 : 0,
                         .repetition = i % 7 == 4 ? 1.2 : 0,
                         .bias = BIAS,
                         .n_bias = i % 7 == 5 ? 2 : 0},
            .seed = 11,
            .stream = (uint64_t)i,
            .min_new_tokens = i % 10,
            .max_new_tokens = (int64_t)draw(4, (uint64_t)i, NEW + 1),
            .ends = &END,
            .n_ends = i % 5 == 0,
            .logprobs = i % 3 > 0,
            .prompt_logprobs = i % 2,
        };
    }
}

static void case_free(Case *c) {
    model_free(c->draft);
    setup_free(c->draft_setup);
    test_model_free(c->m);
}

static void take(void *arg, const EngineEvent *e) {
    Result *r = &((Result *)arg)[100 - e->id];
    if (e->kind == EVENT_END) {
        r->ended++;
        assert_true(e->finish == FINISH_STOP || e->finish == FINISH_LENGTH);
        return;
    }
    assert_int_equal(r->ended, 0);
    assert_true(e->kind == EVENT_PROMPT || e->index >= r->n);
    r->tokens[e->index] = e->token, r->logprobs[e->index] = e->logprob;
    r->n = e->index + 1;
}

static Engine *engine_open(const TestModel *m, EngineLimits limits) {
    Engine *e;
    assert_ok(engine_new(m->model, &m->run, &limits, &e));
    return e;
}

static void run_alone(Case *c) {
    for (int i = 0; i < REQUESTS; i++) {
        Engine *e = engine_open(
            c->m,
            (EngineLimits){.page = PAGE, .pages = 3, .encoder_pages = 3, .requests = 1, .tokens = LONGEST});
        assert_ok(engine_add(e, &c->request[i]));
        while (engine_step(e, take, c->want)) continue;
        engine_free(e);
        assert_int_equal(c->want[i].ended, 1);
    }
}

/* Drafts of the model's layers that predict further tokens, of another model, or of the model itself. */
static Speculation speculation_of(const Case *c, uint64_t round) {
    const int64_t n = 1 + (int64_t)draw(round, 6, 4), layers = c->m->setup->config.mtp_num_layers;
    if (c->m->model->plan.sample.encoder) return (Speculation){0};
    if (layers && round % 3 == 1) return (Speculation){.tokens = n < layers ? n : layers};
    return (Speculation){n, round % 3 ? c->m->model : c->draft, &c->m->run};
}

/* Requests arrive in a random order, and some are aborted at a random time. */
static inline EngineCounts run_together(Case *c, uint64_t round) {
    const int64_t requests = 1 + (int64_t)draw(round, 1, REQUESTS), pages = 3 + (int64_t)draw(round, 2, 3),
                  tokens = requests + (int64_t)draw(round, 3, 4) * 12;
    Engine *e = engine_open(c->m, (EngineLimits){.page = PAGE,
                                                 .pages = pages,
                                                 .encoder_pages = 3 * pages,
                                                 .requests = requests,
                                                 .tokens = tokens,
                                                 .shares_prefixes = round % 2,
                                                 .speculation = speculation_of(c, round)});
    const uint64_t first = draw(round, 4, REQUESTS), aborted = draw(round, 5, REQUESTS);
    memset(c->got, 0, sizeof c->got);
    bool gone = false;
    for (uint64_t step = 0, arrived = 0, busy = 1; busy || arrived < REQUESTS; step++) {
        for (uint64_t n = draw(round, 100 + step, 4); n && arrived < REQUESTS; n--, arrived++)
            assert_ok(engine_add(e, &c->request[(first + 5 * arrived) % REQUESTS]));
        if (step == 20) gone = engine_abort(e, c->request[aborted].id);
        busy = engine_step(e, take, c->got);
        assert_in_range(engine_counts(e).running, 0, requests);
    }
    for (uint64_t i = 0; i < REQUESTS; i++) {
        if (gone && i == aborted) continue;
        assert_int_equal(c->got[i].ended, 1);
        assert_memory_equal(&c->got[i], &c->want[i], sizeof(Result));
    }
    const EngineCounts counts = engine_counts(e);
    assert_int_equal(counts.waiting + counts.running, 0);
    assert_int_equal(counts.free_pages, pages);
    engine_free(e);
    return counts;
}

/* open: returns a new device. */
static inline void assert_results_are_those_of_a_request_alone(Device *(*open)(void)) {
    Case *c = mem_alloc(sizeof *c);
    for (int k = 0; k < STYLE_COUNT; k++) {
        int64_t preemptions = 0, shared = 0, kept = 0, rejected = 0;
        memset(c, 0, sizeof *c);
        case_init(c, STYLES[k], open());
        run_alone(c);
        for (uint64_t round = 0; round < ROUNDS; round++) {
            const EngineCounts counts = run_together(c, 10 + round);
            preemptions += counts.preemptions, shared += counts.shared;
            kept += counts.accepted, rejected += counts.drafts - counts.accepted;
        }
        if (!preemptions) fail_msg("style %d: no request was preempted", k);
        if (!c->m->model->plan.sample.encoder) {
            if (!shared) fail_msg("style %d: no page was shared", k);
            if (!kept || !rejected)
                fail_msg("style %d: %lld drafts were kept and %lld rejected", k, (long long)kept,
                         (long long)rejected);
        }
        case_free(c);
    }
    free(c);
}
