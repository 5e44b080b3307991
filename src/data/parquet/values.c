#include "data/parquet/values.h"

#include <stdlib.h>

#include "base/mem.h"

/* The values of Encoding in parquet.thrift. */
enum {
    PLAIN = 0,
    PLAIN_DICTIONARY = 2,
    DELTA_LENGTH_BYTE_ARRAY = 6,
    DELTA_BYTE_ARRAY = 7,
    RLE_DICTIONARY = 8
};

enum { MAX_WIDTH = 32 };

static uint32_t bits_at(const unsigned char *p, uint64_t bit, unsigned width) {
    uint64_t value = 0;
    const unsigned shift = bit % 8, bytes = (shift + width + 7) / 8;
    for (unsigned i = 0; i < bytes; i++) value |= (uint64_t)p[bit / 8 + i] << 8 * i;
    return (uint32_t)(value >> shift & ((UINT64_C(1) << width) - 1));
}

/* Reads the header of a run. The number of values in a bit-packed run is a multiple of 8. The last run may omit
 * bytes that no value needs. */
static bool start_run(Runs *r) {
    const uint64_t head = bytes_varint(&r->in), count = head >> 1;
    if (!(head & 1)) {
        r->left = count, r->bits = NULL;
        r->value = (uint32_t)bytes_little(&r->in, (r->width + 7) / 8);
        return !r->in.bad;
    }
    const uint64_t have = (uint64_t)(r->in.end - r->in.at);
    if (count > UINT32_MAX) bytes_fail(&r->in);
    const uint64_t need = count * r->width, n = need < have ? need : have;
    r->left = need <= have ? 8 * count : 8 * n / r->width;
    r->bit = 0;
    return bytes_take(&r->in, n, &r->bits);
}

bool runs_next(Runs *r, uint32_t *out) {
    while (!r->left)
        if (!start_run(r)) return false;
    r->left--;
    *out = r->bits ? bits_at(r->bits, r->bit, r->width) : r->value;
    r->bit += r->width;
    return true;
}

static bool next_miniblock(Deltas *d) {
    if (!d->mini) {
        d->least = (uint32_t)bytes_zigzag(&d->in);
        if (!bytes_take(&d->in, d->count, &d->widths)) return false;
        d->mini = d->count;
    }
    d->width = d->widths[d->count - d->mini--];
    if (d->width > MAX_WIDTH) bytes_fail(&d->in);
    d->rest = d->size, d->bit = 0;
    return bytes_take(&d->in, d->size / 8 * d->width, &d->bits);
}

/* Reads the header of the deltas, and sets `after` to the bytes that follow the deltas. An empty input has no
 * values. */
static bool deltas_open(Deltas *d, Bytes in, Bytes *after) {
    *d = (Deltas){.in = in}, *after = in;
    if (in.at == in.end) return true;
    const uint64_t block = bytes_varint(&d->in);
    d->count = bytes_varint(&d->in), d->left = bytes_varint(&d->in);
    d->value = (uint32_t)bytes_zigzag(&d->in);
    if (d->in.bad || !d->count || block > UINT32_MAX || block % d->count || block / d->count % 8)
        return false;
    d->size = block / d->count;
    Deltas ahead = *d;
    for (uint64_t rest = d->left ? d->left - 1 : 0; rest; rest -= rest < d->size ? rest : d->size)
        if (!next_miniblock(&ahead)) return false;
    *after = ahead.in;
    return true;
}

static bool deltas_next(Deltas *d, uint32_t *out) {
    if (!d->left) return false;
    *out = d->value;
    if (!--d->left) return true;
    if (!d->rest && !next_miniblock(d)) return false;
    d->value += d->least + bits_at(d->bits, d->bit, d->width);
    d->rest--, d->bit += d->width;
    return true;
}

static bool take_string(Bytes *b, uint64_t n, ParquetText *out) {
    const unsigned char *p;
    const bool ok = bytes_take(b, n, &p);
    *out = (ParquetText){(const char *)p, n};
    return ok;
}

const char *strings_dictionary(Strings *s, Bytes page, int64_t encoding, int64_t n) {
    if (s->dictionary) return "it has two dictionaries";
    if (encoding != PLAIN && encoding != PLAIN_DICTIONARY) return "its dictionary has an unknown encoding";
    if (n < 0 || n > (page.end - page.at) / 4) return "its dictionary is too short for its number of strings";
    s->dictionary = mem_alloc(((size_t)n + 1) * sizeof *s->dictionary);
    for (; (int64_t)s->dictionary_size < n; s->dictionary_size++)
        if (!take_string(&page, bytes_little(&page, 4), &s->dictionary[s->dictionary_size]))
            return "a string of its dictionary is longer than the dictionary";
    return NULL;
}

const char *strings_open(Strings *s, Bytes page, int64_t encoding) {
    static const char DELTAS[] = "a page's string lengths are damaged";
    s->encoding = encoding, s->data = page;
    switch (encoding) {
    case PLAIN:
        return NULL;
    case PLAIN_DICTIONARY:
    case RLE_DICTIONARY:
        if (!s->dictionary) return "its dictionary is missing";
        /* a page that contains only nulls may be empty */
        const unsigned width = page.at < page.end ? *page.at++ : 0;
        s->indices = (Runs){.in = page, .width = width};
        return width > MAX_WIDTH ? "a page's indices have more than 32 bits" : NULL;
    case DELTA_BYTE_ARRAY:
        if (!deltas_open(&s->prefixes, s->data, &s->data)) return DELTAS;
        /* fall through */
    case DELTA_LENGTH_BYTE_ARRAY:
        return deltas_open(&s->lengths, s->data, &s->data) ? NULL : DELTAS;
    default:
        return "a page has an encoding that is invalid for strings";
    }
}

static bool next_delta(Strings *s, ParquetText *out) {
    uint32_t prefix = 0, n;
    if (s->encoding == DELTA_BYTE_ARRAY && !deltas_next(&s->prefixes, &prefix)) return false;
    if (!deltas_next(&s->lengths, &n) || !take_string(&s->data, n, out)) return false;
    if (s->encoding == DELTA_LENGTH_BYTE_ARRAY) return true;
    if (prefix > s->previous.len) return false;
    s->previous.len = prefix; /* the prefix may refer to the previous page (PARQUET-246) */
    str_add(&s->previous, out->bytes, n);
    *out = (ParquetText){s->previous.s, s->previous.len};
    return true;
}

bool strings_next(Strings *s, ParquetText *out) {
    uint32_t index;
    switch (s->encoding) {
    case PLAIN:
        return take_string(&s->data, bytes_little(&s->data, 4), out);
    case PLAIN_DICTIONARY:
    case RLE_DICTIONARY:
        if (!runs_next(&s->indices, &index) || index >= s->dictionary_size) return false;
        *out = s->dictionary[index];
        return true;
    default:
        return next_delta(s, out);
    }
}

void strings_free(Strings *s) {
    free(s->dictionary);
    str_free(&s->previous);
    *s = (Strings){0};
}
