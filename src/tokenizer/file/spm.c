/* Encodes and decodes with a SentencePiece model. The ids equal those of the SentencePiece library. The text
 * is normalized, and then split by a unigram or BPE model. Unknown characters become the unknown token or
 * byte tokens. Source: sentencepiece/src/normalizer.cc, sentencepiece_processor.cc; Megatron-LM
 * sentencepiece_tokenizer.py. */
#include <float.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "base/utf8.h"
#include "tokenizer/file/hf_config.h"
#include "tokenizer/file/spm_model.h"
#include "tokenizer/model/rankbpe.h"
#include "tokenizer/model/unigram.h"
#include "tokenizer/type.h"

static const char SPACE[] = "\xE2\x96\x81"; /* U+2581, which represents a blank */
enum { SPACE_BYTES = 3 };

typedef struct Spm {
    SpmModel m;
    Trie *user; /* user-defined pieces, which are matched in any text */
    Unigram *unigram;
    RankBpe *bpe; /* the BPE model, which owns the vocabulary */
    Vocab *extra; /* tokens that are appended to the file's tokens; `encode` never returns them */
    int32_t bytes[256];
} Spm;

static void free_spm(void *impl) {
    Spm *s = impl;
    if (!s) return;
    if (s->bpe) s->m.vocab = NULL, s->user = NULL;
    spm_model_free(&s->m);
    trie_free(s->user);
    unigram_free(s->unigram);
    rankbpe_free(s->bpe);
    vocab_free(s->extra);
    free(s);
}

static const Vocab *vocab_of(const Spm *s) { return s->bpe ? rankbpe_vocab(s->bpe) : s->m.vocab; }

static void find_user_pieces(Spm *s) {
    for (int32_t id = 0; id < vocab_limit(s->m.vocab); id++) {
        if (s->m.pieces[id].type != PIECE_USER_DEFINED) continue;
        size_t n;
        const char *text = vocab_text(s->m.vocab, id, &n);
        if (!s->user) s->user = trie_new();
        trie_add(s->user, text, n, id);
    }
}

static void make_unigram(Spm *s) {
    const SpmModel *m = &s->m;
    float least = FLT_MAX;
    for (int32_t id = 0; id < vocab_limit(m->vocab); id++) {
        if (m->pieces[id].type != PIECE_NORMAL) continue;
        if (m->pieces[id].score < least) least = m->pieces[id].score;
    }
    s->unigram = unigram_new(m->vocab, m->unk, least - 10.0f);
    for (int32_t id = 0; id < vocab_limit(m->vocab); id++) {
        size_t n;
        vocab_text(m->vocab, id, &n);
        if (m->pieces[id].type == PIECE_NORMAL) unigram_use(s->unigram, id, m->pieces[id].score);
        if (m->pieces[id].type == PIECE_USER_DEFINED)
            unigram_use(s->unigram, id,
                        /* as in SentencePiece 0.2.3, a user-defined piece always scores better than its
                         * parts */
                        (float)n * 0.1f - 0.1f);
    }
    if (m->byte_fallback) unigram_use_bytes(s->unigram);
}

static int by_score(const void *x, const void *y) {
    const float a = *(const float *)x, b = *(const float *)y;
    return (a < b) - (a > b);
}

/* Creates the BPE model. A piece's rank is the number of pieces with higher scores, so pieces with equal
 * scores have equal ranks. */
static void make_bpe(Spm *s) {
    const SpmModel *m = &s->m;
    const size_t n = (size_t)vocab_limit(m->vocab);
    float *sorted = mem_alloc(n * sizeof *sorted);
    uint32_t *ranks = mem_alloc(n * sizeof *ranks);
    for (size_t id = 0; id < n; id++) sorted[id] = m->pieces[id].score;
    qsort(sorted, n, sizeof *sorted, by_score);
    for (size_t id = 0; id < n; id++) {
        size_t low = 0, high = n;
        while (low < high) {
            size_t middle = low + (high - low) / 2;
            if (sorted[middle] > m->pieces[id].score)
                low = middle + 1;
            else
                high = middle;
        }
        const PieceType type = m->pieces[id].type;
        ranks[id] = type == PIECE_NORMAL || type == PIECE_USER_DEFINED ? (uint32_t)low : RANK_NEVER;
    }
    free(sorted);
    s->bpe = rankbpe_new(s->m.vocab, ranks, false, s->user);
}

static int32_t control_id(const Spm *s, const Str *piece) {
    int32_t id = vocab_id(vocab_of(s), piece->s, piece->len);
    return id >= 0 && s->m.pieces[id].type == PIECE_CONTROL ? id : -1;
}

