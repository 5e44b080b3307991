/* Tests that a fault names an op and an axis if a model lacks any one of its collectives. The linker replaces
 * the communication functions of models (ld --wrap, tests/CMakeLists.txt), so that one call of them returns
 * its input unchanged. The type check needs no values, so one rank of each layout runs a forward pass on the
 * null device, which has no data. */
#include "unit/config_helper.h"
#include "unit/recording.h"

#include "base/fault.h"
#include "models/model.h"
#include "ops/expert_parallel.h"
#include "ops/gather_tokens.h"
#include "ops/linear.h"
#include "ops/redistribute.h"
#include "ops/ulysses.h"
#include "train/trainer.h"

/* Counts the collectives of the current forward pass. */
static struct {
    int n, left_out;
    const char *name; /* name of the collective that was omitted */
} calls;

static bool is_left_out(const char *name) {
    if (calls.n++ != calls.left_out) return false;
    calls.name = name;
    return true;
}

#define HOOK(type, name, ...)                                                                                \
    type __real_##name(__VA_ARGS__);                                                                         \
    type __wrap_##name(__VA_ARGS__);                                                                         \
    type __wrap_##name(__VA_ARGS__)

HOOK(Tensor *, op_redistribute, Tape *t, Tensor *x, Axis axis, Spmd to, int dim) {
    const bool moves = tape_axis(t, axis) > 1;
    return moves && is_left_out("op_redistribute") ? x : __real_op_redistribute(t, x, axis, to, dim);
}

HOOK(Tensor *, op_linear, Tape *t, Tensor *x, const LinearLayer *l) {
    static const char *const NAME[] = {"GATHER_IN", "REDUCE_OUT", "SEQUENCE"};
    const bool is_sharded = spmd_on(l->w_oi->spmd, AXIS_TP) == SPMD_V;
    LinearLayer without = *l;
    for (int i = 0; i < 3; i++)
        if (is_sharded && l->flags & 1u << i && is_left_out(NAME[i])) without.flags &= ~(1u << i);
    return __real_op_linear(t, x, &without);
}

HOOK(Tensor *, op_to_expert_view, Tape *t, Tensor *x) {
    return is_left_out("op_to_expert_view") ? x : __real_op_to_expert_view(t, x);
}

HOOK(Tensor *, op_to_dense_view, Tape *t, Tensor *x) {
    return is_left_out("op_to_dense_view") ? x : __real_op_to_dense_view(t, x);
}

HOOK(Moving, op_send_to_experts, Tape *t, Tensor *x, const Arrival *a) {
    return is_left_out("op_send_to_experts") ? (Moving){.y = x} : __real_op_send_to_experts(t, x, a);
}

HOOK(Moving, op_return_from_experts, Tape *t, Tensor *x, const Arrival *a) {
    return is_left_out("op_return_from_experts") ? (Moving){.y = x} : __real_op_return_from_experts(t, x, a);
}

HOOK(Tensor *, tokens_whole, Tape *t, Tensor *x) {
    return is_left_out("tokens_whole") ? x : __real_tokens_whole(t, x);
}

HOOK(Tensor *, tokens_own, Tape *t, Tensor *whole, const Tensor *x) {
    return is_left_out("tokens_own") ? whole : __real_tokens_own(t, whole, x);
}

HOOK(void, tokens_sum, Tape *t, Tensor *x, unsigned axes) {
    if (!is_left_out("tokens_sum")) __real_tokens_sum(t, x, axes);
}

HOOK(Tensor *, op_seq_to_heads, Tape *t, Tensor *x, Group g) {
    return is_left_out("op_seq_to_heads") ? x : __real_op_seq_to_heads(t, x, g);
}

HOOK(Tensor *, op_heads_to_seq, Tape *t, Tensor *x, Group group, int64_t g, int64_t r) {
    return is_left_out("op_heads_to_seq") ? x : __real_op_heads_to_seq(t, x, group, g, r);
}

HOOK(Tensor *, exchange_ids, Tape *t, Tensor *id, Group g) {
    return is_left_out("exchange_ids") ? id : __real_exchange_ids(t, id, g);
}

/* ---- one forward ---- */

typedef struct Rank {
    Setup *setup;
    Layout layout;
    Device *device;
    Model *gpt;
    Space *slot, *transient;
    Tape *tape;
    RunContext run;
} Rank;

static void forward(Rank *r) {
    const Config *c = &r->setup->config;
    const int64_t dim[] = {c->micro_batch_size, c->seq_length / c->context_parallel_size};
    SpmdType type = 0;
    for (int a = AXIS_CP; a <= AXIS_DP; a++)
        if (r->layout.mesh.size[a] > 1) type = spmd_with(type, a, SPMD_V);
    Tensor ids = tensor_make(NULL, I64, 2, dim);
    ids.spmd = type;
    Tensor field[FIELDS];
    Feed feed = {.tokens = NULL};
    for (int f = 0; f < FIELDS; f++) {
        field[f] = ids;
        if (fields_have(r->gpt->plan.sample.fields, f)) feed.field[f] = &field[f];
    }
    tape_begin(r->tape, &RECORDING);
    model_forward(r->tape, r->gpt, &feed);
}

