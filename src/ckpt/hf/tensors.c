#include "ckpt/hf/tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "ckpt/hf/problems.h"
#include "ckpt/hf/quantized.h"
#include "ckpt/hf/type.h"
#include "nn/bert_head.h"

/* ---- names ---- */

typedef struct Family {
    const char *title;
    HfFamily base;
    const char *prefix, *layers, *witness;
} Family;

static const Family FAMILIES[HF_FAMILIES] = {
#define FAMILY(constant, title, base, prefix, layers, witness)                                               \
    [HF_##constant] = {title, HF_##base, prefix, layers, witness},
#define PAIRED(...)
#define MAP(...)
#include "ckpt/hf/names.def"
};

typedef struct Rule {
    HfFamily family;
    const char *module, *part, *hf;
    HfLayout layout;
} Rule;

static const Rule RULES[] = {
#define ALL NULL
#define FAMILY(...)
#define PAIRED(...)
#define MAP(family, module, part, name, layout) {HF_##family, module, part, name, layout},
#include "ckpt/hf/names.def"
#undef ALL
};
enum { N_RULES = sizeof RULES / sizeof *RULES };

static const bool PAIRED[HF_FAMILIES] = {
#define FAMILY(...)
#define PAIRED(family) [HF_##family] = true,
#define MAP(...)
#include "ckpt/hf/names.def"
};

static const char LAYERS[] = ".layers.", OUTPUT[] = "output_layer.weight", MTP[] = "mtp.layers.",
                  MTP_LAYER[] = "transformer_layer.", MTP_WORDS[] = ".embed_tokens.weight",
                  MTP_OUTPUT[] = ".shared_head.head.weight";

/* Returns how many blank-separated words of `words` precede the word, or -1 if there is no such word. */
static int place_among(const char *words, const char *word) {
    const size_t n = strlen(word);
    for (int i = 0;; i++) {
        const size_t length = strcspn(words, " ");
        if (length == n && !memcmp(words, word, n)) return i;
        if (!words[length]) return -1;
        words += length + 1;
    }
}

static const Rule *find_rule(HfFamily family, const char *module, size_t n, const char *part) {
    for (int i = 0; i < N_RULES; i++) {
        const Rule *r = &RULES[i];
        if (r->family == family && strlen(r->module) == n && !memcmp(r->module, module, n) &&
            (!r->part || place_among(r->part, part) >= 0))
            return r;
    }
    const HfFamily base = FAMILIES[family].base;
    return base == family ? NULL : find_rule(base, module, n, part);
}

/* Returns whether the family is `base`, or uses the names of `base` for modules without a row. */
static bool is_based_on(HfFamily family, HfFamily base) {
    while (family != base && FAMILIES[family].base != family) family = FAMILIES[family].base;
    return family == base;
}

/* ---- map ---- */

static void hf_add(HfMap *m, const char *name, const Param *p, int part, int parts, int64_t group,
                   HfLayout layout) {
    const bool transposed =
        (layout == IN_OUT || layout == PACKED_IN_OUT || layout == PACKED_PAIRS) && p->spec.ndim == 2;
    int64_t rows = 0;
    for (int i = 0; i < parts; i++) rows += param_part_rows(p, part + i);
    if (group != HF_ALL_GROUPS) rows /= p->spec.groups;
    int64_t columns = p->spec.ndim == 2 ? p->spec.dim[1] : 1;
    const int64_t unused = layout == AFTER_PADDING ? HF_PADDING_ROWS : 0;
    rows += unused;
    const bool packed = layout == PACKED || layout == PACKED_IN_OUT || layout == PACKED_PAIRS,
               channels = layout == CHANNELS;
    const int64_t matrix = packed ? rows / p->spec.groups : rows, a = transposed ? columns : matrix,
                  b = transposed ? matrix : columns;
    m->tensors = mem_grow(m->tensors, (size_t)m->count + 1, sizeof *m->tensors);
    m->tensors[m->count++] = (HfTensor){
        .name = name,
        .ndim = p->spec.ndim + (packed || channels),
        .dim = {packed ? p->spec.groups : a,
                packed     ? a
                : channels ? 1
                           : b,
                b},
        .param = p,
        .first = part,
        .parts = parts,
        .group = group,
        .rows = matrix,
        .columns = columns,
        .transposed = transposed,
        .scalar = layout == SCALAR,
        .unused = unused,
        .pieces = layout == BY_HEAD                                        ? p->spec.heads
                  : layout == BY_GROUP || packed || group != HF_ALL_GROUPS ? p->spec.groups
                                                                           : 1,
        .plus_one = layout == PLUS_ONE,
        .pairs = layout == PACKED_PAIRS,
    };
}

/* Adds a tensor that contains the entire parameter. */
static void add_whole(HfMap *m, const char *name, const Param *p) {
    hf_add(m, name, p, 0, p->spec.n_parts, HF_ALL_GROUPS, OUT_IN);
}

/* Adds a part's tensors. `kind` is ".weight" or ".bias", or "" if the rule contains the complete name. */
static void add_by_rule(HfMap *m, const Rule *rule, const char *base, const char *kind, const Param *p,
                        int part) {
    const char *star = strchr(rule->hf, '*'), *name = rule->hf;
    int parts = rule->part ? 0 : p->spec.n_parts;
    for (int i = part;
         rule->part && i < p->spec.n_parts && place_among(rule->part, p->spec.parts[i].name) >= 0; i++)
        parts++;
    if (*name == '/') name++, base = "";
    if (!star)
        hf_add(m, arena_printf(m->arena, "%s%s%s", base, name, kind), p, part, parts, HF_ALL_GROUPS,
               rule->layout);
    for (int64_t g = 0; star && g < p->spec.groups; g++)
        hf_add(m,
               arena_printf(m->arena, "%s%.*s%lld%s%s", base, (int)(star - name), name, (long long)g,
                            star + 1, kind),
               p, part, parts, g, rule->layout);
}

static const char *output_name(HfFamily family) {
    const Rule *rule = find_rule(family, OUTPUT, sizeof OUTPUT - 1, "");
    return rule ? rule->hf : "lm_head.weight";
}

static bool starts_with(const char *name, const char *begin) { return !strncmp(name, begin, strlen(begin)); }

/* Adds a parameter's tensors. In files, the decoder's layers come before the layers that predict additional tokens. */
static Err add_param(HfMap *m, const Param *p) {
    const char *name = p->spec.name, *module = name, *base = FAMILIES[m->family].prefix;
    if (!strcmp(name, OUTPUT)) return add_whole(m, output_name(m->family), p), ERR_OK;
    const char *in_layer = strstr(name, LAYERS); /* finds "decoder.layers." or "encoder.layers." */
    if (in_layer) {
        const int stack = (int)(in_layer - name);
        const char *layers = FAMILIES[m->family].layers, *star = strchr(layers, '*');
        char *end;
        long layer = strtol(in_layer + sizeof LAYERS - 1, &end, 10) / (PAIRED[m->family] ? 2 : 1);
        if (starts_with(name, MTP))
            layer += m->main_layers;
        else if (layer >= m->main_layers)
            m->main_layers = layer + 1;
        if (layer >= m->layers) m->layers = layer + 1;
        module = star ? arena_printf(m->arena, "%.*s:%s", stack, name, end + 1) : end + 1;
        if (starts_with(module, MTP_LAYER)) module += sizeof MTP_LAYER - 1;
        base = arena_printf(m->arena, "%s%.*s%s.%ld.", base, star ? stack : 0, name, star ? star + 1 : layers,
                            layer);
    }
    if (param_is_fp8_state(name)) return ERR_OK; /* other programs have no FP8 state */
    const char *kind = strrchr(module, '.');     /* ".weight" or ".bias" */
    for (int part = 0; part < p->spec.n_parts; part++) {
        const char *name_of_part = p->spec.parts[part].name;
        const Rule *whole = find_rule(m->family, module, strlen(module), name_of_part);
        const Rule *rule =
            whole ? whole : find_rule(m->family, module, (size_t)(kind - module), name_of_part);
        if (!rule)
            return err_user("parameter '%s' (%s) has no counterpart in Hugging Face's %s models, whose "
                            "tensor names the weights use: remove the option that adds this parameter",
                            name, name_of_part, FAMILIES[m->family].title);
        if (rule->part && place_among(rule->part, name_of_part) > 0)
            continue; /* the first part's tensor has it */
        add_by_rule(m, rule, base, whole ? "" : kind, p, part);
        if (!rule->part) break;
    }
    return ERR_OK;
}

Err hf_map(const Registry *r, HfFamily family, HfMap *out) {
    *out = (HfMap){.family = family, .arena = arena_new()};
    for (int i = 0; i < r->n; i++) ERR_RETURN(add_param(out, r->params[i]));
    return ERR_OK;
}

void hf_map_free(HfMap *m) {
    free(m->tensors);
    if (m->arena) arena_free(m->arena);
    *m = (HfMap){0};
}

static bool ends_with(const char *name, const char *end) {
    size_t n = strlen(name), k = strlen(end);
    return n >= k && !strcmp(name + n - k, end);
}

enum { NAME_BYTES = 160 };

/* Sets `out` to a BERT norm's older name. Files converted from TensorFlow, such as the first bert-base-uncased,
 * use the older name. transformers accepts both names. Returns false if the tensor has no older name. */
static bool older_name(const char *name, char out[NAME_BYTES]) {
    static const char *const NAMES[][2] = {{"LayerNorm.weight", "LayerNorm.gamma"},
                                           {"LayerNorm.bias", "LayerNorm.beta"}};
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        if (!ends_with(name, NAMES[i][0])) continue;
        snprintf(out, NAME_BYTES, "%.*s%s", (int)(strlen(name) - strlen(NAMES[i][0])), name, NAMES[i][1]);
        return true;
    }
    return false;
}

