#include "tokenizer/model/added.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "tokenizer/text/field.h"
#include "tokenizer/text/unicode.h"

/* maximum length of an added token in bytes, which limits the cost of the search at each position */
enum { LONGEST = 512 };

typedef struct Token {
    int32_t id;
    bool single_word, lstrip, rstrip, special;
    Str pattern; /* the text to search for, and the token's decoded text */
} Token;

/* A set of patterns in byte order. The patterns that begin with byte b are elements first[b] to first[b + 1] -
 * 1 of v. */
typedef struct Set {
    Token *v;
    size_t n, cap;
    size_t first[257];
} Set;

struct Added {
    Vocab *vocab;
    Set sets[2];         /* [1] contains the tokens with normalized = true */
    const Token **by_id; /* [vocab_limit]; NULL if the id is not an added token */
};

void added_free(Added *a) {
    if (!a) return;
    vocab_free(a->vocab);
    free(a->by_id);
    for (int k = 0; k < 2; k++) {
        for (size_t i = 0; i < a->sets[k].n; i++) str_free(&a->sets[k].v[i].pattern);
        free(a->sets[k].v);
    }
    free(a);
}

const Vocab *added_vocab(const Added *a) { return a->vocab; }

static int by_pattern(const void *x, const void *y) {
    const Str *a = &((const Token *)x)->pattern, *b = &((const Token *)y)->pattern;
    int order = memcmp(a->s, b->s, a->len < b->len ? a->len : b->len);
    return order ? order : (a->len > b->len) - (a->len < b->len);
}

static Err sort(Set *set) {
    if (set->n) qsort(set->v, set->n, sizeof *set->v, by_pattern);
    for (size_t i = 0; i < set->n; i++) {
        if (i && !by_pattern(&set->v[i - 1], &set->v[i]))
            return err_user("added_tokens: two tokens have the same text after normalization, '%.60s'",
                            set->v[i].pattern.s);
        set->first[(unsigned char)set->v[i].pattern.s[0] + 1] = i + 1;
    }
    for (int b = 1; b <= 256; b++)
        if (set->first[b] < set->first[b - 1]) set->first[b] = set->first[b - 1];
    return ERR_OK;
}

typedef struct NextId {
    const Vocab *model, *added;
    int64_t next; /* the id of the next token that the model lacks */
    bool free;    /* whether any unused id is allowed */
} NextId;

/* Returns the id that the `tokenizers` library would assign to the text: the model's id or, if the model lacks
 * the text, the next id after the model's ids. */
static int64_t next_id(NextId *ids, const char *text, size_t n) {
    const int64_t known = vocab_id(ids->model, text, n);
    if (known >= 0) return known;
    if (ids->free && vocab_limit(ids->added) > ids->next) ids->next = vocab_limit(ids->added);
    return ids->next++;
}

/* Sets *id to the "id" of the JSON object or, if the object has no "id", to the next id. */
static Err choose_id(NextId *ids, const json_t *object, const char *text, size_t n, int64_t *id) {
    const char *from = json_string_value(json_object_get(object, "from"));
    const bool given = json_object_get(object, "id");
    if (given) ERR_RETURN(field_int(object, "added_tokens", "id", id));
    if (given && ((ids->free && !from) || vocab_id(ids->added, text, n) >= 0))
        return ERR_OK; /* vocab_add refuses a duplicate */
    const int64_t expected = next_id(ids, text, n);
    if (given && *id != expected)
        return err_user(
            "added_tokens: '%.60s' has id %lld%s%s, but the tokenizers library would assign the id %lld",
            text, (long long)*id, from ? " in " : "", from ? from : "", (long long)expected);
    *id = expected;
    return ERR_OK;
}

static void add_token(Set *set, Token t) {
    if (set->n == set->cap) set->v = mem_grow(set->v, set->cap = set->cap * 2 + 16, sizeof *set->v);
    set->v[set->n++] = t;
}

static Err load_token(Added *a, const json_t *object, const Normalizer *z, Matcher *m, NextId *ids) {
    Token t = {0};
    const char *text;
    size_t n;
    int64_t id;
    bool normalized;
    static const char where[] = "added_tokens";
    ERR_RETURN(field_text(object, where, "content", &text, &n));
    ERR_RETURN(field_bool(object, where, "single_word", false, &t.single_word));
    ERR_RETURN(field_bool(object, where, "lstrip", false, &t.lstrip));
    ERR_RETURN(field_bool(object, where, "rstrip", false, &t.rstrip));
    ERR_RETURN(field_bool(object, where, "special", false, &t.special));
    ERR_RETURN(field_bool(object, where, "normalized", !t.special, &normalized));
    if (!n) return ERR_OK;
    if (n > LONGEST) return err_user("added_tokens: '%.60s' is longer than %d bytes", text, LONGEST);
    ERR_RETURN(choose_id(ids, object, text, n, &id));
    ERR_RETURN(vocab_add(a->vocab, text, n, id));
    t.id = (int32_t)id;
    if (normalized) {
        Aligned pattern = {0};
        Err e = normalizer_run(z, m, text, n, 0, &pattern);
        t.pattern = pattern.text;
        if (!e.code && (!t.pattern.len || t.pattern.len > LONGEST))
            e = err_user("added_tokens: '%.60s' is empty, or longer than %d bytes, after normalization", text,
                         LONGEST);
        if (e.code) {
            str_free(&t.pattern);
            return e;
        }
    } else
        str_add(&t.pattern, text, n);
    add_token(&a->sets[normalized], t);
    return ERR_OK;
}

