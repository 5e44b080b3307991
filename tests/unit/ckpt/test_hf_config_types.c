/* config.json of a model of each type: combinations of options, and changes of each key. */
#include "unit/cmocka_all.h"

#include <jansson.h>

#include "ckpt/hf/config.h"
#include "ckpt/hf/type.h"
#include "unit/ckpt/hf_models.h"
#include "unit/ckpt/model.h"

/* ---- combinations of options ---- */

#define ROBERTA(type)                                                                                        \
    "model = bert\nactivation = gelu-erf\nnorm-placement = post\nbert-no-binary-head = "                     \
    "true\nnum-token-types = "                                                                               \
    "1\nhf-model-type = " type "\n"

#define GPT_OSS                                                                                              \
    "activation = quick-geglu\nglu-linear-offset = 1\nactivation-func-clamp-value = 7\nsoftmax-type = "      \
    "learnable\n"

#define MAMBA_SIZES "mamba-head-dim = 6\nmamba-state-dim = 5\nmamba-num-groups = 2\n"
#define MAMBA       "position-embedding-type = none\n" MAMBA_SIZES

#define DELTA                                                                                                \
    "experimental-attention-variant = gdn\nlinear-attention-freq = [1,0,1]\nattention-output-gate = true\n"  \
    "apply-layernorm-1p = true\nqk-layernorm = true\nlinear-num-key-heads = 2\nlinear-num-value-heads = 6\n" \
    "linear-key-head-dim = 3\nlinear-value-head-dim = 5\nlinear-conv-kernel-dim = 3\n"

/* --hf-model-type with the name of the type that is tried, because an earlier type may also fit. */
#define NAMED "hf-model-type = %s\n"