static const Tensor *find_any_age(const Safetensors *s, const char *name) {
    char older[NAME_BYTES];
    const Tensor *t = safetensors_find(s, name);
    return t || !older_name(name, older) ? t : safetensors_find(s, older);
}

static const Tensor *find_either(const Safetensors *s, const char *base, const char *name) {
    char full[NAME_BYTES];
    snprintf(full, sizeof full, "%s%s", base, name);
    const Tensor *t = find_any_age(s, full);
    return t ? t : find_any_age(s, name);
}

static bool is_witness(const char *name, HfFamily family) {
    const char *prefix = FAMILIES[family].prefix, *layers = FAMILIES[family].layers,
               *witness = FAMILIES[family].witness;
    if (*witness == '/') return !strcmp(name, witness + 1);
    if (!strncmp(name, prefix, strlen(prefix))) name += strlen(prefix);
    char older[NAME_BYTES];
    return *witness == '.'
               ? !strncmp(name, layers, strlen(layers)) &&
                     (ends_with(name, witness) || (older_name(witness, older) && ends_with(name, older)))
               : !strcmp(name, witness);
}

Err hf_detect(const Safetensors *s, HfFamily *out) {
    for (int f = 0; f < HF_FAMILIES; f++) {
        *out = (HfFamily)f;
        for (int64_t i = 0; i < s->count; i++)
            if (is_witness(s->tensors[i].name, *out)) return ERR_OK;
    }
    Str types = {0};
    hf_type_names(&types);
    const Err e = err_user("the tensor names in '%s' match no supported model (%s); the first name is %s; "
                           "specify the weights of a supported model",
                           s->path, types.s, s->count ? quote(s->tensors[0].name).s : "missing");
    str_free(&types);
    return e;
}

