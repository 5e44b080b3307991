#include "tokenizer/file/hf_files.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "base/utf8.h"
#include "tokenizer/file/spm_model.h"
#include "tokenizer/text/base64.h"
#include "tokenizer/text/field.h"

/* Reads one merge, "left right", per line. Lines that begin with "#version" are skipped. */
static Err read_merges(const char *path, json_t *list) {
    Str text = {0};
    Err e = text_read(path, &text);
    for (size_t at = 0, line = 1; !e.code && at < text.len; line++) {
        const char *s = text.s + at, *newline = memchr(s, '\n', text.len - at);
        size_t n = newline ? (size_t)(newline - s) : text.len - at;
        at += n + 1;
        if (n && s[n - 1] == '\r') n--;
        if (n >= 8 && !memcmp(s, "#version", 8)) continue;
        json_t *merge = json_stringn(s, n);
        if (!merge || !n) e = err_user("'%s' line %zu is not a merge of two tokens", path, line);
        json_array_append_new(list, merge ? merge : json_null());
    }
    str_free(&text);
    return e;
}

Err hf_files_bpe(const char *vocab_path, const char *merges_path, json_t **root) {
    json_t *vocab = NULL, *merges = json_array();
    Err e = json_file(vocab_path, &vocab);
    if (!e.code && !json_is_object(vocab)) e = err_user("'%s' must map tokens to ids", vocab_path);
    if (!e.code) e = read_merges(merges_path, merges);
    if (!e.code)
        *root = json_pack("{s:{s:s,s:O,s:O}}", "model", "type", "BPE", "vocab", vocab, "merges", merges);
    json_decref(vocab), json_decref(merges);
    return e;
}

/* Reads one token per line. A token's id is its line number, counted from 0. */
static Err read_vocab(const char *path, json_t *vocab) {
    Str text = {0};
    Err e = text_read(path, &text);
    json_int_t id = 0;
    for (size_t at = 0; !e.code && at < text.len; id++) {
        const char *s = text.s + at, *newline = memchr(s, '\n', text.len - at);
        size_t n = newline ? (size_t)(newline - s) : text.len - at;
        at += n + 1;
        if (n && s[n - 1] == '\r') n--;
        if (memchr(s, 0, n) || json_object_getn(vocab, s, n) ||
            json_object_setn_new(vocab, s, n, json_integer(id)))
            e = err_user("'%s' line %lld repeats a token, or is not UTF-8 text", path, (long long)id + 1);
    }
    str_free(&text);
    return e;
}

Err hf_files_words(const char *path, json_t **root) {
    json_t *vocab = json_object();
    Err e = read_vocab(path, vocab);
    if (!e.code) *root = json_pack("{s:{s:s,s:O}}", "model", "type", "WordPiece", "vocab", vocab);
    json_decref(vocab);
    return e;
}

/* ---- SentencePiece ---- */

static const char SPACE[] = "\xE2\x96\x81";

typedef struct Merge {
    double rank;
    int32_t id;
    size_t left; /* bytes */
} Merge;

static int by_rank(const void *x, const void *y) {
    const Merge *a = x, *b = y;
    if (a->rank != b->rank) return a->rank < b->rank ? -1 : 1;
    if (a->id != b->id) return a->id < b->id ? -1 : 1;
    return (a->left > b->left) - (a->left < b->left);
}

/* Lists all pairs of pieces that merge into another piece. With a class, merges are ranked by the id of the
 * merged piece. Without a class (by_score), merges are ranked by score, and only normal pieces merge. */
