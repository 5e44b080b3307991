#include "train/data_options.h"

#include "data/fim_dataset.h"
#include "data/masked_dataset.h"
#include "data/task_dataset.h"
#include "models/option_map.h"

static MaskedConfig masked_options(const Config *c, const TokenFacts *facts) {
    return (MaskedConfig){.tokens = facts->mask,
                          .mask_prob = c->mask_prob,
                          .short_seq_prob = c->short_seq_prob,
                          .binary_head = c->bert_binary_head,
                          .decoder_sequence_length = i64_or(c->decoder_seq_length, 0)};
}

static TaskConfig task_options(const Config *c, const TokenFacts *facts) {
    return (TaskConfig){.format = map_task(c->task),
                        .choices = c->derived.choices,
                        .names = c->class_labels.at,
                        .num_names = (int)c->class_labels.count,
                        .epochs = c->epochs,
                        .keep_last = c->keep_last,
                        .batch = c->derived.global_batch_size / c->derived.choices,
                        .valid_batch =
                            c->derived.micro_batch_size / c->derived.choices * c->derived.data_parallel_size,
                        .second_type = config_token_types(c) > 1,
                        .cls = facts->mask.cls,
                        .sep = facts->mask.sep,
                        .encode = facts->encode,
                        .encode_ctx = facts->text_ctx,
                        .labels = facts->labels};
}

static FimConfig fim_options(const Config *c, const TokenFacts *facts) {
    return (FimConfig){.tokens = facts->fim,
                       .rate = c->fim_rate,
                       .spm_rate = c->fim_spm_rate,
                       .fragment_rate = f64_or(c->fim_fragment_rate, 0),
                       .no_prefix = c->fim_no_prefix,
                       .encode = facts->encode,
                       .decode = facts->decode,
                       .ctx = facts->text_ctx};
}

static void set_files(const TextList *list, DataSplit split, DataConfig *data) {
    data->split_paths[split] = list->at, data->num_split_paths[split] = (int)list->count;
}

/* Opens the data with the configuration for its kind. A task dataset reads the files given by --valid-data and,
 * with --epochs, those given by --train-data. */
static Err open_kind(DataConfig *data, const Config *c, const TokenFacts *facts, Data **out) {
    const MaskedConfig masked = masked_options(c, facts);
    const FimConfig fim = fim_options(c, facts);
    TaskConfig task;
    data->kind_config = data->kind == DATASET_fim ? (const void *)&fim : &masked;
    if (data->kind == DATASET_task) {
        task = task_options(c, facts);
        data->kind_config = &task;
        if (c->epochs) set_files(&c->train_data, SPLIT_TRAIN, data);
        set_files(&c->valid_data, SPLIT_VALID, data);
    }
    return data_open(data, out);
}

static Err count_samples(const Config *c, int64_t samples[SPLIT_COUNT]) {
    const int64_t evaluations =
        i64_is_set(c->eval_interval) ? c->derived.train_iters / c->eval_interval + 1 : 1;
    samples[SPLIT_TRAIN] = c->derived.train_samples > 0
                               ? c->derived.train_samples
                               : c->derived.train_iters * c->derived.global_batch_size;
    samples[SPLIT_TEST] = c->derived.eval_samples;
    if (!__builtin_mul_overflow(evaluations, c->derived.eval_samples, &samples[SPLIT_VALID])) return ERR_OK;
    return err_user(
        "%lld evaluations with --eval-iters %lld batches each need too many samples; lower --eval-iters",
        (long long)evaluations, (long long)c->eval_iters);
}

Err data_open_options(const Config *c, const TokenFacts *facts, bool read_only, Data **out) {
    DataConfig data = {
        .kind = map_dataset(c),
        .paths = c->data_path.at,
        .num_paths = (int)c->data_path.count,
        .split = c->derived.split,
        .mock = c->mock_data,
        .sequence_length = c->seq_length,
        .vocab_size = c->derived.vocab_size,
        .eod = facts->eod,
        .pad = facts->pad,
        .seed = (uint32_t)c->seed,
        .eod_mask_loss = c->eod_mask_loss,
        .reset_position_ids = c->reset_position_ids,
        .reset_attention_mask = c->reset_attention_mask,
        .allow_ambiguous_pad = c->allow_ambiguous_pad_tokens,
        .surplus = c->mid_level_dataset_surplus,
        .cache_dir = c->data_cache_path,
        .read_only = read_only,
        .tokenizer_json = facts->tokenizer_json,
    };
    *out = NULL;
    set_files(&c->train_data_path, SPLIT_TRAIN, &data);
    set_files(&c->valid_data_path, SPLIT_VALID, &data);
    set_files(&c->test_data_path, SPLIT_TEST, &data);
    ERR_RETURN(count_samples(c, data.samples));
    return open_kind(&data, c, facts, out);
}
