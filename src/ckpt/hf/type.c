#include "ckpt/hf/type.h"

#include <stdbool.h>
#include <string.h>

#include "base/fault.h"
#include "ckpt/hf/form.h"

/* The rows of the model types are:
 *   KEY(option, key, fallback)             the option has the key's value
 *   NOT(option, key, fallback)             the option has the opposite of the key's value
 *   SAME(key, option)                      the key is written from the option, but not read
 *   SAY(key, text)                         the key is written with this text, but not read
 *   TOKEN(key)                             the key is a token id and is only written (tokens.h reads it)
 *   KNOWN_TOKEN(key)                       like TOKEN, but an unknown id is not written, because null is an error
 *   PADDING(key)                           the key is the id of RoBERTa's padding token
 *   FIX(option, value)                     the type implies this value of the option's field
 *   LACK(option, value)                    like FIX, for an option that does not change the model's function
 *   REQUIRE(key, value), STATE(key, value) a key that is present must have this value; STATE also writes it
 *   MUST(key, value)                       the key must be present with this value, and is written
 *   REFUSE(key, why)                       the key must be absent
 *   ZERO(key, why)                         the key must be absent or not be positive
 *   ALIAS(key, other)                      a second name of `other`; if both are present, they must be equal
 *   SYNONYM(key, other)                    the key is another name of `other`, whose row comes later
 *   COUNT(key, n, fallback)                the key is a number that must be n
 *   SPECIAL(form, option, key, fallback)   the form reads and writes the key
 *   DEMAND(form)                           the form only checks the file
 *   CHECKED(form, key)                     the form checks the key, which has no option, and writes it
 *   ROPE(option, key, inside, fallback)    the key's name in rope_scaling and rope_parameters is `inside`
 *   SCALED(object)                         the scaling of RoPE; the default is this JSON object
 *   ACTIVATION(form, key, fallback), WINDOWS(choice, size), EXPERTS(key, second key, fallback)
 *   GROUPS(n, k)                           the keys n_group and topk_group; k is the fallback of topk_group
 *   NORMALIZED(fallback)                   norm_topk_prob of sigmoid scores: must be true if and only if topk > 1
 *   NULLABLE(option, key, fallback)        like KEY for a size; null means that the option is not set
 *   ONLY(option, key, value)               like KEY for a size that must have this value
 *   DROP_KEY(key)                          removes the base type's row for a key that has no option
 *   DROP(option)                           removes the base type's row for the option */
#define OF(o)                       .name = #o, .option = OPTION_##o
#define ALONE(n)                    .name = "key " n, .option = -1
#define KEY(o, k, f)                {OF(o), .key = k, .fallback = f, .form = &hf_form_value},
#define NOT(o, k, f)                {OF(o), .key = k, .fallback = f, .form = &hf_form_opposite},
#define SAME(k, o)                  {.name = "key " k, .option = OPTION_##o, .key = k, .form = &hf_form_copy},
#define SAY(k, text)                {ALONE(k), .key = k, .word = text, .form = &hf_form_text},
#define TOKEN(k)                    {ALONE(k), .key = k, .form = &hf_form_token},
#define KNOWN_TOKEN(k)              {ALONE(k), .key = k, .form = &hf_form_known_token},
#define PADDING(k)                  {ALONE(k), .key = k, .form = &hf_form_padding},
#define FIX(o, value)               {OF(o), .word = value, .form = &hf_form_fixed},
#define LACK(o, value)              {OF(o), .word = value, .form = &hf_form_lacking},
#define REQUIRE(k, value)           {ALONE(k), .key = k, .fallback = value, .form = &hf_form_required},
#define STATE(k, value)             {ALONE(k), .key = k, .fallback = value, .form = &hf_form_stated},
#define MUST(k, value)              {ALONE(k), .key = k, .fallback = value, .form = &hf_form_must},
#define REFUSE(k, why)              {ALONE(k), .key = k, .word = why, .form = &hf_form_refused},
#define ZERO(k, why)                {ALONE(k), .key = k, .word = why, .form = &hf_form_zero},
#define ALIAS(k, other)             {ALONE(k), .key = k, .word = other, .form = &hf_form_alias},
#define SPECIAL(f, o, k, otherwise) {OF(o), .key = k, .fallback = otherwise, .form = &hf_form_##f},
#define DEMAND(f)                   {ALONE(#f), .form = &hf_form_##f},
#define CHECKED(f, k)               {ALONE(k), .key = k, .form = &hf_form_##f},
#define ROPE(o, k, inside, f)       {OF(o), .key = k, .word = inside, .fallback = f, .form = &hf_form_rope_number},
#define SCALED(object)                                                                                       \
    {OF(use_rope_scaling), .key = "rope_scaling", .word = object, .form = &hf_form_scaled_by_default},