static Err load_extra(Added *a, const char *text, NextId *ids) {
    const size_t n = strlen(text);
    if (!n || n > LONGEST) return err_user("a special token must have 1 to %d bytes", LONGEST);
    if (vocab_id(a->vocab, text, n) >= 0) return ERR_OK;
    const int64_t id = next_id(ids, text, n);
    ERR_RETURN(vocab_add(a->vocab, text, n, id));
    Token t = {.id = (int32_t)id, .special = true};
    str_add(&t.pattern, text, n);
    add_token(&a->sets[0], t);
    return ERR_OK;
}

Err added_load(const json_t *list, const Normalizer *z, const Vocab *model, AddedOptions o, Added **out) {
    Added *a = mem_zero(1, sizeof *a);
    a->vocab = vocab_new();
    Matcher *m = matcher_new();
    NextId ids = {model, a->vocab, o.free_ids ? vocab_limit(model) : (int64_t)vocab_count(model), o.free_ids};
    Err e = ERR_OK;
    for (size_t i = 0; i < json_array_size(list) && !e.code; i++)
        e = load_token(a, json_array_get(list, i), z, m, &ids);
    matcher_free(m);
    for (size_t i = 0; i < o.num_extra && !e.code; i++) e = load_extra(a, o.extra[i], &ids);
    a->by_id = mem_zero((size_t)vocab_limit(a->vocab) + 1, sizeof(Token *));
    for (int k = 0; k < 2 && !e.code; k++) {
        e = sort(&a->sets[k]);
        for (size_t i = 0; i < a->sets[k].n; i++) a->by_id[a->sets[k].v[i].id] = &a->sets[k].v[i];
    }
    if (e.code)
        added_free(a);
    else
        *out = a;
    return e;
}

static const Token *find(const Added *a, int32_t id) {
    return id >= 0 && id < vocab_limit(a->vocab) ? a->by_id[id] : NULL;
}

bool added_is_special(const Added *a, int32_t id) {
    const Token *t = find(a, id);
    return t && t->special;
}

const char *added_text(const Added *a, int32_t id, size_t *n) {
    const Token *t = find(a, id);
    return t ? (*n = t->pattern.len, t->pattern.s) : NULL;
}

/* Returns the longest pattern at the start of the text, or NULL if there is none. The patterns [low, high) share the
 * first `depth` bytes with the text. */
static const Token *longest(const Set *set, const char *text, size_t n) {
    size_t low = set->first[(unsigned char)*text], high = set->first[(unsigned char)*text + 1];
    const Token *best = NULL;
    for (size_t depth = 1; low < high; depth++) {
        if (set->v[low].pattern.len == depth)
            /* in byte order, a pattern comes before longer patterns that begin with the same bytes */
            best = &set->v[low++];
        if (depth == n || low == high) break;
        unsigned char c = (unsigned char)text[depth];
        size_t bounds[2];
        for (int k = 0; k < 2; k++) { /* bounds[0]: first pattern whose next byte is >= c; bounds[1]: > c */
            size_t left = low, right = high;
            while (left < right) {
                size_t middle = left + (right - left) / 2;
                unsigned char next = (unsigned char)set->v[middle].pattern.s[depth];
                if (k ? next <= c : next < c)
                    left = middle + 1;
                else
                    right = middle;
            }
            bounds[k] = left;
        }
        low = bounds[0], high = bounds[1];
    }
    return best;
}

static bool inside_word(const char *text, size_t begin, size_t end, size_t n) {
    uint32_t c;
    if (begin && (utf8_next(text + utf8_prev(text, begin), &c), unicode_is_word(c))) return true;
    return end < n && (utf8_next(text + end, &c), unicode_is_word(c));
}

void added_split(const Added *a, bool normalized, bool special_as_text, const char *text, size_t n,
                 AddedFn *fn, void *arg) {
    const Set *set = &a->sets[normalized];
    size_t done = 0;
    for (size_t i = 0; set->n && i < n;) {
        const Token *t = longest(set, text + i, n - i);
        size_t begin = i, end = i + (t ? t->pattern.len : 1);
        i = end;
        if (!t || (special_as_text && t->special) || (t->single_word && inside_word(text, begin, end, n)))
            continue;
        uint32_t c;
        if (t->lstrip)
            for (size_t at; begin > done &&
                            (at = utf8_prev(text, begin), utf8_next(text + at, &c), unicode_is_space(c));)
                begin = at;
        if (t->lstrip && begin < done) begin = done; /* the previous token has already stripped the space */
        if (t->rstrip)
            for (size_t width; end < n && (width = utf8_next(text + end, &c), unicode_is_space(c));)
                end += width;
        if (begin >= end) continue;
        if (begin > done) fn(arg, -1, done, begin);
        fn(arg, t->id, begin, end);
        done = end;
    }
    if (done < n) fn(arg, -1, done, n);
}