static Err load(const TokenizerConfig *c, const Str *file, Tokenizer *t) {
    Spm *s = t->impl = mem_zero(1, sizeof *s);
    ERR_RETURN(spm_model_read(file->s ? file->s : "", file->len, &s->m));
    for (int b = 0; b < 256; b++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", b);
        s->bytes[b] = s->m.byte_fallback ? vocab_id(s->m.vocab, name, 6) : -1;
    }
    find_user_pieces(s);
    if (s->m.kind == SPM_UNIGRAM)
        make_unigram(s);
    else
        make_bpe(s);
    s->extra = vocab_new();
    t->vocab_size = vocab_limit(vocab_of(s));
    for (size_t i = 0; i < c->num_extra_tokens; i++) {
        const char *text = c->extra_tokens[i];
        if (vocab_id(vocab_of(s), text, strlen(text)) >= 0) continue;
        ERR_RETURN(vocab_add(s->extra, text, strlen(text), t->vocab_size));
        t->vocab_size++;
    }
    t->bos = control_id(s, &s->m.bos_piece);
    t->eod = control_id(s, &s->m.eos_piece);
    t->pad = control_id(s, &s->m.pad_piece);
    return ERR_OK;
}

static int32_t token_id(const Tokenizer *t, const char *token) {
    const Spm *s = t->impl;
    int32_t id = vocab_id(vocab_of(s), token, strlen(token));
    return id >= 0 ? id : vocab_id(s->extra, token, strlen(token));
}

/* Returns whether the text is the padding token. Texts never contain padding, so the padding token's id need
 * not agree with the model. Like this code, Megatron-LM does not add the padding token to the model's
 * vocabulary. */
static bool is_padding(const HfConfig *c, const char *text) {
    const char *named = hf_config_token(c, "pad_token");
    return !strcmp(text, named ? named : "<pad>");
}

/* Returns an error if Hugging Face files in the model's folder contradict the model. The tokenizer type ignores these
 * files. */
static Err check_neighbours(const TokenizerConfig *c, const Tokenizer *t) {
    static const char REMEDY[] = "use --tokenizer-type HuggingFaceTokenizer, which reads these files, or "
                                 "move the model to another folder";
    const char *slash = strrchr(c->model, '/'), *text;
    char *dir = slash ? mem_printf("%.*s", slash == c->model ? 1 : (int)(slash - c->model), c->model)
                      : mem_strdup(".");
    HfConfig config = {0};
    Err e = hf_config_read(dir, NULL, &config);
    json_t *token;
    json_object_foreach(config.declared, text, token) {
        const json_int_t id = json_integer_value(json_object_get(token, "id"));
        if (e.code || token_id(t, text) == id || (id >= t->vocab_size && is_padding(&config, text))) continue;
        e = err_user("'%s/%s' gives '%.60s' the id %lld, but the model, which is the only file that %s "
                     "reads, does not: %s",
                     dir, json_string_value(json_object_get(token, "from")), text, (long long)id, c->type,
                     REMEDY);
    }
    const char *eos = hf_config_token(&config, "eos_token");
    if (!e.code && eos && token_id(t, eos) != t->eod)
        e = err_user("the files next to '%s' end documents with '%.60s', but the model, which is the only "
                     "file that %s reads, does not: %s",
                     c->model, eos, c->type, REMEDY);
    hf_config_free(&config);
    free(dir);
    return e;
}

static Err open_spm(const TokenizerConfig *c, Tokenizer *t) {
    if (!c->model) return err_user("%s needs --tokenizer-model, a SentencePiece .model file", c->type);
    Str file = {0};
    Err e = file_read(c->model, &file);
    if (!e.code) e = text_check_pointer(c->model, file.s, file.len);
    if (!e.code && (e = load(c, &file, t)).code) e = err_user("'%s': %.900s", c->model, e.msg);
    str_free(&file);
    return e.code ? e : check_neighbours(c, t);
}

/* Normalizes the start of the text: replaces the first *bytes bytes with the *to_n bytes at *to. */
static void normalize_prefix(const SpmNormalizer *z, const Trie *user, const char *text, size_t n,
                             size_t *bytes, const char **to, size_t *to_n) {
    int32_t node = TRIE_ROOT;
    uint32_t c;
    *bytes = 0;
    for (size_t i = 0; user && i < n && (node = trie_child(user, node, text[i])) != TRIE_NONE; i++)
        if (trie_value(user, node) != TRIE_NONE) *bytes = i + 1;
    if (!*bytes && z->charsmap) {
        *bytes = charsmap_find(z->charsmap, CHARSMAP_LONGEST, text, n, to, to_n);
        if (*bytes) return;
    }
    if (!*bytes) *bytes = utf8_next(text, &c);
    *to = text, *to_n = *bytes;
}

/* Appends to the normalized text. `at` is the number of bytes of the original text that were consumed before this
 * call. */