enum { MOST_CHOICES = 16 };
static const char *const CHOICES[][MOST_CHOICES] = {
    {"", LLAMA_POSITIONS, LLAMA_POSITIONS "rotary-percent = 0.5\n",
     LLAMA_POSITIONS "rotary-seq-len-interpolation-factor = 2\n", LLAMA_POSITIONS "use-rope-scaling = true\n",
     LLAMA_POSITIONS "parallel-residual = two-norms\n", LLAMA_POSITIONS "parallel-residual = one-norm\n",
     "position-embedding-type = yarn\n", LLAMA_POSITIONS "rope-dynamic-factor = 2\n",
     LLAMA_POSITIONS "rotary-interleaved = true\n",
     LLAMA_POSITIONS "rotary-interleaved = true\ndisable-norm-bias = true\nparallel-residual = one-norm\n",
     LLAMA_POSITIONS "add-output-layer-bias = true\nparallel-residual = one-norm\n",
     LLAMA_POSITIONS
     "rotary-interleaved = true\nadd-output-layer-bias = true\nparallel-residual = one-norm\n",
     "position-embedding-type = alibi\nembedding-layernorm = true\n",
     "position-embedding-type = alibi\ndisable-norm-bias = true\n",
     "disable-bias-linear = true\nadd-attn-proj-bias = true\nadd-mlp-bias = true\nsoftmax-scale = 1\n"},
    {"", "normalization = RMSNorm\n", "apply-layernorm-1p = true\n",
     "disable-norm-weight = true\ndisable-norm-bias = true\n"},
    {"", "swiglu = true\n", "squared-relu = true\n", GPT_OSS, "activation = relu\n", "activation = xielu\n"},
    {"", "disable-bias-linear = true\n", "disable-bias-linear = true\nadd-qkv-bias = true\n",
     "disable-bias-linear = true\nadd-mlp-bias = true\n"},
    {"",
     "group-query-attention = true\nnum-query-groups = 2\nkv-channels = 4\n"
     "untie-embeddings-and-output-weights = true\n",
     "group-query-attention = true\nnum-query-groups = 1\n"},
    {"", "qk-layernorm = true\n", "embedding-multiplier = 12\n", GEMMA2,
     "activation = geglu-tanh\napply-layernorm-1p = true\nscale-embedding = true\n",
     "scale-embedding = true\n"},
    {"", "qk-layernorm = true\n", "qk-layernorm = true\nqk-layernorm-whole = true\nnorm-placement = post\n",
     "qk-layernorm = true\nnorm-placement = post\n", "norm-placement = sandwich\n",
     "qk-layernorm = true\nqk-layernorm-whole = true\n",
     "qk-layernorm = true\nqk-layernorm-after-rope = true\n"},
    {"", "no-rope-freq = 2\n", "no-rope-freq = [1,1,1]\n", IN_CHUNKS,
     "rope-temperature-scale = 0.5\nrope-temperature-floor = 3\nyarn-original-max-position-embeddings = 3\n"},
    {"", "window-size = 7,0\n", "window-size = 7,0\nwindow-attn-skip-freq = [0,1,1]\n",
     "window-size = 7,0\nwindow-attn-skip-freq = [1,0,0]\n"},
    {"", EXPERTS, EXPERTS "moe-layer-freq = [0,1,1]\nmoe-router-pre-softmax = true\n",
     EXPERTS
     "moe-layer-freq = [1,0,1]\nmoe-shared-expert-intermediate-size = 40\nmoe-shared-expert-gate = true\n",
     EXPERTS GLM "moe-layer-freq = [0,1,1]\nmoe-shared-expert-intermediate-size = 40\n", EXPERTS GLM,
     EXPERTS "moe-shared-expert-intermediate-size = 30\n",
     EXPERTS
     "moe-layer-freq = [0,1,1]\nmoe-shared-expert-intermediate-size = 40\nmoe-router-pre-softmax = true\n",
     EXPERTS LLAMA4 "moe-layer-freq = [0,1,1]\n", EXPERTS GLM "moe-shared-expert-intermediate-size = 40\n",
     EXPERTS "moe-ffn-hidden-size = 30\nmoe-shared-expert-intermediate-size = 30\n",
     EXPERTS
     "moe-router-enable-expert-bias = true\nmoe-layer-freq = [0,1,1]\nmoe-shared-expert-intermediate-size = "
     "40\n",
     EXPERTS "moe-router-score-function = sparsemixer\n"},
    {"", "model = bert\nactivation = gelu-erf\n",
     "model = bert\nactivation = gelu-tanh\nnorm-placement = post\n", T5, ROBERTA("roberta"),
     ROBERTA("xlm-roberta"), T5 "logits-scaling = 1\n"},
    {"", LATENT, MAMBA "hybrid-layer-pattern = MMM\n", MAMBA "hybrid-layer-pattern = M-*\n",
     MAMBA_SIZES "num-layers = 4\nhybrid-layer-pattern = M-*-\n", DELTA,
     DELTA "moe-shared-expert-gate = true\n"},
    {"", NAMED},
};
enum { N_CHOICES = sizeof CHOICES / sizeof *CHOICES };