/* Runs a forward pass without collective `number` (-1: with all collectives), and returns the message of the
 * fault, or "" if there is none. */
static void fault_without(Setup *s, int number, char message[512]) {
    Rank *r = arena_alloc(s->arena, sizeof *r);
    *r = (Rank){.setup = s, .device = device_null()};
    r->layout = model_run_layout(&s->config, 0, (int)s->config.ranks);
    const StagePart all = {.layers = s->config.num_layers, .embedding = true, .head = true};
    r->gpt = model_new(&s->config, &(ModelPlace){r->layout, &all, 1});
    model_allocate(r->gpt, r->device, F64, s->config.seq_length, true);
    r->run = (RunContext){.device = r->device, .dtype = F64, .layout = &r->layout};
    r->slot = space_new(r->device, "slot", SPACE_UNPLANNED);
    r->transient = space_new(r->device, "transient", SPACE_UNPLANNED);
    r->tape = tape_new(&r->run, r->slot, r->transient);
    calls.n = 0, calls.left_out = number;
    FaultScope scope = {.where = "test"}, *old = fault_scope(&scope);
    jmp_buf jump;
    scope.catch_jmp = &jump;
    message[0] = 0;
    if (setjmp(jump))
        memcpy(message, scope.message, sizeof scope.message);
    else
        forward(r);
    fault_scope(old);
    tape_free(r->tape);
    space_free(r->slot), space_free(r->transient);
    model_free(r->gpt);
    device_free(r->device);
}

static const char *const MODELS[] = {
    "--ranks 2 --tensor-model-parallel-size 2 --qk-layernorm",
    "--ranks 2 --tensor-model-parallel-size 2 --sequence-parallel --hidden-dropout 0",
    "--ranks 4 --tensor-model-parallel-size 4 --sequence-parallel --num-attention-heads 8 "
    "--group-query-attention --num-query-groups 2 --position-embedding-type rope --normalization RMSNorm "
    "--swiglu --ffn-hidden-size 32 --disable-bias-linear --untie-embeddings-and-output-weights "
    "--recompute-granularity selective",
#define WHOLE                                                                                                \
    "--num-attention-heads 8 --group-query-attention --num-query-groups 2 --qk-layernorm "                   \
    "--qk-layernorm-whole --normalization RMSNorm "
    WHOLE "--ranks 2 --tensor-model-parallel-size 2 --sequence-parallel",
    WHOLE "--ranks 4 --tensor-model-parallel-size 4",
    "--ranks 4 --context-parallel-size 2 --cp-comm-type a2a --reset-attention-mask",
    "--ranks 8 --tensor-model-parallel-size 2 --context-parallel-size 4 --cp-comm-type a2a+p2p "
    "--num-attention-heads 8 --hierarchical-context-parallel-sizes 2 2 --reset-attention-mask",
#define EXPERTS                                                                                              \
    "--ranks 16 --tensor-model-parallel-size 2 --sequence-parallel --context-parallel-size 2 "               \
    "--disable-bias-linear --num-experts 8 --expert-model-parallel-size 4 --moe-aux-loss-coeff 0.1 "         \
    "--moe-shared-expert-intermediate-size 8 --moe-shared-expert-gate "
    EXPERTS "--moe-token-dispatcher-type allgather --moe-z-loss-coeff 0.1 --moe-expert-capacity-factor 1",
    EXPERTS
    "--moe-token-dispatcher-type alltoall --expert-tensor-parallel-size 1 --moe-expert-capacity-factor 1",
    EXPERTS "--moe-token-dispatcher-type alltoall --expert-tensor-parallel-size 2",
    "--ranks 4 --tensor-model-parallel-size 2 --sequence-parallel --context-parallel-size 2 "
    "--disable-bias-linear --num-experts 4 --moe-router-load-balancing-type sinkhorn",
    "--ranks 4 --tensor-model-parallel-size 2 --sequence-parallel --context-parallel-size 2 "
    "--disable-bias-linear --num-experts 4 --moe-router-load-balancing-type quantile_balancing",
};

TEST(without_any_one_there_is_a_type_error) {
    for (size_t i = 0; i < sizeof MODELS / sizeof *MODELS; i++) {
        Setup *s = setup_new("%s --num-layers 1 --global-batch-size 16", MODELS[i]);
        char message[512];
        fault_without(s, -1, message);
        assert_string_equal(message, "");
        const int n = calls.n;
        assert_true(n > 0);
        for (int k = 0; k < n; k++) {
            fault_without(s, k, message);
            const char *op = strstr(message, "op '"), *axis = op ? strstr(op, "', axis ") : NULL;
            if (!axis) fail_msg("%s\nwithout %s, collective %d: \"%s\"", MODELS[i], calls.name, k, message);
        }
        setup_free(s);
    }
}
