/* Compares every op with PyTorch in float64. tools/oracle/ops.py has written the results to
 * tests/data/ops.safetensors and documents its content. The error bound of an element is ROUNDINGS * K * u *
 * RMS of its tensor, where K is the largest number of terms of a sum in the op. (The RMS of its row would be
 * too small, because a row may cancel out, such as the first dq of causal attention.) */
#include "unit/cmocka_all.h"
#include "unit/recording.h"

#include <jansson.h>

#include "base/file.h"
#include "kernels/ops.h"
#include "kernels/relative_buckets.h"
#include "unit/ops/builders.h"
#include "unit/ops/moe_builders.h"

static const char PATH[] = "tests/data/ops.safetensors";
enum { ROUNDINGS = 8, STEPS = 3 };

typedef struct Oracle {
    Str file;
    json_t *header, *cases;
    const char *data;
} Oracle;

static int oracle_open(void **state) {
    Oracle *o = mem_zero(1, sizeof *o);
    Err e = file_read(PATH, &o->file);
    if (e.code) fail_msg("%s", e.msg);
    uint64_t length;
    memcpy(&length, o->file.s, sizeof length);
    assert_true(length < o->file.len - sizeof length);
    o->header = json_loadb(o->file.s + sizeof length, length, 0, NULL);
    o->cases = json_loads(
        json_string_value(json_object_get(json_object_get(o->header, "__metadata__"), "cases")), 0, NULL);
    assert_non_null(o->cases);
    o->data = o->file.s + sizeof length + length;
    *state = o;
    return 0;
}

static int oracle_close(void **state) {
    Oracle *o = *state;
    json_decref(o->header), json_decref(o->cases);
    str_free(&o->file);
    free(o);
    return 0;
}

/* Returns a copy of the tensor; `data` is NULL if it does not exist. */
static Tensor load(const Oracle *o, const char *name, const char *part, const char *operand) {
    char key[128];
    snprintf(key, sizeof key, "%s/%s/%s", name, part, operand);
    const json_t *entry = json_object_get(o->header, key);
    if (!entry) return (Tensor){0};
    const json_t *shape = json_object_get(entry, "shape"), *range = json_object_get(entry, "data_offsets");
    int64_t dim[TENSOR_DIMS] = {0};
    for (size_t i = 0; i < json_array_size(shape); i++) dim[i] = json_integer_value(json_array_get(shape, i));
    DType dtype;
    assert_true(dtype_parse(json_string_value(json_object_get(entry, "dtype")), &dtype));
    Tensor t = tensor_make(NULL, dtype, (int)json_array_size(shape), dim);
    const json_int_t begin = json_integer_value(json_array_get(range, 0)),
                     end = json_integer_value(json_array_get(range, 1));
    assert_true((size_t)(end - begin) == tensor_bytes(&t) && o->data + end <= o->file.s + o->file.len);
    t.data = mem_alloc(tensor_bytes(&t));
    memcpy(t.data, o->data + begin, tensor_bytes(&t));
    return t;
}

static void compare(const char *name, const char *what, const double *got, const Tensor *want, double terms) {
    const double *v = want->data;
    const int64_t n = tensor_count(want);
    double square = 0, worst = 0;
    for (int64_t i = 0; i < n; i++) {
        square += v[i] * v[i];
        const double error = fabs(got[i] - v[i]);
        if (!(error <= worst)) worst = error;
    }
    const double rms = sqrt(square / (double)n), bound = ROUNDINGS * terms * dtype_roundoff(F64) * rms;
    if (!(worst <= bound)) fail_msg("%s, %s: error %.3g > bound %.3g", name, what, worst, bound);
    print_message("    %-24s %-8s error %.2g, bound %d K u rms = %.2g\n", name, what, worst, ROUNDINGS,
                  bound);
}

/* ---- ops with a builder ---- */

typedef union AnyAttr {
    NormAttr norm;
    ActivationAttr activation;
    RopeAttr rope;
    AttentionAttr attention;
    LossAttr loss;
    MoeCase moe;
    DeltaRuleAttr delta_rule;
} AnyAttr;