static json_t *merges_of(const SpmModel *m, bool by_score) {
    Merge *list = NULL;
    size_t count = 0, cap = 0;
    json_t *merges = json_array();
    for (int32_t id = 0; id < vocab_limit(m->vocab); id++) {
        size_t n;
        const char *text = vocab_text(m->vocab, id, &n);
        if (by_score && m->pieces[id].type != PIECE_NORMAL) continue;
        for (size_t at = 1; at < n; at++) {
            if (!utf8_begins(text[at])) continue;
            const int32_t left = vocab_id(m->vocab, text, at), right = vocab_id(m->vocab, text + at, n - at);
            if (left < 0 || right < 0) continue;
            if (by_score && (m->pieces[left].type != PIECE_NORMAL || m->pieces[right].type != PIECE_NORMAL))
                continue;
            if (count == cap) list = mem_grow(list, cap = cap * 2 + 1024, sizeof *list);
            list[count++] = (Merge){by_score ? -(double)m->pieces[id].score : id, id, at};
        }
    }
    if (count) qsort(list, count, sizeof *list, by_rank);
    for (size_t i = 0; i < count; i++) {
        size_t n;
        const char *text = vocab_text(m->vocab, list[i].id, &n);
        json_array_append_new(
            merges, json_pack("[s%,s%]", text, list[i].left, text + list[i].left, n - list[i].left));
    }
    free(list);
    return merges;
}

static json_t *vocab_of(const SpmModel *m, bool unigram) {
    json_t *vocab = unigram ? json_array() : json_object();
    for (int32_t id = 0; id < vocab_limit(m->vocab); id++) {
        size_t n;
        const char *text = vocab_text(m->vocab, id, &n);
        if (unigram)
            json_array_append_new(vocab, json_pack("[s%,f]", text, n, (double)m->pieces[id].score));
        else
            json_object_setn_new(vocab, text, n, json_integer(id));
    }
    return vocab;
}

static json_t *piece(const char *text, double score) { return json_pack("[s,f]", text, score); }

/* Makes the vocabulary of XLM-RoBERTa with fairseq's ids. The vocabulary consists of four special tokens, all
 * pieces except the first three, and the mask token. */
static json_t *fairseq_vocab(const SpmModel *m, const HfConfig *c) {
    static const char *const FIRST[][2] = {{"bos_token", "<s>"},
                                           {"pad_token", "<pad>"},
                                           {"eos_token", "</s>"},
                                           {"unk_token", "<unk>"},
                                           {"mask_token", "<mask>"}};
    json_t *all = vocab_of(m, true), *vocab = json_array();
    for (size_t i = 0; i < 5; i++) {
        const char *set = hf_config_token(c, FIRST[i][0]);
        if (i == 4)
            for (size_t k = 3; k < json_array_size(all); k++)
                json_array_append(vocab, json_array_get(all, k));
        json_array_append_new(vocab, piece(set ? set : FIRST[i][1], 0));
    }
    json_decref(all);
    return vocab;
}

static json_t *charsmap_normalizer(const SpmModel *m) {
    Str text = {0};
    if (!m->normalizer.bytes.len) return NULL;
    base64_encode(m->normalizer.bytes.s, m->normalizer.bytes.len, &text);
    json_t *made = json_pack("{s:s,s:s}", "type", "Precompiled", "precompiled_charsmap", text.s);
    str_free(&text);
    return made;
}

/* Sets the additional tokens. Control pieces are special. User-defined pieces are not special; if there is no
 * class, they are found by the pre-tokenizer instead. */
static void add_pieces(const SpmModel *m, bool user, HfConfig *c) {
    json_t *list = json_array();
    for (int32_t id = 0; id < vocab_limit(m->vocab); id++) {
        size_t n;
        const char *text = vocab_text(m->vocab, id, &n);
        const PieceType type = m->pieces[id].type;
        if (type == PIECE_CONTROL || (user && type == PIECE_USER_DEFINED))
            json_array_append_new(list, json_pack("{s:s%,s:b,s:b}", "content", text, n, "normalized", 0,
                                                  "special", type == PIECE_CONTROL));
    }
    json_object_set_new(c->settings, "additional_special_tokens", list);
}