#define ACTIVATION(f, k, w) {OF(activation), .key = k, .word = w, .form = &hf_form_##f},
#define EXPERTS(k, second, f)                                                                                \
    {OF(num_experts), .key = k, .word = second, .fallback = f, .form = &hf_form_experts},
#define WINDOWS(which, size)                                                                                 \
    {OF(window_size), .key = "sliding_window", .fallback = size, .choice = HF_WINDOWS_##which,               \
     .form = &hf_form_windows},
#define GROUPS(n, k)                                                                                         \
    {OF(moe_router_num_groups), .key = "n_group", .fallback = n, .choice = k, .form = &hf_form_router_groups},
#define NORMALIZED(f)                                                                                        \
    {ALONE("norm_topk_prob"), .key = "norm_topk_prob", .fallback = f, .form = &hf_form_normalized},
#define NULLABLE(o, k, f) {OF(o), .key = k, .fallback = f, .form = &hf_form_nullable},
#define SYNONYM(k, other) {ALONE(k), .key = k, .word = other, .form = &hf_form_synonym},
#define COUNT(k, n, f)    {ALONE(k), .key = k, .choice = n, .fallback = f, .form = &hf_form_number},
#define DROP_KEY(k)       {ALONE(k), .form = NULL},
#define ONLY(o, k, value) {OF(o), .key = k, .fallback = value, .form = &hf_form_only},
#define DROP(o)           {OF(o), .form = NULL},

static const HfRow ROWS_gpt2[] = {
#include "ckpt/hf/gpt2.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_llama[] = {
#include "ckpt/hf/llama.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_mistral[] = {
#include "ckpt/hf/mistral.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_qwen2[] = {
#include "ckpt/hf/qwen2.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_qwen3[] = {
#include "ckpt/hf/qwen3.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_stablelm[] = {
#include "ckpt/hf/stablelm.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_nemotron[] = {
#include "ckpt/hf/nemotron.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_mixtral[] = {
#include "ckpt/hf/mixtral.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_qwen2_moe[] = {
#include "ckpt/hf/qwen2_moe.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_qwen3_moe[] = {
#include "ckpt/hf/qwen3_moe.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_glm4_moe[] = {
#include "ckpt/hf/glm4_moe.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_deepseek_v2[] = {
#include "ckpt/hf/deepseek_v2.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_deepseek_v3[] = {
#include "ckpt/hf/deepseek_v3.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_starcoder2[] = {
#include "ckpt/hf/starcoder2.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_granite[] = {
#include "ckpt/hf/granite.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_gemma2[] = {
#include "ckpt/hf/gemma2.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_gemma3_text[] = {
#include "ckpt/hf/gemma3_text.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_gpt_neox[] = {
#include "ckpt/hf/gpt_neox.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_falcon[] = {
#include "ckpt/hf/falcon.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_olmo2[] = {
#include "ckpt/hf/olmo2.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_phi3[] = {
#include "ckpt/hf/phi3.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_arcee[] = {
#include "ckpt/hf/arcee.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_seed_oss[] = {
#include "ckpt/hf/seed_oss.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_smollm3[] = {
#include "ckpt/hf/smollm3.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_glm[] = {
#include "ckpt/hf/glm.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_glm4[] = {
#include "ckpt/hf/glm4.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_helium[] = {
#include "ckpt/hf/helium.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_ernie4_5[] = {
#include "ckpt/hf/ernie4_5.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_gemma[] = {
#include "ckpt/hf/gemma.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_exaone4[] = {
#include "ckpt/hf/exaone4.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_olmo3[] = {
#include "ckpt/hf/olmo3.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_flex_olmo[] = {
#include "ckpt/hf/flex_olmo.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_dots1[] = {
#include "ckpt/hf/dots1.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_minimax_m2[] = {
#include "ckpt/hf/minimax_m2.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_granitemoe[] = {
#include "ckpt/hf/granitemoe.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_granitemoeshared[] = {
#include "ckpt/hf/granitemoeshared.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_ministral[] = {
#include "ckpt/hf/ministral.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_ministral3[] = {
#include "ckpt/hf/ministral3.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_vaultgemma[] = {
#include "ckpt/hf/vaultgemma.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_gpt_oss[] = {
#include "ckpt/hf/gpt_oss.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_llama4_text[] = {
#include "ckpt/hf/llama4_text.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_cohere[] = {
#include "ckpt/hf/cohere.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_cohere2[] = {
#include "ckpt/hf/cohere2.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_olmoe[] = {
#include "ckpt/hf/olmoe.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_phi[] = {
#include "ckpt/hf/phi.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_phimoe[] = {
#include "ckpt/hf/phimoe.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_opt[] = {
#include "ckpt/hf/opt.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_glm4_moe_lite[] = {
#include "ckpt/hf/glm4_moe_lite.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_solar_open[] = {
#include "ckpt/hf/solar_open.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_exaone_moe[] = {
#include "ckpt/hf/exaone_moe.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_jais2[] = {
#include "ckpt/hf/jais2.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_internlm3[] = {
#include "ckpt/hf/internlm3.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_olmo[] = {
#include "ckpt/hf/olmo.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_iquestcoder[] = {
#include "ckpt/hf/iquestcoder.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_exaone[] = {
#include "ckpt/hf/exaone.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_persimmon[] = {
#include "ckpt/hf/persimmon.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_youtu[] = {
#include "ckpt/hf/youtu.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_granitemoehybrid[] = {
#include "ckpt/hf/granitemoehybrid.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_gpt_bigcode[] = {
#include "ckpt/hf/gpt_bigcode.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_biogpt[] = {
#include "ckpt/hf/biogpt.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_gpt_neo[] = {
#include "ckpt/hf/gpt_neo.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_hyperclovax[] = {
#include "ckpt/hf/hyperclovax.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_hunyuan_v1_dense[] = {
#include "ckpt/hf/hunyuan_v1_dense.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_hunyuan_v1_moe[] = {
#include "ckpt/hf/hunyuan_v1_moe.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_gptj[] = {
#include "ckpt/hf/gptj.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_ernie4_5_moe[] = {
#include "ckpt/hf/ernie4_5_moe.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_bloom[] = {
#include "ckpt/hf/all.def"
#include "ckpt/hf/bloom.def"
};
static const HfRow ROWS_mpt[] = {
#include "ckpt/hf/all.def"
#include "ckpt/hf/mpt.def"
};
static const HfRow ROWS_cwm[] = {
#include "ckpt/hf/all.def"
#include "ckpt/hf/cwm.def"
};
static const HfRow ROWS_apertus[] = {
#include "ckpt/hf/all.def"
#include "ckpt/hf/apertus.def"
};
static const HfRow ROWS_qwen3_next[] = {
#include "ckpt/hf/qwen3_next.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_qwen3_5_text[] = {
#include "ckpt/hf/qwen3_5_text.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_qwen3_5_moe_text[] = {
#include "ckpt/hf/qwen3_5_moe_text.def"
#include "ckpt/hf/all.def"
};
static const HfRow ROWS_mamba2[] = {
#include "ckpt/hf/all.def"
#include "ckpt/hf/mamba2.def"
};
static const HfRow ROWS_nemotron_h[] = {
#include "ckpt/hf/all.def"
#include "ckpt/hf/nemotron_h.def"
};
static const HfRow ROWS_bamba[] = {
#include "ckpt/hf/all.def"
#include "ckpt/hf/bamba.def"
};
static const HfRow ROWS_bert[] = {
#include "ckpt/hf/all.def"
#include "ckpt/hf/bert.def"
};
static const HfRow ROWS_megatron_bert[] = {
#include "ckpt/hf/all.def"
#include "ckpt/hf/megatron_bert.def"
};
static const HfRow ROWS_roberta[] = {
#include "ckpt/hf/all.def"
#include "ckpt/hf/roberta.def"
};
static const HfRow ROWS_xlm_roberta[] = {
#include "ckpt/hf/all.def"
#include "ckpt/hf/roberta.def"
};
static const HfRow ROWS_t5[] = {
#include "ckpt/hf/all.def"
#include "ckpt/hf/t5.def"
};
static const HfRow ROWS_mt5[] = {
#include "ckpt/hf/all.def"
#include "ckpt/hf/mt5.def"
};

