#include "train/banner.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/amount.h"
#include "base/clock.h"
#include "base/terminal.h"
#include "base/version.h"

enum { NAME_WIDTH = 12 };

void banner_line(const char *name, const char *fmt, ...) {
    char value[4096];
    va_list args;
    va_start(args, fmt);
    vsnprintf(value, sizeof value, fmt, args);
    va_end(args);
    Str line = {0};
    str_printf(&line, "%s:%*s%s\n", name, (int)(NAME_WIDTH - 1 - strlen(name)), "", value);
    terminal_print(stdout, line.s);
    str_free(&line);
}

static void print_model(const Config *c, const ModelCount *parameters) {
    char groups[48] = "", experts[64] = "", trained[48] = "";
    if (c->derived.num_query_groups < c->num_attention_heads)
        snprintf(groups, sizeof groups, " (%lld of keys and values)", (long long)c->derived.num_query_groups);
    if (i64_is_set(c->num_experts))
        snprintf(experts, sizeof experts, ", %s (%lld per token)", amount(c->num_experts, "expert").s,
                 (long long)c->moe_router_topk);
    if (parameters->trained < parameters->all)
        snprintf(trained, sizeof trained, ", of which %lld are trained", (long long)parameters->trained);
    banner_line("model", "%s, %s of width %lld, %s%s%s; number of parameters: %lld%s",
                c->hf_model_type != HF_TYPES ? HfModelType_spellings[c->hf_model_type]
                                             : ModelFamily_spellings[c->model],
                config_layers_text(c).s, (long long)c->hidden_size, amount(c->num_attention_heads, "head").s,
                groups, experts, (long long)parameters->all, trained);
}

static void print_layout(const Config *c) {
    const struct {
        const char *name;
        int64_t size;
    } axes[] = {{"tensor", c->tensor_model_parallel_size},
                {"pipeline", c->pipeline_model_parallel_size},
                {"context", c->context_parallel_size},
                {"data", c->derived.data_parallel_size},
                {"expert", c->expert_model_parallel_size}};
    char text[160] = "";
    size_t n = 0;
    for (size_t i = 0; i < sizeof axes / sizeof *axes; i++)
        if (axes[i].size > 1)
            n += (size_t)snprintf(text + n, sizeof text - n, "%s%s %lld", n ? ", " : ": ", axes[i].name,
                                  (long long)axes[i].size);
    const int64_t ranks = config_ranks(c);
    banner_line("layout", "%s%s%s%s", amount(ranks, "rank").s, text,
                c->sequence_parallel && c->tensor_model_parallel_size > 1 ? ", sequence-parallel" : "",
                c->use_distributed_optimizer ? ", distributed optimizer" : "");
}

/* Prints the tokenizer. Megatron-LM ignores --vocab-size if the tokenizer has a vocabulary. */
static void print_tokenizer(const Config *c, int64_t own_size) {
    banner_line("tokenizer", "%s, vocabulary of %lld padded to %lld",
                c->tokenizer_type ? c->tokenizer_type : "none", (long long)c->derived.vocab_size,
                (long long)c->derived.padded_vocab_size);
    if (own_size && own_size != c->derived.vocab_size && config_given(c, vocab_size))
        printf("  note: --vocab-size is %lld, but the tokenizer's vocabulary has %lld entries; Megatron-LM "
               "would use the tokenizer's number: to do the same, remove --vocab-size\n",
               (long long)c->derived.vocab_size, (long long)own_size);
}

void banner_print(const Config *c, int64_t tokenizer_size, const ModelCount *parameters) {
    char stamp[32];
    clock_stamp(stamp);
    stamp[sizeof "2026-01-31 12:00:00" - 1] = 0;
    banner_line("isotron", "%s, commit %s, %s", isotron_version(), isotron_commit(), stamp);
    print_model(c, parameters);
    print_tokenizer(c, tokenizer_size);
    banner_line("batch", "%s%s of %s, in microbatches of %lld; %s",
                c->derived.num_batch_steps > 1 ? "up to " : "",
                amount(c->derived.global_batch_size, "sample").s, config_tokens_text(c).s,
                (long long)c->derived.micro_batch_size, amount(c->derived.train_iters, "step").s);
    print_layout(c);
    banner_line("precision", "%s%s%s", Lane_spellings[c->lane], c->fp8_format != FP8_NONE ? ", FP8 " : "",
                c->fp8_format != FP8_NONE ? Fp8Format_spellings[c->fp8_format] : "");
}

static void print_paths(const char *name, const TextList *paths) {
    if (!paths->count) return;
    printf("%s:%*s", name, (int)(NAME_WIDTH - 1 - strlen(name)), "");
    enum { SHOWN = 4 };
    for (int64_t i = 0; i < paths->count && i < SHOWN; i++) printf("%s%s", i ? " " : "", paths->at[i]);
    printf(paths->count > SHOWN ? " and %lld more\n" : "\n", (long long)(paths->count - SHOWN));
}

static void print_task(const Config *c) {
    const TextList *labels = &c->class_labels;
    enum { SHOWN = 120 };
    Str text = {0};
    for (int64_t i = 0; i < labels->count && text.len < SHOWN; i++)
        str_printf(&text, "%s%s", i ? ", " : "", labels->at[i]);
    if (c->derived.choices == 1)
        banner_line("task", "%s, %lld classes: %s%s", TaskKind_spellings[c->task], (long long)labels->count,
                    text.s, text.len < SHOWN ? "" : ", ...");
    else
        banner_line("task", "%s, %lld choices per question, and each choice is a sample",
                    TaskKind_spellings[c->task], (long long)c->derived.choices);
    str_free(&text);
}

static void print_records(const Config *c, const Data *data) {
    const char *one = c->derived.choices == 1 ? "sample" : "question";
    const Dataset *trained = data_split(data, SPLIT_TRAIN);
    if (c->task != TASK_NONE) print_task(c);
    if (trained)
        banner_line("training", "%s; %lld epoch%s of %s", amount(data_facts(trained).samples, one).s,
                    (long long)c->epochs, c->epochs == 1 ? "" : "s",
                    amount(data_facts(trained).epoch / c->derived.global_batch_size, "step").s);
    for (int i = 0; i < data_files(data); i++) {
        const DataFacts f = data_facts(data_file(data, i));
        banner_line("validation", "%s in %s", amount(f.samples, one).s, f.file);
    }
}

void banner_print_data(const Config *c, const Data *data) {
    static const char *const NAMES[SPLIT_COUNT] = {"training", "validation", "test"};
    const TextList *own[SPLIT_COUNT] = {&c->train_data_path, &c->valid_data_path, &c->test_data_path};
    if (data_files(data)) {
        print_records(c, data);
        return;
    }
    if (c->mock_data) banner_line("data", "generated (--mock-data)");
    print_paths("data", &c->data_path);
    for (int i = 0; i < SPLIT_COUNT; i++) {
        const Dataset *split = data_split(data, (DataSplit)i);
        print_paths("data", own[i]);
        if (!split) {
            if (i == SPLIT_VALID && c->eval_iters > 0)
                banner_line(NAMES[i], "none, so there is no evaluation%s%s%s",
                            c->derived.split ? " (--split " : "", c->derived.split ? c->derived.split : "",
                            c->derived.split ? ")" : "");
            continue;
        }
        const DataFacts f = data_facts(split);
        banner_line(NAMES[i], "%s; the run reads %s, %.2f epochs", amount(f.tokens, "token").s,
                    amount(f.samples, "sample").s, f.epochs);
    }
}