static void replace_step(json_t *steps, const char *kind, const char *pattern, const char *content) {
    json_array_append_new(steps, json_pack("{s:s,s:{s:s},s:s}", "type", "Replace", "pattern", kind, pattern,
                                           "content", content));
}

/* Returns a regex that matches the user-defined pieces, the longest first, or NULL if there are none. */
static json_t *user_regex(const SpmModel *m) {
    Str regex = {0};
    size_t longest = 0, n;
    for (int32_t id = 0; id < vocab_limit(m->vocab); id++)
        if (vocab_text(m->vocab, id, &n) && n > longest) longest = n;
    for (; longest; longest--)
        for (int32_t id = 0; id < vocab_limit(m->vocab); id++) {
            const char *text = vocab_text(m->vocab, id, &n);
            if (m->pieces[id].type != PIECE_USER_DEFINED || utf8_count(text, n) != longest) continue;
            if (regex.len) str_puts(&regex, "|");
            for (size_t i = 0; i < n; i++) {
                if (strchr("\\^$.|?*+()[]{}-#&~ \t\n\r\v\f", text[i])) str_puts(&regex, "\\");
                str_add(&regex, text + i, 1);
            }
        }
    json_t *made = regex.len ? json_stringn(regex.s, regex.len) : NULL;
    str_free(&regex);
    return made;
}

static json_t *steps_of(const SpmModel *m, bool prefix_again) {
    json_t *steps = json_array(), *charsmap = charsmap_normalizer(m);
    if (charsmap) json_array_append_new(steps, charsmap);
    if (m->normalizer.remove_extra_whitespaces) {
        replace_step(steps, "Regex", "\\A +| +\\z", "");
        replace_step(steps, "Regex", " {2,}", " ");
    }
    if (m->normalizer.escape_whitespaces) replace_step(steps, "String", " ", SPACE);
    if (prefix_again) replace_step(steps, "Regex", "\\A\xE2\x96\x81", "\xE2\x96\x81\xE2\x96\x81");
    return json_pack("{s:s,s:o}", "type", "Sequence", "normalizers", steps);
}

/* Creates all parts of a tokenizer.json apart from the model. */
static json_t *whole(const SpmModel *m, const HfConfig *c) {
    const bool legacy = hf_class_flag_or_null(c, "legacy", true), prefix = m->normalizer.dummy_prefix;
    json_t *pre = json_array(), *user = user_regex(m), *decoders = json_array();
    if (prefix)
        json_array_append_new(pre, json_pack("{s:s,s:s,s:s,s:b}", "type", "Metaspace", "replacement", SPACE,
                                             "prepend_scheme", legacy ? "always" : "first", "split", 0));
    if (user)
        json_array_append_new(pre, json_pack("{s:s,s:{s:o},s:s,s:b}", "type", "Split", "pattern", "Regex",
                                             user, "behavior", "Isolated", "invert", 0));
    replace_step(decoders, "String", SPACE, " ");
    if (m->byte_fallback) json_array_append_new(decoders, json_pack("{s:s}", "type", "ByteFallback"));
    if (prefix || m->byte_fallback) json_array_append_new(decoders, json_pack("{s:s}", "type", "Fuse"));
    if (prefix)
        json_array_append_new(
            decoders, json_pack("{s:s,s:s,s:i,s:i}", "type", "Strip", "content", " ", "start", 1, "stop", 0));
    json_t *made = json_pack("{s:o,s:{s:s,s:o}}", "normalizer", steps_of(m, prefix && legacy), "decoder",
                             "type", "Sequence", "decoders", decoders);
    if (json_array_size(pre))
        json_object_set_new(made, "pre_tokenizer",
                            json_pack("{s:s,s:O}", "type", "Sequence", "pretokenizers", pre));
    json_decref(pre);
    return made;
}