const HfType HF_TYPE[HF_TYPES] = {
#define HF_TYPE(constant, type, architecture, family)                                                        \
    [TYPE_##constant] = {type, architecture, HF_##family, ROWS_##constant,                                   \
                         sizeof ROWS_##constant / sizeof(HfRow)},
#include "config/hf_types.def"
};

const HfType *hf_type_find(const char *name) {
    for (int i = 0; i < HF_TYPES; i++)
        if (!strcmp(HF_TYPE[i].name, name)) return &HF_TYPE[i];
    return NULL;
}

static int find_row(const HfRow *const *rows, int n, const char *name) {
    int i = 0;
    while (i < n && strcmp(rows[i]->name, name)) i++;
    return i;
}

int hf_type_rows(const HfType *t, const HfRow *out[HF_MOST_ROWS]) {
    int n = 0;
    CHECK(t->num_rows <= HF_MOST_ROWS, "%s has %d rows", t->name, t->num_rows);
    for (int i = 0; i < t->num_rows; i++) {
        const HfRow *row = &t->rows[i];
        const int at = find_row(out, n, row->name);
        if (row->form)
            out[at] = row, n += at == n;
        else
            memmove(&out[at], &out[at + 1], (size_t)(--n - at) * sizeof *out);
    }
    return n;
}

void hf_type_names(Str *out) {
    for (int i = 0; i < HF_TYPES; i++)
        str_printf(out, "%s%s", i == 0 ? "" : i + 1 < HF_TYPES ? ", " : " and ", HF_TYPE[i].name);
}
