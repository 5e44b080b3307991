/* Options of small models, which the tests of config.json combine, and different values for its keys. */
#pragma once

#include <jansson.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"

#define BASE                                                                                                 \
    "num-layers = 4\nhidden-size = 24\nnum-attention-heads = 4\nseq-length = 16\nvocab-size = "              \
    "50\nhidden-dropout = 0\n"
#define LLAMA                                                                                                \
    "position-embedding-type = rope\nnormalization = RMSNorm\nswiglu = true\ndisable-bias-linear = true\n"
#define LLAMA_POSITIONS "position-embedding-type = rope\n"
#define EXPERTS         "ffn-hidden-size = 40\nmoe-ffn-hidden-size = 20\nnum-experts = 8\n"
#define GEMMA2                                                                                               \
    "activation = geglu-tanh\napply-layernorm-1p = true\nnorm-placement = sandwich\nscale-embedding = "      \
    "true\n"
#define T5                                                                                                   \
    BASE "model = t5\nposition-embedding-type = relative\nnormalization = RMSNorm\ndisable-bias-linear = "   \
         "true\nactivation = relu\nsoftmax-scale = 1\ndecoder-seq-length = 8\n"
#define GLM      "moe-router-score-function = sigmoid\nmoe-router-enable-expert-bias = true\n"
#define LATENT   "multi-latent-attention = true\nqk-layernorm = true\nlatent-norm-epsilon = 1e-6\n"
#define ROPE     BASE LLAMA "ffn-hidden-size = 40\n"
#define MUP      ROPE "use-mup = true\n"
#define SCALED   ROPE "use-rope-scaling = true\n"
#define LONG     ROPE "rope-short-factor = 1 2 3\nrope-long-factor = 1 2 3\n"
#define YARN     BASE "position-embedding-type = yarn\nmscale = 0.5\nmscale-all-dim = 2\n"
#define DYNAMIC  ROPE "rope-dynamic-factor = 2\n"
#define MIXED    ROPE "no-rope-freq = 2\nno-rope-temperature-scale = 0.1\n"
#define TEMPERED ROPE "rope-temperature-scale = 0.5\nrope-temperature-floor = 3\n"
#define LLAMA4                                                                                               \
    "moe-ffn-hidden-size = 40\nmoe-shared-expert-intermediate-size = 40\nmoe-router-topk = 1\n"              \
    "moe-router-score-function = sigmoid\nmoe-apply-probs-on-input = true\n"
#define IN_CHUNKS                                                                                            \
    "no-rope-freq = 2\nqk-l2-norm = true\nqk-l2-norm-rope-layers-only = true\nattention-chunk-size = 5\n"    \
    "no-rope-temperature-scale = 0.2\nno-rope-temperature-floor = 3\n"
#define WINDOWS    ROPE "window-size = 7,0\n"
#define MIXTURE    BASE LLAMA EXPERTS
#define BERT       BASE "model = bert\nactivation = gelu-erf\n"
#define WITH_BIAS  MIXTURE GLM
#define IN_GROUPS  WITH_BIAS "moe-router-topk = 4\nmoe-router-num-groups = 4\nmoe-router-group-topk = 2\n"
#define CAPACITY   MIXTURE "moe-expert-capacity-factor = 1\n"
#define WITH_MAMBA ROPE "mamba-state-dim = 5\nmamba-head-dim = 6\nmamba-num-groups = 2\n"
#define HYBRID     WITH_MAMBA "hybrid-layer-pattern = M-M*\n"
#define LINEAR     ROPE "experimental-attention-variant = gdn\nlinear-attention-freq = 2\n"
#define MLA        ROPE "multi-latent-attention = true\n"
#define WITH_SHARE MIXTURE "moe-shared-expert-intermediate-size = 40\n"

/* The lines of a configuration. If an option occurs several times, only its last line counts. */
static inline char *last_lines(const char *conf) {
    Str out = {0};
    for (const char *line = conf, *end; *line; line = end) {
        end = strchr(line, '\n') + 1;
        char *again = mem_printf("\n%.*s=", (int)(strcspn(line, "=")), line);
        if (!strstr(end - 1, again)) str_add(&out, line, (size_t)(end - line));
        free(again);
    }
    return out.s;
}

/* Returns another value of the same type. */
static inline json_t *altered(const json_t *v) {
    if (json_is_boolean(v)) return json_boolean(!json_is_true(v));
    if (json_is_integer(v)) return json_integer(json_integer_value(v) + 1);
    if (json_is_real(v)) return json_real(json_real_value(v) * 1.5 + 0.25);
    if (json_is_string(v)) return json_string("other");
    if (json_is_array(v)) return json_pack("[s]", "other");
    return json_integer(7);
}