/* A model of each type, in the order of hf_types.def: the choice from each row of CHOICES. */
static const int MODEL[][N_CHOICES] = {
    {0},
    {1, 1, 1},
    {1, 1, 1, 1, 0, 0, 0, 0, 1},
    {1, 1, 1, 2},
    {1, 1, 1, 1, 0, 1},
    {1, 0, 1, 1},
    {1, 2},
    {1, 1, 1, 1, 0, 0, 0, 0, 0, 1},
    {1, 1, 1, 1, 0, 0, 0, 0, 0, 3},
    {1, 1, 1, 1, 0, 1, 0, 0, 0, 1},
    {1, 1, 1, 1, 0, 0, 0, 0, 0, 4},
    {1, 1, 1, 1, 0, 0, 0, 0, 0, 7, 0, 1},
    {1, 1, 1, 1, 0, 0, 0, 0, 0, 4, 0, 1},
    {1},
    {1, 1, 1, 0, 0, 2},
    {1, 1, 0, 1, 0, 3},
    {1, 1, 0, 1, 0, 3, 1},
    {5},
    {6},
    {1, 1, 1, 1, 0, 0, 2},
    {2, 1, 1, 1, 1},
    {1, 1, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1},
    {1, 1, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 1},
    {1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 0, 0, 1},
    {9, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1},
    {9, 1, 1, 1, 0, 0, 4, 0, 0, 0, 0, 0, 1},
    {9, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1},
    {9, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1},
    {1, 1, 0, 1, 0, 4, 0, 0, 0, 0, 0, 0, 1},
    {1, 1, 1, 1, 0, 0, 3, 0, 0, 0, 0, 0, 1},
    {1, 1, 1, 1, 0, 0, 2, 0, 0, 0, 0, 0, 1},
    {1, 1, 1, 1, 0, 0, 2, 0, 0, 1, 0, 0, 1},
    {1, 1, 1, 1, 0, 1, 0, 0, 0, 4, 0, 0, 1},
    {1, 1, 1, 1, 0, 0, 5, 0, 0, 5, 0, 0, 1},
    {1, 1, 1, 1, 0, 2, 0, 0, 0, 1, 0, 0, 1},
    {1, 1, 1, 1, 0, 2, 0, 0, 0, 6, 0, 0, 1},
    {1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1},
    {1, 1, 1, 1, 0, 0, 0, 4},
    {1, 1, 0, 1, 0, 4, 0, 0, 0, 0, 0, 0, 1},
    {7, 1, 3, 0, 1, 0, 0, 0, 2, 1},
    {9, 1, 1, 1, 0, 0, 0, 3, 0, 8},
    {10, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1},
    {10, 0, 1, 1, 0, 0, 0, 2, 0, 0, 0, 0, 1},
    {1, 1, 1, 1, 0, 0, 5, 0, 0, 1, 0, 0, 1},
    {11, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1},
    {1, 0, 1, 1, 0, 0, 0, 0, 0, 12},
    {0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1},
    {1, 1, 1, 1, 0, 0, 0, 0, 0, 4, 0, 1, 1},
    {1, 1, 1, 1, 0, 0, 0, 0, 0, 9, 0, 0, 1},
    {1, 1, 1, 1, 0, 1, 0, 2, 0, 4, 0, 0, 1},
    {1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1},
    {1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1},
    {1, 3, 1, 1},
    {1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1},
    {1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1},
    {1, 0, 2, 0, 0, 1},
    {1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 1},
    {1, 1, 1, 1, 0, 2, 0, 0, 0, 0, 0, 0, 1},
    {0, 0, 0, 0, 2},
    {0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 1},
    {15},
    {1, 1, 1, 1, 0, 2, 4, 0, 0, 0, 0, 0, 1},
    {1, 1, 1, 1, 0, 0, 6},
    {1, 1, 1, 1, 0, 0, 6, 0, 0, 10},
    {12, 0, 0, 3},
    {9, 1, 1, 1, 0, 0, 0, 0, 0, 11},
    {1, 1, 1, 1, 0, 0, 0, 0, 2, 0, 0, 0, 1},
    {13},
    {14, 0, 0, 1},
    {1, 1, 5, 1, 0, 1},
    {1, 1, 1, 1, 0, 0, 0, 0, 0, 3, 0, 5},
    {1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 5},
    {1, 1, 1, 1, 0, 0, 0, 0, 0, 6, 0, 6, 1},
    {0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2},
    {0, 1, 2, 1, 1, 0, 0, 0, 0, 0, 0, 3},
    {2, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 4},
    {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2},
    {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1},
    {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4},
    {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5},
    {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3},
    {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 6, 0, 1},
};
_Static_assert(sizeof MODEL / sizeof *MODEL == HF_TYPES, "one for each type");

static int type_in(const Str *json) {
    for (int i = 0; i < HF_TYPES; i++) {
        char line[60];
        snprintf(line, sizeof line, "\"model_type\": \"%s\"", HF_TYPE[i].name);
        if (strstr(json->s, line)) return i;
    }
    fail_msg("%s", json->s);
    return 0;
}