/* Returns the tensor whose name is `name` followed by `end`. */
static const Tensor *find_named(const Safetensors *s, const HfMap *m, const char *name, const char *end) {
    const char *base = FAMILIES[m->family].prefix;
    const size_t n = strlen(base);
    char full[NAME_BYTES];
    snprintf(full, sizeof full, "%s%s", name, end);
    return strncmp(full, base, n) ? find_any_age(s, full) : find_either(s, base, full + n);
}

/* Describes a tensor in a file, without its data. */
static Tensor file_tensor(const HfTensor *t, DType dtype) {
    return tensor_make(NULL, dtype, t->ndim, t->dim);
}

/* Describes the tensor as if its matrices were not transposed, because quantized weights are never stored
 * transposed. */
static HfTensor in_rows(const HfTensor *t) {
    HfTensor x = *t;
    x.transposed = false;
    if (t->transposed) x.dim[t->ndim - 2] = t->rows, x.dim[t->ndim - 1] = t->columns;
    return x;
}

HfStored hf_find(const Safetensors *s, const HfMap *m, const HfTensor *t) {
    const HfTensor rows = in_rows(t);
    const Tensor weight = file_tensor(&rows, F32);
    for (int i = 0; i < HF_QUANTIZATIONS; i++) {
        const HfQuantization *q = &HF_QUANTIZATION[i];
        Tensor numbers, scales;
        HfStored x = {find_named(s, m, t->name, q->numbers), find_named(s, m, t->name, q->scales), q};
        if (!q->describe(&weight, &numbers, &scales)) continue;
        if (x.scales || (x.values && (*q->numbers || x.values->dtype == numbers.dtype))) return x;
    }
    return (HfStored){.values = find_named(s, m, t->name, "")};
}