static void append(Aligned *out, const char *text, size_t n, size_t at) {
    aligned_insert(out, text, n, (Origin){(uint32_t)at, (uint32_t)at});
}

static bool ends_with(const Str *s, const char *end, size_t n) {
    return s->len >= n && !memcmp(s->s + s->len - n, end, n);
}

/* Normalizes a text. Returns the number of consumed bytes, that is, the end of the last token. */
static size_t normalize(const SpmNormalizer *z, bool suffix, const Trie *user, const char *text, size_t n,
                        Aligned *out) {
    const char *space = z->escape_whitespaces ? SPACE : " ", *to;
    const size_t space_n = strlen(space);
    size_t i = 0, bytes, to_n;
    for (; z->remove_extra_whitespaces && i < n; i += bytes) {
        normalize_prefix(z, user, text + i, n - i, &bytes, &to, &to_n);
        if (to_n != 1 || *to != ' ') break;
    }
    if (i == n) return n;
    if (!suffix && z->dummy_prefix) append(out, space, space_n, i);
    bool after_space = z->remove_extra_whitespaces;
    for (; i < n; i += bytes) {
        normalize_prefix(z, user, text + i, n - i, &bytes, &to, &to_n);
        while (after_space && to_n && *to == ' ') to++, to_n--;
        for (size_t k = 0; k < to_n; k++) {
            const bool blank = to[k] == ' ';
            append(out, blank ? space : to + k, blank ? space_n : 1, i);
        }
        if (to_n) after_space = to[to_n - 1] == ' ' && z->remove_extra_whitespaces;
    }
    while (z->remove_extra_whitespaces && ends_with(&out->text, space, space_n)) {
        aligned_shorten(out, out->text.len - space_n);
        /* aligned_shorten leaves the removed origin in the array */
        if (out->tracks) i = out->at[out->count].begin;
    }
    if (suffix && z->dummy_prefix) append(out, space, space_n, i);
    return i;
}

typedef struct Emitting {
    const Spm *s;
    const char *text; /* normalized */
    Ids *out;
    bool after_unk; /* whether the last part was unknown, because consecutive unknown parts form one token */
} Emitting;

/* Adds a part's token. Control pieces never match text, so a character that is itself a control piece is
 * treated as unknown. */
static void emit(void *arg, const char *text, size_t n, int32_t id) {
    Emitting *e = arg;
    const bool unk = id < 0 || id == e->s->m.unk || e->s->m.pieces[id].type == PIECE_CONTROL;
    const size_t begin = (size_t)(text - e->text), end = begin + n;
    if (!unk)
        ids_add(e->out, id, begin, end);
    else if (e->s->m.byte_fallback)
        for (size_t i = 0; i < n; i++) /* only a character's last byte token spans the character */
            ids_add(e->out, e->s->bytes[(unsigned char)text[i]], begin, i + 1 == n ? end : begin);
    else if (!e->after_unk)
        ids_add(e->out, e->s->m.unk, begin, end);
    else if (e->out->spans)
        e->out->at[e->out->n - 1].end = (uint32_t)end;
    e->after_unk = unk;
}

/* Converts spans of the normalized text to spans in characters of the original text, of which `end` bytes
 * were consumed. */
static void find_origins(const char *text, size_t n, const Aligned *normal, size_t end, Ids *ids,
                         size_t first) {
    uint32_t *characters = utf8_characters(text, n);
    for (size_t i = first; i < ids->n; i++) {
        Origin *at = &ids->at[i];
        at->begin = characters[at->begin < normal->count ? normal->at[at->begin].begin : end];
        at->end = characters[at->end < normal->count ? normal->at[at->end].begin : end];
    }
    free(characters);
}

static Err encode(const Tokenizer *t, unsigned flags, const char *text, size_t n, Ids *out) {
    const Spm *s = t->impl;
    Str repaired = {0};
    Aligned normal = {.tracks = out->spans};
    if (!utf8_valid(text, n)) {
        utf8_repair(text, n, &repaired);
        text = repaired.s, n = repaired.len;
    }
    const size_t end = normalize(&s->m.normalizer, s->m.whitespace_as_suffix, s->user, text, n, &normal);
    if (flags & TOKENIZER_ADD_SPECIAL && t->bos >= 0) ids_add(out, t->bos, 0, 0);
    const size_t first = out->n;
    const View v = aligned_view(&normal);
    if (s->unigram && v.n) {
        UnigramWork work = {0};
        unigram_encode(s->unigram, &work, v.text, v.n, out);
        unigram_work_free(&work);
    } else if (v.n) {
        RankWork work = {0};
        Emitting e = {s, v.text, out, false};
        rankbpe_encode(s->bpe, &work, v.text, v.n, emit, &e);
        rank_work_free(&work);
    }
    if (out->spans) find_origins(text, n, &normal, end, out, first);
    str_free(&repaired), aligned_free(&normal);
    return ERR_OK;
}

