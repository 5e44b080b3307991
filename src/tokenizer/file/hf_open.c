/* The tokenizer types that read Hugging Face files. Like AutoTokenizer, this code finds the files and opens
 * them. Source: Megatron-LM huggingface_tokenizer.py, megatron_hf_tokenizer.py; transformers'
 * tokenization_auto.py. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "tokenizer/file/hf.h"
#include "tokenizer/file/hf_class.h"
#include "tokenizer/file/hf_config.h"
#include "tokenizer/file/hf_files.h"
#include "tokenizer/file/tiktoken.h"
#include "tokenizer/text/field.h"

typedef struct Opening {
    const TokenizerConfig *options;
    char *path; /* path of the vocabulary, for messages */
    HfConfig config;
    const HfClass *class; /* NULL if `root` is used unchanged */
    json_t *root;
    TokenModel made; /* the model that replaces the model of `root` */
    bool is_json, is_made;
} Opening;

static void close_opening(Opening *o) {
    free(o->path);
    hf_config_free(&o->config);
    json_decref(o->root);
}

static int32_t named_id(const Tokenizer *t, const HfConfig *c, const char *key) {
    const char *text = hf_config_token(c, key);
    return text ? hf_token_id(t, text) : -1;
}

/* Sets the special ids. As in Megatron-LM, cls replaces a missing bos, and sep replaces a missing eos. */
static void take_ids(const Opening *o, Tokenizer *t) {
    const HfConfig *c = &o->config;
    t->named = hf_config_named(c);
    t->pad = named_id(t, c, "pad_token");
    t->cls = named_id(t, c, "cls_token");
    t->sep = named_id(t, c, "sep_token");
    t->mask = named_id(t, c, "mask_token");
    t->bos = named_id(t, c, "bos_token");
    t->eod = named_id(t, c, "eos_token");
    if (t->bos < 0) t->bos = t->cls;
    if (t->eod < 0) t->eod = t->sep;
    if (!c->exists && !o->class) hf_take_usual(t);
    if (t->eod < 0) t->eod = hf_usual_eod(t);
}

/* Sets the tokens before and after a text, unless the post_processor of tokenizer.json adds them. Returns
 * false if the post_processor is used. */
static bool put_around(const Opening *o, Tokenizer *t, int32_t around[2]) {
    const HfConfig *c = &o->config;
    const HfClass *class = o->class;
    const bool from_file = o->is_json && json_is_object(json_object_get(o->root, "post_processor"));
    if (from_file && !(class && (class->own_post || class->forgets_post))) return false;
    const bool named = class && (class->before || class->after);
    const char *before = named                                      ? class->before
                         : hf_class_flag(c, "add_bos_token", false) ? "bos_token"
                                                                    : NULL,
               *after = named                                      ? class->after
                        : hf_class_flag(c, "add_eos_token", false) ? "eos_token"
                                                                   : NULL;
    around[0] = before ? named_id(t, c, before) : -1, around[1] = after ? named_id(t, c, after) : -1;
    hf_put_around(t, around[0], around[1]);
    return true;
}

/* ---- export ---- */

typedef struct Template {
    const Tokenizer *t;
    const int32_t *around;
    json_t *tokens; /* special tokens of the template */
} Template;

static void add_token(const Template *p, int32_t id, int type, json_t *pieces) {
    size_t n;
    const char *text = id < 0 ? NULL : hf_token_text(p->t, id, &n);
    if (!text) return;
    json_t *name = json_stringn(text, n);
    json_array_append_new(pieces, json_pack("{s:{s:O,s:i}}", "SpecialToken", "id", name, "type_id", type));
    json_object_setn_new(p->tokens, text, n,
                         json_pack("{s:O,s:[i],s:[O]}", "id", name, "ids", id, "tokens", name));
    json_decref(name);
}