static double number(const json_t *c, const char *key) { return json_number_value(json_object_get(c, key)); }
static bool truth(const json_t *c, const char *key) { return json_is_true(json_object_get(c, key)); }

static void norm_attr(const json_t *c, AnyAttr *a) {
    a->norm = (NormAttr){.rms = truth(c, "rms"), .one_plus = truth(c, "one_plus"), .eps = number(c, "eps")};
}

static void activation_attr(const json_t *c, AnyAttr *a) {
    static const char *const KINDS[] = {[ACT_GELU_TANH] = "gelu_tanh",
                                        [ACT_GELU_ERF] = "gelu_erf",
                                        [ACT_QUICK_GELU] = "quick_gelu",
                                        [ACT_SQUARED_RELU] = "squared_relu",
                                        [ACT_RELU] = "relu",
                                        [ACT_TANH] = "tanh",
                                        [ACT_XIELU] = "xielu",
                                        [ACT_SWIGLU] = "swiglu",
                                        [ACT_GEGLU_TANH] = "geglu_tanh",
                                        [ACT_GEGLU_ERF] = "geglu_erf"};
    const char *kind = json_string_value(json_object_get(c, "kind"));
    int i = 0;
    while (strcmp(KINDS[i], kind)) assert_true(++i <= ACT_GEGLU_ERF);
    a->activation.kind = (Activation)i;
}

static void rope_attr(const json_t *c, AnyAttr *a) {
    a->rope = (RopeAttr){.dim = (int32_t)number(c, "dim"), .interleaved = truth(c, "interleaved")};
}

static void attention_attr(const json_t *c, AnyAttr *a) {
    a->attention = (AttentionAttr){.scale = number(c, "scale"),
                                   .query.first = (int64_t)number(c, "first_query"),
                                   .window_left = (int64_t)number(c, "window_left"),
                                   .window_right = (int64_t)number(c, "window_right"),
                                   .bias_max_distance = (int64_t)number(c, "bias_max_distance"),
                                   .bias_bidirectional = truth(c, "bias_bidirectional")};
}

static void loss_attr(const json_t *c, AnyAttr *a) { a->loss.vocab = (int64_t)number(c, "vocab"); }

static void moe_attr(const json_t *c, AnyAttr *a) {
    static const char *const SCORES[] = {[ROUTER_TOPK_SOFTMAX] = "topk_softmax",
                                         [ROUTER_SOFTMAX] = "softmax",
                                         [ROUTER_SIGMOID] = "sigmoid",
                                         [ROUTER_SQRTSOFTPLUS] = "sqrtsoftplus",
                                         [ROUTER_SPARSEMIXER] = "sparsemixer"};
    const char *score = json_string_value(json_object_get(c, "score"));
    int i = 0;
    while (score && strcmp(SCORES[i], score)) assert_true(++i <= ROUTER_SPARSEMIXER);
    a->moe = (MoeCase){.k = (int64_t)number(c, "k"),
                       .route = {.score = (RouterScore)i,
                                 .groups = (int64_t)number(c, "groups"),
                                 .group_topk = (int64_t)number(c, "group_topk"),
                                 .group_scores = (int64_t)number(c, "group_scores"),
                                 .band = number(c, "band"),
                                 .scaling = json_object_get(c, "scaling") ? number(c, "scaling") : 1},
                       .dispatch = {.capacity = (int64_t)number(c, "capacity"),
                                    .pad = truth(c, "pad"),
                                    .by_position = truth(c, "by_position")},
                       .loss = {.kind = truth(c, "z") ? ROUTER_Z : ROUTER_BALANCE, .score = (RouterScore)i},
                       .per_sample = truth(c, "per_sample")};
}