/* Appends the text of byte pieces. If `starts` is not NULL, it receives, for each byte piece, the start of the
 * piece's character. */
static void decode_bytes(Str *bytes, Str *out, size_t *starts) {
    for (size_t i = 0; i < bytes->len;) {
        size_t n = 1;
        while (n <= 4 && i + n <= bytes->len && !utf8_valid(bytes->s + i, n)) n++;
        const bool valid = n <= 4 && i + n <= bytes->len;
        for (size_t k = 0; starts && k < (valid ? n : 1); k++) starts[i + k] = out->len;
        str_add(out, valid ? bytes->s + i : "\xEF\xBF\xBD", valid ? n : 3);
        i += valid ? n : 1;
    }
    str_clear(bytes);
}

static void decode_piece(const Spm *s, int32_t id, const char *text, size_t n, bool *drop_space, Str *out) {
    const SpmNormalizer *z = &s->m.normalizer;
    if (s->m.pieces[id].type == PIECE_CONTROL) return;
    if (id == s->m.unk) {
        str_add(out, s->m.unk_surface.s, s->m.unk_surface.len);
        return;
    }
    if (*drop_space && (z->dummy_prefix || z->remove_extra_whitespaces) && n >= SPACE_BYTES &&
        !memcmp(text, SPACE, SPACE_BYTES)) {
        text += SPACE_BYTES, n -= SPACE_BYTES;
        if (!z->remove_extra_whitespaces) *drop_space = false;
    }
    for (size_t i = 0, width; i < n; i += width) {
        const bool space = n - i >= SPACE_BYTES && !memcmp(text + i, SPACE, SPACE_BYTES);
        width = space ? SPACE_BYTES : 1;
        str_add(out, space ? " " : text + i, 1);
    }
}

/* Decodes ids. If `starts` is not NULL, the denormalizer does not run, because the starts refer to the text before
 * denormalization. */
static Err decode(const Tokenizer *t, unsigned flags, const int32_t *ids, size_t n, Str *out,
                  size_t *starts) {
    const Spm *s = t->impl;
    Str bytes = {0}, text = {0};
    bool drop_space = true; /* whether the next piece may begin with the blank of dummy_prefix */
    for (size_t i = 0; i < n; i++) {
        size_t piece_n;
        const char *piece = vocab_text(vocab_of(s), ids[i], &piece_n);
        if (piece && s->m.pieces[ids[i]].type == PIECE_BYTE) {
            const int byte = (int)strtol(piece + 3, NULL, 16);
            str_add(&bytes, &(char){(char)byte}, 1);
            continue;
        }
        decode_bytes(&bytes, &text, starts ? starts + i - bytes.len : NULL);
        if (text.len) drop_space = false;
        if (starts) starts[i] = text.len;
        if (piece)
            decode_piece(s, ids[i], piece, piece_n, &drop_space, &text);
        else if (!(flags & TOKENIZER_SKIP_SPECIAL) && (piece = vocab_text(s->extra, ids[i], &piece_n)))
            str_add(&text, piece, piece_n);
    }
    decode_bytes(&bytes, &text, starts ? starts + n - bytes.len : NULL);
    Aligned denormalized = {0};
    if (s->m.denormalizer.charsmap && text.len && !starts) {
        normalize(&s->m.denormalizer, false, NULL, text.s, text.len, &denormalized);
        str_add(out, aligned_view(&denormalized).text, denormalized.text.len);
    } else
        str_add(out, text.s ? text.s : "", text.len);
    str_free(&bytes), str_free(&text), aligned_free(&denormalized);
    return ERR_OK;
}

static bool is_special(const Tokenizer *t, int32_t id) {
    const Spm *s = t->impl;
    return id >= vocab_limit(vocab_of(s)) || s->m.pieces[id].type == PIECE_CONTROL;
}

static const char *token_text(const Tokenizer *t, int32_t id, size_t *n) {
    const Spm *s = t->impl;
    const char *text = vocab_text(vocab_of(s), id, n);
    return text ? text : vocab_text(s->extra, id, n);
}

#define SPM_TYPE(name)                                                                                       \
    { name, open_spm, encode, decode, token_id, token_text, is_special, free_spm }
const TokenizerType TOKENIZER_SPM = SPM_TYPE("SentencePieceTokenizer"),
                    TOKENIZER_GPT_SPM = SPM_TYPE("GPTSentencePieceTokenizer"),
                    TOKENIZER_LLAMA2 = SPM_TYPE("Llama2Tokenizer");