/* Converts a form (HfClass.pair) to the pieces of a template. */
static json_t *pieces_of(const Template *p, const char *form) {
    json_t *pieces = json_array();
    for (int type = 0; *form; form++)
        if (*form == '|')
            type = 1;
        else if (*form == '<' || *form == '>')
            add_token(p, p->around[*form == '>'], type, pieces);
        else
            json_array_append_new(
                pieces, json_pack("{s:{s:s%,s:i}}", "Sequence", "id", form, (size_t)1, "type_id", type));
    return pieces;
}

static json_t *template_of(const Tokenizer *t, const HfClass *class, const int32_t around[2]) {
    const Template p = {t, around, json_object()};
    json_t *single = pieces_of(&p, "<A>"),
           *pair = pieces_of(&p, class && class->pair ? class->pair : "<A>|<B>");
    return json_pack("{s:s,s:o,s:o,s:o}", "type", "TemplateProcessing", "single", single, "pair", pair,
                     "special_tokens", p.tokens);
}

/* Returns whether the files can be copied unchanged. They can if transformers would choose the same class for
 * them next to a model of type export_type. */
static bool can_copy(const Opening *o) {
    const HfClass *class = NULL;
    HfConfig exported = o->config;
    exported.model_type = json_string(o->options->export_type); /* json_string(NULL) is NULL */
    if (!exported.model_type && !exported.tokenizer_class && o->config.exists) return false;
    const Err e = hf_class_find(&exported, o->root, &class);
    json_decref(exported.model_type);
    return o->is_json && !e.code && class == o->class && !(o->config.exists && o->options->num_extra_tokens);
}

/* Completes `built`, and returns the text of the resulting tokenizer.json. `around` contains the tokens
 * before and after a text, or is NULL if `built` already has the post_processor. */
static char *export(const Opening *o, json_t *built, const Tokenizer *t, const int32_t *around) {
    const TokenizerConfig *c = o->options;
    json_t *list = json_object_get(built, "added_tokens");
    for (size_t i = 0; i < c->num_extra_tokens; i++)
        json_array_append_new(list,
                              json_pack("{s:s,s:b,s:b,s:b,s:b,s:b}", "content", c->extra_tokens[i], "special",
                                        1, "normalized", 0, "single_word", 0, "lstrip", 0, "rstrip", 0));
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *token = json_array_get(list, i);
        const char *text = json_string_value(json_object_get(token, "content"));
        json_object_set_new(token, "id", json_integer(text ? hf_token_id(t, text) : -1));
        json_object_del(token, "from"), json_object_del(token, "given");
    }
    json_object_set_new(built, "version", json_string("1.0"));
    /* the post-processor of the class, which trims offsets */
    json_t *trims = json_object_get(built, "post_processor"),
           *template = around ? template_of(t, o->class, around) : NULL;
    if (template && json_is_object(trims))
        template = json_pack("{s:s,s:[O,o]}", "type", "Sequence", "processors", trims, template);
    if (template) json_object_set_new(built, "post_processor", template);
    return json_dumps(built, JSON_COMPACT);
}

static Err finish(Opening *o, Tokenizer *t) {
    json_t *built = NULL, *added = NULL;
    Err e = ERR_OK;
    if (o->class)
        e = hf_class_build(o->class, &o->config, o->root, &built);
    else
        built = json_incref(o->root);
    if (!e.code)
        e = hf_config_added(&o->config, o->class ? NULL : json_object_get(o->root, "added_tokens"),
                            o->class && o->class->plain, &added);
    const bool has_model = !o->is_made;
    if (!e.code) {
        json_object_set_new(built, "added_tokens", added);
        e = hf_load(built, o->is_made ? &o->made : NULL, o->options, t);
        o->is_made = false; /* hf_load has taken ownership of `made` */
    }
    if (!e.code) {
        int32_t around[2];
        const bool replaced = put_around(o, t, around);
        take_ids(o, t);
        if (hf_class_flag(&o->config, "split_special_tokens", false)) hf_split_special(t);
        if (o->options->export_json && has_model && !can_copy(o))
            *o->options->export_json = export(o, built, t, replaced ? around : NULL);
    }
    json_decref(built);
    return e.code ? err_user("'%s': %.900s", o->path, e.msg) : ERR_OK;
}

