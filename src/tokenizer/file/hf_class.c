#include "tokenizer/file/hf_class.h"

#include <stdlib.h>
#include <string.h>

#include "base/str.h"

#define SPACE "\xE2\x96\x81"

bool hf_class_flag(const HfConfig *c, const char *key, bool fallback) {
    const json_t *v = json_object_get(c->settings, key);
    return json_is_boolean(v) ? json_is_true(v) : fallback;
}

bool hf_class_flag_or_null(const HfConfig *c, const char *key, bool fallback) {
    return hf_class_flag(c, key, fallback && !json_object_get(c->settings, key));
}

/* ---- parts of each class (a tokenizer.json without the vocabulary, which hf_class_build adds) ---- */

static json_t *bert_parts(const HfConfig *c, json_t *charsmap) {
    (void)charsmap;
    const char *unk = hf_config_token(c, "unk_token");
    json_t *normalizer = json_pack("{s:s,s:b,s:b,s:b,s:O*}", "type", "BertNormalizer", "clean_text", 1,
                                   "handle_chinese_chars", hf_class_flag(c, "tokenize_chinese_chars", true),
                                   "lowercase", hf_class_flag(c, "do_lower_case", true), "strip_accents",
                                   json_object_get(c->settings, "strip_accents"));
    return json_pack("{s:{s:s,s:s,s:s,s:i},s:o,s:{s:s},s:{s:s,s:s,s:b}}", "model", "type", "WordPiece",
                     "unk_token", unk ? unk : "None", "continuing_subword_prefix", "##",
                     "max_input_chars_per_word", 100, "normalizer", normalizer, "pre_tokenizer", "type",
                     "BertPreTokenizer", "decoder", "type", "WordPiece", "prefix", "##", "cleanup", 1);
}

/* Returns the parts of byte-level BPE with GPT-2's regex. */
static json_t *gpt2_parts(const HfConfig *c, json_t *charsmap) {
    (void)charsmap;
    const bool prefix = hf_class_flag(c, "add_prefix_space", false);
    return json_pack("{s:{s:s},s:{s:s,s:b,s:b},s:{s:s,s:b,s:b}}", "model", "type", "BPE", "pre_tokenizer",
                     "type", "ByteLevel", "add_prefix_space", prefix, "trim_offsets", 1, "decoder", "type",
                     "ByteLevel", "add_prefix_space", 1, "trim_offsets", 1);
}

static json_t *roberta_parts(const HfConfig *c, json_t *charsmap) {
    json_t *made = gpt2_parts(c, charsmap);
    json_object_set_new(made, "post_processor",
                        json_pack("{s:s,s:b,s:b}", "type", "ByteLevel", "trim_offsets",
                                  hf_class_flag(c, "trim_offsets", true), "add_prefix_space",
                                  hf_class_flag(c, "add_prefix_space", false)));
    return made;
}

static json_t *neox_parts(const HfConfig *c, json_t *charsmap) {
    json_t *made = gpt2_parts(c, charsmap);
    json_object_set_new(made, "normalizer", json_pack("{s:s}", "type", "NFC"));
    return made;
}

static json_t *cohere_parts(const HfConfig *c, json_t *charsmap) {
    json_t *made = neox_parts(c, charsmap);
    json_object_set_new(made, "pre_tokenizer",
                        json_pack("{s:s,s:[{s:s,s:b},O]}", "type", "Sequence", "pretokenizers", "type",
                                  "Digits", "individual_digits", 1, json_object_get(made, "pre_tokenizer")));
    return made;
}