/* ---- layout ---- */

/* A copy operation between a tensor and a flat buffer, in either direction. */
typedef struct Copying {
    const HfTensor *of;
    Device *device;
    char *flat;
    DType flat_type;
    void *hf;
    DType hf_type;
    bool gather;
    char *scratch; /* one row of the parameter, for transposed tensors */
} Copying;

/* Copies one element, which is larger by 1 in the tensor. Subtracting 1 from a number near 1 is exact. */
static void add_one(const Copying *w, void *flat, void *hf) {
    double x;
    dtype_convert(&x, F64, w->gather ? flat : hf, w->gather ? w->flat_type : w->hf_type, 1);
    x += w->gather ? 1 : -1;
    dtype_convert(w->gather ? hf : flat, w->gather ? w->hf_type : w->flat_type, &x, F64, 1);
}

/* Copies one row of the parameter to or from the tensor. `row` counts rows across all matrices in the tensor. */
static void copy_row(const Copying *w, int64_t row, void *flat) {
    const HfTensor *t = w->of;
    const size_t size = dtype_size(w->hf_type);
    const int64_t rows = t->rows, columns = t->columns, half = rows / 2, in = row % rows,
                  place_in = t->pairs ? in % half * 2 + in / half : in;
    char *matrix = (char *)w->hf + (size_t)((row - in) * columns) * size,
         *column = matrix + (size_t)place_in * size,
         *line = t->transposed ? w->scratch : matrix + (size_t)(place_in * columns) * size;
    if (t->plus_one) return add_one(w, flat, line);
    if (w->gather) dtype_convert(line, w->hf_type, flat, w->flat_type, (size_t)columns);
    for (int64_t c = 0; t->transposed && c < columns; c++) {
        char *element = column + (size_t)(c * rows) * size, *place = line + (size_t)c * size;
        memcpy(w->gather ? element : place, w->gather ? place : element, size);
    }
    if (!w->gather) dtype_convert(flat, w->flat_type, line, w->hf_type, (size_t)columns);
}

static int64_t place_of(const HfTensor *t, int part, int64_t row) {
    return t->param->offset + param_memory_row(t->param, part, row) * t->columns;
}

/* Copies consecutive rows of a part that are also contiguous in memory, from `row` to at most `end`. `to` is
 * the first copied row's index in the tensor. Returns the number of rows copied. */
static int64_t copy_run(const Copying *c, int part, int64_t row, int64_t end, int64_t to) {
    const int64_t columns = c->of->columns, at = place_of(c->of, part, row);
    const size_t bytes = (size_t)columns * dtype_size(c->flat_type);
    int64_t n = 1;
    while (row + n < end && (size_t)(n + 1) * bytes <= VIEW_BYTES &&
           place_of(c->of, part, row + n) == at + n * columns)
        n++;
    DeviceView v = device_view(c->device, c->flat + (size_t)at * dtype_size(c->flat_type), (size_t)n * bytes,
                               c->gather ? VIEW_READ : VIEW_WRITE);
    for (int64_t i = 0; i < n; i++) copy_row(c, to + i, (char *)v.data + (size_t)i * bytes);
    device_view_end(&v);
    return n;
}