static void delta_rule_attr(const json_t *c, AnyAttr *a) {
    a->delta_rule = (DeltaRuleAttr){.key_heads = (int64_t)number(c, "key_heads"),
                                    .key_dim = (int64_t)number(c, "key_dim"),
                                    .value_dim = (int64_t)number(c, "value_dim"),
                                    .chunk = (int64_t)number(c, "chunk"),
                                    .normalize = truth(c, "normalize"),
                                    .eps = number(c, "eps")};
}

static Tensor *build_loss(Tape *t, Tensor **in, const void *attr) {
    return op_cross_entropy(t, in[0], in[1], ((const LossAttr *)attr)->vocab);
}

typedef struct Operand {
    const char *name;
    bool parameter;
} Operand;

static const struct Family {
    const char *op;
    BuildFn *build;
    void (*attr)(const json_t *, AnyAttr *);
    Operand in[CASE_INPUTS];
    const char *y, *kept; /* kept: name of output 1, if the oracle has it */
} FAMILIES[] = {
    {"linear", build_linear, NULL, {{"x", false}, {"w", true}, {"bias", true}}, "y", NULL},
    {"norm", build_norm, norm_attr, {{"x", false}, {"gain", true}, {"bias", true}}, "y", NULL},
    {"activation", build_activation, activation_attr, {{"x", false}}, "y", NULL},
    {"xielu",
     build_xielu,
     NULL,
     {{"x", false}, {"alpha_p", true}, {"alpha_n", true}, {"beta", false}, {"eps", false}},
     "y",
     NULL},
    {"rope",
     build_rope,
     rope_attr,
     {{"x", false}, {"cos", false}, {"sin", false}, {"position", false}},
     "y",
     NULL},
    {"attention",
     build_attention,
     attention_attr,
     {{"q", false}, {"k", false}, {"v", false}, {"lengths", false}},
     "y",
     "lse"},
    {"attention",
     build_attention_unfused,
     attention_attr,
     {{"q", false}, {"k", false}, {"v", false}, {"lengths", false}},
     "y",
     NULL},
    {"attention_sink",
     build_attention,
     attention_attr,
     {{"q", false}, {"k", false}, {"v", false}, {"sink", true}},
     "y",
     "lse"},
    {"attention_sink",
     build_attention_unfused,
     attention_attr,
     {{"q", false}, {"k", false}, {"v", false}, {"sink", true}},
     "y",
     NULL},
    {"attention_bias",
     build_attention,
     attention_attr,
     {{"q", false}, {"k", false}, {"v", false}, {"lengths", false}, {"bias", true}},
     "y",
     "lse"},
    {"attention_bias",
     build_attention_unfused,
     attention_attr,
     {{"q", false}, {"k", false}, {"v", false}, {"lengths", false}, {"bias", true}},
     "y",
     NULL},
    {"embedding", build_embedding, NULL, {{"id", false}, {"w", true}}, "y", NULL},
    {"route", build_route, moe_attr, {{"logits", false}, {"bias", false}}, "probs", NULL},
    {"router_loss", build_router_loss, moe_attr, {{"logits", false}}, "loss", NULL},
    {"sinkhorn", build_sinkhorn, NULL, {{"logits", false}}, "scores", NULL},
    {"experts",
     build_experts,
     moe_attr,
     {{"x", false}, {"logits", false}, {"fc1", true}, {"fc2", true}},
     "y",
     NULL},
    {"gated_delta_rule",
     build_gated_delta_rule,
     delta_rule_attr,
     {{"qkv", false}, {"alpha", false}, {"beta", false}, {"a_log", true}, {"dt_bias", true}},
     "y",
     NULL},
    {"cross_entropy", build_loss, loss_attr, {{"logits", false}, {"label", false}}, "loss", "lse"},
};
enum { FAMILY_COUNT = sizeof FAMILIES / sizeof FAMILIES[0] };

static void remember_kept(void *arg, const OpDef *op, const Call *c) {
    (void)op;
    Tensor **kept = arg;
    if (!*kept && c->out[1]) *kept = c->out[1]; /* the forward's */
}