static json_t *qwen2_parts(const HfConfig *c, json_t *charsmap) {
    static const char regex[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
                                "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
    json_t *made = neox_parts(c, charsmap);
    json_object_set_new(made, "pre_tokenizer",
                        json_pack("{s:s,s:[{s:s,s:{s:s},s:s,s:b},{s:s,s:b,s:b,s:b}]}", "type", "Sequence",
                                  "pretokenizers", "type", "Split", "pattern", "Regex", regex, "behavior",
                                  "Isolated", "invert", 0, "type", "ByteLevel", "add_prefix_space",
                                  hf_class_flag(c, "add_prefix_space", false), "use_regex", 0, "trim_offsets",
                                  1));
    return made;
}

static json_t *llama_parts(const HfConfig *c, json_t *charsmap) {
    (void)charsmap;
    const bool prefix = hf_class_flag(c, "add_prefix_space", true),
               legacy = hf_class_flag(c, "legacy", false);
    json_t *made =
        json_pack("{s:{s:s,s:b,s:b},s:{s:s,s:s,s:s,s:b},s:{s:s,s:[{s:s,s:{s:s},s:s},{s:s},{s:s}]}}", "model",
                  "type", "BPE", "fuse_unk", 1, "byte_fallback", 1, "pre_tokenizer", "type", "Metaspace",
                  "replacement", SPACE, "prepend_scheme",
                  !prefix  ? "never"
                  : legacy ? "always"
                           : "first",
                  "split", 0, "decoder", "type", "Sequence", "decoders", "type", "Replace", "pattern",
                  "String", SPACE, "content", " ", "type", "ByteFallback", "type", "Fuse");
    if (prefix)
        json_array_append_new(
            json_object_get(json_object_get(made, "decoder"), "decoders"),
            json_pack("{s:s,s:s,s:i,s:i}", "type", "Strip", "content", " ", "start", 1, "stop", 0));
    return made;
}

static json_t *gemma_parts(const HfConfig *c, json_t *charsmap) {
    (void)charsmap;
    const char *unk = hf_config_token(c, "unk_token");
    return json_pack(
        "{s:{s:s,s:b,s:b,s:s},s:{s:s,s:{s:s},s:s},s:{s:s,s:{s:s},s:s,s:b},s:{s:s,s:[{s:s,s:{s:s},s:s},{s:s},{"
        "s:s}]}}",
        "model", "type", "BPE", "fuse_unk", 1, "byte_fallback", 1, "unk_token", unk ? unk : "None",
        "normalizer", "type", "Replace", "pattern", "String", " ", "content", SPACE, "pre_tokenizer", "type",
        "Split", "pattern", "String", " ", "behavior", "MergedWithPrevious", "invert", 0, "decoder", "type",
        "Sequence", "decoders", "type", "Replace", "pattern", "String", SPACE, "content", " ", "type",
        "ByteFallback", "type", "Fuse");
}

/* Returns the parts of a unigram model whose normalizer is a charsmap. */
static json_t *unigram_parts(int unk, const char *scheme, json_t *charsmap) {
    json_t *made =
        json_pack("{s:{s:s,s:i,s:b},s:{s:s,s:[{s:s},{s:s,s:s,s:s,s:b}]},s:{s:s,s:s,s:s,s:b}}", "model",
                  "type", "Unigram", "unk_id", unk, "byte_fallback", 0, "pre_tokenizer", "type", "Sequence",
                  "pretokenizers", "type", "WhitespaceSplit", "type", "Metaspace", "replacement", SPACE,
                  "prepend_scheme", scheme, "split", 1, "decoder", "type", "Metaspace", "replacement", SPACE,
                  "prepend_scheme", scheme, "split", 1);
    if (charsmap)
        json_object_set_new(made, "normalizer",
                            json_pack("{s:s,s:O}", "type", "Precompiled", "precompiled_charsmap", charsmap));
    return made;
}

static bool has_sentinel(const json_t *list) {
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *one = json_array_get(list, i);
        const char *text = json_string_value(json_is_object(one) ? json_object_get(one, "content") : one);
        if (text && strstr(text, "<extra_id_")) return true;
    }
    return false;
}

