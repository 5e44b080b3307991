/* The BERT encoder, as in Megatron-LM core/models/bert/bert_model.py: embedding with token types -> GPT's
 * layers without the causal mask -> final norm -> heads. With --norm-placement post, the model is the
 * original BERT (Devlin et al., 2018): the first norm follows the embedding, and every other norm follows a
 * residual sum. */
#include "models/model.h"
#include "models/option_map.h"
#include "models/specs.h"
#include "nn/bert_head.h"
#include "nn/class_head.h"

/* Megatron-LM's head always uses the erf form of GELU. Hugging Face's head uses the MLP's activation, so --activation
 * also sets the head's activation. Megatron-LM does not have this option. */
static Activation head_activation(const Config *c) {
    const Activation named = c->activation == MLP_GELU ? ACT_GELU_ERF : map_activation(c->activation);
    return activation_is_gated(named) || named == ACT_XIELU ? ACT_GELU_ERF : named;
}

static HeadSpec token_head(const Config *c, const EmbeddingSpec *words, Arena *arena) {
    HeadSpec head = spec_lm_head(c, words, arena);
    BertHeadSpec *h = arena_alloc(arena, sizeof *h);
    *h = (BertHeadSpec){
        .output = *(const LmHeadSpec *)head.spec, .activation = head_activation(c), .norm = spec_norm(c)};
    h->output.bias = true;
    head.ops = &bert_head, head.spec = h;
    return head;
}

static HeadSpec class_head_spec(const Config *c, ClassHeadSpec spec, LossSpec loss, Arena *arena) {
    ClassHeadSpec *h = arena_alloc(arena, sizeof *h);
    const int64_t outputs = spec.choices > 1 ? spec.choices : spec.classes;
    spec.hidden = c->hidden_size;
    *h = spec;
    return (HeadSpec){.ops = &class_head,
                      .spec = h,
                      .outputs = outputs,
                      .width = outputs,
                      .loss = {loss, loss},
                      .n_losses = 1};
}

/* Returns the head that predicts whether the second sentence follows the first one. */
static HeadSpec sentence_head(const Config *c, Arena *arena) {
    const ClassHeadSpec spec = {
        .name = "binary_head", .classes = 2, .choices = 1, .init_std = c->derived.init_std};
    const LossSpec loss = {.name = "sop loss", .extent = EXTENT_SAMPLES, .weights = FIELDS};
    return class_head_spec(c, spec, loss, arena);
}

/* With --task, this head and loss replace the pretraining heads and losses. The loss has the same name as in
 * Megatron-LM. */
static HeadSpec task_head(const Config *c, Arena *arena) {
    const ClassHeadSpec spec = {.name = c->derived.choices > 1 ? "multichoice_head" : "classification_head",
                                .classes = c->class_labels.count,
                                .choices = c->derived.choices,
                                .init_std = c->derived.init_std,
                                .dropout = f64_or(c->classifier_dropout, c->hidden_dropout),
                                .counts = true};
    const LossSpec loss = {.name = "lm loss",
                           .extent = EXTENT_SAMPLES,
                           .weights = FIELD_sample_weights,
                           .choices = c->derived.choices};
    HeadSpec head = class_head_spec(c, spec, loss, arena);
    head.loss[1].name = "correct";
    head.n_counts = 1;
    return head;
}

static FieldSet fields_of(const Config *c) {
    const FieldSet all = FIELD_SET(tokens) | FIELD_SET(position_ids) | FIELD_SET(lengths);
    if (c->task != TASK_NONE)
        return all | FIELD_SET(token_types) | FIELD_SET(sentence_labels) | FIELD_SET(sample_weights);
    return all | FIELD_SET(labels) | FIELD_SET(loss_mask) |
           (config_token_types(c) ? FIELD_SET(token_types) : 0) |
           (c->bert_binary_head ? FIELD_SET(sentence_labels) : 0);
}

void plan_bert(const Config *c, Arena *arena, ModelPlan *plan) {
    EmbeddingSpec *words = spec_words(c, arena);
    const StackShape encoder = {.name = "encoder",
                                .input = {&words_input, words},
                                .positions = c->seq_length,
                                .layers = c->num_layers};
    *plan = (ModelPlan){
        .sample = {.positions = c->seq_length, .fields = fields_of(c)},
        .stack = {spec_stack(c, &encoder, arena)},
        .n_stacks = 1,
        .n_heads = c->task == TASK_NONE && c->bert_binary_head ? 2 : 1,
    };
    words->types = config_token_types(c);
    words->normed |= !plan->stack[0].has_final;
    plan->head[0] = c->task == TASK_NONE ? token_head(c, words, arena) : task_head(c, arena);
    if (plan->n_heads > 1) plan->head[1] = sentence_head(c, arena);
}