/* Replaces the text of each special piece with the text that tokenizer_config.json declares for the piece's id. */
static void rename_pieces(const SpmModel *m, const HfConfig *c, json_t *vocab) {
    const char *text;
    json_t *token;
    json_object_foreach(c->declared, text, token) {
        const json_int_t id = json_integer_value(json_object_get(token, "id"));
        size_t n;
        if (id < 0 || id >= vocab_limit(m->vocab) || m->pieces[id].type == PIECE_NORMAL ||
            json_object_get(vocab, text))
            continue;
        const char *old = vocab_text(m->vocab, (int32_t)id, &n);
        json_object_deln(vocab, old, n);
        json_object_set_new(vocab, text, json_integer(id));
    }
}

static void default_token(const SpmModel *m, HfConfig *c, const char *key, const char *text, size_t n) {
    if (vocab_id(m->vocab, text, n) >= 0 && !json_object_get(c->settings, key))
        json_object_set_new(c->settings, key, json_stringn(text, n));
}

static json_t *without_class(const SpmModel *m, HfConfig *c) {
    json_t *made = whole(m, c), *declared, *vocab = vocab_of(m, m->kind == SPM_UNIGRAM);
    size_t n;
    const char *unk = vocab_text(m->vocab, m->unk, &n), *text;
    /* declared tokens are not normalized, so that each stretch of text between declared tokens gets a prefix */
    json_object_foreach(c->declared, text, declared) if (m->normalizer.dummy_prefix)
        json_object_set_new(declared, "normalized", json_false());
    if (m->kind == SPM_UNIGRAM)
        json_object_set_new(made, "model",
                            json_pack("{s:s,s:O,s:i,s:b}", "type", "Unigram", "vocab", vocab, "unk_id",
                                      m->unk, "byte_fallback", m->byte_fallback));
    else {
        rename_pieces(m, c, vocab);
        json_t *user = user_regex(m);
        json_object_set_new(made, "model",
                            json_pack("{s:s,s:O,s:o,s:s%,s:b,s:b,s:b}", "type", "BPE", "vocab", vocab,
                                      "merges", merges_of(m, true), "unk_token", unk, n, "fuse_unk", 1,
                                      "byte_fallback", m->byte_fallback, "ignore_merges", user != NULL));
        json_decref(user);
    }
    default_token(m, c, "bos_token", m->bos_piece.s, m->bos_piece.len);
    default_token(m, c, "eos_token", m->eos_piece.s, m->eos_piece.len);
    default_token(m, c, "unk_token", unk, n);
    json_decref(vocab);
    return made;
}

static json_t *for_class(const SpmModel *m, const HfClass *class, const HfConfig *c) {
    const bool unigram = !strcmp(class->model, "Unigram");
    json_t *vocab = !strcmp(class->names, "XLMRobertaTokenizer") ? fairseq_vocab(m, c) : vocab_of(m, unigram),
           *root = json_pack("{s:{s:s,s:o}}", "model", "type", class->model, "vocab", vocab),
           *charsmap = charsmap_normalizer(m);
    for (int i = strcmp(class->names, "T5Tokenizer") ? 0 : hf_class_sentinels(c); i > 0; i--)
        json_array_append_new(vocab, json_pack("[o,f]", json_sprintf("<extra_id_%d>", i - 1), 0.0));
    if (!unigram) json_object_set_new(json_object_get(root, "model"), "merges", merges_of(m, false));
    if (charsmap) json_object_set_new(root, "normalizer", charsmap);
    return root;
}

Err hf_files_sentencepiece(const char *path, const HfClass *class, HfConfig *c, json_t **root) {
    SpmModel m = {0};
    Str file = {0};
    Err e = file_read(path, &file);
    if (!e.code) e = text_check_pointer(path, file.s, file.len);
    if (!e.code && (e = spm_model_read(file.s ? file.s : "", file.len, &m)).code)
        e = err_user("'%s': %.900s", path, e.msg);
    if (!e.code) {
        add_pieces(&m, class != NULL, c);
        *root = class ? for_class(&m, class, c) : without_class(&m, c);
    }
    str_free(&file);
    spm_model_free(&m);
    return e;
}