static void hf_copy(Copying c) {
    const HfTensor *t = c.of;
    const Param *p = t->param;
    c.scratch = t->transposed ? mem_alloc((size_t)t->columns * dtype_size(c.hf_type)) : NULL;
    const bool one_group = t->group != HF_ALL_GROUPS;
    const int64_t begin = one_group ? t->group : 0, end = one_group ? begin + 1 : t->pieces;
    int64_t row = t->unused;
    for (int64_t piece = begin; piece < end; piece++)
        for (int part = t->first; part < t->first + t->parts; part++) {
            const int64_t n = param_part_rows(p, part) / t->pieces, stop = (piece + 1) * n;
            for (int64_t i = piece * n, run; i < stop; i += run, row += run)
                run = copy_run(&c, part, i, stop, row);
        }
    free(c.scratch);
}

void hf_gather(const HfTensor *t, Device *d, const void *flat, DType flat_type, void *hf, DType hf_type) {
    memset(hf, 0, (size_t)(t->unused * t->columns) * dtype_size(hf_type));
    hf_copy((Copying){t, d, (char *)flat, flat_type, hf, hf_type, true, NULL});
}

void hf_scatter(const HfTensor *t, const void *hf, DType hf_type, Device *d, void *flat, DType flat_type) {
    hf_copy((Copying){t, d, flat, flat_type, (void *)hf, hf_type, false, NULL});
}

/* ---- import ---- */

bool hf_is_copy(const Tensor *x, const Tensor *of) {
    return of && of->dtype == x->dtype && tensor_same_shape(of, x) &&
           !memcmp(of->data, x->data, tensor_bytes(of));
}

static bool is_pooler(const char *name) {
    return ends_with(name, "pooler.dense.weight") || ends_with(name, "pooler.dense.bias");
}

bool hf_leaves_pooler(const Safetensors *s, const HfMap *m) {
    for (int64_t i = 0; i < m->count; i++)
        if (is_pooler(m->tensors[i].name)) return false;
    for (int64_t i = 0; i < s->count; i++)
        if (is_pooler(s->tensors[i].name)) return true;
    return false;
}

/* Returns the tensor's layer number, or -1 if there is none. */
static int64_t layer_of(const HfMap *m, const char *name) {
    const Family *f = &FAMILIES[m->family];
    const size_t base = strlen(f->prefix), n = strlen(f->layers);
    if (!strncmp(name, f->prefix, base)) name += base;
    return !strncmp(name, f->layers, n) && name[n] == '.' ? strtol(name + n + 1, NULL, 10) : -1;
}

static bool is_of_later_layer(const HfMap *m, const char *name) {
    const bool predicts = is_based_on(m->family, HF_GLM_MOE) || is_based_on(m->family, HF_QWEN_NEXT);
    return predicts && (!strncmp(name, "mtp.", 4) || layer_of(m, name) >= m->layers);
}

/* Returns whether the tensor is one that add_mtp_copies adds to an export. */
static bool is_mtp_copy(const Safetensors *s, const HfMap *m, const SafeTensor *t) {
    if (layer_of(m, t->name) < m->main_layers) return false;
    const Tensor *words = hf_find(s, m, &m->tensors[0]).values,
                 *output = safetensors_find(s, output_name(m->family));
    return (ends_with(t->name, MTP_WORDS) && hf_is_copy(&t->tensor, words)) ||
           (ends_with(t->name, MTP_OUTPUT) && hf_is_copy(&t->tensor, output ? output : words));
}

bool hf_leaves_layers(const Safetensors *s, const HfMap *m) {
    int64_t i = 0;
    while (i < s->count && !is_of_later_layer(m, s->tensors[i].name)) i++;
    return i < s->count;
}

static bool is_of_head(const HfTensor *t) {
    int i = 0;
    while (BERT_HEADS[i] && strncmp(t->param->spec.name, BERT_HEADS[i], strlen(BERT_HEADS[i]))) i++;
    return BERT_HEADS[i] != NULL;
}

/* Returns whether a file may contain a tensor that the model has no parameter for. Such tensors are buffers that older
 * versions of transformers saved, T5's unused cross-attention table, unused poolers, multi-token prediction layers, and
 * copies of parameters. */
