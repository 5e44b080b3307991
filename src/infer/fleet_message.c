#include "infer/fleet_message.h"

#include <string.h>

#include "base/mem.h"

/* Appends or reads one word. After the last word, a reader reads 0. */
static void word(Words *w, int64_t *x) {
    if (!w->reads) {
        w->at = mem_grow(w->at, (size_t)w->n + 1, sizeof *w->at);
        w->at[w->n++] = *x;
        return;
    }
    w->bad |= w->read >= w->n;
    *x = w->bad ? 0 : w->at[w->read++];
}

/* Appends or reads an integer of any type. */
#define INTEGER(w, x)                                                                                        \
    do {                                                                                                     \
        int64_t integer = (int64_t)(x);                                                                      \
        word(w, &integer);                                                                                   \
        (x) = (__typeof__(x))integer;                                                                        \
    } while (0)

static void real(Words *w, double *x) {
    int64_t bits;
    memcpy(&bits, x, sizeof bits);
    word(w, &bits);
    memcpy(x, &bits, sizeof bits);
}

/* When writing, appends *n and the array x. When reading, sets *n, and points *x at the elements in the
 * message. */
static void array(Words *w, const void **x, int64_t *n, size_t size) {
    word(w, n);
    if (w->reads) {
        const int64_t rest = w->n - w->read;
        w->bad |= *n < 0 || *n > rest * 8 / (int64_t)size;
        if (w->bad) *n = 0;
    }
    const int64_t words = (*n * (int64_t)size + 7) / 8;
    if (w->reads) {
        *x = w->at + w->read;
        w->read += words;
    } else if (words) {
        w->at = mem_grow(w->at, (size_t)(w->n + words), sizeof *w->at);
        w->at[w->n + words - 1] = 0;
        memcpy(w->at + w->n, *x, (size_t)*n * size);
        w->n += words;
    }
}
#define ARRAY(w, x, n)                                                                                       \
    do {                                                                                                     \
        const void *elements = (x);                                                                          \
        array(w, &elements, &(n), sizeof *(x));                                                              \
        (x) = elements;                                                                                      \
    } while (0)

static void sampling(Words *w, Sampling *s) {
    real(w, &s->temperature), real(w, &s->top_p), real(w, &s->min_p);
    real(w, &s->presence), real(w, &s->frequency), real(w, &s->repetition);
    INTEGER(w, s->top_k);
    ARRAY(w, s->bias, s->n_bias);
    ARRAY(w, s->allowed, s->n_allowed);
    ARRAY(w, s->bad, s->n_bad);
}

static void request(Words *w, Request *r) {
    ARRAY(w, r->prompt, r->n);
    ARRAY(w, r->ends, r->n_ends);
    INTEGER(w, r->start);
    sampling(w, &r->sampling);
    INTEGER(w, r->seed);
    INTEGER(w, r->stream);
    INTEGER(w, r->min_new_tokens);
    INTEGER(w, r->max_new_tokens);
    INTEGER(w, r->logprobs);
    INTEGER(w, r->prompt_logprobs);
    ARRAY(w, r->salt, r->n_salt);
    ARRAY(w, r->grammar, r->n_grammar);
    INTEGER(w, r->likeliest);
}

static void order(Words *w, Order *o) {
    INTEGER(w, o->kind);
    INTEGER(w, o->number);
    INTEGER(w, o->replica);
    INTEGER(w, o->request.id);
    INTEGER(w, o->signal);
    if (o->kind == ORDER_ADD) request(w, &o->request);
    if (o->kind == ORDER_SIGNAL && o->signal == SIGNAL_WEIGHTS) ARRAY(w, o->path, o->n_path);
}

void order_write(Words *w, const Order *o) {
    Order copy = *o;
    order(w, &copy);
}

void order_read(Words *w, Order *o) {
    *o = (Order){0};
    order(w, o);
    w->bad |= (unsigned)o->kind >= ORDERS || (unsigned)o->signal >= SIGNALS;
}

static void event(Words *w, EngineEvent *e) {
    INTEGER(w, e->kind);
    INTEGER(w, e->id);
    INTEGER(w, e->index);
    INTEGER(w, e->token);
    INTEGER(w, e->finish);
    INTEGER(w, e->weights);
    INTEGER(w, e->cached);
    INTEGER(w, e->waited_ns);
    real(w, &e->logprob);
    ARRAY(w, e->likeliest, e->n_likeliest);
}

void event_write(Words *w, const EngineEvent *e) {
    EngineEvent copy = *e;
    event(w, &copy);
}

void event_read(Words *w, EngineEvent *e) {
    *e = (EngineEvent){0};
    event(w, e);
    if (!e->n_likeliest) e->likeliest = NULL;
    w->bad |= (unsigned)e->kind > EVENT_END || (unsigned)e->finish > FINISH_WIDE;
}

Err head_check(const int64_t *head, int words, int rank) {
    if (head[0] != FLEET_PROTOCOL)
        return err_infra(
            "rank %d sends messages of version %lld, but this rank reads version %d: start all ranks "
            "with the same program",
            rank, (long long)head[0], FLEET_PROTOCOL);
    if (head[words - 1] < 0 || head[words - 1] > FLEET_MOST_WORDS)
        return err_infra(
            "rank %d sends a message of %lld words, which is not a valid length: start all ranks with "
            "the same program",
            rank, (long long)head[words - 1]);
    return ERR_OK;
}