/* The largest number of terms, because reductions are over a row of an operand or over its rows. */
static double most_terms_of(const Tensor *in) {
    int64_t k = 1;
    for (int i = 0; i < CASE_INPUTS; i++) {
        if (!in[i].data) continue;
        k = tensor_width(&in[i]) > k ? tensor_width(&in[i]) : k;
        k = tensor_rows(&in[i]) > k ? tensor_rows(&in[i]) : k;
    }
    return (double)k;
}

static void check_case(const Oracle *o, const struct Family *f, const char *name, const json_t *attributes) {
    RunContext run = {.device = device_cpu(2), .dtype = F64};
    Space *slot = space_new(run.device, "slot", SPACE_UNPLANNED),
          *transient = space_new(run.device, "transient", SPACE_UNPLANNED);
    Tape *tape = tape_new(&run, slot, transient);
    AnyAttr attr = {0};
    if (f->attr) f->attr(attributes, &attr);

    Tensor in[CASE_INPUTS] = {0}, main_grad[CASE_INPUTS] = {0}, want[CASE_INPUTS] = {0},
           *operands[CASE_INPUTS] = {0};
    for (int i = 0; i < CASE_INPUTS && f->in[i].name; i++) {
        in[i] = load(o, name, "in", f->in[i].name);
        want[i] = load(o, name, "grad", f->in[i].name);
        operands[i] = in[i].data ? &in[i] : NULL;
        if (want[i].data) in[i].flags = TENSOR_NEEDS_GRAD;
        if (!f->in[i].parameter || !want[i].data) continue;
        main_grad[i] = tensor_new(F64, in[i].ndim, in[i].dim);
        main_grad[i].flags = TENSOR_ACCUM | TENSOR_MAIN_GRAD;
        in[i].grad = &main_grad[i];
    }
    const double terms = most_terms_of(in);
    char incoming[32];
    snprintf(incoming, sizeof incoming, "d%s", f->y);
    Tensor dy = load(o, name, "in", incoming), y_want = load(o, name, "out", f->y),
           kept_want = f->kept ? load(o, name, "out", f->kept) : (Tensor){0}, *kept = NULL;

    tape_begin(tape, &RECORDING);
    tape_trace(tape, remember_kept, &kept);
    Tensor *y = f->build(tape, operands, &attr);
    compare(name, f->y, y->data, &y_want, terms);
    if (f->kept) compare(name, f->kept, kept->data, &kept_want, terms);
    tape_backward(tape, y, &dy, NEED_ALL);
    for (int i = 0; i < CASE_INPUTS; i++)
        if (want[i].data) compare(name, f->in[i].name, in[i].grad->data, &want[i], terms);

    tape_free(tape), space_free(slot), space_free(transient), device_free(run.device);
    free(dy.data), free(y_want.data), free(kept_want.data);
    for (int i = 0; i < CASE_INPUTS; i++) free(in[i].data), free(want[i].data), free(main_grad[i].data);
}

TEST(ops_are_those_of_pytorch) {
    const Oracle *o = *state;
    int checked[FAMILY_COUNT] = {0};
    const char *name;
    json_t *attributes;
    json_object_foreach(o->cases, name, attributes) {
        const char *op = json_string_value(json_object_get(attributes, "op"));
        for (int i = 0; i < FAMILY_COUNT; i++)
            if (!strcmp(FAMILIES[i].op, op)) check_case(o, &FAMILIES[i], name, attributes), checked[i]++;
    }
    for (int i = 0; i < FAMILY_COUNT; i++) assert_true(checked[i] > 0);
}

/* ---- optimizers: three steps with their state ---- */

static const double *step_of(const Tensor *history, int step) {
    return (const double *)history->data + step * history->stride[0];
}

static void check_state(const char *name, const char *what, const double *got, const Tensor *history,
                        int step) {
    Tensor want = tensor_make((void *)step_of(history, step), F64, 1, &history->dim[1]);
    compare(name, what, got, &want, step + 1); /* every element has had step + 1 updates */
}