/* ---- HuggingFaceTokenizer ---- */

static bool ends_with(const char *s, const char *end) {
    const size_t n = strlen(s), k = strlen(end);
    return n >= k && !strcmp(s + n - k, end);
}

static char *folder_of(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? mem_printf("%.*s", slash == path ? 1 : (int)(slash - path), path) : mem_strdup(".");
}

char *tokenizer_find_vocabulary(const char *dir) {
    static const char *const NAMES[] = {
        "tokenizer.json", "tekken.json",  "tokenizer.model",        "vocab.json",
        "vocab.txt",      "spiece.model", "sentencepiece.bpe.model"};
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        char *path = mem_printf("%s/%s", dir, NAMES[i]);
        if (file_exists(path)) return path;
        free(path);
    }
    return NULL;
}

static Err read_root(Opening *o) {
    const char *named = json_string_value(o->config.tokenizer_class);
    if (ends_with(o->path, ".model")) return hf_files_sentencepiece(o->path, o->class, &o->config, &o->root);
    if (ends_with(o->path, "vocab.txt")) {
        if (!named && !o->class) o->class = hf_class("BertTokenizer");
        return hf_files_words(o->path, &o->root);
    }
    if (!named && !o->class) o->class = hf_class("GPT2Tokenizer");
    char *merges = mem_printf("%s/merges.txt", o->config.dir);
    Err e = hf_files_bpe(o->path, merges, &o->root);
    free(merges);
    return e;
}

static Err read_vocabulary(Opening *o, const char *dir) {
    const char *name = strrchr(o->path, '/');
    name = name ? name + 1 : o->path;
    o->is_json = strcmp(name, "vocab.json") && strcmp(name, "vocab.txt") && !ends_with(name, ".model");
    if (o->is_json) ERR_RETURN(json_file(o->path, &o->root));
    const bool tekken = o->is_json && tekken_is(o->root);
    if (tekken) {
        json_t *file = o->root;
        o->root = NULL, o->is_json = false;
        Err e = tekken_load(file, &o->root, &o->made);
        json_decref(file);
        if (e.code) return err_user("'%s': %.900s", o->path, e.msg);
        o->is_made = true;
    }
    ERR_RETURN(hf_config_read(dir, o->is_json ? o->root : NULL, &o->config));
    if (tekken) return ERR_OK;
    ERR_RETURN(hf_class_find(&o->config, o->root, &o->class));
    if (o->root) return ERR_OK;
    ERR_RETURN(read_root(o));
    if (o->class || json_object_get(o->root, "normalizer")) return ERR_OK;
    return err_user("'%s' contains only a vocabulary, and '%s/tokenizer_config.json' specifies no class that "
                    "uses this vocabulary: add a tokenizer.json to the folder",
                    o->path, dir);
}

static Err open_folder(const TokenizerConfig *c, Tokenizer *t) {
    if (!c->model)
        return err_user(
            "HuggingFaceTokenizer needs --tokenizer-model: set it to a tokenizer.json or its folder");
    if (!file_exists(c->model))
        return err_user("cannot open '%s'; Isotron does not download tokenizers, so specify a tokenizer.json "
                        "or its folder",
                        c->model);
    const bool folder = file_is_dir(c->model);
    char *dir = folder ? mem_strdup(c->model) : folder_of(c->model);
    Opening o = {.options = c, .path = folder ? tokenizer_find_vocabulary(dir) : mem_strdup(c->model)};
    Err e = o.path ? read_vocabulary(&o, dir)
                   : err_user("'%s' contains no tokenizer.json, tekken.json, tokenizer.model, vocab.json "
                              "with merges.txt, or vocab.txt: download the model's tokenizer",
                              dir);
    if (!e.code) e = finish(&o, t);
    if (o.is_made) token_model_free(&o.made);
    close_opening(&o);
    free(dir);
    return e;
}

