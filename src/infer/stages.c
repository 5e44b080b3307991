#include "infer/stages.h"

#include "ops/redistribute.h"

typedef struct Route {
    Tape *tape;
    const Model *model;
    const PassTokens *tokens;
    Group pipeline;
} Route;

static void move(const Route *p, CommKind kind, int peer, Tensor *x) {
    const RunContext *run = tape_context(p->tape);
    comm_run(run->comm, &(CommCall){.kind = kind,
                                    .dtype = (DType)x->dtype,
                                    .group = p->pipeline,
                                    .site = kind == COMM_BROADCAST ? "logits" : "pipeline_activation",
                                    .in = x->data,
                                    .out = x->data,
                                    .n = tensor_count(x),
                                    .peer = peer,
                                    .device = run->device,
                                    .staged = true});
}

/* Returns a flow's number of rows in this pass, or 0 if it does not cross the border. */
static int64_t rows_of(const Route *p, int flow, int64_t border) {
    const ModelPlan *plan = &p->model->plan;
    const FlowSpec *f = &plan->flow[flow];
    if (f->auxiliary || !flow_crosses(f, border)) return 0;
    return f->stack < plan->head->stack ? p->tokens->encoder : p->tokens->stream;
}

static void send(const Route *p, int64_t border, const Flow *x) {
    for (int i = 0; i < p->model->plan.n_flows; i++)
        if (rows_of(p, i, border)) move(p, COMM_SEND, (p->pipeline.rank + 1) % p->pipeline.size, x->at[i]);
}

static Flow receive(const Route *p, int64_t border) {
    Flow x = {{NULL}};
    for (int i = 0; i < p->model->plan.n_flows; i++) {
        int64_t dim[3];
        const SpmdType type = model_flow(p->model, i, 1, dim);
        dim[0] = rows_of(p, i, border);
        if (!dim[0]) continue;
        x.at[i] = tape_input(p->tape, NULL, tape_context(p->tape)->dtype, 3, dim, type);
        move(p, COMM_RECV, (p->pipeline.rank + p->pipeline.size - 1) % p->pipeline.size, x.at[i]);
    }
    return x;
}

/* Stage i of the model is on pipeline rank i mod size, so a message goes from each rank to the next one. */
static Flow run_stages(const Route *p, const Feed *feed) {
    const Model *m = p->model;
    Flow x = {{NULL}};
    for (int i = 0; i < m->n_stages; i++) {
        const StagePart *part = &m->stages[i];
        if (i || p->pipeline.rank) x = receive(p, part->first_layer);
        x = model_stage(p->tape, m, i, feed, x);
        if (!part->head) send(p, part->first_layer + part->layers, &x);
    }
    return x;
}

static Tensor *whole(Tape *t, Tensor *logits, const PassTokens *tokens) {
    return tokens->chosen ? op_redistribute(t, logits, AXIS_TP, SPMD_I, 2) : logits;
}

Tensor *stages_forward(Tape *t, const Model *m, int depth, const Feed *feed, const PassTokens *tokens) {
    if (depth) return whole(t, model_forward_ahead(t, m, depth, feed), tokens);
    if (tape_axis(t, AXIS_PP) == 1) return whole(t, model_forward(t, m, feed), tokens);
    const Route p = {t, m, tokens, tape_group(t, 1u << AXIS_PP)};
    const int last = p.pipeline.size - 1;
    const Flow out = run_stages(&p, feed);
    Tensor *logits =
        p.pipeline.rank == last
            ? whole(t, out.at[0], tokens)
            : tape_tensor(t, tape_context(t)->dtype, 3, (int64_t[]){tokens->chosen, 1, m->plan.head->width});
    if (tokens->chosen) move(&p, COMM_BROADCAST, last, logits);
    return logits;
}