/* The type, HF_TYPES if the export is refused, or -1 if the options break a rule. */
static int try_export(const char *path, const char *conf) {
    TestModel m = {.arena = arena_new()};
    Str json = {0}, notes = {0};
    HfFamily family;
    int type = -1;
    args_init(&m.args, m.arena, "test", NULL);
    args_use(&m.args, config_table(&m.config, USE_ALL));
    args_bytes(&m.args, "run.conf", conf, strlen(conf));
    config_check(&m.config, CHECK_MODEL, &m.args);
    if (!args_end(&m.args).code) {
        config_finish(&m.config, m.arena, 0);
        type = hf_config_export(&m.config, F32, NULL, &json, &family).code ? HF_TYPES : type_in(&json);
    }
    if (json.len) {
        write_text(path, json.s);
        const Err e = hf_config_read_back(path, &m.config, &notes);
        if (e.code) fail_msg("%s\n%s\n%s", e.msg, conf, json.s);
    }
    str_free(&json), str_free(&notes);
    args_free(&m.args);
    arena_free(m.arena);
    return type;
}

/* Returns the options of a type's model with these choices. The caller frees them. */
static char *options_of(const HfType *type, const int at[N_CHOICES], const char *more) {
    Str conf = {0};
    str_puts(&conf, BASE "num-layers = 3\n");
    for (int i = 0; i + 1 < N_CHOICES; i++) str_puts(&conf, CHOICES[i][at[i]]);
    if (at[N_CHOICES - 1]) str_printf(&conf, NAMED, type->name);
    str_puts(&conf, more);
    char *options = last_lines(conf.s);
    str_free(&conf);
    return options;
}

static int try_choices(const char *path, const HfType *type, const int at[N_CHOICES]) {
    char *options = options_of(type, at, "");
    const int exported = try_export(path, options);
    free(options);
    return exported;
}

/* The models that were tried: models of different types have common neighbours. */
enum { TRIED_SLOTS = 1 << 17 };
typedef struct Tried {
    uint64_t model[TRIED_SLOTS]; /* 0: empty */
    bool refused[TRIED_SLOTS];
    int64_t pairs, each; /* one of `each` pairs of changes is tried */
} Tried;

/* Returns whether the export is refused. A type whose name is not given has no effect on the result. */
static bool is_refused(const char *path, Tried *tried, const HfType *type, const int at[N_CHOICES]) {
    uint64_t model = at[N_CHOICES - 1] ? (uint64_t)(type - HF_TYPE) + 1 : 0;
    for (int i = 0; i < N_CHOICES; i++) model = model * MOST_CHOICES + (uint64_t)at[i];
    uint64_t slot = ++model * 0x9E3779B97F4A7C15 >> 47;
    while (tried->model[slot] && tried->model[slot] != model) slot = (slot + 1) % TRIED_SLOTS;
    if (!tried->model[slot]) {
        tried->model[slot] = model;
        tried->refused[slot] = try_choices(path, type, at) == HF_TYPES;
    }
    return tried->refused[slot];
}

/* Changes up to `most` choices and tries the result: `made` choices are already changed, and the others are from
 * `first` on. Counts the refused exports. */
static int try_changes(const char *path, Tried *tried, const HfType *type, int at[N_CHOICES], int first,
                       int made, int most) {
    if (made == 2 && tried->pairs++ % tried->each) return 0;
    int refused = is_refused(path, tried, type, at);
    for (int i = first; i < N_CHOICES && made < most; i++) {
        const int old = at[i];
        for (at[i] = 0; at[i] < MOST_CHOICES && CHOICES[i][at[i]]; at[i]++)
            if (at[i] != old) refused += try_changes(path, tried, type, at, i + 1, made + 1, most);
        at[i] = old;
    }
    return refused;
}

/* Covers, for each type, every model that differs from MODEL by one choice, and every 17th that differs by two, or all
 * of them at night (HF_EVERY_PAIR). So every type is tried with every choice, and with pairs of choices if it is exported
 * without its name; the others have the same forms. */
TEST(changes_read_back_or_are_refused) {
    char *scratch = scratch_new_in_memory(), *path = mem_printf("%s/config.json", scratch);
    Tried *tried = mem_zero(1, sizeof *tried);
    tried->each = getenv("HF_EVERY_PAIR") ? 1 : 17;
    for (int type = 0; type < HF_TYPES; type++) {
        int at[N_CHOICES];
        memcpy(at, MODEL[type], sizeof at);
        assert_int_equal(try_choices(path, &HF_TYPE[type], at), type);
        assert_true(try_changes(path, tried, &HF_TYPE[type], at, 0, 0, at[N_CHOICES - 1] ? 1 : 2) > 0);
    }
    free(tried), free(path);
    scratch_remove(scratch);
}