static bool is_expected_extra(const Safetensors *s, const HfMap *m, const SafeTensor *t) {
    static const char *const BUFFERS[] = {"attn.bias",
                                          "attention.bias",
                                          "masked_bias",
                                          "inv_freq",
                                          "embeddings.position_ids",
                                          "embeddings.token_type_ids",
                                          "EncDecAttention.relative_attention_bias.weight"};
    for (size_t i = 0; i < sizeof BUFFERS / sizeof *BUFFERS; i++) {
        const size_t n = strlen(t->name), k = strlen(BUFFERS[i]);
        if (ends_with(t->name, BUFFERS[i]) && (n == k || t->name[n - k - 1] == '.')) return true;
    }
    if (is_pooler(t->name) || is_of_later_layer(m, t->name) || is_mtp_copy(s, m, t)) return true;
    if (!strcmp(t->name, "cls.predictions.decoder.bias"))
        return hf_is_copy(&t->tensor, safetensors_find(s, "cls.predictions.bias"));
    if (!strcmp(t->name, "lm_head.decoder.bias"))
        return hf_is_copy(&t->tensor, safetensors_find(s, "lm_head.bias"));
    /* the registry's first parameter is the embedding */
    return (!strcmp(t->name, output_name(m->family)) || ends_with(t->name, "coder.embed_tokens.weight")) &&
           hf_is_copy(&t->tensor, hf_find(s, m, &m->tensors[0]).values);
}

enum { MISSING, UNEXPECTED, SHAPE, TYPE, QUANTIZED, PROBLEMS };

/* Returns an error that lists the problems. `headless` states whether head tensors are missing. */
static Err report(const char *path, HfProblem problem[PROBLEMS], bool headless) {
    static const char *const WHAT[PROBLEMS] = {"missing", "unexpected", "with another shape",
                                               "with a dtype other than F64, F32, BF16 or F16",
                                               "of a quantized weight with another shape or dtype"};
    Str text = {0};
    for (int i = 0; i < PROBLEMS; i++) hf_problem_report(&text, &problem[i], WHAT[i]);
    const Err e =
        text.len
            ? err_user(
                  "'%s' does not match the model that config.json or the options describe; tensors: %s%s",
                  path, text.s, headless ? "; convert --init-missing-heads initializes missing heads" : "")
            : ERR_OK;
    str_free(&text);
    return e;
}

static void check_plain(const HfTensor *want, const Tensor *has, HfProblem problem[PROBLEMS]) {
    const Tensor shape = file_tensor(want, F32);
    char described[100], detail[240];
    if (!dtype_is_float((DType)has->dtype)) {
        snprintf(detail, sizeof detail, " (%.90s)", quote(safetensors_dtype(has)).s);
        hf_problem_add(&problem[TYPE], want->name, detail);
    } else if (!tensor_same_shape(has, &shape)) {
        snprintf(detail, sizeof detail, " (%s, the model has %s)",
                 tensor_describe(has, described, sizeof described),
                 tensor_describe(&shape, (char[60]){0}, 60) + strlen("F32 "));
        hf_problem_add(&problem[SHAPE], want->name, detail);
    }
}

static void check_quantized(const HfTensor *want, const HfStored *found, HfProblem problem[PROBLEMS]) {
    const HfQuantization *q = found->how;
    const HfTensor rows = in_rows(want);
    const Tensor weight = file_tensor(&rows, F32), *has[] = {found->values, found->scales};
    const char *ends[] = {q->numbers, q->scales};
    Tensor shape[2];
    q->describe(&weight, &shape[0], &shape[1]);
    for (int i = 0; i < 2; i++) {
        char name[NAME_BYTES], described[100], detail[240];
        snprintf(name, sizeof name, "%s%s", want->name, ends[i]);
        if (!has[i]) {
            hf_problem_add(&problem[MISSING], name, "");
        } else if (has[i]->dtype != shape[i].dtype || !tensor_same_shape(has[i], &shape[i])) {
            snprintf(detail, sizeof detail, " (%.20s%s, %s has %s)", safetensors_dtype(has[i]),
                     strchr(tensor_describe(has[i], described, sizeof described), ' '), q->method,
                     tensor_describe(&shape[i], (char[80]){0}, 80));
            hf_problem_add(&problem[QUANTIZED], name, detail);
        }
    }
}