int hf_class_sentinels(const HfConfig *c) {
    const json_t *count = json_object_get(c->settings, "extra_ids");
    const json_int_t n = json_is_integer(count) ? json_integer_value(count) : 100;
    return n < 0 ? 0 : n < 1 << 16 ? (int)n : 1 << 16;
}

/* Returns the parts of a T5 tokenizer. Unless the settings contain extra_special_tokens, the tokenizer has
 * the additional tokens <extra_id_0>, <extra_id_1>, ... */
static json_t *t5_parts(const HfConfig *c, json_t *charsmap) {
    static const char KEY[] = "additional_special_tokens";
    json_t *extra = json_object_get(c->settings, KEY);
    if (!json_is_array(extra)) json_object_set_new(c->settings, KEY, extra = json_array());
    const bool missing =
        !json_is_array(json_object_get(c->settings, "extra_special_tokens")) && !has_sentinel(extra);
    for (int i = 0; missing && i < hf_class_sentinels(c); i++)
        json_array_append_new(extra, json_sprintf("<extra_id_%d>", i));
    return unigram_parts(2, "always", charsmap);
}

static json_t *xlm_roberta_parts(const HfConfig *c, json_t *charsmap) {
    return unigram_parts(3, hf_class_flag_or_null(c, "add_prefix_space", true) ? "always" : "never",
                         charsmap);
}

static void add_step(json_t *steps, const char *type) {
    json_array_append_new(steps, json_pack("{s:s}", "type", type));
}

static json_t *albert_parts(const HfConfig *c, json_t *charsmap) {
    json_t *made =
        unigram_parts(1, hf_class_flag_or_null(c, "add_prefix_space", true) ? "always" : "never", charsmap);
    json_t *steps =
        json_pack("[{s:s,s:{s:s},s:s},{s:s,s:{s:s},s:s}]", "type", "Replace", "pattern", "String", "``",
                  "content", "\"", "type", "Replace", "pattern", "String", "''", "content", "\"");
    if (!hf_class_flag(c, "keep_accents", false)) add_step(steps, "NFKD"), add_step(steps, "StripAccents");
    if (hf_class_flag(c, "do_lower_case", true)) add_step(steps, "Lowercase");
    if (charsmap) json_array_append(steps, json_object_get(made, "normalizer"));
    json_object_set_new(made, "normalizer", json_pack("{s:s,s:o}", "type", "Sequence", "normalizers", steps));
    return made;
}

/* ---- selection of the class ---- */

#define GPT2_TOKENS "unk_token=<|endoftext|> bos_token=<|endoftext|> eos_token=<|endoftext|>"
#define ROBERTA_TOKENS                                                                                       \
    "bos_token=<s> eos_token=</s> sep_token=</s> cls_token=<s> unk_token=<unk> pad_token=<pad> "             \
    "mask_token=<mask>"