static void check_optimizer(const Oracle *o, const char *name, const json_t *c, OpNumber op) {
    static const char *const STATES[2][2] = {{"exp_avg", "exp_avg_sq"}, {"momentum", NULL}};
    Tensor p = load(o, name, "in", "param"), grads = load(o, name, "in", "grad"),
           history = load(o, name, "out", "param"), want[2] = {{0}}, buffer[2];
    for (int i = 0; i < 2; i++) {
        const char *which = STATES[op == OP_sgd][i];
        buffer[i] = tensor_new(F64, 1, p.dim);
        if (which) want[i] = load(o, name, "out", which);
    }
    Device *d = device_cpu(1);
    for (int step = 0; step < STEPS; step++) {
        const double lr = json_number_value(json_array_get(json_object_get(c, "lr"), (size_t)step));
        const StepGroup group = {lr, number(c, "weight_decay"), number(c, "eps")};
        const AdamAttr adam = {.group = {group},
                               .beta1 = number(c, "beta1"),
                               .beta2 = number(c, "beta2"),
                               .correction1 = 1 - pow(number(c, "beta1"), step + 1),
                               .correction2 = 1 - pow(number(c, "beta2"), step + 1),
                               .grad_scale = 1};
        const SgdAttr sgd = {.group = {group}, .momentum = number(c, "momentum"), .grad_scale = 1};
        Tensor grad = tensor_make((void *)step_of(&grads, step), F64, 1, p.dim);
        call_run(&OPS[op], &(Call){.in = {&grad},
                                   .out = {&p, &buffer[0], op == OP_adamw ? &buffer[1] : NULL},
                                   .attr = op == OP_adamw ? (const void *)&adam : &sgd,
                                   .device = d});
        check_state(name, "param", p.data, &history, step);
        for (int i = 0; i < 2; i++)
            if (want[i].data) check_state(name, STATES[op == OP_sgd][i], buffer[i].data, &want[i], step);
    }
    device_free(d);
    free(p.data), free(grads.data), free(history.data);
    for (int i = 0; i < 2; i++) free(want[i].data), free(buffer[i].data);
}

TEST(optimizers_are_those_of_pytorch) {
    const Oracle *o = *state;
    int checked = 0;
    const char *name;
    json_t *attributes;
    json_object_foreach(o->cases, name, attributes) {
        const char *op = json_string_value(json_object_get(attributes, "op"));
        if (!strcmp(op, "adamw")) check_optimizer(o, name, attributes, OP_adamw), checked |= 1;
        if (!strcmp(op, "sgd")) check_optimizer(o, name, attributes, OP_sgd), checked |= 2;
    }
    assert_int_equal(checked, 3);
}

/* ---- buckets of relative positions, for every distance in the oracle's file ---- */

static void check_buckets(const Oracle *o, const char *name, const json_t *c) {
    const RelativeBuckets b = relative_buckets_make(
        (int64_t)number(c, "buckets"), (int64_t)number(c, "max_distance"), truth(c, "bidirectional"));
    Tensor begins = load(o, name, "in", "begins");
    const int64_t(*begin)[2] = begins.data, n = begins.dim[0];
    for (int64_t i = 0, distance = begin[0][0]; distance <= 2000; distance++) {
        if (i + 1 < n && begin[i + 1][0] == distance) i++;
        if (relative_bucket(&b, distance) != begin[i][1])
            fail_msg("%s: distance %lld is in bucket %lld, not %lld", name, (long long)distance,
                     (long long)relative_bucket(&b, distance), (long long)begin[i][1]);
    }
    free(begins.data);
}

TEST(buckets_are_those_of_transformers) {
    const Oracle *o = *state;
    int checked = 0;
    const char *name;
    json_t *attributes;
    json_object_foreach(o->cases, name, attributes) {
        if (strcmp(json_string_value(json_object_get(attributes, "op")), "relative_bucket")) continue;
        check_buckets(o, name, attributes);
        checked++;
    }
    assert_int_equal(checked, 10);
}

int main(void) { return run_all_tests(oracle_open, oracle_close); }