Err hf_check(const Safetensors *s, const HfMap *m) {
    HfProblem problem[PROBLEMS] = {{.count = 0}};
    bool headless = false;
    const Tensor **used = mem_zero(3 * (size_t)m->count + 1, sizeof *used);
    int64_t n = 0;
    for (int64_t i = 0; i < m->count; i++) {
        const HfTensor *want = &m->tensors[i];
        const HfStored found = hf_find(s, m, want);
        const Tensor *plain = find_named(s, m, want->name, "");
        used[n++] = plain, used[n++] = found.values, used[n++] = found.scales;
        if (found.how) {
            check_quantized(want, &found, problem);
            if (plain && plain != found.values)
                hf_problem_add(
                    &problem[UNEXPECTED], want->name,
                    " (the file also contains this weight in quantized form: remove one of the two)");
        } else if (plain) {
            check_plain(want, plain, problem);
        } else if (!is_of_head(want) || !m->init_heads) {
            headless |= is_of_head(want);
            hf_problem_add(&problem[MISSING], want->name, "");
        }
    }
    for (int64_t i = 0; i < s->count; i++) {
        bool is_used = false;
        for (int64_t k = 0; k < n && !is_used; k++) is_used = used[k] == &s->tensors[i].tensor;
        if (!is_used && !is_expected_extra(s, m, &s->tensors[i]))
            hf_problem_add(&problem[UNEXPECTED], s->tensors[i].name, "");
    }
    free(used);
    return report(s->path, problem, headless);
}

void hf_keep_language_model(Safetensors *s, HfProblem *left) {
    static const char PART[] = "language_model.";
    const char *part = NULL;
    int64_t kept = 0;
    for (int64_t i = 0; i < s->count && !part; i++) part = strstr(s->tensors[i].name, PART);
    for (int64_t i = 0; i < s->count && part; i++) {
        SafeTensor t = s->tensors[i];
        const char *at = strstr(t.name, PART);
        if (at) t.name = arena_printf(s->arena, "%.*s%s", (int)(at - t.name), t.name, at + strlen(PART));
        if (at || !strncmp(t.name, "lm_head.", 8) || !strncmp(t.name, "mtp.", 4))
            s->tensors[kept++] = t;
        else
            hf_problem_add(left, t.name, "");
    }
    if (!part) return;
    s->count = kept;
    safetensors_sort(s);
}

Err hf_match(const Safetensors *s, const Registry *r, const HfSource *source, HfMap *out) {
    HfFamily family;
    *out = (HfMap){0};
    ERR_RETURN(hf_detect(s, &family));
    if (source && is_based_on(source->family, family)) family = source->family;
    ERR_RETURN(hf_map(r, family, out));
    out->init_heads = source && source->init_heads;
    return hf_check(s, out);
}

/* The values of a weight in a file, in the order that `layout` describes. */
typedef struct Weight {
    HfTensor layout;
    const void *values;
    DType dtype;
    float *decoded; /* decoded values (owned), or NULL if the values are in the file */
} Weight;

/* Decodes the weight if it is quantized. After use, the caller must call free(decoded). */
static Weight read_weight(const HfTensor *t, const HfStored *x) {
    if (!x->how) return (Weight){*t, x->values->data, (DType)x->values->dtype, NULL};
    float *decoded = mem_alloc((size_t)hf_count(t) * sizeof *decoded);
    x->how->decode(x->values, x->scales, decoded);
    return (Weight){in_rows(t), decoded, F32, decoded};
}

static Err check_file_values(const Safetensors *s, const HfMap *m, DType precise) {
    HfValues values = {0};
    for (int64_t i = 0; i < m->count; i++) {
        const HfStored found = hf_find(s, m, &m->tensors[i]);
        if (!found.values) continue;
        const Weight w = read_weight(&m->tensors[i], &found);
        hf_values_check(&values, m->tensors[i].name, w.values, w.dtype, precise, hf_count(&w.layout));
        free(w.decoded);
    }
    Str text = {0};
    hf_problem_report(&text, &values.infinite, "with NaN or infinity (download them again)");
    hf_problem_report(&text, &values.too_large, "with values too large for float32 (set --fp64)");
    const Err e = text.len ? err_user("'%s' cannot be imported; tensors: %s", s->path, text.s) : ERR_OK;
    str_free(&text);
    return e;
}