static const HfClass CLASSES[] = {
    {.names = "BertTokenizer DistilBertTokenizer ConvBertTokenizer ElectraTokenizer LayoutLMTokenizer "
              "LxmertTokenizer MobileBertTokenizer SqueezeBertTokenizer",
     .model_types = "bert convbert distilbert electra ernie megatron-bert nomic_bert squeezebert",
     .model = "WordPiece",
     .tokens = "unk_token=[UNK] sep_token=[SEP] pad_token=[PAD] cls_token=[CLS] mask_token=[MASK]",
     .parts = bert_parts,
     .before = "cls_token",
     .after = "sep_token",
     .pair = "<A>|B>",
     .own_post = true},
    {.names = "GPT2Tokenizer CodeGenTokenizer",
     .model_types = "codegen dbrx gpt2 gpt_neo gptj jais2 opt phi starcoder2",
     .model = "BPE",
     .tokens = GPT2_TOKENS,
     .parts = gpt2_parts},
    {.names = "RobertaTokenizer BartTokenizer LEDTokenizer LongformerTokenizer MvpTokenizer",
     .model_types = "bart ibert longformer mega mra roberta roberta-prelayernorm",
     .model = "BPE",
     .tokens = ROBERTA_TOKENS,
     .parts = roberta_parts,
     .before = "cls_token",
     .after = "sep_token",
     .pair = "<A>>B>",
     .own_post = true},
    {.names = "LlamaTokenizer",
     .model_types = "idefics idefics2",
     .model = "BPE",
     .tokens = "unk_token=<unk> bos_token=<s> eos_token=</s>",
     .parts = llama_parts},
    {.names = "T5Tokenizer",
     .model_types = "mt5 switch_transformers t5",
     .model = "Unigram",
     .tokens = "eos_token=</s> unk_token=<unk> pad_token=<pad>",
     .parts = t5_parts,
     .after = "eos_token",
     .pair = "<A>B>",
     .own_post = true},
    {.names = "GemmaTokenizer",
     .model_types =
         "gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text recurrent_gemma shieldgemma2 t5gemma zaya",
     .model = "BPE",
     .tokens = "unk_token=<unk> bos_token=<bos> eos_token=<eos> pad_token=<pad> mask_token=<mask>",
     .parts = gemma_parts},
    {.names = "Qwen2Tokenizer",
     .model_types = "qwen2 qwen2_5_vl qwen2_moe qwen2_vl qwen3 qwen3_moe qwen3_next qwen3_vl qwen3_vl_moe",
     .model = "BPE",
     .tokens = "unk_token=<|endoftext|> eos_token=<|endoftext|> pad_token=<|endoftext|>",
     .parts = qwen2_parts,
     .plain = true},
    {.names = "GPTNeoXTokenizer",
     .model_types = "falcon_mamba gpt_neox mamba mamba2 mpt olmo olmoe rwkv xlstm",
     .model = "BPE",
     .tokens = GPT2_TOKENS " pad_token=<|padding|>",
     .parts = neox_parts,
     .forgets_post = true},
    {.names = "XLMRobertaTokenizer",
     .model_types = "xlm-roberta xmod",
     .model = "Unigram",
     .tokens = ROBERTA_TOKENS,
     .parts = xlm_roberta_parts,
     .before = "bos_token",
     .after = "eos_token",
     .pair = "<A>>B>",
     .own_post = true},
    {.names = "AlbertTokenizer",
     .model_types = "albert yoso",
     .model = "Unigram",
     .tokens = "bos_token=[CLS] eos_token=[SEP] unk_token=<unk> sep_token=[SEP] pad_token=<pad> "
               "cls_token=[CLS] mask_token=[MASK]",
     .parts = albert_parts,
     .before = "cls_token",
     .after = "sep_token",
     .pair = "<A>|B>"},
    {.names = "CohereTokenizer",
     .model_types = "aya_vision cohere cohere2",
     .model = "BPE",
     .tokens = "unk_token=<UNK> bos_token=<BOS_TOKEN> eos_token=<|END_OF_TURN_TOKEN|> pad_token=<PAD> "
               "cls_token=<CLS> sep_token=<SEP> mask_token=<MASK_TOKEN>",
     .parts = cohere_parts},
};
enum { NUM_CLASSES = sizeof CLASSES / sizeof *CLASSES };

/* Model types whose tokenizer.json is used unchanged, even if tokenizer_config.json specifies another class. */
static const char AS_IT_IS[] =
    "arctic,aria,bigbird_pegasus,chatlm,ernie4_5,ernie4_5_moe,flex_olmo,fuyu,glm,glm4,glm4_moe,"
    "glm4_moe_lite,gpt_bigcode,granite,granitemoe,granitemoehybrid,granitemoeshared,h2ovl_chat,"
    "hyperclovax,internlm2,internlm3,jamba,kimi_k25,kimi_linear,llava,llava_next,mimo_v2_flash,minicpm3,"
    "minimax_m2,ministral,ministral3,mistral,mistral3,mistral_large4,mixtral,modernbert,"
    "modernbert-decoder,molmo,molmo2,nemotron,nystromformer,olmo2,olmo3,olmo_hybrid,opencua,persimmon,"
    "phi3,phi3_v,phimoe,pixtral,smolvlm,stablelm,umt5,vipllava,voxtral,xlm-roberta-xl";
