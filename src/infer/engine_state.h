/* The state of an engine, which the files of its implementation share. */
#pragma once

#include "infer/engine.h"
#include "infer/page_pool.h"
#include "nn/feed.h"

typedef struct PageList {
    int64_t *page; /* [n] */
    int64_t n;
} PageList;

/* A request. Its rows of the pool are those of tokens [0, computed). */
typedef struct Live {
    Request request;
    int32_t *tokens; /* [n] of the decoder: those that begin it, then the new ones */
    int64_t n, n_first, computed;
    int64_t known; /* number of the prompt's log-probabilities that were reported */
    PageList pages, encoder_pages;
    int64_t named;   /* number of leading pages that have names */
    uint64_t before; /* PageName.before of the next page */
    bool encoded;    /* whether the encoder's rows are in the pool */
    bool ended;
} Live;

typedef struct LiveList {
    Live **at;
    int64_t n;
} LiveList;

/* The tokens [computed, computed + n) of a request in a pass. */
typedef struct Share {
    Live *live;
    int64_t n;
} Share;

struct Engine {
    const Model *model;
    const RunContext *context;
    EngineLimits limits;
    PagePool *pages, *encoder_pages;
    LiveList waiting, running; /* in the order of arrival, and of admission */
    Share *share;              /* [n_shares] the current pass */
    int64_t n_shares;
    Cache cache;
    Space *slot, *transient;
    Tape *tape;
    char *ids; /* device memory of a pass's integers */
    size_t ids_bytes;
    double *row, *scratch; /* [vocab] */
    LikelyToken *likeliest;
    int64_t passes, preemptions, shared;
};

static inline bool has_encoder(const Engine *e) { return e->model->plan.sample.encoder > 0; }

/* Whether the pass must give the logits of token i of a request, and the token is not the last one. */
static inline bool reports(const Engine *e, const Live *live, int64_t i) {
    return live->request.prompt_logprobs && !has_encoder(e) && i + 1 < live->n_first && i >= live->known;
}

/* Runs the pass of e->share (pass.c). Returns the chosen logits [chosen, 1, padded vocab]. */
Tensor *pass_run(Engine *);
