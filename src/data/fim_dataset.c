#include "data/fim_dataset.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/philox.h"
#include "base/utf8.h"
#include "data/gpt_dataset.h"

/* A sample's text of n tokens, and the first n tokens of the rearranged text. */
typedef struct Rewrite {
    const FimConfig *c;
    uint64_t seed, first; /* Philox block for the segment that begins at position 0 */
    const int64_t *text;
    int64_t *out, n, have;
} Rewrite;

typedef Err Part(Rewrite *, int64_t begin, int64_t end);

static Philox4 draws(const Rewrite *w, const char *site, int64_t begin) {
    return philox4x32(w->seed, hash_name(site), w->first + (uint64_t)begin);
}

static bool happens(uint32_t draw, double probability) { return (double)draw < probability * 0x1p32; }

static void put(Rewrite *w, int64_t token) {
    if (w->have < w->n) w->out[w->have++] = token;
}

static Err keep(Rewrite *w, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) put(w, w->text[i]);
    return ERR_OK;
}

static Err put_text(Rewrite *w, const char *text, size_t n) {
    int32_t *tokens;
    size_t count;
    ERR_RETURN(w->c->encode(w->c->ctx, text, n, &tokens, &count));
    for (size_t i = 0; i < count; i++) put(w, tokens[i]);
    free(tokens);
    return ERR_OK;
}

static Err put_pieces(Rewrite *w, const Str *text, size_t a, size_t b, bool spm) {
    const FimConfig *c = w->c;
    put(w, c->tokens.prefix);
    if (!spm) ERR_RETURN(put_text(w, text->s, a));
    put(w, c->tokens.suffix);
    ERR_RETURN(put_text(w, text->s + b, text->len - b));
    put(w, c->tokens.middle);
    if (spm) ERR_RETURN(put_text(w, text->s, a));
    return put_text(w, text->s + a, b - a);
}

/* Decodes tokens to text. As in Python, invalid UTF-8 becomes U+FFFD. */
static Err text_of(const Rewrite *w, int64_t begin, int64_t end, Str *out) {
    const size_t n = (size_t)(end - begin);
    int32_t *tokens = mem_alloc((n + 1) * sizeof *tokens);
    char *text;
    size_t bytes;
    for (size_t i = 0; i < n; i++) tokens[i] = (int32_t)w->text[begin + (int64_t)i];
    const Err e = w->c->decode(w->c->ctx, tokens, n, &text, &bytes);
    free(tokens);
    if (e.code) return e;
    str_puts(out, "");
    utf8_repair(text, bytes, out);
    free(text);
    return ERR_OK;
}

/* Returns the byte offset of a random character in the text, or of the text's end. */
static size_t boundary(const Str *text, uint32_t draw) {
    uint64_t character = (uint64_t)draw * (utf8_count(text->s, text->len) + 1) >> 32;
    size_t at = 0;
    for (uint32_t c; character; character--) at += utf8_next(text->s + at, &c);
    return at;
}

static Err permute(Rewrite *w, int64_t begin, int64_t end, double rate, const char *site) {
    const Philox4 d = draws(w, site, begin);
    const char *refused = w->c->no_prefix;
    Str text = {0};
    if (!happens(d.v[0], rate)) return keep(w, begin, end);
    ERR_RETURN(text_of(w, begin, end, &text));
    Err e;
    if (refused && !strncmp(text.s, refused, strlen(refused))) {
        e = keep(w, begin, end);
    } else {
        const size_t a = boundary(&text, d.v[1]), b = boundary(&text, d.v[2]);
        e = put_pieces(w, &text, a < b ? a : b, a < b ? b : a, happens(d.v[3], w->c->spm_rate));
    }
    str_free(&text);
    return e;
}

/* Divides the text into parts that end with the token `end_token`. Calls `part` for each part, and for the rest of
 * the text. */
static Err each_part(Rewrite *w, int64_t begin, int64_t end, int64_t end_token, Part *part) {
    for (int64_t i = begin; i < end; i++) {
        if (w->text[i] != end_token) continue;
        if (i > begin) {
            ERR_RETURN(part(w, begin, i));
            put(w, end_token);
        }
        begin = i + 1;
    }
    return part(w, begin, end);
}

static Err fragment(Rewrite *w, int64_t begin, int64_t end) {
    return permute(w, begin, end, w->c->fragment_rate, "fim.fragment");
}

static Err segment(Rewrite *w, int64_t begin, int64_t end) {
    bool split = false;
    for (int64_t i = begin; i < end && w->c->tokens.split >= 0; i++)
        split |= w->text[i] == w->c->tokens.split;
    if (!split) return permute(w, begin, end, w->c->rate, "fim");
    if (!happens(draws(w, "fim", begin).v[0], w->c->rate)) return keep(w, begin, end);
    return each_part(w, begin, end, w->c->tokens.split, fragment);
}

static Err get(const DatasetPart *p, int64_t k, Sample *out) {
    const FimConfig *c = p->config->kind_config;
    const int64_t whole = p->config->sequence_length + 1;
    int64_t *text, n;
    ERR_RETURN(gpt_text(p, k, &text, &n));
    /* each position at which a segment can begin has a Philox block; the last segment may begin after the last
     * token */
    Rewrite w = {.c = c,
                 .seed = p->config->seed,
                 .first = (uint64_t)k * (uint64_t)(whole + 1),
                 .text = text,
                 .out = mem_alloc((size_t)whole * sizeof *w.out),
                 .n = n};
    const Err e = each_part(&w, 0, n, c->tokens.eod, segment);
    while (w.have < n) put(&w, c->tokens.pad);
    memcpy(text, w.out, (size_t)n * sizeof *text);
    if (!e.code) gpt_fill(p->config, text, out);
    free(w.out), free(text);
    return e;
}

const DatasetKind fim_dataset = {
    .class_name = "GPTFIMDataset",
    .size = sizeof(GptDataset),
    .config_size = sizeof(FimConfig),
    .fields = GPT_FIELDS,
    .split_in_names = true,
    .array_names = (const char *const[]){"document_index.npy", "sample_index.npy", "shuffle_index.npy", NULL},
    .open = gpt_open,
    .close = gpt_close,
    .get = get,
};