/* Model types that imply a class. This class takes precedence over the class that tokenizer_config.json names. */
static const char WRONG_CLASS[] = "qwen2";
/* Classes that replace parts of a tokenizer.json and are not supported. */
static const char OTHERS[] =
    "BarthezTokenizer,BartphoTokenizer,BertGenerationTokenizer,BertJapaneseTokenizer,BertweetTokenizer,"
    "BigBirdTokenizer,BioGptTokenizer,BlenderbotSmallTokenizer,BlenderbotTokenizer,ByT5Tokenizer,"
    "CLIPTokenizer,CTRLTokenizer,CamembertTokenizer,CanineTokenizer,ClvpTokenizer,CodeLlamaTokenizer,"
    "CpmAntTokenizer,CpmTokenizer,DebertaTokenizer,DebertaV2Tokenizer,DiaTokenizer,EsmTokenizer,"
    "EsmcTokenizer,FNetTokenizer,FSMTTokenizer,FlaubertTokenizer,FunnelTokenizer,"
    "GPTNeoXJapaneseTokenizer,GPTSw3Tokenizer,HerbertTokenizer,LasrTokenizer,LayoutLMv2Tokenizer,"
    "LayoutLMv3Tokenizer,LayoutXLMTokenizer,LukeTokenizer,M2M100Tokenizer,MBart50Tokenizer,"
    "MBartTokenizer,MLukeTokenizer,MPNetTokenizer,MarianTokenizer,MarkupLMTokenizer,MgpstrTokenizer,"
    "MyT5Tokenizer,NllbTokenizer,NougatTokenizer,OpenAIGPTTokenizer,PLBartTokenizer,ParakeetTokenizer,"
    "PegasusTokenizer,PerceiverTokenizer,PhobertTokenizer,ProphetNetTokenizer,Qwen3_5Tokenizer,"
    "ReformerTokenizer,RemBertTokenizer,RoCBertTokenizer,RoFormerTokenizer,SeamlessM4TTokenizer,"
    "Siglip2Tokenizer,SiglipTokenizer,Speech2TextTokenizer,SpeechT5Tokenizer,SplinterTokenizer,"
    "TapasTokenizer,Tipsv2Tokenizer,UdopTokenizer,VideoPrismTokenizer,VitsTokenizer,"
    "Wav2Vec2CTCTokenizer,Wav2Vec2PhonemeCTCTokenizer,WhisperTokenizer,XGLMTokenizer,XLMTokenizer,"
    "XLNetTokenizer";

static bool separates(char c) { return c == ' ' || c == ',' || !c; }

static bool has_word(const char *words, const char *word, size_t n) {
    for (const char *s = words; n && (s = strstr(s, word)); s++)
        if ((s == words || separates(s[-1])) && separates(s[n])) return true;
    return false;
}

const HfClass *hf_class(const char *name) {
    for (int i = 0; i < NUM_CLASSES; i++)
        if (has_word(CLASSES[i].names, name, strlen(name))) return &CLASSES[i];
    return NULL;
}

static const HfClass *class_of_type(const char *model_type) {
    for (int i = 0; i < NUM_CLASSES; i++)
        if (has_word(CLASSES[i].model_types, model_type, strlen(model_type))) return &CLASSES[i];
    return NULL;
}

/* Returns whether a tokenizer is byte-level. The files of some byte-level tokenizers specify LlamaTokenizer,
 * which cannot represent such a tokenizer. */