/* ---- GPT2BPETokenizer and BertWordPiece* ---- */

/* Reads the files in the vocabulary's folder. Returns an error if these files specify a tokenizer class other
 * than `class`. */
static Err open_as(Opening *o, const char *class) {
    char *dir = folder_of(o->path);
    Err e = hf_config_read(dir, NULL, &o->config);
    free(dir);
    if (!e.code) e = hf_class_find(&o->config, NULL, &o->class);
    if (e.code) return e;
    if (o->class && o->class != hf_class(class))
        return err_user("'%s' specifies the tokenizer class %s, but --tokenizer-type %s requires %s: use "
                        "--tokenizer-type HuggingFaceTokenizer with --tokenizer-model %s",
                        o->config.dir, json_string_value(o->config.tokenizer_class), o->options->type, class,
                        o->config.dir);
    o->class = hf_class(class);
    return ERR_OK;
}

static Err need_tokens(const Opening *o, const char *const *names, const char *what) {
    for (; *names; names++)
        if (!json_object_get(json_object_get(json_object_get(o->root, "model"), "vocab"), *names))
            return err_user("'%s' is not a vocabulary for %s, because the token %s is missing", o->path, what,
                            *names);
    return ERR_OK;
}

static Err open_gpt2(const TokenizerConfig *c, Tokenizer *t) {
    static const char *const NEEDED[] = {"<|endoftext|>", NULL};
    if (!c->vocab_file || !c->merge_file)
        return err_user("GPT2BPETokenizer needs --vocab-file vocab.json and --merge-file merges.txt");
    Opening o = {.options = c, .path = mem_strdup(c->vocab_file)};
    Err e = hf_files_bpe(c->vocab_file, c->merge_file, &o.root);
    if (!e.code) e = need_tokens(&o, NEEDED, "GPT-2");
    if (!e.code) e = open_as(&o, "GPT2Tokenizer");
    if (!e.code) e = finish(&o, t);
    close_opening(&o);
    return e;
}

static Err open_bert(const TokenizerConfig *c, bool lower, Tokenizer *t) {
    static const char *const NEEDED[] = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", NULL};
    if (!c->vocab_file) return err_user("%s needs --vocab-file vocab.txt", c->type);
    Opening o = {.options = c, .path = mem_strdup(c->vocab_file)};
    Err e = hf_files_words(c->vocab_file, &o.root);
    if (!e.code) e = need_tokens(&o, NEEDED, "BERT");
    if (!e.code) e = open_as(&o, "BertTokenizer");
    if (!e.code && hf_class_flag(&o.config, "do_lower_case", lower) != lower)
        e = err_user("'%s/tokenizer_config.json' sets do_lower_case to %s: use --tokenizer-type %s",
                     o.config.dir, lower ? "false" : "true",
                     lower ? "BertWordPieceCase" : "BertWordPieceLowerCase");
    if (!e.code) {
        json_object_set_new(o.config.settings, "do_lower_case", json_boolean(lower));
        e = finish(&o, t);
    }
    close_opening(&o);
    return e;
}

static Err open_bert_lower(const TokenizerConfig *c, Tokenizer *t) { return open_bert(c, true, t); }
static Err open_bert_case(const TokenizerConfig *c, Tokenizer *t) { return open_bert(c, false, t); }

const TokenizerType TOKENIZER_HUGGINGFACE = HF_TYPE("HuggingFaceTokenizer", open_folder);
const TokenizerType TOKENIZER_GPT2 = HF_TYPE("GPT2BPETokenizer", open_gpt2);
const TokenizerType TOKENIZER_BERT_LOWER = HF_TYPE("BertWordPieceLowerCase", open_bert_lower);
const TokenizerType TOKENIZER_BERT_CASE = HF_TYPE("BertWordPieceCase", open_bert_case);
