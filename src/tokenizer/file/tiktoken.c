/* Reads tiktoken's byte-level BPE from Megatron-LM's *.vocab.json, a list of {"rank", "token_bytes",
 * "token_str"}, or from a .tiktoken file with one "BASE64 RANK" per line. Source: Megatron-LM
 * tiktoken_tokenizer.py; tiktoken/src/lib.rs and load.py, openai_public.py (patterns cl100k and o200k). */
#include "tokenizer/file/tiktoken.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "base/utf8.h"
#include "tokenizer/file/hf.h"
#include "tokenizer/text/base64.h"
#include "tokenizer/text/field.h"
#include "tokenizer/text/pretokenize.h"

enum { BYTES = 256, USUAL_SPECIAL = 1000, MOST_TOKENS = 1 << 17 };

#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define SHORT "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define START "[^\\r\\n\\p{L}\\p{N}]?"

static const char *const PATTERNS[][2] = {
    {"v1",
     "[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"},
    {"v2", START UPPER "*" LOWER "+|" START UPPER "+" LOWER
                       "*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
    {"cl100k", SHORT "|" START "\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
                     "|\\s+\\z|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"},
    {"o200k", START UPPER "*" LOWER "+" SHORT "?|" START UPPER "+" LOWER "*" SHORT
                          "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
};

static const char *const MEGATRON_SPECIAL[] = {"<unk>", "<s>", "</s>", "<mask>", "<pad>", "<cls>", "<sep>"};
enum { NUM_MEGATRON_SPECIAL = sizeof MEGATRON_SPECIAL / sizeof *MEGATRON_SPECIAL };

/* Adds a token in the spelling of byte-level vocabularies. The tokens with ranks below 256 must be single
 * bytes. */
static Err add_token(Vocab *v, const char *base64, size_t n, int64_t rank, int64_t id) {
    Str bytes = {0}, spelled = {0};
    Err e = ERR_OK;
    if (!base64_decode(base64, n, &bytes) || !bytes.len)
        e = err_user("the token of rank %lld is not base64", (long long)rank);
    else if (rank < BYTES && bytes.len != 1)
        e = err_user(
            "the token of rank %lld is not a single byte, but the first 256 tokens must be single bytes",
            (long long)rank);
    for (size_t i = 0; i < bytes.len; i++) utf8_put(&spelled, byte_to_char((unsigned char)bytes.s[i]));
    if (!e.code) e = vocab_add(v, spelled.s, spelled.len, id);
    str_free(&bytes), str_free(&spelled);
    return e;
}

/* Adds the first `most` entries of the list with consecutive ids, beginning with `first`. */
static Err read_list(const json_t *list, int64_t first, int64_t most, Vocab *v) {
    Err e = json_is_array(list) ? ERR_OK : err_user("the file must be a list of tokens");
    for (size_t i = 0; i < json_array_size(list) && (int64_t)i < most && !e.code; i++) {
        const json_t *entry = json_array_get(list, i);
        const char *text;
        size_t n;
        int64_t rank;
        e = field_int(entry, "a token", "rank", &rank);
        if (!e.code) e = field_text(entry, "a token", "token_bytes", &text, &n);
        if (!e.code && rank != (int64_t)i)
            e = err_user("entry %zu must have its index as its rank, but has rank %lld", i, (long long)rank);
        if (!e.code) e = add_token(v, text, n, rank, first + rank);
    }
    return e;
}

static Err read_lines(const char *path, Vocab *v) {
    Str text = {0};
    Err e = text_read(path, &text);
    size_t line = 1;
    for (size_t at = 0; at < text.len && !e.code; line++) {
        const char *s = text.s + at, *newline = memchr(s, '\n', text.len - at);
        const size_t n = newline ? (size_t)(newline - s) : text.len - at;
        const char *blank = memchr(s, ' ', n);
        char *end = NULL;
        at += n + 1;
        if (!n) continue;
        const long long rank = blank ? strtoll(blank + 1, &end, 10) : -1;
        if (rank < 0 || end == blank + 1 || end > s + n)
            e = err_user("line %zu must contain a token in base64 and its rank", line);
        else
            e = add_token(v, s, (size_t)(blank - s), rank, rank);
    }
    str_free(&text);
    return e;
}

Err tiktoken_pattern(const char *name, const char **out) {
    for (size_t i = 0; i < sizeof PATTERNS / sizeof *PATTERNS; i++)
        if (!strcmp(name, PATTERNS[i][0])) return *out = PATTERNS[i][1], ERR_OK;
    return err_user("unknown pattern '%.60s'; use v1, v2, cl100k or o200k", name);
}

static void add_special(json_t *list, const char *text, int64_t id) {
    json_array_append_new(list,
                          json_pack("{s:s,s:I,s:b}", "content", text, "id", (json_int_t)id, "special", 1));
}

/* Lists special tokens as Megatron-LM does: the given tokens, which must include MEGATRON_SPECIAL, then
 * numbered tokens. */
static Err megatron_special(const TokenizerConfig *c, int64_t count, json_t *list) {
    const char *const *names = c->num_extra_tokens ? c->extra_tokens : MEGATRON_SPECIAL;
    const size_t n = c->num_extra_tokens ? c->num_extra_tokens : NUM_MEGATRON_SPECIAL;
    if ((int64_t)n > count)
        return err_user("there are %zu special tokens, more than --tiktoken-num-special-tokens %lld", n,
                        (long long)count);
    for (size_t k = 0; k < NUM_MEGATRON_SPECIAL; k++) {
        size_t i = 0;
        while (i < n && strcmp(names[i], MEGATRON_SPECIAL[k])) i++;
        if (i == n) return err_user("--tokenizer-special-tokens must include %s", MEGATRON_SPECIAL[k]);
    }
    for (int64_t id = 0; id < count; id++) {
        char name[40];
        snprintf(name, sizeof name, "<SPECIAL_%lld>", (long long)id);
        add_special(list, id < (int64_t)n ? names[id] : name, id);
    }
    return ERR_OK;
}

static Err read_tokens(const TokenizerConfig *c, Vocab *v, json_t *special) {
    const size_t n = strlen(c->model);
    if (n < 5 || strcmp(c->model + n - 5, ".json")) {
        static const char *const usual[] = {"<|endoftext|>"};
        if (c->tiktoken_num_special >= 0)
            return err_user("--tiktoken-num-special-tokens applies only to a .json file: remove it");
        ERR_RETURN(read_lines(c->model, v));
        const char *const *names = c->num_extra_tokens ? c->extra_tokens : usual;
        for (size_t i = 0; i < (c->num_extra_tokens ? c->num_extra_tokens : 1); i++)
            add_special(special, names[i], vocab_limit(v) + (int64_t)i);
        return ERR_OK;
    }
    const int64_t count = c->tiktoken_num_special >= 0 ? c->tiktoken_num_special : USUAL_SPECIAL;
    const int64_t size = c->vocab_size ? c->vocab_size : MOST_TOKENS;
    ERR_RETURN(megatron_special(c, count, special));
    json_t *list = NULL;
    ERR_RETURN(json_file(c->model, &list));
    Err e = tekken_is(list) ? err_user("the file is a tekken.json: use --tokenizer-type HuggingFaceTokenizer")
                            : read_list(list, count, size - count, v);
    json_decref(list);
    if (e.code) return e;
    if (c->vocab_size && vocab_limit(v) < size)
        return err_user("there are only %zu tokens, too few for --vocab-size %lld with %lld special tokens",
                        vocab_count(v), (long long)size, (long long)count);
    return ERR_OK;
}

/* Creates a tokenizer.json without a model, and the model `made`, which owns the vocabulary. pattern, behavior and
 * invert are fields of the Split pre-tokenizer. */
static json_t *make(Vocab *v, const json_t *special, const char *pattern, const char *behavior, bool invert,
                    TokenModel *made) {
    const size_t n = (size_t)vocab_limit(v);
    uint32_t *ranks = mem_alloc((n + 1) * sizeof *ranks);
    for (size_t i = 0; i < n; i++) ranks[i] = (uint32_t)i;
    made->ranked = rankbpe_new(v, ranks, true, NULL);
    return json_pack("{s:O,s:{s:s,s:[{s:s,s:{s:s},s:s,s:b},{s:s,s:b,s:b}]},s:{s:s}}", "added_tokens", special,
                     "pre_tokenizer", "type", "Sequence", "pretokenizers", "type", "Split", "pattern",
                     "Regex", pattern, "behavior", behavior, "invert", invert, "type", "ByteLevel",
                     "add_prefix_space", 0, "use_regex", 0, "decoder", "type", "ByteLevel");
}

static Err load(const TokenizerConfig *c, Vocab *v, const json_t *special, const char *pattern,
                Tokenizer *t) {
    const TokenizerConfig plain = {.type = c->type};
    TokenModel model = {0};
    json_t *root = make(v, special, pattern, "Removed", true, &model);
    Err e = hf_load(root, &model, &plain, t);
    json_decref(root);
    return e;
}

/* ---- tekken.json ---- */

bool tekken_is(const json_t *file) {
    return json_object_get(json_object_get(file, "config"), "pattern") &&
           json_is_array(json_object_get(file, "vocab"));
}

/* Lists *count special tokens: the file's special tokens by rank, then numbered tokens. *count becomes
 * config.default_num_special_tokens if it is set, and otherwise the number of the file's special tokens. */
static Err tekken_special(const json_t *file, const json_t *config, json_t *special, int64_t *count) {
    const json_t *list;
    ERR_RETURN(field_array(file, "tekken", "special_tokens", &list));
    if (!list)
        return err_user("special_tokens are missing, as in the first version of the format: use a later "
                        "version, or a tokenizer.json");
    const size_t n = json_array_size(list);
    *count = (int64_t)n;
    if (json_object_get(config, "default_num_special_tokens"))
        ERR_RETURN(field_int(config, "config", "default_num_special_tokens", count));
    if (*count < (int64_t)n || *count > MOST_TOKENS)
        return err_user("there are %zu special_tokens, but config.default_num_special_tokens is %lld", n,
                        (long long)*count);
    const char **names = mem_zero(n + 1, sizeof *names);
    Err e = ERR_OK;
    for (size_t i = 0; i < n && !e.code; i++) {
        const json_t *one = json_array_get(list, i);
        const char *text;
        int64_t rank;
        e = field_int(one, "special_tokens", "rank", &rank);
        if (!e.code) e = field_text(one, "special_tokens", "token_str", &text, NULL);
        if (!e.code && (rank < 0 || rank >= (int64_t)n || names[rank]))
            e = err_user("special_tokens must have the ranks 0 to %zu, but '%.60s' has %lld", n - 1, text,
                         (long long)rank);
        if (!e.code) names[rank] = text;
    }
    for (int64_t id = 0; id < *count && !e.code; id++) {
        char name[40];
        snprintf(name, sizeof name, "<SPECIAL_%lld>", (long long)id);
        add_special(special, id < (int64_t)n ? names[id] : name, id);
    }
    free(names);
    return e;
}

Err tekken_load(const json_t *file, json_t **root, TokenModel *made) {
    const json_t *config = json_object_get(file, "config");
    const char *pattern;
    int64_t count = 0, size = MOST_TOKENS;
    ERR_RETURN(field_text(config, "config", "pattern", &pattern, NULL));
    if (json_object_get(config, "default_vocab_size"))
        ERR_RETURN(field_int(config, "config", "default_vocab_size", &size));
    json_t *special = json_array();
    Vocab *v = vocab_new();
    Err e = tekken_special(file, config, special, &count);
    if (!e.code) e = read_list(json_object_get(file, "vocab"), count, size - count, v);
    if (!e.code && vocab_count(v) < BYTES)
        e = err_user("there are %zu tokens, too few for the 256 bytes; check the path", vocab_count(v));
    if (e.code)
        vocab_free(v);
    else
        *root = make(v, special, pattern, "Isolated", false, made);
    json_decref(special);
    return e;
}

static Err open_tiktoken(const TokenizerConfig *c, Tokenizer *t) {
    const char *pattern = NULL;
    if (!c->model) return err_user("TikTokenizer needs --tokenizer-model, a .vocab.json or .tiktoken file");
    ERR_RETURN(tiktoken_pattern(c->tiktoken_pattern ? c->tiktoken_pattern : "v2", &pattern));
    Vocab *v = vocab_new();
    json_t *special = json_array();
    Err e = read_tokens(c, v, special);
    if (!e.code && vocab_count(v) < BYTES)
        e = err_user("there are %zu tokens, too few for the 256 bytes; check the path", vocab_count(v));
    if (e.code)
        vocab_free(v);
    else
        e = load(c, v, special, pattern, t);
    json_decref(special);
    if (e.code) return err_user("'%s': %.900s", c->model, e.msg);
    t->bos = hf_token_id(t, "<s>");
    t->pad = hf_token_id(t, "<pad>");
    t->cls = hf_token_id(t, "<cls>");
    t->sep = hf_token_id(t, "<sep>");
    t->mask = hf_token_id(t, "<mask>");
    t->eod = hf_usual_eod(t);
    return ERR_OK;
}

const TokenizerType TOKENIZER_TIKTOKEN = HF_TYPE("TikTokenizer", open_tiktoken);