/* ---- every key counts ---- */

/* Keys that do not change the model, or that other keys overrule: a window's size, or its first layer if there is a
 * list of layers. */
static bool is_idle(const json_t *root, const char *key) {
    static const char *const IDLE[] = {
        "pad_token_id",     "architectures",     "torch_dtype",         "bos_token_id",
        "eos_token_id",     "dropout",           "attention_dropout",   "hidden_dropout",
        "residual_dropout", "embedding_dropout", "embd_pdrop",          "resid_pdrop",
        "attn_pdrop",       "max_seq_len",       "hidden_dropout_prob", "attention_probs_dropout_prob",
        "embed_dropout",    "resid_dropout"};
    for (size_t i = 0; i < sizeof IDLE / sizeof *IDLE; i++)
        if (!strcmp(key, IDLE[i])) return true;
    if (!strcmp(key, "mamba_n_heads")) return !json_object_get(root, "mamba_d_head");
    return !strcmp(key, "max_window_layers") && json_object_get(root, "layer_types");
}

static void alter_each_key(const char *path, const char *conf) {
    TestModel m = {0};
    Str json = {0}, notes = {0};
    HfFamily family;
    test_model_parse(&m, conf);
    assert_ok(hf_config_export(&m.config, F32, NULL, &json, &family));
    json_t *root = json_loadb(json.s, json.len, 0, NULL), *value;
    const char *key;
    json_object_foreach(root, key, value) {
        json_t *other = json_copy(root);
        json_object_set_new(other, key, altered(value));
        char *text = json_dumps(other, 0);
        write_text(path, text);
        const Err e = hf_config_read_back(path, &m.config, &notes);
        if (!e.code != is_idle(root, key))
            fail_msg("%s: %s\n%s", key, e.code ? e.msg : "reads back as equal", text);
        json_decref(other);
        free(text);
    }
    json_decref(root);
    str_free(&json), str_free(&notes);
    args_free(&m.args);
    arena_free(m.arena);
}

