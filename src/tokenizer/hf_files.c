/* GPT-2's vocab.json and merges.txt, and BERT's vocab.txt, as a tokenizer.json. Source: Megatron-LM
 * megatron_hf_tokenizer.py; transformers' GPT2Tokenizer and BertTokenizer. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "tokenizer/field.h"
#include "tokenizer/hf.h"

/* One "left right" per line; the first line names the format's version. */
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

static Err open_gpt2(const TokenizerConfig *c, Tokenizer *t) {
    static const char eod[] = "<|endoftext|>";
    if (!c->vocab_file || !c->merge_file)
        return err_user("GPT2BPETokenizer needs --vocab-file vocab.json and --merge-file merges.txt");
    json_t *vocab = NULL, *merges = json_array();
    Err e = json_file(c->vocab_file, &vocab);
    if (!e.code) e = read_merges(c->merge_file, merges);
    const json_t *eod_id = json_object_get(vocab, eod);
    if (!e.code && !json_is_integer(eod_id)) e = err_user("'%s' has no id for %s", c->vocab_file, eod);
    if (!e.code) {
        json_t *root = json_pack("{s:{s:s,s:O,s:O},s:[{s:s,s:O,s:b}],s:{s:s,s:b},s:{s:s}}", "model", "type",
                                 "BPE", "vocab", vocab, "merges", merges, "added_tokens", "content", eod,
                                 "id", eod_id, "special", 1, "pre_tokenizer", "type", "ByteLevel",
                                 "add_prefix_space", 0, "decoder", "type", "ByteLevel");
        e = hf_load(root, NULL, c, t);
        json_decref(root);
        if (e.code)
            e = err_user("'%s' and '%s': %.900s", c->vocab_file, c->merge_file, e.msg);
        else
            t->eod = t->bos = hf_token_id(t, eod);
    }
    json_decref(vocab), json_decref(merges);
    return e;
}

/* One token per line; its number is its id. */
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

static Err load_bert(const TokenizerConfig *c, bool lower, json_t *vocab, Tokenizer *t) {
    static const char *const special[] = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
    int32_t *const ids[] = {&t->pad, NULL, &t->cls, &t->sep, &t->mask};
    json_t *root =
        json_pack("{s:{s:s,s:O},s:{s:s,s:b},s:{s:s},s:{s:s,s:s},s:[]}", "model", "type", "WordPiece", "vocab",
                  vocab, "normalizer", "type", "BertNormalizer", "lowercase", lower, "pre_tokenizer", "type",
                  "BertPreTokenizer", "decoder", "type", "WordPiece", "prefix", "##", "added_tokens");
    Err e = ERR_OK;
    for (size_t i = 0; i < sizeof special / sizeof *special && !e.code; i++) {
        json_t *id = json_object_get(vocab, special[i]);
        if (!id) e = err_user("it has no token %s, so it is not a vocabulary of BERT", special[i]);
        json_array_append_new(json_object_get(root, "added_tokens"),
                              json_pack("{s:s,s:O?,s:b}", "content", special[i], "id", id, "special", 1));
    }
    const json_t *cls = json_object_get(vocab, "[CLS]"), *sep = json_object_get(vocab, "[SEP]");
    json_object_set_new(root, "post_processor",
                        json_pack("{s:s,s:[s,O?],s:[s,O?]}", "type", "BertProcessing", "cls", "[CLS]", cls,
                                  "sep", "[SEP]", sep));
    if (!e.code) e = hf_load(root, NULL, c, t);
    json_decref(root);
    for (size_t i = 0; i < sizeof special / sizeof *special && !e.code; i++)
        if (ids[i]) *ids[i] = hf_token_id(t, special[i]);
    t->bos = t->cls, t->eod = t->sep;
    return e;
}

static Err open_bert(const TokenizerConfig *c, bool lower, Tokenizer *t) {
    if (!c->vocab_file) return err_user("%s needs --vocab-file vocab.txt", c->type);
    json_t *vocab = json_object();
    Err e = read_vocab(c->vocab_file, vocab);
    if (!e.code && (e = load_bert(c, lower, vocab, t)).code)
        e = err_user("'%s': %.900s", c->vocab_file, e.msg);
    json_decref(vocab);
    return e;
}

static Err open_bert_lower(const TokenizerConfig *c, Tokenizer *t) { return open_bert(c, true, t); }
static Err open_bert_case(const TokenizerConfig *c, Tokenizer *t) { return open_bert(c, false, t); }

const TokenizerType TOKENIZER_GPT2 = HF_TYPE("GPT2BPETokenizer", open_gpt2);
const TokenizerType TOKENIZER_BERT_LOWER = HF_TYPE("BertWordPieceLowerCase", open_bert_lower);
const TokenizerType TOKENIZER_BERT_CASE = HF_TYPE("BertWordPieceCase", open_bert_case);