Err hf_import(const Safetensors *s, const HfMap *m, Registry *r) {
    ERR_RETURN(check_file_values(s, m, r->precise));
    for (int64_t i = 0; i < m->count; i++) {
        const HfStored found = hf_find(s, m, &m->tensors[i]);
        if (!found.values) continue; /* a head that the file lacks keeps its initial values */
        const Weight w = read_weight(&m->tensors[i], &found);
        hf_scatter(&w.layout, w.values, w.dtype, r->device, r->masters, r->precise);
        free(w.decoded);
    }
    registry_round_values(r);
    return ERR_OK;
}

/* ---- export ---- */

const char *hf_dtype_name(DType t) {
    static const char *const NAMES[DTYPES] = {
        [F64] = "float64", [F32] = "float32", [BF16] = "bfloat16", [F16] = "float16"};
    return NAMES[t];
}

typedef struct Export {
    const Registry *registry;
    const HfMap *map;
    DType dtype;
    void *bytes;
} Export;

int64_t hf_count(const HfTensor *t) {
    int64_t n = 1;
    for (int i = 0; i < t->ndim; i++) n *= t->dim[i];
    return n;
}

/* Returns the tensor's values as `dtype`. The values are valid until the next call. */
static const void *gather_tensor(Export *x, const HfTensor *t, DType dtype) {
    free(x->bytes);
    x->bytes = mem_alloc((size_t)hf_count(t) * dtype_size(dtype));
    hf_gather(t, x->registry->device, x->registry->masters, x->registry->precise, x->bytes, dtype);
    return x->bytes;
}

static const void *export_bytes(void *arg, int64_t i) {
    Export *x = arg;
    return gather_tensor(x, &x->map->tensors[i], x->dtype);
}

static Err check_master_values(Export *x) {
    const DType precise = x->registry->precise;
    HfValues values = {0};
    for (int64_t i = 0; i < x->map->count; i++) {
        const HfTensor *t = &x->map->tensors[i];
        hf_values_check(&values, t->name, gather_tensor(x, t, precise), precise, x->dtype, hf_count(t));
    }
    Str text = {0};
    char too_large[100];
    snprintf(too_large, sizeof too_large, "with values too large for it (--hf-dtype %s holds them)",
             hf_dtype_name(hf_values_fitting_dtype(&values)));
    hf_problem_report(&text, &values.infinite, "with NaN or infinity (export an earlier step: --ckpt-step)");
    hf_problem_report(&text, &values.too_large, too_large);
    const Err e = text.len ? err_user("the model cannot be exported as %s; tensors: %s",
                                      hf_dtype_name(x->dtype), text.s)
                           : ERR_OK;
    str_free(&text);
    return e;
}

/* Adds the copies of the embedding and the output layer that each layer for additional tokens (MTP) contains. */
static void add_mtp_copies(HfMap *m) {
    const Param *words = m->tensors[0].param, *output = words; /* the first parameter is the embedding */
    for (int64_t i = 0; i < m->count; i++)
        if (!strcmp(m->tensors[i].param->spec.name, OUTPUT)) output = m->tensors[i].param;
    const Family *f = &FAMILIES[m->family];
    for (int64_t i = m->main_layers; i < m->layers; i++) {
        const char *base = arena_printf(m->arena, "%s%s.%lld", f->prefix, f->layers, (long long)i);
        add_whole(m, arena_printf(m->arena, "%s%s", base, MTP_WORDS), words);
        add_whole(m, arena_printf(m->arena, "%s%s", base, MTP_OUTPUT), output);
    }
}

Err hf_export(const Registry *r, HfFamily family, const char *path, DType dtype) {
    HfMap map;
    Err e = hf_map(r, family, &map);
    if (!e.code) {
        add_mtp_copies(&map);
        Export x = {r, &map, dtype, NULL};
        SafeTensor *headers = mem_zero((size_t)map.count + 1, sizeof *headers);
        for (int64_t i = 0; i < map.count; i++)
            headers[i] = (SafeTensor){.name = map.tensors[i].name,
                                      .tensor = file_tensor(&map.tensors[i], dtype),
                                      .scalar = map.tensors[i].scalar};
        e = check_master_values(&x);
        if (!e.code)
            e = safetensors_write(path, headers, map.count, &(MetaText){"format", "pt"}, 1, export_bytes, &x);
        free(headers);
        free(x.bytes);
    }
    hf_map_free(&map);
    return e;
}
