#include "data/source.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/fault.h"
#include "base/mem.h"
#include "data/random/pcg64.h"

enum { MOCK_SEQUENCES = 100000 };

static Err open_mock(TokenSource *s) {
    if (s->vocab_size < 1) return err_user("mock data needs a vocabulary; set the vocabulary size");
    s->sequences = MOCK_SEQUENCES, s->documents = MOCK_SEQUENCES / s->mock.sentences;
    s->mock_lengths = mem_alloc(MOCK_SEQUENCES * sizeof *s->mock_lengths);
    Pcg64 rng;
    pcg64_seed(&rng, 0);
    for (int i = 0; i < MOCK_SEQUENCES; i++) s->mock_lengths[i] = pcg64_integer(&rng, 1, s->mock.longest);
    return ERR_OK;
}

Err source_open(const char *prefix, MockShape mock, int64_t vocab_size, int64_t eod, TokenSource *out) {
    *out = (TokenSource){.mock = mock, .vocab_size = vocab_size, .eod = eod};
    if (!prefix) return open_mock(out);
    ERR_RETURN(indexed_open(prefix, &out->indexed));
    Err e = ERR_OK;
    if (indexed_dtype_is_float(out->indexed.dtype))
        e = err_user("'%s' contains %s values, not token ids; check the path", prefix,
                     indexed_dtype_name(out->indexed.dtype));
    else if (out->indexed.sequences > INT32_MAX)
        e = err_user("'%s' has %" PRId64
                     " sequences, but an index of samples can have at most 2147483647; split the dataset",
                     prefix, out->indexed.sequences);
    out->prefix = mem_strdup(prefix);
    out->sequences = out->indexed.sequences, out->documents = out->indexed.documents;
    if (e.code) source_close(out);
    return e;
}

void source_close(TokenSource *s) {
    indexed_close(&s->indexed);
    free(s->mock_lengths), free(s->prefix);
    *s = (TokenSource){0};
}

const char *source_name(const TokenSource *s) { return s->prefix ? s->prefix : "mock data"; }

int32_t source_length(const TokenSource *s, int64_t sequence) {
    if (!s->mock_lengths) return indexed_length(&s->indexed, sequence);
    CHECK(sequence >= 0 && sequence < s->sequences, "sequence %" PRId64 " of %" PRId64, sequence,
          s->sequences);
    return s->mock_lengths[sequence];
}

int64_t source_document(const TokenSource *s, int64_t document) {
    if (!s->mock_lengths) return indexed_document(&s->indexed, document);
    return document * s->mock.sentences;
}

void source_tokens(const TokenSource *s, int64_t sequence, int64_t begin, int64_t count, int64_t *out) {
    if (!s->mock_lengths) {
        indexed_tokens(&s->indexed, sequence, begin, count, out);
        return;
    }
    int64_t length = source_length(s, sequence);
    CHECK(begin >= 0 && count >= 0 && count <= length - begin, "tokens %" PRId64 " + %" PRId64 " of %" PRId64,
          begin, count, length);
    for (int64_t i = begin; i < begin + count; i++)
        out[i - begin] = i == length - 1 ? s->eod : (i + 1) % s->vocab_size;
}