/* Each model has keys of a type that other models lack. */
static const char *const KEYED[] = {
    BASE,
    ROPE "use-rope-scaling = true\n",
    ROPE "rotary-seq-len-interpolation-factor = 2\n",
    WINDOWS,
    WINDOWS "add-qkv-bias = true\nwindow-attn-skip-freq = [0,0,1,1]\n",
    WINDOWS "qk-layernorm = true\nwindow-attn-skip-freq = [0,1,0,1]\n",
    MIXTURE "window-size = 7,0\nmoe-ffn-hidden-size = 40\n",
    MIXTURE "window-size = 7,0\nqk-layernorm = true\nmoe-layer-freq = [0,1,1,1]\n",
    WITH_SHARE
    "window-size = 7,0\nadd-qkv-bias = true\nmoe-shared-expert-gate = true\nmoe-layer-freq = [0,1,1,1]\n"
    "window-attn-skip-freq = [0,1,1,1]\n",
    WITH_BIAS "moe-shared-expert-intermediate-size = 40\nmoe-layer-freq = [0,1,1,1]\n",
    WITH_BIAS LATENT
    "moe-shared-expert-intermediate-size = 40\nmoe-layer-freq = [0,1,1,1]\nrope-type = rope\n",
    IN_GROUPS LATENT "moe-shared-expert-intermediate-size = 40\nq-lora-rank = 8\nrotary-scaling-factor = 2\n"
                     "moe-layer-freq = [0,1,1,1]\nmscale = 0.5\nmscale-all-dim = 2\n",
    WITH_SHARE LATENT "moe-router-pre-softmax = true\nmoe-layer-freq = [0,1,1,1]\nrotary-scaling-factor = 2\n"
                      "rope-attention-factor = 1.5\nmscale-all-dim = 2\n",
    ROPE "normalization = LayerNorm\n",
    BASE LLAMA_POSITIONS "window-size = 7,0\n",
    ROPE "embedding-multiplier = 12\n",
    ROPE GEMMA2 "swiglu = false\nwindow-size = 7,0\nattn-logit-softcapping = 50\n",
    ROPE GEMMA2 "swiglu = false\nqk-layernorm = true\nfinal-logit-softcapping = 30\nwindow-size = 7,0\n"
                "window-attn-skip-freq = [1,1,0,1]\nrope-local-base-freq = 100\n"
                "rotary-seq-len-interpolation-factor = 2\n",
    BASE LLAMA_POSITIONS "parallel-residual = two-norms\n",
    WINDOWS "kv-channels = 8\nrotary-percent = 0.5\n",
    LONG "rope-attention-factor = 2\n",
    LONG "window-size = 7,0\nhf-model-type = phi3\n",
    ROPE "norm-placement = post\nqk-layernorm = true\nqk-layernorm-whole = true\n",
    BASE LLAMA_POSITIONS
    "parallel-residual = two-norms\ngroup-query-attention = true\nnum-query-groups = 2\n",
    BASE LLAMA_POSITIONS "parallel-residual = one-norm\ngroup-query-attention = true\n",
    BASE LLAMA_POSITIONS "apply-layernorm-1p = true\nsquared-relu = true\nkv-channels = 8\n",
    BASE LLAMA_POSITIONS "rotary-interleaved = true\ndisable-norm-bias = true\nparallel-residual = one-norm\n"
                         "swiglu = true\ndisable-bias-linear = true\nlogits-scaling = 4\n",
    WINDOWS "rotary-interleaved = true\ndisable-norm-bias = true\nparallel-residual = one-norm\n"
            "normalization = LayerNorm\nwindow-attn-skip-freq = [1,0,1,1]\nno-rope-freq = [0,1,0,0]\n",
    MIXTURE "qk-layernorm = true\nqk-layernorm-whole = true\nmoe-ffn-hidden-size = 40\n",
    BASE LLAMA_POSITIONS "add-output-layer-bias = true\nparallel-residual = one-norm\n",
    BASE "activation = relu\nhf-model-type = opt\n",
    BASE "position-embedding-type = alibi\nembedding-layernorm = true\n",
    MIXTURE "normalization = LayerNorm\nmoe-router-score-function = sparsemixer\nwindow-size = 7,0\n"
            "moe-ffn-hidden-size = 40\nadd-output-layer-bias = true\nrope-short-factor = 1 2 3\n"
            "rope-long-factor = 1 2 3\n",
    BASE "position-embedding-type = alibi\ndisable-norm-bias = true\ndisable-bias-linear "
         "= true\n",
    BASE LLAMA_POSITIONS
    "rotary-interleaved = true\nadd-output-layer-bias = true\nparallel-residual = one-norm\n"
    "disable-bias-linear = true\nadd-mlp-bias = true\n",
    WITH_SHARE
    "rotary-interleaved = true\nmoe-router-enable-expert-bias = true\nmoe-layer-freq = [0,1,1,0]\n",
    WITH_SHARE
    "rotary-interleaved = true\nmoe-router-enable-expert-bias = true\nmoe-layer-freq = [1,1,1,0]\n",
    ROPE "qk-layernorm = true\nqk-layernorm-after-rope = true\n",
    MIXTURE "qk-layernorm = true\nqk-layernorm-after-rope = true\nmoe-shared-expert-intermediate-size = 20\n",
    MIXTURE LLAMA4 IN_CHUNKS "rotary-interleaved = true\nmoe-layer-freq = [0,1,1,1]\n",
    ROPE "normalization = LayerNorm\ndisable-norm-weight = true\ndisable-norm-bias = true\n",
    WITH_BIAS "moe-shared-expert-intermediate-size = 40\nmoe-layer-freq = [0,1,0,1]\nqk-layernorm = true\n"
              "window-size = 7,0\nwindow-attn-skip-freq = [1,0,1,1]\nno-rope-freq = [0,1,0,0]\n"
              "hf-model-type = exaone_moe\n",
    WINDOWS
    "window-attn-skip-freq = [0,1,0,1]\nuse-rope-scaling = true\nadd-mlp-bias = true\nhf-model-type = cwm\n",
    ROPE "hf-model-type = seed_oss\n",
    ROPE "norm-placement = sandwich\nlogits-scaling = 4\nhf-model-type = hyperclovax\n",
    BASE "scale-embedding = true\nhf-model-type = biogpt\n",
    BASE "disable-bias-linear = true\nadd-attn-proj-bias = true\nadd-mlp-bias = true\nsoftmax-scale = 1\n"
         "window-size = 7,0\nwindow-attn-skip-freq = [0,1,0,1]\n",
    BASE LLAMA_POSITIONS "qk-layernorm = true\nsquared-relu = true\n",
    ROPE "swiglu = false\nactivation = xielu\nqk-layernorm = true\n",
    ROPE LATENT "hf-model-type = youtu\n",
    ROPE "embedding-multiplier = 12\nhf-model-type = granitemoehybrid\n",
    HYBRID "embedding-multiplier = 12\nhybrid-layer-pattern = M-*-\nmamba-dt-min = 0.01\n",
    HYBRID EXPERTS "hybrid-layer-pattern = ME*E\nmoe-shared-expert-intermediate-size = "
                   "30\nmamba-dt-min = 0.01\n",
    HYBRID "hybrid-layer-pattern = M-*-\nmamba-dt-min = 0.01\nkv-channels = 8\nrotary-percent = 0.5\n",
    BASE "group-query-attention = true\nnum-query-groups = 1\n",
    TEMPERED "rotary-base = 100\nwindow-size = 7,0\n",
    TEMPERED "position-embedding-type = yarn\nyarn-original-max-position-embeddings = 3\n",
    WINDOWS "window-attn-skip-freq = [0,1,1,0]\nno-rope-freq = [0,1,1,0]\nhf-model-type = smollm3\n",
    ROPE "rotary-interleaved = true\nkv-channels = 8\nrotary-percent = 0.5\n",
    ROPE "rotary-interleaved = true\nhf-model-type = helium\n",
    ROPE "swiglu = false\nactivation = geglu-tanh\napply-layernorm-1p = true\nscale-embedding = true\n",
    HYBRID "position-embedding-type = none\nhybrid-layer-pattern = MMMM\nmamba-dt-min = 0.01\n",
    HYBRID "position-embedding-type = none\nswiglu = false\nsquared-relu = true\n"
           "untie-embeddings-and-output-weights = true\nmamba-dt-min = 0.01\n",
    HYBRID EXPERTS "position-embedding-type = none\nswiglu = false\nsquared-relu = true\n"
                   "untie-embeddings-and-output-weights = true\nhybrid-layer-pattern = ME*-\n" GLM
                   "moe-shared-expert-intermediate-size = 30\nmoe-latent-size = 7\n",
    WINDOWS
    "window-attn-skip-freq = [1,1,1,0]\nno-rope-freq = 4\nqk-layernorm = true\nnorm-placement = post\n",
    ROPE DELTA "linear-attention-freq = [1,1,0,1]\n",
    WITH_SHARE DELTA
    "linear-attention-freq = [1,1,0,1]\nmoe-shared-expert-gate = true\nmoe-layer-freq = [0,1,1,1]\n",
    WITH_SHARE DELTA "linear-attention-freq = [1,1,0,1]\nmoe-shared-expert-gate = true\n"
                     "hf-model-type = qwen3_5_moe_text\n",
};

