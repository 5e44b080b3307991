/* The encoder BERT. Megatron-LM core/models/bert/bert_model.py: embedding with token types -> layers as GPT's, without
 * the causal mask -> final norm -> heads. With norm-placement post it is the original (Devlin et al., 2018): each norm
 * follows a residual sum, and the first the embedding. */
#include "models/model.h"
#include "models/option_map.h"
#include "models/specs.h"
#include "nn/bert_head.h"
#include "nn/class_head.h"

/* Loss [b, 1] and, in an evaluation, right answers, I; or logits. */
static Flow class_flow(Tape *t, const Model *m, const Feed *feed, Tensor *h) {
    Flow out = {{NULL}};
    out.at[0] = class_loss(t, m->head, feed, h, &out.at[1]);
    return out;
}

/* Types as for GPT. */
static Flow bert_stage(Tape *t, const Model *m, const StagePart *part, const Feed *feed, Flow in) {
    const Stack *encoder = &m->stack[0];
    Stream s = {.x = in.at[0]};
    if (part->embedding) s.x = embedding_forward(t, &m->embedding, feed); /* [s, b, h]   V or I */
    if (!part->head)
        return (Flow){{stack_output(t, encoder, part->first_layer, part->layers, feed, s)}}; /* V or I */
    Tensor *h = stack_end(t, encoder, part->first_layer, part->layers, feed, s); /* [s, b, h]   V or I */
    if (m->plan.head.ops == &class_head) return class_flow(t, m, feed, h);
    Flow out = {{bert_token_loss(t, m->head, feed, h)}}; /* loss [b, s] I, or logits V */
    if (feed->labels && m->plan.n_losses > 1)
        out.at[1] = bert_sentence_loss(t, m->head, feed, h); /* loss [b, 1] I */
    return out;
}

/* Megatron-LM's head has the erf form of GELU, whatever the MLP has; Hugging Face's has the activation of the MLP.
 * --activation is not an option of Megatron-LM. */
static Activation head_activation(const Config *c) {
    const Activation named = c->activation == MLP_GELU ? ACT_GELU_ERF : map_activation(c->activation);
    return activation_is_gated(named) ? ACT_GELU_ERF : named;
}

static HeadSpec head_spec(const Config *c, const Derived *d, Arena *arena) {
    BertHeadSpec *h = arena_alloc(arena, sizeof *h);
    *h = (BertHeadSpec){
        .vocab = d->vocab_size,
        .padded_vocab = d->padded_vocab_size,
        .hidden = c->hidden_size,
        .init_std = d->init_std,
        .activation = head_activation(c),
        .norm = spec_norm(c),
        .sentences = c->bert_binary_head,
    };
    return (HeadSpec){&bert_head, h, !c->untie_embeddings_and_output_weights};
}

/* The head and loss of --task replace those of pretraining. Megatron-LM names the loss so. */
static void task_plan(const Config *c, const Derived *d, Arena *arena, ModelPlan *plan) {
    const LossSpec loss = {"lm loss", EXTENT_SAMPLES, FIELD_sample_weights, d->choices};
    ClassHeadSpec *h = arena_alloc(arena, sizeof *h);
    *h = (ClassHeadSpec){.hidden = c->hidden_size,
                         .classes = c->class_labels.count,
                         .choices = d->choices,
                         .init_std = d->init_std,
                         .dropout = f64_or(c->classifier_dropout, c->hidden_dropout)};
    plan->sample.fields = FIELD_SET(tokens) | FIELD_SET(position_ids) | FIELD_SET(lengths) |
                          FIELD_SET(token_types) | FIELD_SET(sentence_labels) | FIELD_SET(sample_weights);
    plan->head = (HeadSpec){.ops = &class_head, .spec = h};
    plan->loss[0] = plan->loss[1] = loss;
    plan->loss[1].name = "correct";
    plan->n_losses = plan->n_counts = 1;
}

static void bert_plan(const Config *c, const Derived *d, Arena *arena, ModelPlan *plan) {
    const bool sentences = c->bert_binary_head;
    const int64_t types = config_token_types(c);
    *plan = (ModelPlan){
        .sample = {.positions = c->seq_length,
                   .fields = FIELD_SET(tokens) | FIELD_SET(labels) | FIELD_SET(position_ids) |
                             FIELD_SET(lengths) | FIELD_SET(loss_mask) |
                             (types ? FIELD_SET(token_types) : 0) |
                             (sentences ? FIELD_SET(sentence_labels) : 0)},
        .embedding = spec_embedding(c, d),
        .stack = {spec_stack(c, d, &(StackShape){.name = "encoder", .layers = c->num_layers}, arena)},
        .n_stacks = 1,
        .head = head_spec(c, d, arena),
        .flow = {{"hidden", 0, c->seq_length, 0, c->num_layers}},
        .n_flows = 1,
        .loss = {{"lm loss", EXTENT_POSITIONS, FIELD_loss_mask, 0}, {"sop loss", EXTENT_SAMPLES, FIELDS, 0}},
        .n_losses = sentences ? 2 : 1,
    };
    plan->embedding.types = types;
    plan->embedding.normed = !plan->stack[0].has_final;
    plan->embedding.norm = spec_norm(c);
    if (c->task != TASK_NONE) task_plan(c, d, arena, plan);
}

const Family bert_family = {"bert", bert_plan, bert_stage};