static bool is_byte_level(const json_t *tokenizer) {
    static const char *const KEYS[] = {"normalizer", "pre_tokenizer", "post_processor", "decoder"};
    bool found = false;
    for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS && !found; i++) {
        char *text = json_dumps(json_object_get(tokenizer, KEYS[i]), JSON_COMPACT);
        found = text && strstr(text, "\"ByteLevel\"");
        free(text);
    }
    return found;
}

Err hf_class_find(const HfConfig *c, const json_t *tokenizer, const HfClass **out) {
    const char *type = json_string_value(c->model_type), *named = json_string_value(c->tokenizer_class);
    const size_t n = type ? strlen(type) : 0;
    const HfClass *of_type = type ? class_of_type(type) : NULL;
    Str name = {0};
    str_puts(&name, named ? named : "");
    if (name.len > 4 && !strcmp(name.s + name.len - 4, "Fast")) name.s[name.len - 4] = 0;
    const bool other = has_word(OTHERS, name.s, strlen(name.s));
    const HfClass *class = hf_class(name.s);
    *out = class;
    if (type && (has_word(WRONG_CLASS, type, n) || !named))
        *out = of_type;
    else if ((type && has_word(AS_IT_IS, type, n)) ||
             (class && !strcmp(name.s, "LlamaTokenizer") && is_byte_level(tokenizer)))
        *out = NULL;
    const bool refused = other && !*out && !(type && has_word(AS_IT_IS, type, n));
    str_free(&name);
    if (!refused) return ERR_OK;
    return err_user("'%s' specifies the class %s, which replaces parts of tokenizer.json, and is not "
                    "supported. To use tokenizer.json unchanged, in Isotron and in transformers, set "
                    "\"tokenizer_class\" to \"PreTrainedTokenizerFast\" in its tokenizer_config.json",
                    c->dir, named);
}

/* ---- construction of a tokenizer.json ---- */

static void set_defaults(const HfClass *class, HfConfig *c) {
    for (const char *s = class->tokens; *s;) {
        const char *equals = strchr(s, '=');
        const size_t key = (size_t)(equals - s), text = strcspn(equals + 1, " ");
        if (!json_object_getn(c->settings, s, key))
            json_object_setn_new(c->settings, s, key, json_stringn(equals + 1, text));
        s = equals + 1 + text;
        s += *s == ' ';
    }
}

/* Returns the charsmap of a Precompiled normalizer (which may be part of a Sequence), or NULL if there is none. */
static json_t *charsmap_of(const json_t *normalizer) {
    const json_t *list = json_object_get(normalizer, "normalizers");
    json_t *found = json_object_get(normalizer, "precompiled_charsmap");
    for (size_t i = 0; !found && i < json_array_size(list); i++)
        found = json_object_get(json_array_get(list, i), "precompiled_charsmap");
    return found;
}

Err hf_class_build(const HfClass *class, HfConfig *c, const json_t *root, json_t **out) {
    json_t *model = json_object_get(root, "model"), *vocab = json_object_get(model, "vocab"),
           *merges = json_object_get(model, "merges"), *post = json_object_get(root, "post_processor");
    const char *type = json_string_value(json_object_get(model, "type"));
    const int n = (int)strcspn(class->names, " ");
    if (type && strcmp(type, class->model))
        return err_user(
            "the folder's class, %.*s, needs the vocabulary of a %s model, but the model's type is %.60s: "
            "correct \"tokenizer_class\" in tokenizer_config.json, or \"model_type\" in config.json",
            n, class->names, class->model, type);
    set_defaults(class, c);
    json_t *made = class->parts(c, charsmap_of(json_object_get(root, "normalizer"))),
           *own = json_object_get(made, "model");
    json_object_set(own, "vocab", vocab);
    if (merges) json_object_set(own, "merges", merges);
    if (post && !class->own_post && !class->forgets_post) json_object_set(made, "post_processor", post);
    *out = made;
    return ERR_OK;
}