TEST(a_change_of_any_key_is_seen) {
    char *scratch = scratch_new_in_memory(), *path = mem_printf("%s/config.json", scratch);
    for (size_t i = 0; i < sizeof KEYED / sizeof *KEYED; i++) {
        char *conf = last_lines(KEYED[i]);
        alter_each_key(path, conf);
        free(conf);
    }
    free(path);
    scratch_remove(scratch);
}

/* ---- dropout, which changes no function ---- */

#define HIDDEN    "hidden_dropout"
#define ATTENTION "attention_dropout"
#define BERT_KEYS "hidden_dropout_prob", NULL, "attention_probs_dropout_prob", 0.1, 0.1

/* The keys in transformers' configuration classes, and the values of absent keys. The hidden dropout may have two
 * keys. */
typedef struct Rates {
    const char *type, *hidden, *second, *attention;
    double usual_hidden, usual_attention;
} Rates;
static const Rates RATES[] = {
    {"bert", BERT_KEYS},
    {"megatron-bert", BERT_KEYS},
    {"roberta", BERT_KEYS},
    {"xlm-roberta", BERT_KEYS},
    {"biogpt", BERT_KEYS},
    {"t5", "dropout_rate", NULL, NULL, 0.1, 0.1},
    {"mt5", "dropout_rate", NULL, NULL, 0.1, 0.1},
    {"gpt2", "resid_pdrop", "embd_pdrop", "attn_pdrop", 0.1, 0.1},
    {"gpt_bigcode", "resid_pdrop", "embd_pdrop", "attn_pdrop", 0.1, 0.1},
    {"gptj", "resid_pdrop", "embd_pdrop", "attn_pdrop", 0, 0},
    {"gpt_neo", "resid_dropout", "embed_dropout", ATTENTION, 0, 0},
    {"gpt_neox", HIDDEN, NULL, ATTENTION, 0, 0},
    {"bloom", HIDDEN, NULL, ATTENTION, 0, 0},
    {"falcon", HIDDEN, NULL, ATTENTION, 0, 0},
    {"persimmon", HIDDEN, NULL, ATTENTION, 0, 0},
    {"stablelm", HIDDEN, NULL, ATTENTION, 0, 0},
    {"opt", "dropout", NULL, ATTENTION, 0.1, 0},
    {"phi", "resid_pdrop", "embd_pdrop", ATTENTION, 0, 0},
    {"phi3", "resid_pdrop", "embd_pdrop", ATTENTION, 0, 0},
    {"seed_oss", "residual_dropout", NULL, ATTENTION, 0.1, 0.1},
    {"starcoder2", "residual_dropout", "embedding_dropout", ATTENTION, 0, 0},
    {"mpt", NULL, NULL, NULL, 0, 0},
    {"mamba2", NULL, NULL, NULL, 0, 0},
    {"", NULL, NULL, ATTENTION, 0, 0}, /* all others */
};

/* Imports the file, and checks its rates. */
static void assert_rates(const char *path, double hidden, double attention, const char *type) {
    Str conf = {0};
    Arena *arena = arena_new();
    Config c;
    assert_ok(hf_config_import(path, HF_TYPES, &conf));
    assert_ok(hf_config_parse(path, &conf, arena, &c));
    if (c.hidden_dropout != hidden || c.attention_dropout != attention)
        fail_msg("%s: %g and %g, not %g and %g", type, c.hidden_dropout, c.attention_dropout, hidden,
                 attention);
    arena_free(arena);
    str_free(&conf);
}

TEST(dropout_has_the_keys_and_defaults_of_transformers) {
    char *scratch = scratch_new_in_memory(), *path = mem_printf("%s/config.json", scratch);
    for (int type = 0; type < HF_TYPES; type++) {
        const double hidden = 0.25, attention = 0.375;
        const Rates *r = RATES;
        while (*r->type && strcmp(r->type, HF_TYPE[type].name)) r++;
        const double read = r->hidden ? hidden : 0;
        char *options =
            options_of(&HF_TYPE[type], MODEL[type], "hidden-dropout = 0.25\nattention-dropout = 0.375\n");
        assert_int_equal(try_export(path, options), type);
        assert_rates(path, read, r->attention ? attention : read, HF_TYPE[type].name);
        json_t *root = json_load_file(path, 0, NULL);
        const struct {
            const char *key;
            double rate;
        } keys[] = {{r->hidden, hidden}, {r->second, hidden}, {r->attention, attention}};
        for (int i = 0; i < 3; i++) {
            const json_t *rate = keys[i].key ? json_object_get(root, keys[i].key) : NULL;
            if (keys[i].key && json_number_value(rate) != keys[i].rate)
                fail_msg("%s: %s", HF_TYPE[type].name, keys[i].key);
            if (keys[i].key) json_object_del(root, keys[i].key);
        }
        assert_int_equal(json_dump_file(root, path, 0), 0);
        assert_rates(path, r->usual_hidden, r->usual_attention, HF_TYPE[type].name);
        json_decref(root);
        free(options);
    }
    free(path);
    scratch_remove(scratch);
}
